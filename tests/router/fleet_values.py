"""Views of made-up fleets."""

from pdmux_actor.lease import ModelPhase, ModelStatus, SleepingWeights, UnitReport
from pdmux_actor.messages import LoadReport, ModelLoad, Slo
from placement.unit_role import UnitRole
from router.gateway_scheduler import GatewayScheduler
from router.request_terms import AdmissionRequest, Priority
from router.view import FleetView, ModelCard, UnitView


def model_load(model: str = "m", **changes) -> ModelLoad:
    """10 ms and 0.1 ms per token of prefill; one block per 16 tokens."""
    figures = {
        "running": 0,
        "waiting": 0,
        "used_blocks": 0,
        "quota_blocks": 1000,
        "preemptions_total": 0,
        "prompt_tokens_total": 0,
        "output_tokens_total": 0,
        "prefill_base_s": 0.01,
        "prefill_s_per_token": 1e-4,
        "blocks_per_row": 1,
        "tokens_per_row": 16,
        **changes,
    }
    return ModelLoad(model=model, **figures)


def unit(
    name: str = "u",
    *loads: ModelLoad,
    age_s: float = 0.1,
    gpus: int = 1,
    phase: ModelPhase = ModelPhase.READY,
    max_model_len: int = 100_000,
    total_blocks: int = 1000,
    reports_load: bool = True,
    constrains: bool = False,
    wake_s: float | None = None,
    role: UnitRole = UnitRole.BOTH,
) -> UnitView:
    """With `wake_s` its models are in host memory."""
    loads = loads or (model_load(),)
    load = LoadReport(
        models=loads,
        total_blocks=total_blocks,
        free_blocks=total_blocks,
        prefill_sms=1,
        decode_sms=1,
        steps_total=0,
    )
    report = UnitReport(
        unit_id=name,
        node="n",
        pool="p",
        num_gpus=gpus,
        endpoint=f"{name}:1",
        memory_bytes=1,
        block_bytes=1,
        total_blocks=total_blocks,
        lease_version=1,
        constrains=constrains,
        role=role,
        models=tuple(
            ModelStatus(model=m.model, phase=phase, max_model_len=max_model_len)
            if wake_s is None
            else ModelStatus(
                model=m.model,
                phase=ModelPhase.ASLEEP,
                asleep=SleepingWeights(model=m.model, host_bytes=1, wake_s=wake_s),
            )
            for m in loads
        ),
        load=load if reports_load else None,
    )
    return UnitView(report=report, age_s=age_s)


def fleet(*units: UnitView, models: tuple[str, ...] = ("m",), num_gateways: int = 1) -> FleetView:
    cards = tuple(
        ModelCard(model=m, source="s", revision=None, slo=Slo(ttft_s=1.0, tbt_s=0.1), created_s=0) for m in models
    )
    return FleetView(models=cards, units=units, stream_token="t", num_gateways=num_gateways)


def ask(request_id: str = "r", model: str = "m", **changes) -> AdmissionRequest:
    fields = {
        "prompt_tokens": 100,
        "max_tokens": 100,
        "slo": Slo(ttft_s=1.0, tbt_s=0.1),
        "deadline_s": 1e9,
        "priority": Priority.NORMAL,
        **changes,
    }
    return AdmissionRequest(request_id=request_id, model=model, **fields)


def is_idle(scheduler: GatewayScheduler) -> bool:
    """Nothing runs, waits or is reserved."""
    return not (scheduler._running or scheduler.admission._offered_s or scheduler.ledger._reservations)
