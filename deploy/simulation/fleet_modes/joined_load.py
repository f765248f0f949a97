"""The load of several engines as one unit's, which is what gateways are told."""

from collections.abc import Sequence
from dataclasses import replace

from pdmux_actor.messages import LoadReport, ModelLoad


def joined_load(prefills: Sequence[LoadReport], decodes: Sequence[LoadReport]) -> LoadReport:
    """KV is counted on the decode engines. Requests that are still in prefill count as waiting, and what a prompt takes
    is what the prefill engines say.
    """
    models = tuple(
        _joined_model([_of(r, load.model) for r in prefills], [_of(r, load.model) for r in decodes])
        for load in decodes[0].models
    )
    return replace(
        decodes[0],
        models=models,
        total_blocks=sum(r.total_blocks for r in decodes),
        free_blocks=sum(r.free_blocks for r in decodes),
        cached_blocks=sum(r.cached_blocks for r in decodes),
        steps_total=sum(r.steps_total for r in (*prefills, *decodes)),
        launches=tuple(status for r in (*prefills, *decodes) for status in r.launches),
    )


def _of(report: LoadReport, model: str) -> ModelLoad:
    return next(load for load in report.models if load.model == model)


def _joined_model(prefills: Sequence[ModelLoad], decodes: Sequence[ModelLoad]) -> ModelLoad:
    ahead = sum(load.running + load.waiting for load in prefills)
    return replace(
        decodes[0],
        running=sum(load.running for load in decodes),
        waiting=sum(load.waiting for load in decodes) + ahead,
        used_blocks=sum(load.used_blocks for load in decodes),
        quota_blocks=sum(load.quota_blocks for load in decodes),
        borrowed_blocks=sum(load.borrowed_blocks for load in decodes),
        cached_blocks=sum(load.cached_blocks for load in decodes),
        preemptions_total=sum(load.preemptions_total for load in (*prefills, *decodes)),
        prompt_tokens_total=sum(load.prompt_tokens_total for load in prefills),
        output_tokens_total=sum(load.output_tokens_total for load in (*prefills, *decodes)),
        # Prefill engines work side by side, so a new prompt waits for its share of what is ahead.
        waiting_tokens=sum(load.waiting_tokens for load in prefills) // len(prefills),
        prefill_base_s=prefills[0].prefill_base_s,
        prefill_s_per_token=prefills[0].prefill_s_per_token,
    )
