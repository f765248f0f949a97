"""References of a JSON schema in the one way in which grammars follow them: to definitions, by their plain names."""

from itertools import count, islice
from typing import Any

from router.openai.schema_support import parts_of, with_parts
from router.text.schema_reference import is_plain, referred

_MOST_PARTS = 20_000  # copied for one schema: what many references name, each inside the next one's, would be


def make_references_plain(schema: dict[str, Any]) -> None:
    """Changes a copy that `with_parts` made. What a reference names with escapes, or in a list, which xgrammar does not
    find, becomes a definition; of what is not there, or too much, it says so.

    >>> schema = {"properties": {"x": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "null"}}}
    >>> make_references_plain(schema)
    >>> schema["properties"]["x"], schema["$defs"]["referred 0"]
    ({'$ref': '#/$defs/referred 0'}, {'type': 'null'})
    """
    definitions = schema.get("$defs", {})
    added: dict[str, object] = {}
    names: dict[int, str] = {}  # by identity of what is referred to
    free = (name for n in count() if (name := f"referred {n}") not in definitions)
    waiting: list[object] = [schema]
    parts_left = _MOST_PARTS
    while waiting:
        for _, part, _ in parts_of(waiting.pop(), ""):
            reference = part.get("$ref") if isinstance(part, dict) else None
            if not isinstance(part, dict) or not isinstance(reference, str) or is_plain(reference, schema):
                continue
            target = referred(reference, schema)
            if id(target) not in names:
                if isinstance(target, dict | bool) and parts_left > 0:
                    parts_left -= sum(1 for _ in islice(parts_of(target, ""), parts_left + 1))
                if not isinstance(target, dict | bool) or parts_left <= 0:
                    continue
                names[id(target)] = next(free)
                added[names[id(target)]] = _copied(target)
                waiting.append(added[names[id(target)]])
            part["$ref"] = f"#/$defs/{names[id(target)]}"
    if added:
        schema["$defs"] = {**definitions, **added}


def _copied(schema: object) -> object:
    return with_parts(schema, _copied) if isinstance(schema, dict) else schema
