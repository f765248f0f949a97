"""Says of a model's figures whether it suffers, and why, in a line."""

from dataclasses import replace

from deploy.inspection.live_fleet import LiveModel

_FALLEN = 0.9  # of requests in time: below, a person should look
_FULL = 0.95  # of a quota
_LOSS_SHARE = 0.25  # of the TTFT target, lost to neighbours


def why_it_suffers(model: LiveModel, problem: str | None, *, silent: int) -> LiveModel:
    """`silent` counts units that have the model and do not report."""
    reasons = list(_reasons(model, problem, silent))
    is_late = model.in_time is not None and model.in_time < _FALLEN
    is_waiting = model.ttft_s is not None and model.oldest_wait_s > model.ttft_s
    suffers = bool(problem) or silent > 0 or model.held > 0 or is_late or is_waiting
    if suffers and not reasons:
        reasons = [_pressure(model)]
    return replace(model, suffers=suffers, why="; ".join(reasons))


def _reasons(model: LiveModel, problem: str | None, silent: int) -> list[str]:
    told = []
    if problem:
        told.append(" ".join(problem.split()))
    if silent:
        told.append(f"{silent} of its {model.units} units {'is' if silent == 1 else 'are'} silent")
    if model.state == "loading" or (model.held and model.share_loaded is not None):
        share = "" if model.share_loaded is None else f" {model.share_loaded:.0%}"
        told.append(f"loading{share}")
    if model.held:
        told.append(f"{model.held} requests wait for a unit that has it")
    if model.waiting and model.quota_blocks and model.used_blocks >= _FULL * model.quota_blocks:
        told.append(f"out of KV blocks: {model.used_blocks} of {model.quota_blocks}")
    if model.ttft_s and model.ttft_lost_s and model.ttft_lost_s >= _LOSS_SHARE * model.ttft_s:
        told.append(f"a first token loses {model.ttft_lost_s * 1000:.0f} ms to {model.neighbour or 'others'}")
    return told


def _pressure(model: LiveModel) -> str:
    if model.waiting:
        return f"more is asked than its units take: {model.waiting} wait, the oldest for {model.oldest_wait_s:.1f} s"
    share = "" if model.in_time is None else f"{model.in_time:.0%} of its requests were in time"
    return share or "requests are late"
