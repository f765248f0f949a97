"""One reply as it grows: answer, reasoning and tool calls apart. transformers' parser, and what surrounds it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from router.text.call_arguments import casting_tools
from router.text.calls import CalledTool, ReplyParts
from router.text.read_calls import CallReader
from router.text.reply_templates import REASONING_FIELDS, TOOL_FIELD


class ReplyParser:
    """Feed it what the model says, in order. What cannot be read as its template says is answer: nothing gets lost."""

    def __init__(self, template: Mapping[str, Any], prompt_end: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """`prompt_end` is the end of the prompt, which may have opened a part of the reply already.

        Raises:
            ValueError: the template is none.
        """
        import regex  # type: ignore[import-untyped]  # transformers' own; it has no types
        from transformers.utils.chat_parsing.response_templates import load_response_template

        from router.text.raw_regions import RawRegions  # it imports transformers, too

        spec = load_response_template(_lenient(template))
        prefix = prompt_end if spec.start_anchor_re.search(prompt_end) else _opened(template, prompt_end)
        in_json = template["fields"].get(TOOL_FIELD, {}).get("content") == "json"
        told = casting_tools(tools, in_json=in_json)
        self._parser = RawRegions(spec, prefix=prefix, tools=told)
        self._in_json = in_json
        self._is_broken = False
        self._region: str | None = None
        self._has_regions = False
        self._strips = False
        self._space = ""  # may turn out to stand at the end of a part
        self._goes_on = False  # the answer, after what was no call
        self._before_call = ""  # space before the call that is open, which may turn out to be none
        self._raw = ""  # of the structured part that is open, from some time before its start
        for event in self._parser.initial_events:
            self._take(event, [], [], [])
        # A reply thinks first, or not at all: marks in the midst of an answer are what it talks of.
        firsts = {name: _at_start(field.open_re.pattern) for name, field in _marked_thoughts(spec.fields).items()}
        if firsts:
            only_first = load_response_template({"start_anchor": "<", "fields": firsts})
            for name in firsts:
                spec.fields[name].open_re = only_first.fields[name].open_re
            if self._region in (None, "content"):  # the prompt has left nothing open: the reply has its own start
                self._parser, self._region = RawRegions(spec, prefix="", tools=told), None
        self._reader = CallReader(tools, self._parser.cast, in_json=in_json)
        for field in spec.fields.values():
            for name in ("open_re", "close_re"):
                if (found := getattr(field, name)) is not None:
                    setattr(field, name, regex.compile(_once_a_run(found.pattern), found.flags))

    def feed(self, text: str, *, ends: bool) -> ReplyParts:
        if self._is_broken:
            return ReplyParts(text=text)
        answer: list[str] = []
        reasoning: list[str] = []
        calls: list[CalledTool] = []
        was_reasoning = self._region in REASONING_FIELDS
        if self._region is None or not self._is_structured(self._region):
            self._raw = ""
        self._raw += text
        try:
            events = self._parser.feed(text)
            if ends:
                events += self._parser.finalize()[1]
        except (ValueError, KeyError, TypeError, RecursionError):  # a call is not what its template says
            self._is_broken = True
            return ReplyParts(text=self._raw)
        for event in events:
            self._take(event, answer, reasoning, calls)
        if ends:
            answer.append(self._rest())
        is_reasoning = was_reasoning or (self._region in REASONING_FIELDS and not "".join(answer))
        is_call = self._region is not None and self._is_structured(self._region)
        return ReplyParts("".join(answer), "".join(reasoning), calls, is_reasoning or bool(reasoning), is_call)

    def _take(self, event: Mapping[str, Any], answer: list[str], reasoning: list[str], calls: list[CalledTool]) -> None:
        field = event["field"]
        match event["type"]:
            case "region_open":
                self._strips = field in REASONING_FIELDS or (self._has_regions and not self._goes_on)
                self._goes_on = False
                if field == TOOL_FIELD:
                    self._before_call = self._space
                elif field != "content":
                    self._has_regions = True
                self._region, self._space = field, ""
            case "region_chunk" if not event["dirty"]:
                self._say(event["text"], reasoning if field in REASONING_FIELDS else answer, field)
            case "region_close":
                self._region = None
                if field == TOOL_FIELD:
                    said = [] if self._is_cut_off(event) else self._reader.calls(event["value"])
                    calls.extend(said)
                    self._has_regions |= bool(said)
                    if not said:  # the answer only speaks of calls
                        answer.append(self._before_call + event["raw"])
                        self._goes_on = True
                elif field != "content":
                    self._space = ""

    def _say(self, text: str, into: list[str], field: str) -> None:
        if field != "content" and field not in REASONING_FIELDS:
            return
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        into.append(kept)

    def _rest(self) -> str:
        rest = "" if self._region in REASONING_FIELDS else self._space
        self._space = ""
        return rest

    def _is_cut_off(self, event: Mapping[str, Any]) -> bool:
        """Values between marks show by nothing else that they are not all there. Some leave `</tool_call>` out."""
        return not self._in_json and event["is_open"] and not event["raw"].rstrip().endswith("</function>")

    def _is_structured(self, field: str) -> bool:
        return field != "content" and field not in REASONING_FIELDS


def _opened(template: Mapping[str, Any], prompt_end: str) -> str:
    """Returns the mark of the reasoning where the prompt ends with it, however it begins the assistant's turn."""
    marks = [template["fields"][field].get("open") for field in REASONING_FIELDS if field in template["fields"]]
    end = prompt_end.rstrip()
    return next((mark for mark in marks if isinstance(mark, str) and end.endswith(mark.rstrip())), "")


def _marked_thoughts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the reasoning that a mark opens. What opens it otherwise, as in channels, knows itself where."""
    return {name: fields[name] for name in REASONING_FIELDS if name in fields and fields[name].open_literals}


def _once_a_run(pattern: str) -> str:
    """Looks for what begins with any number of spaces only where such a run begins: from each of its spaces on it takes
    fifteen times as long, and models that find no end say nothing but spaces.
    """
    return rf"(?:(?<!\s)|\G){pattern}" if pattern.startswith(r"\s*") else pattern


def _at_start(pattern: str) -> dict[str, str]:
    return {"open_pattern": rf"\A\s*(?:{pattern})", "content": "text"}


def _lenient(template: Mapping[str, Any]) -> dict[str, Any]:
    """What is no JSON comes out as text instead of as an error."""
    lenient = deepcopy(dict(template))
    for field in lenient["fields"].values():
        if field.get("content") == "json":
            field["content_args"] = {**field.get("content_args", {}), "allow_non_json": True}
    return lenient
