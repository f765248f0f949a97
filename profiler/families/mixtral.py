"""Mixtral: every layer is a mixture of experts."""

from collections.abc import Mapping
from typing import Any

from profiler.config_fields import count
from profiler.families.entry import ExpertSizes, ModelFamily


def _experts(config: Mapping[str, Any]) -> ExpertSizes:
    return ExpertSizes(
        num_experts=count(config, "num_local_experts"), expert_intermediate_size=count(config, "intermediate_size")
    )


FAMILY = ModelFamily(name="MixtralForCausalLM", model_type="mixtral", models="Mixtral 8x7B and 8x22B", experts=_experts)
