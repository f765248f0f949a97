"""Replies against the schemas in the document the gateway exports."""

import time

import httpx
import pytest
import schemathesis
from schemathesis.checks import load_all_checks
from served_document import ANSWER_S, MODEL

from router.http.app import openapi_document
from router.openai import schemas


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ],
)
def test_stream__every_event__is_what_the_document_says(served_url: str, path: str, body: dict) -> None:
    load_all_checks()
    api = schemathesis.openapi.from_dict(openapi_document())
    case = api[path]["POST"].Case(body={"model": MODEL, "max_tokens": 4, "stream": True, **body})

    response = case.call_and_validate(base_url=served_url, timeout=ANSWER_S)

    assert response.headers["content-type"][0].startswith("text/event-stream")


def test_document__operations__name_their_errors_and_no_422() -> None:
    document = openapi_document()

    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score"):
        operation = document["paths"][path]["post"]
        assert set(operation["responses"]) == {"200", "400", "404", "413", "415", "429", "500", "502", "503"}
        assert operation["requestBody"]["required"] is True
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert document["components"]["schemas"]["ChatCompletionRequest"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, schemas.ChatCompletion),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2},
            schemas.ChatCompletion,
        ),
        ("/v1/completions", {"prompt": "x"}, schemas.Completion),
        ("/v1/completions", {"prompt": "x", "logprobs": 2}, schemas.Completion),
        ("/v1/embeddings", {"input": ["x", "y"]}, schemas.EmbeddingList),
        ("/v1/embeddings", {"input": [1], "encoding_format": "base64"}, schemas.EmbeddingList),
    ],
)
def test_reply__of_every_kind__is_what_the_document_says(served_url, path, body, schema) -> None:
    bounds = {} if "input" in body else {"max_tokens": 4}
    reply = httpx.post(served_url + path, json={"model": MODEL, **bounds, **body})

    assert reply.status_code == 200
    assert schema.model_validate_json(reply.content).model_dump(exclude_unset=True) == reply.json()


def test_operations__health_ready_version_metrics__answer(served_url) -> None:
    assert httpx.get(f"{served_url}/health").json() == {"status": "ok"}
    until_s = time.monotonic() + 30
    while (ready := httpx.get(f"{served_url}/ready")).status_code == 503 and time.monotonic() < until_s:
        time.sleep(0.1)  # its tokenizer is loading
    assert ready.json() == {"status": "ready", "models": [MODEL]}
    assert httpx.get(f"{served_url}/version").json()["version"]
    metrics = httpx.get(f"{served_url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "muxfleet_build_info" in metrics.text
    assert "muxfleet_telemetry_age_seconds" in metrics.text
