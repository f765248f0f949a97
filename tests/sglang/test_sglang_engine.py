"""SGLang's own engine and multiplexing loop, with and without the plugin: engine_scenario.py runs once for each."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pdmux_actor.backends.sglang.dispatch_state import new_dispatch
from pdmux_actor.backends.sglang.plugin_config import PluginConfig
from pdmux_actor.backends.sglang.snapshot import DecisionRecord

SCENARIO = Path(__file__).parent / "engine_scenario.py"
TIMEOUT_S = 280
LOOSE_DECODE_SMS, TIGHT_DECODE_SMS = 20, 116


class Run:
    """`seen` is what the scenario wrote until it ended or SGLang did."""

    def __init__(self, variant, folder, checkpoint, environment):
        command = [sys.executable, str(SCENARIO), variant, str(folder), str(checkpoint)]
        with (folder / "output.log").open("wb") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=TIMEOUT_S, check=False)
        self.folder = folder
        self.log = (folder / "output.log").read_text(errors="replace")[-3000:]
        seen = folder / "seen.json"
        self.seen = json.loads(seen.read_text()) if seen.exists() else {}
        assert self.seen.get("started"), self.log

    def __getitem__(self, key):
        assert key in self.seen, f"the scenario did not get to {key!r}: {self.log}"
        return self.seen[key]

    @property
    def config(self):
        return msgspec.json.decode((self.folder / "config.json").read_bytes(), type=PluginConfig)

    @property
    def records(self):
        assert (self.folder / "records.msgpack").exists(), self.log
        return msgspec.msgpack.decode((self.folder / "records.msgpack").read_bytes(), type=tuple[DecisionRecord, ...])


@pytest.fixture(scope="session")
def run_of(tmp_path_factory, deep_checkpoint, sglang_environment):
    runs = {}

    def run(variant):
        if variant not in runs:
            runs[variant] = Run(variant, tmp_path_factory.mktemp(variant), deep_checkpoint, sglang_environment)
        return runs[variant]

    return run


def test_plugin__sglang_starts__all_hooks_took_hold_and_partitions_are_ours(run_of):
    plugin = run_of("plugin")

    assert plugin["missing_hooks"] == []
    assert plugin["groups"] == [[132, 0], [112, 20], [72, 60], [16, 116], [0, 132]]


def test_tokens__mixed_load__same_with_and_without_plugin(run_of):
    plugin, stock = run_of("plugin"), run_of("stock")

    assert plugin["finishes"] == ["length"] * 8
    assert plugin["mixed"] == stock["mixed"]
    assert plugin["preemption"] == stock["preemption"]


def test_partition__tight_and_loose_targets__decode_gets_much_and_little(run_of):
    plugin = run_of("plugin")
    shares = {"loose": [], "tight": []}
    for record in plugin.records:
        snapshot, directive = record.snapshot, record.directive
        decoding = {s.request_id for s in snapshot.running} & set(shares)
        if decoding and directive.layers and directive.decode:
            shares[decoding.pop()].append(plugin["groups"][directive.group][1])

    assert len(shares["loose"]) > 1
    assert set(shares["loose"]) == {LOOSE_DECODE_SMS}
    assert len(shares["tight"]) > 1
    assert set(shares["tight"]) == {TIGHT_DECODE_SMS}


def test_decisions__recorded_run__same_from_the_policy_replayed(run_of):
    plugin = run_of("plugin")
    dispatch, _ = new_dispatch(plugin.config)

    replayed = [dispatch.decide(record.snapshot) for record in plugin.records]

    assert len(replayed) > 50
    assert replayed == [record.directive for record in plugin.records]
    assert dispatch.repartitions_total > 2


def test_preemption__urgent_prompt_behind_a_patient_one__overtakes_it(run_of):
    plugin = run_of("plugin")
    overtaken = [
        [s.request_id for s in record.snapshot.batch.sequences]
        for record in plugin.records
        if record.directive.start and record.snapshot.batch is not None
    ]

    assert overtaken == [["patient"]]
    assert plugin["first_to_speak"] == "urgent"
    assert run_of("stock")["first_to_speak"] == "patient"


def test_abort__in_mid_prefill__ends_the_request(run_of):
    """D1."""
    plugin, stock = run_of("plugin"), run_of("stock")

    assert (plugin["aborted_tokens"], plugin["aborted_finish"]) == (0, "abort")
    assert (stock["aborted_tokens"], stock["aborted_finish"]) == (24, "length"), "upstream has mended it"


def test_flush__in_mid_prefill__is_refused_and_the_request_goes_on(run_of):
    """D2."""
    plugin, stock = run_of("plugin"), run_of("stock")

    assert plugin["flush_success"] is False
    assert (plugin["flushed_tokens"], plugin["flushed_finish"]) == (8, "length")
    assert stock["flush_success"] is True, "upstream has mended it"


def test_pause__while_decoding__no_tokens_until_it_goes_on(run_of):
    """D3."""
    assert run_of("plugin")["tokens_while_paused"] == 0
    assert run_of("stock")["tokens_while_paused"] > 0, "upstream has mended it"


def test_divisions__first_threshold_above_the_batch__do_not_kill_the_scheduler(run_of):
    """D5."""
    assert run_of("plugin-divisions")["divisions_survived"]
    assert "divisions_survived" not in run_of("stock-divisions").seen, "upstream has mended it"
