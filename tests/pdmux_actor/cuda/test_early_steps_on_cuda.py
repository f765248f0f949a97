"""The executor's part of decode steps that come before the one in flight has ended: tokens, memory, failures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from cpu_rig import CpuRig, make_prompt
from cuda_rig import BLOCK_BYTES, NUM_SMS, CpuLanes, make_cuda_rig

from pdmux_actor.engine import build_engine
from pdmux_actor.executor.cuda.cuda_runner import CudaRunner
from pdmux_actor.messages import FinishReason, GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.model_info import ModelSource
from pdmux_actor.scheduling.events import Abort, Arrival, AttachModel, Event, RemoveModel
from pdmux_actor.scheduling.launch import DecodeStep, Launch, PrefillSlice, Repartition
from pdmux_actor.scheduling.settings import SchedulerSettings
from placement.launch_limits import LaunchLimits
from profiler.roofline import RooflineLatency

SLO = Slo(ttft_s=60.0, tbt_s=60.0)


class LateEvent:
    """Of a launch that is in flight for as many looks as there are launches behind it."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def query(self) -> bool:
        self._looks -= 1
        return self._looks < 0


class Engine:
    """Of one model on the rig; events come at turns of its loop."""

    def __init__(
        self, folder: Path, events: Mapping[int, Sequence[Event]], *, early_steps: bool, quota_blocks: int | None = None
    ) -> None:
        rig = make_cuda_rig(launch_limits=LaunchLimits(batch_tokens=64, sequences=8))
        self.executor = rig.executor
        self.executor._lanes.record = lambda stream: LateEvent(2)
        self.told: list[TokenEvent] = []
        self.launches: list[Launch] = []
        self.detached: list[str] = []
        settings = SchedulerSettings(
            max_batch_tokens=64, early_steps=early_steps, adapt_quotas=False, kv_lendable_share=0.0
        )
        self._loop, inbox = build_engine(
            self.executor,
            policy="mux",
            settings=settings,
            latency=RooflineLatency(self.executor.device),
            outbox=self.told.extend,
            on_detached=self._note_detached,
        )
        submit = self.executor.submit

        def noted(launch: Launch) -> None:
            self.launches.append(launch)
            submit(launch)

        self.executor.submit = noted
        info = self.executor.load_model(ModelSource(model="m", source=str(folder), dtype="float32"))
        inbox.put(AttachModel(info, quota_blocks or self.executor.total_blocks))
        wanted = {event.request.request_id for of_turn in events.values() for event in of_turn if _arrives(event)}
        for turn in range(4000):
            for event in events.get(turn, ()):
                inbox.put(event)
            self._turn()
            if turn > max(events) and {event.request_id for event in self.told if event.finish} == wanted:
                break
        while self.executor._in_flight:
            self._turn()
        self.scheduler = self._loop.scheduler

    def _turn(self) -> None:
        self._loop.act()
        for done in self.executor.wait(0.0):
            self._loop.scheduler.on_completion(done)
        self._loop._detach()
        self._loop._flush()
        self._loop.scheduler.check_integrity()

    def _note_detached(self, model: str) -> None:
        assert not self.executor._in_flight, "its weights went while a launch read them"
        self.detached.append(model)

    @property
    def early(self) -> list[DecodeStep]:
        return [launch for launch in self.launches if isinstance(launch, DecodeStep) and launch.ahead]

    def tokens(self, request_id: str) -> list[int]:
        return [token.token_id for event in self.told if event.request_id == request_id for token in event.tokens]

    def ends(self, request_id: str) -> list[FinishReason]:
        return [event.finish for event in self.told if event.request_id == request_id and event.finish is not None]


def _arrives(event: Event) -> bool:
    return isinstance(event, Arrival)


def request(name: str, prompt_tokens: int, max_tokens: int, **sampling: object) -> Arrival:
    params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, "ignore_eos": True, **sampling})
    return Arrival(
        GenerateRequest(
            request_id=name, model="m", prompt_token_ids=make_prompt(prompt_tokens), sampling=params, slo=SLO
        )
    )


@pytest.fixture
def folder(tiny_checkpoints: Mapping[str, Path]) -> Path:
    return tiny_checkpoints["llama"]


def test_engine__with_and_without_early_steps__same_tokens(folder: Path) -> None:
    """Greedy and drawn, one that stops at a token, one that asks for log-probabilities; prompts beside the others."""
    stop = Engine(folder, {0: [request("stops", 7, 20)]}, early_steps=False).tokens("stops")[9]
    events = {
        0: [request("greedy", 5, 40), request("drawn", 9, 30, temperature=0.9, seed=4)],
        12: [request("stops", 7, 20, stop_token_ids=(stop,))],
        30: [request("reports", 4, 3, logprobs=2)],
        50: [request("late", 30, 12)],
    }
    names = [event.request.request_id for of_turn in events.values() for event in of_turn]

    early, plain = (Engine(folder, events, early_steps=on) for on in (True, False))

    for name in names:
        assert early.tokens(name) == plain.tokens(name), name
        assert early.ends(name) == plain.ends(name)
    assert early.ends("stops") == [FinishReason.STOP]
    assert len(early.early) > 10
    assert plain.early == []
    assert any(len(step.sequences) > 1 for step in early.early)
    assert any(isinstance(launch, Repartition) for launch in early.launches)


def test_engine__little_memory__preempts_and_says_the_same(folder: Path) -> None:
    events = {0: [request(name, 6 + i, 22) for i, name in enumerate("abc")]}
    ample = Engine(folder, events, early_steps=False)

    early = Engine(folder, events, early_steps=True, quota_blocks=4 * 14)

    assert [early.tokens(name) for name in "abc"] == [ample.tokens(name) for name in "abc"]
    assert sum(isinstance(launch, PrefillSlice) for launch in early.launches) > sum(
        isinstance(launch, PrefillSlice) for launch in ample.launches
    )
    assert early.early


@pytest.mark.parametrize("turn", [10, 11, 12])
def test_engine__aborted_or_unloaded_behind_an_early_step__ends_once_and_waits_for_it(folder: Path, turn: int) -> None:
    alone = Engine(folder, {0: [request("b", 8, 12)]}, early_steps=False).tokens("b")
    arrivals = [request("a", 5, 60), request("b", 8, 12)]

    aborted = Engine(folder, {0: arrivals, turn: [Abort("a")]}, early_steps=True)
    removed = Engine(folder, {0: arrivals, turn: [RemoveModel("m")]}, early_steps=True)

    assert aborted.ends("a") == [FinishReason.ABORT]
    assert aborted.tokens("b") == alone
    assert [removed.ends(name) for name in "ab"] == [[FinishReason.ERROR]] * 2
    assert removed.detached == ["m"]
    assert aborted.early
    assert removed.early


def test_engine__the_step_before_fails__each_request_is_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = CudaRunner._decode
    runs: list[int] = []

    def failing(self: CudaRunner, *arguments: object) -> Callable[[], object]:
        runs.append(1)
        if len(runs) == 6:
            raise RuntimeError("CUDA out of memory")
        return decode(self, *arguments)

    monkeypatch.setattr(CudaRunner, "_decode", failing)

    engine = Engine(folder, {0: [request(name, 5, 30) for name in "ab"]}, early_steps=True)

    assert [engine.ends(name) for name in "ab"] == [[FinishReason.ERROR]] * 2
    report = engine.scheduler.load_report()
    assert report.free_blocks + report.cached_blocks == report.total_blocks


def test_submit__step_behind_another_one__goes_on_from_the_device_and_begins_when_that_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, plain = make_cuda_rig(), CpuRig(block_bytes=BLOCK_BYTES)
    said = []
    for each in (rig, plain):
        each.load("m", folder, dtype="float32")
        sequences = [each.sequence("m", make_prompt(n), 12) for n in (3, 8)]
        each.prefill(sequences)
        if each is plain:
            each.decode(sequences, 9, steps_per_launch=3)
        else:
            monkeypatch.setattr(CpuLanes, "record", lambda self, stream: LateEvent(1))
            rig.executor.submit(Repartition(prefill_sms=0, decode_sms=NUM_SMS))
            batch = tuple(sequences)
            for steps in (3, 2):
                rig.executor.submit(DecodeStep(model="m", sequences=batch, steps=steps))
                rig.executor.submit(DecodeStep(model="m", sequences=batch, steps=2, ahead=steps))
                assert len(rig.executor._in_flight) == 2
                ended = [rig.wait(), rig.wait()]
                assert ended[1].started_s >= ended[0].finished_s
                for done in ended:
                    rig.apply(done)
        said.append([sequence.token_ids for sequence in sequences])

    assert said[0] == said[1]


def test_prepare__step_ahead_of_a_shape_without_a_graph__is_not_captured_in_between(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[object] = []
    monkeypatch.setattr(CudaRunner, "capture", lambda self, key, stream: captured.append(key))
    monkeypatch.setattr(CpuLanes, "record", lambda self, stream: LateEvent(1))
    rig = make_cuda_rig()
    rig.load("m", folder)
    sequence = rig.sequence("m", make_prompt(3), 20)
    rig.prefill([sequence])

    rig.executor.submit(DecodeStep(model="m", sequences=(sequence,)))
    for _ in range(12):
        rig.executor.submit(DecodeStep(model="m", sequences=(sequence,), ahead=1))
        rig.apply(rig.wait())
    rig.apply(rig.wait())

    assert captured == []
