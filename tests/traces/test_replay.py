import asyncio
import inspect

import httpx
import pytest
from scripted_server import ScriptedServer

from traces.errors import BadParameter
from traces.outcome import Ending
from traces.record import TraceRecord
from traces.replay import replay

TIMEOUT_S = 20.0


@pytest.fixture
async def server():
    async with ScriptedServer().running() as running:
        yield running


def record(model, arrival_s=0.0, input_tokens=5, output_tokens=3, **fields):
    return TraceRecord(
        arrival_s=arrival_s, model=model, input_tokens=input_tokens, output_tokens=output_tokens, **fields
    )


async def outcome_of(server, model, *, timeout_s=TIMEOUT_S, **fields):
    (outcome,) = await replay([record(model, **fields)], url=server.url, timeout_s=timeout_s)
    return outcome


async def test_replay__good_answer__is_finished_with_times_and_counts(server):
    outcome = await outcome_of(server, "ok", input_tokens=7, output_tokens=12)

    assert (outcome.ending, outcome.finish_reason, outcome.status_code) == (Ending.FINISHED, "length", 200)
    assert (outcome.input_tokens, outcome.requested_tokens, outcome.output_tokens) == (7, 12, 12)
    assert len(outcome.gaps_s) == 11
    assert outcome.error is None
    assert outcome.sent_s >= 0
    assert 0 < outcome.ttft_s <= outcome.end_s - outcome.sent_s


async def test_replay__paced_answer__gaps_are_the_pace(server):
    outcome = await outcome_of(server, "paced", output_tokens=4)

    assert outcome.ttft_s >= 0.045
    assert len(outcome.gaps_s) == 3
    assert outcome.end_s - outcome.sent_s == pytest.approx(outcome.ttft_s + sum(outcome.gaps_s))
    # Lower bounds only: nothing makes a sleep shorter, but what came before it may be read late.
    assert sum(outcome.gaps_s) >= 0.09


async def test_replay__several_tokens_a_chunk_in_odd_pieces__usage_gives_the_count(server):
    outcome = await outcome_of(server, "merged", output_tokens=12)

    assert (outcome.ending, outcome.output_tokens, len(outcome.gaps_s)) == (Ending.FINISHED, 12, 2)


async def test_replay__no_usage__chunks_give_the_count(server):
    assert (await outcome_of(server, "paced", output_tokens=2)).output_tokens == 2


async def test_replay__finished_without_any_text__the_finish_is_the_first_token(server):
    outcome = await outcome_of(server, "textless", output_tokens=1)

    assert (outcome.ending, outcome.output_tokens, outcome.gaps_s) == (Ending.FINISHED, 1, ())
    assert outcome.ttft_s == pytest.approx(outcome.end_s - outcome.sent_s)


@pytest.mark.parametrize(
    ("model", "ending", "status_code", "error"),
    [
        ("busy", Ending.REJECTED, 429, "queue full"),
        ("unready", Ending.REJECTED, 503, "no unit"),
        ("unknown", Ending.FAILED, 404, "no such model"),
        ("broken", Ending.FAILED, 500, "boom"),
        ("error_chunk", Ending.FAILED, 200, "unit lost"),
        ("error_finish", Ending.FAILED, 200, "finish_reason='error'"),
        ("garbage", Ending.FAILED, 200, "{not json}"),
        ("cut", Ending.LOST, 200, "connection: RemoteProtocolError"),
        ("reset", Ending.LOST, None, "connection: "),
        ("unfinished", Ending.LOST, 200, "without a finish reason"),
        ("finished_then_cut", Ending.FINISHED, 200, None),
    ],
)
async def test_replay__trouble__ends_as_what_it_is(server, model, ending, status_code, error):
    outcome = await outcome_of(server, model)

    assert (outcome.ending, outcome.status_code) == (ending, status_code)
    assert outcome.error is None if error is None else error in outcome.error


async def test_replay__stream_cut__keeps_what_had_arrived(server):
    outcome = await outcome_of(server, "cut", output_tokens=9)

    assert (outcome.output_tokens, len(outcome.gaps_s)) == (2, 1)
    assert outcome.ttft_s is not None


@pytest.mark.parametrize("model", ["hung", "silent"])
async def test_replay__no_end_in_time__is_lost_after_the_timeout(server, model):
    outcome = await outcome_of(server, model, timeout_s=1.5)

    assert outcome.ending is Ending.LOST
    assert outcome.error == "no terminal answer within 1.5 s"
    assert outcome.end_s - outcome.sent_s >= 1.49
    assert (outcome.ttft_s is not None) == (model == "hung")


async def test_replay__nobody_listens__is_lost(server):
    (outcome,) = await replay([record("ok")], url="http://127.0.0.1:1", timeout_s=TIMEOUT_S)

    assert (outcome.ending, outcome.status_code) == (Ending.LOST, None)
    assert "ConnectError" in outcome.error


async def test_replay__all_answers_held_back__every_request_is_sent_nevertheless(server):
    count = 150  # more than httpx's default limit of connections

    async def release_when_all_are_open():
        async with asyncio.timeout(TIMEOUT_S):
            await server.until_open(count)
        server.release.set()

    outcomes, _ = await asyncio.gather(
        replay([record("held") for _ in range(count)], url=server.url, timeout_s=TIMEOUT_S), release_when_all_are_open()
    )

    assert [o.ending for o in outcomes] == [Ending.FINISHED] * count


async def test_replay__arrival_times__nothing_leaves_early_and_order_follows_the_clock(server):
    records = [record("ok", 0.3, input_tokens=3), record("ok", 0.0, input_tokens=1), record("ok", 0.15, input_tokens=2)]

    outcomes = await replay(records, url=server.url, timeout_s=TIMEOUT_S)

    assert [o.index for o in outcomes] == [0, 1, 2]
    assert [o.scheduled_s for o in outcomes] == [0.3, 0.0, 0.15]
    assert all(o.sent_s >= o.scheduled_s - 0.002 for o in outcomes)  # asyncio's clock resolution
    assert outcomes[1].sent_s < outcomes[2].sent_s < outcomes[0].sent_s
    assert [o.input_tokens for o in outcomes] == [3, 1, 2]


async def test_replay__request_body__asks_for_exactly_the_record(server):
    records = [record("ok", input_tokens=40, output_tokens=2), record("ok", 0.01, output_tokens=0)]

    await replay(
        records, url=server.url, timeout_s=TIMEOUT_S, api_key="secret", vocab_sizes={"ok": 38}, extra_body={"top_k": 5}
    )

    short, body = sorted(server.bodies, key=lambda body: len(body["prompt"]))
    assert (len(body["prompt"]), body["max_tokens"]) == (40, 2)
    assert set(body["prompt"]) == {36, 37}
    assert (body["ignore_eos"], body["stream"], body["temperature"], body["top_k"]) == (True, True, 0, 5)
    assert body["stream_options"] == {"include_usage": True}
    assert short["max_tokens"] == 1
    assert all("authorization: bearer secret" in headers.lower() for headers in server.headers)
    assert all(headers.startswith("POST /v1/completions ") for headers in server.headers)


async def test_replay__shared_blocks__prompts_share_their_prefix(server):
    records = [
        record("ok", 0.00, input_tokens=40, prefix_block_hashes=(7, 8, 9)),
        record("ok", 0.05, input_tokens=40, prefix_block_hashes=(7, 8, 5)),
    ]

    await replay(records, url=server.url, timeout_s=TIMEOUT_S, block_tokens=16)

    one, two = (body["prompt"] for body in server.bodies)
    assert one[:32] == two[:32]
    assert one[32:] != two[32:]


async def test_replay__progress__counts_every_ending(server):
    seen = []

    await replay(
        [record("ok"), record("busy"), record("cut")],
        url=server.url,
        timeout_s=TIMEOUT_S,
        on_progress=lambda done, total: seen.append((done, total)),
    )

    assert seen == [(1, 3), (2, 3), (3, 3)]


async def test_replay__interrupted__what_had_ended_was_told(server):
    heard, is_told = [], asyncio.Event()

    def hear(outcome):
        heard.append(outcome)
        is_told.set()

    running = asyncio.ensure_future(
        replay([record("ok"), record("ok", arrival_s=3600.0)], url=server.url, timeout_s=TIMEOUT_S, on_outcome=hear)
    )
    await asyncio.wait_for(is_told.wait(), TIMEOUT_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert [(outcome.index, outcome.ending) for outcome in heard] == [(0, Ending.FINISHED)]


async def test_replay__nothing_to_send__no_outcomes(server):
    assert await replay([], url=server.url, timeout_s=TIMEOUT_S) == []


async def test_replay__own_transport__is_used():
    def refuse(request):
        return httpx.Response(429, json={"error": {"message": str(request.url)}})

    (outcome,) = await replay(
        [record("ok")], url="https://fleet.example/v1", timeout_s=1.0, transport=httpx.MockTransport(refuse)
    )

    assert outcome.error == "https://fleet.example/v1/completions"


@pytest.mark.parametrize(
    ("records", "arguments", "name"),
    [
        ([], {"url": "fleet:8000"}, "url"),
        ([], {"url": "ftp://fleet"}, "url"),
        ([], {"url": "http://"}, "url"),
        ([], {"url": "http://[::1"}, "url"),
        ([], {"timeout_s": 0}, "timeout_s"),
        ([record(None)], {}, "records"),
        ([record("ok", prefix_block_hashes=(1,))], {}, "block_tokens"),
        ([record("ok")], {"vocab_sizes": {"ok": 36}}, "vocab_sizes"),
        ([record("ok")], {"extra_body": {"stop": {1, 2j}}}, "extra_body"),
    ],
)
async def test_replay__unusable_argument__is_refused_before_anything_is_sent(server, records, arguments, name):
    with pytest.raises(BadParameter) as caught:
        await replay(records, **{"url": server.url, "timeout_s": 1.0, **arguments})

    assert caught.value.name == name
    assert server.bodies == []


def test_replay__signature__is_what_others_call():
    keywords = {n for n, p in inspect.signature(replay).parameters.items() if p.kind is p.KEYWORD_ONLY}

    assert {
        "url",
        "timeout_s",
        "api_key",
        "block_tokens",
        "vocab_sizes",
        "seed",
        "on_progress",
        "transport",
    } <= keywords
