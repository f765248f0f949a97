"""A unit's load report from what the plugin says of SGLang's scheduler."""

from pdmux_actor.backends.sglang.launch import Launch
from pdmux_actor.backends.sglang.link import PluginLoad
from pdmux_actor.backends.sglang.streams import StreamCounts
from pdmux_actor.messages import LoadReport, ModelLoad


def load_report(
    load: PluginLoad, launch: Launch, quota_blocks: int, total_blocks: int, counts: StreamCounts
) -> LoadReport:
    """SGLang counts tokens; blocks are what those tokens would take."""
    geometry = launch.info.geometry

    def blocks(tokens: int) -> int:
        return -(-tokens // geometry.tokens_per_row) * geometry.blocks_per_row

    used_blocks = min(blocks(load.used_tokens), total_blocks)
    cached_blocks = min(blocks(load.cached_tokens), total_blocks - used_blocks)
    model = ModelLoad(
        model=launch.info.model,
        running=load.running,
        waiting=load.waiting,
        used_blocks=used_blocks,
        quota_blocks=quota_blocks,
        borrowed_blocks=max(0, used_blocks - quota_blocks),
        cached_blocks=cached_blocks,
        preemptions_total=load.preemptions_total,
        prompt_tokens_total=counts.prompt_tokens,
        output_tokens_total=counts.output_tokens,
        prefix_hit_tokens_total=counts.cached_tokens,
        waiting_tokens=load.waiting_tokens,
        blocks_per_row=geometry.blocks_per_row,
        tokens_per_row=geometry.tokens_per_row,
        prefix_hit_ratio=counts.cached_tokens / counts.prompt_tokens if counts.prompt_tokens else 0.0,
        prefill_base_s=load.prefill_base_s,
        prefill_s_per_token=load.prefill_s_per_token,
        decode_step_s=load.decode_achieved_s,
    )
    return LoadReport(
        models=(model,),
        total_blocks=total_blocks,
        free_blocks=total_blocks - used_blocks - cached_blocks,
        cached_blocks=cached_blocks,
        prefill_sms=load.prefill_sms,
        decode_sms=load.decode_sms,
        steps_total=load.steps_total,
        decode_predicted_s=load.decode_predicted_s,
        decode_achieved_s=load.decode_achieved_s,
        guard_cells_moved_total=load.guard_cells_moved_total,
        steps=load.steps,
    )
