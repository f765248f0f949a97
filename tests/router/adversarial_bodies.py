"""Bodies that want to keep a gateway busy, by name. Built when they are sent: together they are too large to keep."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_FULL = 8 * 1024 * 1024 - 512  # bytes, within the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary:
    path: str
    build: Callable[[], bytes]
    statuses: tuple[int, ...] = (400,)


def _chat(messages: bytes, extra: bytes = b"", model: bytes = b"merged") -> bytes:
    return b'{"model":"' + model + b'","max_tokens":1,"messages":' + messages + extra + b"}"


def _said(text: bytes, extra: bytes = b"", model: bytes = b"merged") -> bytes:
    return _chat(b'[{"role":"user","content":"' + text + b'"}]', extra, model)


def _prompt(prompt: bytes, extra: bytes = b"", model: bytes = b"merged") -> bytes:
    return b'{"model":"' + model + b'","max_tokens":1,"prompt":' + prompt + extra + b"}"


def _many(item: bytes, total_bytes: int = _FULL) -> bytes:
    return b"[" + b",".join([item] * ((total_bytes - 512) // (len(item) + 1))) + b"]"


def _named(count: int, value: bytes = b"1") -> bytes:
    return b",".join(b'"k%d":%s' % (i, value) for i in range(count))


def _kwargs(**arguments: object) -> bytes:
    return b',"chat_template_kwargs":' + json.dumps(arguments).encode()


_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_HI = b'[{"role":"user","content":"hi"}]'

ADVERSARIES: Mapping[str, Adversary] = {
    # templates
    "template of the client": Adversary(path=CHAT, build=lambda: _said(b"hi", _kwargs(chat_template=_LOOP))),
    "tokenize": Adversary(path=CHAT, build=lambda: _said(b"hi", _kwargs(tokenize=True))),
    "tools in kwargs": Adversary(path=CHAT, build=lambda: _said(b"hi", _kwargs(tools=[{}] * 1000))),
    "documents in kwargs": Adversary(path=CHAT, build=lambda: _said(b"hi", _kwargs(documents=[{}] * 1000))),
    "messages in kwargs": Adversary(path=CHAT, build=lambda: _said(b"hi", _kwargs(messages=[]))),
    "return_tensors": Adversary(path=CHAT, build=lambda: _said(b"hi", _kwargs(return_tensors="pt"))),
    "return_assistant_tokens_mask": Adversary(
        path=CHAT, build=lambda: _said(b"hi", _kwargs(return_assistant_tokens_mask=True))
    ),
    "kwargs of megabytes": Adversary(
        path=CHAT, build=lambda: _chat(_HI, b',"chat_template_kwargs":{"a":' + _many(b"1") + b"}")
    ),
    "checkpoint's template loops": Adversary(path=CHAT, build=lambda: _said(b"hi", model=b"loops")),
    "checkpoint's template loops over much": Adversary(path=CHAT, build=lambda: _said(b"a" * 100_000, model=b"loops")),
    "tokenizer that does not load": Adversary(path=CHAT, build=lambda: _said(b"hi", model=b"broken"), statuses=(503,)),
    # one text
    "one word": Adversary(path=CHAT, build=lambda: _said(b"a" * _FULL)),
    "one word that may fit": Adversary(path=CHAT, build=lambda: _said(b"a" * 1_000_000)),
    "one word to complete": Adversary(path=COMPLETIONS, build=lambda: _prompt(b'"' + b"a" * 1_000_000 + b'"')),
    "spaces": Adversary(path=CHAT, build=lambda: _said(b" " * _FULL)),
    "spaces that may fit": Adversary(path=COMPLETIONS, build=lambda: _prompt(b'"' + b" " * 1_000_000 + b'"')),
    "new lines": Adversary(path=COMPLETIONS, build=lambda: _prompt(b'"' + b"\\n" * 500_000 + b'"')),
    "escapes": Adversary(path=CHAT, build=lambda: _said(b"\\u00e9" * (_FULL // 6))),
    "emoji": Adversary(path=COMPLETIONS, build=lambda: _prompt(b'"' + "👩‍👩‍👧".encode() * 20_000 + b'"')),
    "combining characters": Adversary(
        path=COMPLETIONS, build=lambda: _prompt(b'"' + "a\u0301".encode() * 200_000 + b'"')
    ),
    "digits": Adversary(path=COMPLETIONS, build=lambda: _prompt(b'"' + b"7" * 900_000 + b'"')),
    "special tokens": Adversary(
        path=COMPLETIONS, build=lambda: _prompt(b'"' + b"<|im_end|>" * 60_000 + b'"'), statuses=(200, 400)
    ),
    "a prompt that fits": Adversary(
        path=COMPLETIONS, build=lambda: _prompt(b'"' + b"ab " * 30_000 + b'"'), statuses=(200,)
    ),
    # many messages
    "empty messages": Adversary(path=CHAT, build=lambda: _chat(_many(b'{"role":"user","content":""}'))),
    "messages without content": Adversary(path=CHAT, build=lambda: _chat(_many(b'{"role":"user"}'))),
    "messages that are nothing": Adversary(path=CHAT, build=lambda: _chat(_many(b"{}"))),
    "messages that are lists": Adversary(path=CHAT, build=lambda: _chat(_many(b"[]"))),
    "messages that are null": Adversary(path=CHAT, build=lambda: _chat(_many(b"null"))),
    "as many messages as may be": Adversary(
        path=CHAT,
        build=lambda: _chat(b"[" + b",".join([b'{"role":"user","content":"x"}'] * 4096) + b"]"),
        statuses=(200,),
    ),
    "messages with empty lists": Adversary(path=CHAT, build=lambda: _chat(_many(b'{"role":"user","content":[]}'))),
    "messages of unknown fields": Adversary(path=CHAT, build=lambda: _chat(b"[{" + _named(600_000) + b"}]")),
    "tool calls in a message": Adversary(
        path=CHAT, build=lambda: _chat(b'[{"role":"assistant","tool_calls":' + _many(b"[]") + b"}]")
    ),
    # many parts
    "empty parts": Adversary(
        path=CHAT, build=lambda: _chat(b'[{"role":"user","content":' + _many(b'{"type":"text","text":""}') + b"}]")
    ),
    "parts that are nothing": Adversary(
        path=CHAT, build=lambda: _chat(b'[{"role":"user","content":' + _many(b"{}") + b"}]")
    ),
    "small parts that are nothing": Adversary(
        path=CHAT, build=lambda: _chat(b'[{"role":"user","content":' + _many(b"{}", 60_000) + b"}]")
    ),
    "an image": Adversary(
        path=CHAT,
        build=lambda: _chat(
            b'[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:' + b"A" * 7_000_000 + b'"}}]}]'
        ),
    ),
    # prompts of many kinds
    "token ids": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b"1"))),
    "token ids within the limit": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b"1", 2_000_000))),
    "lists of token ids": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b"[1]"))),
    "empty lists": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b"[]"))),
    "texts": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b'""'))),
    "numbers and texts": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b'1,"a"'))),
    "numbers and texts, few": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b'1,"a"', 60_000))),
    "large numbers": Adversary(path=COMPLETIONS, build=lambda: _prompt(_many(b"99999999999999999999"))),
    "a prompt for each choice": Adversary(
        path=COMPLETIONS, build=lambda: _prompt(_many(b'"' + b"a b " * 100 + b'"', 50_000)), statuses=(200,)
    ),
    # other fields
    "unknown fields": Adversary(path=CHAT, build=lambda: b"{" + _named(600_000) + b"}"),
    "metadata": Adversary(path=CHAT, build=lambda: _chat(_HI, b',"metadata":{' + _named(500_000, b'""') + b"}")),
    "stop strings": Adversary(path=CHAT, build=lambda: _chat(_HI, b',"stop":' + _many(b'"a"'))),
    "one stop string": Adversary(path=CHAT, build=lambda: _chat(_HI, b',"stop":"' + b"a" * 60_000 + b'"')),
    "a schema": Adversary(
        path=CHAT,
        build=lambda: _chat(
            _HI,
            b',"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"a":'
            + _many(b"{}")
            + b"}}}",
        ),
    ),
    "the same field again": Adversary(path=CHAT, build=lambda: b"{" + b'"model":1,' * 800_000 + b'"model":1}'),
    # not JSON
    "nesting": Adversary(path=CHAT, build=lambda: b"[" * (_FULL // 2) + b"]" * (_FULL // 2)),
    "nesting inside": Adversary(path=CHAT, build=lambda: _chat(b"[" * (_FULL // 2))),
    "half a body": Adversary(path=CHAT, build=lambda: _said(b"a" * 4_000_000)[:-3]),
    "bytes that are no text": Adversary(path=CHAT, build=lambda: b"\xff" * _FULL),
}
