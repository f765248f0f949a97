"""What HTTP clients put around a request: base URLs, encodings, byte order marks."""

import codecs
import gzip
import json

import pytest

MODEL = "demo/bytes"
COMPLETION = {"model": MODEL, "prompt": "hi", "max_tokens": 3}


async def test_content_encoding__any__415_as_no_body_is_unpacked(http) -> None:
    packed = gzip.compress(json.dumps(COMPLETION).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = await http.post("/v1/completions", content=packed, headers=headers)
    assert reply.status_code == 415
    assert reply.json()["error"]["message"] == "Content-Encoding 'gzip' is not supported; send the body as it is."
    assert (await http.post("/v1/completions", json=COMPLETION, headers={"content-encoding": "identity"})).is_success


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/tokenize"])
async def test_body__begins_with_a_byte_order_mark__is_read(http, path) -> None:
    body = {"model": MODEL, "input" if path == "/v1/responses" else "prompt": "hi"}
    reply = await http.post(path, content=b"\xef\xbb\xbf" + json.dumps(body).encode())
    assert reply.is_success, reply.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"])
async def test_body__is_utf_16__is_told_so(http, path) -> None:
    body = codecs.BOM_UTF16_LE + json.dumps(COMPLETION).encode("utf-16-le")
    reply = await http.post(path, content=body)
    assert reply.status_code == 400
    assert "it is UTF-16" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("//v1/chat/completions/", "/v1/chat/completions"),
        ("/openai/deployments/m/chat/completions", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/messages", "/v1/messages"),
    ],
)
async def test_path__of_a_wrong_base_url__is_told_which_was_meant(http, path: str, meant: str) -> None:
    reply = await http.post(http.served.url + path, json={})
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == f"Unknown request URL: POST {path}. Did you mean {meant}?"


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'"\xff"', "invalid start byte"),
        (b'"\xed\xa0\x80"', "invalid continuation byte"),
        (b'"\\ud83d"', "half of a pair of surrogates"),
        (b'"a\\uDE00b"', "half of a pair of surrogates"),
        (b"", "it is empty"),
    ],
)
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", b'"messages":[{"role":"user","content":%s}]'),
        ("/v1/completions", b'"prompt":%s'),
        ("/v1/embeddings", b'"input":%s'),
        ("/v1/embeddings", b'"input":["a",%s]'),
        ("/v1/responses", b'"input":%s'),
        ("/tokenize", b'"prompt":%s'),
    ],
)
async def test_body__text_that_is_no_utf8_or_nothing__is_told_why(http, path, field, text, says, size) -> None:
    body = b'{"model":"demo/bytes",' + b" " * size + field % text + b"}" if text else b""
    reply = await http.post(path, content=body, headers={"content-type": "application/json"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")
    assert says in reply.json()["error"]["message"]
