import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.errors import FleetUnreachable
from deploy.served_models import served_models
from deploy.unit_figures import parse_unit_figures
from pdmux_actor.lease import ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad, Slo
from router.gateway import Gateway
from router.view import FleetView, ModelCard, UnitView
from traces.report import SloTarget


class Endpoint(ThreadingHTTPServer):
    answer: tuple[int, str] = (200, "")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Endpoint)
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[tuple[Endpoint, str]]:
    with Endpoint(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_served_models__our_list__has_lengths_and_targets(endpoint: tuple[Endpoint, str]) -> None:
    server, url = endpoint
    entry = {"id": "a", "status": "ready", "max_model_len": 64, "slo": {"ttft_s": 1, "tbt_s": 0.5}, "more": 1}
    server.answer = (200, json.dumps({"data": [entry]}))

    (model,) = served_models(f"{url}/v1/")

    assert (model.id, model.max_model_len, model.slo) == ("a", 64, SloTarget(ttft_s=1.0, tbt_s=0.5))


def test_served_models__plain_openai_list__leaves_the_rest_open(endpoint: tuple[Endpoint, str]) -> None:
    server, url = endpoint
    server.answer = (200, '{"object": "list", "data": [{"id": "gpt", "object": "model"}]}')

    (model,) = served_models(url)

    assert (model.status, model.max_model_len, model.slo) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, '{"data": []}', "it serves no models"),
        (200, "<html>", "/v1/models is not OpenAI's list of models"),
        (401, "", "/v1/models answers 401"),
    ],
)
def test_served_models__something_else__says_what(
    endpoint: tuple[Endpoint, str], status: int, body: str, reason: str
) -> None:
    server, url = endpoint
    server.answer = (status, body)

    with pytest.raises(FleetUnreachable, match=reason):
        served_models(url)


@pytest.mark.parametrize("url", ["127.0.0.1:9", "ftp://x", "http://", "::"])
def test_served_models__not_a_url__says_so(url: str) -> None:
    with pytest.raises(FleetUnreachable):
        served_models(url)


async def test_parse_unit_figures__exposition_of_a_gateway__has_every_unit() -> None:
    gateway = Gateway()
    load = ModelLoad(
        model="a",
        running=2,
        waiting=1,
        used_blocks=30,
        quota_blocks=50,
        preemptions_total=0,
        prompt_tokens_total=0,
        output_tokens_total=0,
    )
    report = UnitReport(
        unit_id="u1",
        node="n",
        pool="p",
        num_gpus=1,
        endpoint="127.0.0.1:1",
        memory_bytes=1,
        block_bytes=1,
        total_blocks=100,
        lease_version=1,
        models=(ModelStatus(model="a", phase=ModelPhase.READY, max_model_len=64),),
        load=LoadReport(
            models=(load,),
            total_blocks=100,
            free_blocks=70,
            prefill_sms=1,
            decode_sms=1,
            steps_total=9,
            decode_bubble_share=0.25,
        ),
    )
    card = ModelCard(model="a", source="/nowhere", revision=None, slo=Slo(ttft_s=1, tbt_s=1), created_s=1)
    gateway.update_view(FleetView(models=(card,), units=(UnitView(report=report, age_s=0.25),), stream_token="secret"))

    exposition = gateway.metrics.exposition().decode()
    (unit,) = parse_unit_figures(exposition)
    await gateway.close()

    assert (unit.unit, unit.report_age_s) == ("u1", 0.25)
    (model,) = unit.models
    assert (model.model, model.running, model.waiting, model.used_blocks, model.quota_blocks) == ("a", 2, 1, 30, 50)
    assert 'muxfleet_lane_bubble_share{phase="decode",unit="u1"} 0.25' in exposition
    assert "secret" not in exposition
