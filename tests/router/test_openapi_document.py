"""schemathesis against the document the gateway exports, and replies against the schemas in it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest
import schemathesis
from fake_unit import FakeUnit, fleet_view
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from served_gateway import InlineText, running

from router.batches.batch_settings import BatchSettings
from router.http.app import openapi_document
from router.openai import schemas
from router.serving.gateway import Gateway

MODEL = "demo/bytes"
ANSWER_S = 60.0  # a request shares the machine, and this process, with whoever makes the next one up
load_all_checks()
api = schemathesis.openapi.from_dict(openapi_document())


@pytest.fixture(scope="module")
def served_url(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway and a unit in a thread of their own: schemathesis calls synchronously. It works on text itself: the
    process for that is started, and the tokenizer loaded, with the first request, which on a busy machine takes longer
    than a client of schemathesis waits.
    """
    url: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def live() -> None:
        gateway = Gateway(start_text=InlineText.start)
        batches = BatchSettings(url=str(tmp_path_factory.mktemp("batches")), poll_s=0.1)
        async with FakeUnit(max_model_len=64) as unit, running(gateway, batches=batches) as address:
            gateway.update_view(fleet_view(unit, source=tokenizer_folder))
            async with httpx.AsyncClient(base_url=address) as http:
                while True:  # until its folder is open
                    if (await http.get("/v1/files")).status_code != 503:
                        break
                    await asyncio.sleep(0.02)
            url.set_result(address)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    yield url.result(timeout=30)
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=30)
    loop.close()


@api.parametrize()
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_api__generated_cases__answers_as_documented(case, served_url: str) -> None:
    # Valid by the schema is not yet acceptable: lengths depend on the model, messages on its template. And a part of a
    # form is text whatever its type should be wrong by: a file that is `true` is one of four bytes.
    of_forms = [negative_data_rejection] if case.media_type == "multipart/form-data" else []
    case.call_and_validate(base_url=served_url, excluded_checks=[positive_data_acceptance, *of_forms], timeout=ANSWER_S)


@api.include(path_regex="completions|embeddings").parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_api__generated_cases_for_a_served_model__answer_as_documented(case, served_url: str) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and case.body["model"]:
        case.body["model"] = MODEL
    case.call_and_validate(base_url=served_url, excluded_checks=[positive_data_acceptance], timeout=ANSWER_S)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ],
)
def test_stream__every_event__is_what_the_document_says(served_url: str, path: str, body: dict) -> None:
    case = api[path]["POST"].Case(body={"model": MODEL, "max_tokens": 4, "stream": True, **body})

    response = case.call_and_validate(base_url=served_url, timeout=ANSWER_S)

    assert response.headers["content-type"][0].startswith("text/event-stream")


def test_document__operations__name_their_errors_and_no_422() -> None:
    document = openapi_document()

    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
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
