"""A unit on the CPU executor: the demo's path without Ray and HTTP."""

from tokenizers import Tokenizer

from pdmux_actor.backends.native import NativeEngine
from pdmux_actor.messages import FinishReason
from pdmux_actor.serving.commands import EngineSettings
from pdmux_actor.serving.frames import Generate


async def test_unit__torch_cpu__three_models_answer_with_text_of_their_tokens(
    demo_checkpoints, make_unit, make_lease, make_assignment, make_request, connect, until, phases
):
    engine = NativeEngine(EngineSettings(kind="torch_cpu", kv_pool_bytes=64 * 1024 * 1024, num_cores=2))
    unit = await make_unit(engine)
    assignments = [
        make_assignment(name, quota_blocks=1000, source=str(folder)) for name, folder in demo_checkpoints.items()
    ]
    unit.apply_lease(make_lease(1, *assignments))
    await until(lambda: set(phases(unit).values()) == {"ready"}, timeout_s=120)
    peer = await connect(unit)

    sampling = {"ignore_eos": True, "logprobs": 2}
    for stream, name in enumerate(demo_checkpoints):
        request = make_request(f"r{stream}", model=name, max_tokens=12, sampling=sampling, prompt_token_ids=(5, 6, 7))
        peer.send(Generate(stream=stream, request=request))
    await peer.until_finished(*range(len(demo_checkpoints)))

    for stream, name in enumerate(demo_checkpoints):
        tokenizer = Tokenizer.from_file(str(demo_checkpoints[name] / "tokenizer.json"))
        assert peer.deltas[stream][-1].finish is FinishReason.LENGTH
        assert len(peer.token_ids(stream)) == 12
        assert peer.text(stream) == tokenizer.decode(peer.token_ids(stream), skip_special_tokens=True)
        logprobs = [logprob for delta in peer.deltas[stream] for logprob in delta.logprobs]
        assert len(logprobs) == 12
        assert all(logprob.logprob <= 0 and len(logprob.top) == 2 for logprob in logprobs)
