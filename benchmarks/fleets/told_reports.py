"""What units and gateways tell a control loop, made up: of 7B models on units of two GPUs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from pdmux_actor.lease import Lease, ModelPhase, ModelStatus, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad
from router.admission.demand_report import DemandReport, ModelAsked

_GIB = 2**30
_BLOCK_BYTES = 16 * 1024
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def write_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(_CONFIG))


def report_of(unit: int, lease: Lease | None) -> UnitReport:
    models = () if lease is None else lease.models
    return UnitReport(
        unit_id=f"u{unit:04}",
        node=f"n{unit // 4}",
        pool="p",
        num_gpus=2,
        endpoint="127.0.0.1:1",
        memory_bytes=160 * _GIB,
        block_bytes=_BLOCK_BYTES,
        total_blocks=60 * _GIB // _BLOCK_BYTES,
        lease_version=0 if lease is None else lease.version,
        models=tuple(ModelStatus(model=m.model, phase=ModelPhase.READY, max_model_len=4096) for m in models),
        device="A100-80G",
    )


def busy(report: UnitReport) -> UnitReport:
    loads = [
        ModelLoad(
            model=m.model,
            running=20,
            waiting=2,
            used_blocks=3000,
            quota_blocks=4000,
            preemptions_total=1,
            prompt_tokens_total=10**6,
            output_tokens_total=10**5,
            ttft_attainment=0.99,
            tbt_attainment=0.995,
            prefill_base_s=0.01,
            prefill_s_per_token=1e-5,
            decode_step_s=0.02,
        )
        for m in report.models
    ]
    load = LoadReport(
        models=tuple(loads), total_blocks=10_000, free_blocks=4000, prefill_sms=32, decode_sms=100, steps_total=5
    )
    return replace(report, load=load)


def demand_report(models: int, asked: np.ndarray) -> DemandReport:
    return DemandReport(
        gateway_id="g",
        models=tuple(
            ModelAsked(
                model=f"m{i:03}",
                requests_total=int(asked[i]),
                prompt_tokens_total=1400 * int(asked[i]),
                output_tokens_total=200 * int(asked[i]),
                waiting=0,
            )
            for i in range(models)
        ),
    )
