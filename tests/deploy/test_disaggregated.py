"""Units of several engines, on times computed by hand: 1 ms a prompt token, 10 ms a decode step, 2,048 bytes of KV."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from fleet_model import SPEC

from deploy.errors import FleetFileError, OptionNotUsable
from deploy.fleet_file.settings import FleetFile, parse_fleet_file
from deploy.simulation.deployments import baseline_named, deploy_fleet
from deploy.simulation.engine import EngineDesign, PlacedModel
from deploy.simulation.event_queue import EventQueue
from deploy.simulation.fleet_modes.disaggregated import DisaggregatedUnit, PrefillChoice
from deploy.simulation.fleet_modes.split import ComputedKv, KvLinks, Split, split_named
from deploy.simulation.papers.experiment_file import read_experiment_file
from deploy.simulation.units import SimulatedUnit, UnitIdentity
from pdmux_actor.kv.geometry import KvGeometry
from pdmux_actor.messages import GenerateRequest, SamplingParams, Slo, TokenEvent
from pdmux_actor.model_info import ModelInfo
from pdmux_actor.scheduling.settings import SchedulerSettings
from profiler.gpus.a100_80g import DEVICE as A100_80G
from profiler.latency import ChunkShape
from profiler.specs import ModelSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
KV_BYTES = 2048  # K and V of one token: 2 x 4 layers x 2 heads x 32 x 4 bytes
PROMPT_TOKENS = 100
TENTH = PROMPT_TOKENS * KV_BYTES / 0.1  # a link that takes 0.1 s for a prompt, in bytes per second


class Steady:
    """A latency model to reckon with."""

    def prefill_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], sms: int) -> float:
        return 1e-3 * sum(chunk.new_tokens for chunk in chunks)

    def decode_s(self, spec: ModelSpec, context_tokens: Sequence[int], sms: int) -> float:
        return 0.01

    def mixed_s(self, spec: ModelSpec, chunks: Sequence[ChunkShape], context_tokens: Sequence[int], sms: int) -> float:
        return self.prefill_s(spec, chunks, sms) + self.decode_s(spec, context_tokens, sms)


def design() -> EngineDesign:
    info = ModelInfo(
        model="m",
        spec=SPEC,
        geometry=KvGeometry.of(SPEC, 8192),
        eos_token_ids=frozenset(),
        max_model_len=1024,
    )
    return EngineDesign(
        device=A100_80G,
        latency=Steady(),
        block_bytes=8192,
        total_blocks=4096,
        policy="prefill_first",
        settings=SchedulerSettings(max_batch_tokens=PROMPT_TOKENS),  # one prompt a launch
        models=(PlacedModel(info=info, quota_blocks=4096),),
        host_s=0.0,
    )


IDENTITY = UnitIdentity(unit_id="u", pool="p", num_gpus=2, memory_bytes=2**30)


def request(name: str, *, max_tokens: int = 2) -> GenerateRequest:
    first = ord(name[0])
    return GenerateRequest(
        request_id=name,
        model="m",
        prompt_token_ids=tuple(range(first, first + PROMPT_TOKENS)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        slo=Slo(ttft_s=10.0, tbt_s=10.0),
    )


def token_times(split: Split, *names: str, max_tokens: int = 2) -> Mapping[str, list[float]]:
    """When each token of requests that all come at 0 s is there."""
    agenda, times = EventQueue(), {name: list[float]() for name in names}

    def told(events: Sequence[TokenEvent]) -> None:
        for event in events:
            times[event.request_id] += [round(agenda.clock.now_s, 6)] * len(event.tokens)

    unit: SimulatedUnit = DisaggregatedUnit(IDENTITY, design(), split, agenda, told)
    for name in names:
        unit.submit(request(name, max_tokens=max_tokens))
    while agenda.step():
        pass
    assert not unit.load_report().has_work
    return times


def test_unit__one_request__first_token_after_prefill_and_the_second_after_link_and_step() -> None:
    """0.1 s of prefill, 0.1 s on the link, then a step for each token."""
    assert token_times(Split(link_bytes_per_s=TENTH), "a", max_tokens=3) == {"a": [0.1, 0.21, 0.22]}


def test_unit__layerwise__only_the_first_layer_is_not_hidden() -> None:
    """The first of 4 layers is computed after 0.025 s; the whole takes 0.1 s from there."""
    assert token_times(Split(link_bytes_per_s=TENTH, layerwise=True), "a") == {"a": [0.1, 0.135]}


def test_unit__fast_link_layerwise__only_the_last_layer_is_left() -> None:
    """On ten times the link a layer takes 2.5 ms, and the last one is sent after the prefill's end."""
    assert token_times(Split(link_bytes_per_s=10 * TENTH, layerwise=True), "a") == {"a": [0.1, 0.1125]}


def test_unit__two_senders_to_one_receiver__the_second_waits_for_its_port() -> None:
    """Both prompts are done at 0.1 s on engines of their own; the decode engine takes one transfer after the other."""
    times = token_times(Split(prefill=2, link_bytes_per_s=TENTH), "a", "z")
    assert times == {"a": [0.1, 0.21], "z": [0.1, 0.31]}


def test_unit__one_sender_to_two_receivers__the_second_waits_for_its_port() -> None:
    """The link takes 0.2 s a prompt: the second is done at 0.2 s and sent from 0.3 s to 0.5 s."""
    times = token_times(Split(decode=2, link_bytes_per_s=TENTH / 2), "a", "z")
    assert times == {"a": [0.1, 0.31], "z": [0.2, 0.51]}


def test_unit__one_token_asked_for__nothing_is_sent() -> None:
    assert token_times(Split(link_bytes_per_s=1.0), "a", max_tokens=1) == {"a": [0.1]}


def test_links__pairs_that_share_no_port__do_not_wait_for_each_other() -> None:
    kv = ComputedKv(num_bytes=10, num_layers=1, begun_s=0.0, done_s=1.0)
    links = KvLinks(bytes_per_s=10.0, layerwise=False)
    assert [links.arrival_s(0, 0, kv), links.arrival_s(1, 1, kv), links.arrival_s(0, 1, kv)] == [2.0, 2.0, 3.0]


def test_links__layerwise_prompts_of_one_batch__each_layer_of_both_is_sent_as_it_is_computed() -> None:
    """Each has 10 layers, one a second, of 0.1 s on the link: nothing but the two last ones is left after 10 s."""
    kv = ComputedKv(num_bytes=10, num_layers=10, begun_s=0.0, done_s=10.0)
    links = KvLinks(bytes_per_s=10.0, layerwise=True)
    assert [links.arrival_s(0, 0, kv), links.arrival_s(0, 0, kv)] == pytest.approx([10.1, 10.2])


def test_links__layerwise_prompt_of_a_slow_prefill__leaves_the_port_in_to_others_between_its_layers() -> None:
    """Of 10 s on engine 0; on engine 1 one of 2 layers is computed from 8.5 s to 10.5 s, and takes a second to send."""
    slow = ComputedKv(num_bytes=10, num_layers=10, begun_s=0.0, done_s=10.0)
    fast = ComputedKv(num_bytes=10, num_layers=2, begun_s=8.5, done_s=10.5)
    links = KvLinks(bytes_per_s=10.0, layerwise=True)
    assert links.arrival_s(0, 0, slow) == pytest.approx(10.1)
    assert links.arrival_s(1, 0, fast) == pytest.approx(11.0)  # no later than alone: its last layer takes 0.5 s


def test_links__layerwise_on_a_slow_link__prompts_of_one_batch_wait_for_each_other() -> None:
    kv = ComputedKv(num_bytes=200, num_layers=10, begun_s=0.0, done_s=10.0)
    links = KvLinks(bytes_per_s=10.0, layerwise=True)
    assert [links.arrival_s(0, 0, kv), links.arrival_s(0, 0, kv)] == pytest.approx([21.0, 41.0])


def test_prefill_choice__known_prefix__outweighs_a_shorter_queue() -> None:
    """256 tokens of a conversation are cached on engine 0, whose queue is 100 tokens longer."""
    choice, history = PrefillChoice(2), tuple(range(256))
    assert choice.choose("a", "m", history) == 0
    choice.done("a")
    assert choice.choose("b", "m", tuple(range(1000, 1100))) == 0
    assert choice.choose("c", "m", (*history, *range(20))) == 0
    assert choice.choose("d", "m", tuple(range(2000, 2010))) == 1


def fleet(*, gpus_per_node: int, mesh_gpus: int) -> FleetFile:
    text = f"""
models:
  - id: m
    source: ./models/llama-3.1-8b
    max_model_len: 8192
pools:
  - name: h
    device: simulated
    gpu_type: H100
    gpus_per_node: {gpus_per_node}
    mesh_gpus: {mesh_gpus}
    kv_memory: 40GiB
"""
    return parse_fleet_file(text, name="f.yaml", base=EXAMPLES)


@pytest.mark.parametrize(
    ("name", "gpus_per_node", "mesh_gpus", "units", "gpus"),
    [("1P1D", 8, 8, 1, 8), ("3P1D", 8, 8, 1, 8), ("3P1D", 8, 4, 2, 8), ("2P1D", 8, 1, 2, 6), ("1P1D", 1, 1, 1, 2)],
)
def test_deploy_fleet__split__divides_units_or_joins_gpus(
    name: str, gpus_per_node: int, mesh_gpus: int, units: int, gpus: int
) -> None:
    whole = fleet(gpus_per_node=gpus_per_node, mesh_gpus=mesh_gpus)
    deployed = deploy_fleet(whole, baseline_named(name, whole))
    assert (deployed.num_units, deployed.num_gpus, deployed.unplaced) == (units, gpus, {})


@pytest.mark.parametrize(
    ("name", "gpus_per_node", "mesh_gpus", "remedy"),
    [
        ("2P1D", 8, 8, "choose a split whose sum divides 8"),
        ("3P2D", 4, 1, "raise gpus_per_node, or choose a smaller split"),
        ("1p1d", 4, 1, "or a split like 2P1D"),
        ("1P1D:0", 4, 1, "a link of 0 GB/s .* give it 0.01 GB/s or more"),
        ("1P1D:0.000001", 4, 1, "give it 0.01 GB/s or more"),
    ],
)
def test_baseline__split_that_cannot_be__is_answered_with_why_and_the_remedy(
    name: str, gpus_per_node: int, mesh_gpus: int, remedy: str
) -> None:
    with pytest.raises(OptionNotUsable, match=remedy):
        baseline_named(name, fleet(gpus_per_node=gpus_per_node, mesh_gpus=mesh_gpus))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("12P3D", Split(prefill=12, decode=3)),
        ("2P1D:12.5", Split(prefill=2, link_bytes_per_s=12.5e9)),
        ("1P1D:50:layerwise", Split(link_bytes_per_s=50e9, layerwise=True)),
        ("0P1D", None),
        ("1P1D:0", Split(link_bytes_per_s=0.0)),
    ],
)
def test_split_named__engines_rate_and_overlap__are_read(name: str, split: Split | None) -> None:
    assert split_named(name) == split


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ({"name": "disagregated"}, "did you mean disaggregated?"),
        ({"name": "disaggregated", "prefill": 2}, "2P1D makes 3 engines of each unit, and the 8 GPUs"),
        ({"name": "disaggregated", "link_gb_per_s": 0}, "link_gb_per_s"),
    ],
)
def test_experiment_file__fleet_mode_that_cannot_be__is_one_line_with_its_place(
    tmp_path: Path, mode: dict[str, object], said: str
) -> None:
    experiment = yaml.safe_load((EXAMPLES / "papers" / "muxwise-fig15.yaml").read_text())
    experiment["cases"] = experiment["cases"][:1]
    experiment["cases"][0]["systems"] = [{"name": "PD", "policy": "prefill_first", "fleet_mode": mode}]
    experiment["cases"][0]["published"] = [{"metric": "goodput_per_s"}]
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(experiment))
    with pytest.raises(FleetFileError) as refused:
        read_experiment_file(path)
    (line,) = refused.value.problems
    assert "cases[0].systems[0].fleet_mode" in line
    assert said in line
