"""Tokens of quantised weights and of a model that runs by transformers' code depend on no policy either.

int8 rounds activations: attention over chunks of a prompt differs from that over the whole in the last bit, which may
tip an activation at the edge of two levels. Longer prompts are therefore held to their first token there.
"""

import pytest
from test_token_identity import make_requests, run_engine
from tiny_models import write_tiny_checkpoint

from pdmux_actor.scheduling.policies.registry import POLICIES
from pdmux_actor.scheduling.settings import SchedulerSettings

WEIGHTS = {"int8": "int8", "int4": "int4"}
NEVER_CUT_TOKENS = 33


@pytest.fixture(scope="module")
def checkpoints(demo_checkpoints, tmp_path_factory):
    of_transformers = tmp_path_factory.mktemp("gemma2")
    write_tiny_checkpoint(of_transformers, "gemma2", vocab_size=640, max_position_embeddings=1024)
    demo = demo_checkpoints["demo-qwen2"]
    return {"int8": demo, "int4": demo, "gemma2": of_transformers}


def few_requests(checkpoints, tbt_s):
    """Of each model those of 1, 700, 2, 33, 64 and 65 tokens or their neighbours."""
    return list(make_requests(checkpoints, tbt_s=tbt_s))[: 6 * len(checkpoints)]


@pytest.fixture(scope="module")
def expected(checkpoints):
    requests = few_requests(checkpoints, tbt_s=1.0)
    one_by_one = SchedulerSettings(max_running_sequences=1)
    tokens, _ = run_engine(checkpoints, requests, policy="prefill_first", settings=one_by_one, weights=WEIGHTS)
    return tokens


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_engine__any_policy_any_format__same_tokens(checkpoints, expected, policy):
    requests = few_requests(checkpoints, tbt_s=0.001)

    tokens, _ = run_engine(checkpoints, requests, policy=policy, weights=WEIGHTS)

    for request in requests:
        is_cut = request.model == "int8" and len(request.prompt_token_ids) > NEVER_CUT_TOKENS
        held = slice(1 if is_cut else None)
        assert tokens[request.request_id][held] == expected[request.request_id][held], request.request_id
