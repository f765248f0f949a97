"""Enqueues launches of one lane on the lane's stream. Nothing here waits for the device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pdmux_actor.executor.cuda.cuda_model import CudaModel
from pdmux_actor.executor.cuda.decode_bucket import DecodeBucket
from pdmux_actor.executor.cuda.device_attention import BatchAttention
from pdmux_actor.executor.cuda.device_batch import DeviceBatch, stage_batch
from pdmux_actor.executor.cuda.device_sampler import (
    DeviceSample,
    SamplingKind,
    SamplingRows,
    host_tokens,
    sample_with_reports,
)
from pdmux_actor.executor.cuda.graph_key import LAYERS, LOGITS, PIECES, GraphKey, PlannedCapture, Step
from pdmux_actor.executor.cuda.host_reads import Batch, places_in, produced, read_plain, sample_to_host, to_host
from pdmux_actor.executor.cuda.host_stage import HostStage
from pdmux_actor.executor.cuda.launch_buckets import token_bucket_of
from pdmux_actor.executor.cuda.launch_graphs import LaunchGraphs
from pdmux_actor.executor.cuda.piece_bucket import may_run_in_pieces
from pdmux_actor.executor.cuda.prefill_bucket import PrefillBucket, may_be_captured
from pdmux_actor.executor.cuda.split_kernels import target_splits
from pdmux_actor.executor.model_runner import Produced
from pdmux_actor.executor.packed_batch import token_runs
from pdmux_actor.executor.prompt_outputs import ComputedEmbeddings, PromptRows
from pdmux_actor.models.lora import AdapterBatch
from pdmux_actor.models.memory_shortage import lacked_memory
from pdmux_actor.models.workspace import LaneArena, Workspace
from pdmux_actor.scheduling.launch import Chunk, ComputeLaunch, DecodeStep, MixedStep, PrefillSlice
from pdmux_actor.scheduling.sequence import TokenSequence

Read = Callable[[], Produced]
"""Called when the launch is over: reads what was copied to the host."""

Enqueue = Callable[[], Read]
"""Enqueues a launch that is prepared."""


@dataclass(slots=True)
class UnfinishedDevicePrefill:
    """A prefill batch between two slices. `hidden` lies in `bucket`, where it has one."""

    model: str
    batch: DeviceBatch
    rotary: Any
    hidden: Tensor
    next_layer: int
    adapters: AdapterBatch | None
    bucket: PrefillBucket | None = None


@dataclass(frozen=True, slots=True)
class _PreparedDecode:
    """`batch` are the launch's sequences in the order of the bucket's rows; `forward` leaves their logits there."""

    launch: DecodeStep
    batch: Batch
    model: CudaModel
    bucket: DecodeBucket
    rows: SamplingRows
    forward: Step

    def load(self, stage: HostStage) -> None:
        launch = self.launch
        self.bucket.load(stage, self.batch, launch.steps, self.model.row_table, self.rows, launch.ahead)

    def compute_logits(self) -> None:
        with self.model.workspace.passing():
            self.forward()


class CudaRunner:
    """`models` is shared with the executor, which adds and removes entries while no launch of them is in flight."""

    def __init__(self, models: Mapping[str, CudaModel], graphs: LaunchGraphs, device: torch.device) -> None:
        self._models = models
        self._graphs = graphs
        self._stage = HostStage(device)
        self._prefills: dict[int, UnfinishedDevicePrefill] = {}
        self.arena = LaneArena(device)  # of nothing: whoever knows what launches need gives it a size

    def prepare(self, launch: ComputeLaunch, sms: int, stream: Any, *, first_sm: int = 0) -> Enqueue:
        """Prepares a launch for `stream`, which the caller has made current and keeps so, and which has `sms` SMs, for
        a decode from `first_sm` on.

        A decode step that has come again and again without a graph is captured here: that takes several steps' time
        once, and is no part of the launch.
        """
        workspace = self._models[launch.model].workspace
        match launch:
            case PrefillSlice():
                enqueue: Enqueue = partial(self._prefill, launch, self._captured_layers(launch, sms, stream))
            case DecodeStep():
                enqueue = self._prepare_decode(launch, sms, stream, first_sm)
            case MixedStep():
                enqueue = partial(self._mixed, launch, sms, self._captured_pieces(launch, sms, stream))
        return partial(self._in_arena, workspace, enqueue)

    def _in_arena(self, workspace: Workspace, enqueue: Enqueue) -> Read:
        with workspace.using(self.arena):
            return enqueue()

    def drop_prefill(self, batch_id: int) -> None:
        state = self._prefills.pop(batch_id, None)
        if state is not None and state.bucket is not None:
            state.bucket.let_go(batch_id)
        self.arena.let_go(batch_id)

    def forget_model(self, model: str) -> None:
        for batch_id, state in list(self._prefills.items()):
            if state.model == model:
                self.drop_prefill(batch_id)

    def _captured_layers(self, launch: PrefillSlice, sms: int, stream: Any) -> GraphKey | None:
        """Returns what to look for among the graphs."""
        model = self._models[launch.model]
        if not may_be_captured(launch.chunks, model.info.own_kv_beyond_tokens):
            return None
        return self._token_key(model, LAYERS, sum(chunk.length for chunk in launch.chunks), sms, stream)

    def _captured_pieces(self, launch: MixedStep, sms: int, stream: Any) -> GraphKey | None:
        """Returns what to look for among the graphs."""
        model = self._models[launch.model]
        if not model.has_pieces or not may_run_in_pieces(launch, model.info.own_kv_beyond_tokens):
            return None
        num_tokens = sum(chunk.length for chunk in launch.chunks) + len(launch.sequences)
        return self._token_key(model, PIECES, num_tokens, sms, stream)

    def _token_key(self, model: CudaModel, part: str, num_tokens: int, sms: int, stream: Any) -> GraphKey | None:
        """What is worth a graph is asked for, and captured in a moment without launches; where none comes, by launches
        that lack it again and again, a step each.
        """
        size = token_bucket_of(num_tokens, model.captured_tokens_per_sm * sms)
        if size is None:
            return None
        key = GraphKey(model=model.info.model, bucket=size, sms=sms, part=part)
        if self._graphs.wants(key, stream):
            self.capture(key, stream)
        return key

    def _prefill(self, launch: PrefillSlice, key: GraphKey | None) -> Read:
        try:
            return self._prefill_slice(launch, key)
        except BaseException:
            for bucket in self._models[launch.model].prefill_buckets.values():
                bucket.let_go(launch.batch_id)
            self.arena.let_go(launch.batch_id)
            raise

    def _prefill_slice(self, launch: PrefillSlice, key: GraphKey | None) -> Read:
        model = self._models[launch.model]
        steps = None if key is None else self._graphs.find(key)
        if launch.first_layer == 0:
            state = self._begin_prefill(launch, model, None if key is None or steps is None else key.bucket)
        else:
            state = self._prefills.pop(launch.batch_id)
        assert state.next_layer == launch.first_layer, "slices of a prefill batch must follow one another"
        if steps is not None and state.bucket is not None:
            state.bucket.run(steps, launch.first_layer, launch.last_layer)
        else:
            self._run_layers(launch, model, state)
        state.next_layer = launch.last_layer
        if launch.last_layer < model.info.spec.num_layers:
            self._prefills[launch.batch_id] = state
            return Produced
        with model.workspace.passing():
            read = _sample_batch(model, state.batch, state.hidden, launch.chunks)
        if state.bucket is not None:
            state.bucket.let_go(launch.batch_id)
        self.arena.let_go(launch.batch_id)  # the lane's next launch comes after this one
        return read

    def _begin_prefill(
        self, launch: PrefillSlice, model: CudaModel, captured_tokens: int | None
    ) -> UnfinishedDevicePrefill:
        """`captured_tokens`: the bucket of which there is a graph."""
        batch = stage_batch(self._stage, launch.chunks, (), model.row_table, model.kv.tokens_per_row)
        upload_begun(model, batch)
        if captured_tokens is not None:
            bucket = model.prefill_bucket(captured_tokens)
            if not bucket.is_taken:
                hidden = bucket.begin(launch.batch_id, batch.tensors)
                return UnfinishedDevicePrefill(launch.model, batch, None, hidden, 0, None, bucket)
        with model.workspace.keeping(launch.batch_id):
            hidden, rotary = model.decoder.start(batch.tensors["token_ids"], batch.tensors["positions"], batch.prompts)
        return UnfinishedDevicePrefill(launch.model, batch, rotary, hidden, 0, _adapters(model, launch.chunks, ()))

    def _run_layers(self, launch: PrefillSlice, model: CudaModel, state: UnfinishedDevicePrefill) -> None:
        """Launch by launch."""
        if state.rotary is None:  # it began with a graph that this slice's share of SMs has not
            tensors = state.batch.tensors
            state.rotary = model.decoder.start(tensors["token_ids"], tensors["positions"])[1]
        layers = launch.first_layer, launch.last_layer
        hidden = self._forward(model, state.batch, state.hidden, state.rotary, layers, 1, state.adapters)
        if state.bucket is None:
            state.hidden = hidden
        else:
            state.bucket.keep(hidden)

    def _mixed(self, launch: MixedStep, sms: int, key: GraphKey | None) -> Read:
        model = self._models[launch.model]
        batch = stage_batch(self._stage, launch.chunks, launch.sequences, model.row_table, model.kv.tokens_per_row)
        upload_begun(model, batch)
        splits = target_splits(model.kv.kv_heads, sms)
        pieces = None if key is None else self._graphs.find(key)
        if key is not None and pieces is not None:
            with model.workspace.passing():
                attention = BatchAttention(model.kv, batch, splits, model.workspace)
                hidden = model.piece_bucket(key.bucket).run(pieces, batch.tensors, attention, model.workspace)
                return _sample_batch(model, batch, hidden, launch.chunks)
        adapters = _adapters(model, launch.chunks, launch.sequences)
        layers = 0, model.info.spec.num_layers
        with model.workspace.passing():
            hidden, rotary = model.decoder.start(batch.tensors["token_ids"], batch.tensors["positions"], batch.prompts)
            hidden = self._forward(model, batch, hidden, rotary, layers, splits, adapters)
            return _sample_batch(model, batch, hidden, launch.chunks)

    def _forward(
        self,
        model: CudaModel,
        batch: DeviceBatch,
        hidden: Tensor,
        rotary: Any,
        layers: tuple[int, int],
        num_splits: int,
        adapters: AdapterBatch | None,
    ) -> Tensor:
        """Layers from the first to before the second of `layers`."""
        return model.decoder.forward_layers(
            hidden, rotary, BatchAttention(model.kv, batch, num_splits, model.workspace), *layers, adapters
        )

    def capture(self, key: GraphKey, stream: Any) -> None:
        """Captures a decode step, or one layer that is left of a prompt's. `stream` as in `prepare`. Waits for what it
        holds; no launch of this runner may be in flight.
        """
        try:
            self._capture(key, stream)
        except RuntimeError as error:  # for buffers: what captures lack they tell the graphs themselves
            if not lacked_memory(error):
                raise
            self._graphs.put_off(PlannedCapture(key, stream), error)

    def _capture(self, key: GraphKey, stream: Any) -> None:
        model = self._models[key.model]
        if key.part == LAYERS:
            prompts = model.prefill_bucket(key.bucket)
            with prompts.spared():
                self._graphs.capture(key, prompts.steps, stream)
            stream.synchronize()  # the next slice may come on another stream
            return
        if key.part == PIECES:
            self._graphs.capture(key, model.piece_bucket(key.bucket).steps, stream)
            stream.synchronize()  # another share's step may use its buffers next
            return
        bucket = model.bucket(key.bucket)
        bucket.load_padding(self._stage)
        stream.synchronize()
        self._graphs.capture(key, lambda: (self._part(bucket, key),), stream)

    def _prepare_decode(self, launch: DecodeStep, sms: int, stream: Any, first_sm: int) -> Enqueue:
        model = self._models[launch.model]
        bucket = model.bucket(len(launch.sequences))
        batch = bucket.order.of(launch.sequences)
        rows = bucket.sampling(batch)
        key = GraphKey(model=launch.model, bucket=bucket.size, sms=sms, part=LOGITS, first_sm=first_sm)
        if bucket.order.has_adapters:
            # Which adapters a step reads is another each time: it is not captured.
            forward: Step = partial(bucket.forward, sms, _adapters(model, (), batch))
        else:
            forward = self._captured(bucket, key, stream, launch)
        step = _PreparedDecode(launch, batch, model, bucket, rows, forward)
        if not rows.is_plain:
            return partial(self._decode_with_reports, step)
        sampling = self._captured(bucket, replace(key, part=rows.kind.value), stream, launch)
        return partial(self._decode, step, sampling)

    def _captured(self, bucket: DecodeBucket, key: GraphKey, stream: Any, launch: DecodeStep) -> Step:
        """Part of a step, launch by launch where there is no graph of it. A capture would overwrite what a launch that
        is `ahead` goes on with.
        """
        if not launch.ahead and self._graphs.wants(key, stream):
            self.capture(key, stream)
        found = self._graphs.find(key)
        return self._part(bucket, key) if found is None else found[0]

    def _part(self, bucket: DecodeBucket, key: GraphKey) -> Step:
        if key.part == LOGITS:
            return partial(bucket.forward, key.sms)
        return partial(bucket.sample, SamplingKind(key.part))

    def _decode(self, step: _PreparedDecode, sample: Step) -> Read:
        launch, batch, bucket = step.launch, step.batch, step.bucket
        step.load(self._stage)
        for _ in range(launch.steps):
            step.compute_logits()
            sample()
        bucket.leave(launch.steps)
        sampled = to_host(bucket.sampled[: launch.steps])
        return partial(read_plain, sampled, batch, launch.sequences)

    def _decode_with_reports(self, step: _PreparedDecode) -> Read:
        launch, batch, bucket = step.launch, step.batch, step.bucket
        step.load(self._stage)
        samples = list[DeviceSample]()
        for _ in range(launch.steps):
            step.compute_logits()
            earlier = [sample.token_ids for sample in samples]
            eos_token_ids = step.model.eos_token_ids
            sample = sample_with_reports(bucket.logits, bucket.parameters, step.rows, eos_token_ids, earlier)
            bucket.advance(sample.token_ids)
            samples.append(sample)
        bucket.leave(launch.steps)
        on_host = [sample_to_host(sample) for sample in samples]
        alternatives = step.rows.num_alternatives

        def read() -> Produced:
            tokens = list(zip(*(host_tokens(sample, alternatives) for sample in on_host), strict=True))
            return produced([tokens[place] for place in places_in(batch, launch.sequences)])

        return read


MakeCudaRunner = Callable[[int, Mapping[str, CudaModel], LaunchGraphs, torch.device], CudaRunner]
"""Makes the runner of a lane, by its number, over an executor's models."""


def lone_cuda_runner(
    number: int, models: Mapping[str, CudaModel], graphs: LaunchGraphs, device: torch.device
) -> CudaRunner:
    """A runner that no other rank works with, the same for every lane."""
    return CudaRunner(models, graphs, device)


def _adapters(model: CudaModel, chunks: Sequence[Chunk], decodes: Sequence[TokenSequence]) -> AdapterBatch | None:
    runs = token_runs(chunks, decodes)
    slots = model.decoder.adapters
    return None if slots is None or not runs else slots.batch(runs)


def upload_begun(model: CudaModel, batch: DeviceBatch) -> None:
    model.kv.upload(batch.begun_rows, batch.tensors["begun_rows"], batch.tensors["begun_blocks"])


def _sample_batch(model: CudaModel, batch: DeviceBatch, hidden: Tensor, chunks: Sequence[Chunk]) -> Read:
    read = _sampled(model, batch, hidden)
    prompts = [rows.computed(model.decoder, hidden, to_host) for rows in PromptRows.of(chunks)]
    embeddings = ComputedEmbeddings.of(chunks, model.decoder, hidden, to_host)
    if not prompts and embeddings is None:
        return read
    return lambda: replace(
        read(),
        prompt_logprobs={rows.place: rows.read() for rows in prompts},
        embeddings={} if embeddings is None else embeddings.read(),
    )


def _sampled(model: CudaModel, batch: DeviceBatch, hidden: Tensor) -> Read:
    places = batch.tensors["sampled"]
    if not len(places):
        return Produced
    logits = model.decoder.logits(hidden.index_select(0, places))
    sample = sample_to_host(sample_with_reports(logits, batch.tensors, batch.sampling, model.eos_token_ids))
    return lambda: produced([(token,) for token in host_tokens(sample, batch.sampling.num_alternatives)])
