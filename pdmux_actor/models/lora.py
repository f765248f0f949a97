"""LoRA adapters of one decoder: their matrices in stacks, so that one product serves tokens of many adapters.

Tokens of one adapter that lie together take two products of their own; the others are gathered into
`[adapters, most tokens, size]` and take two batched products. On two cores with 32 adapters of rank 16 the latter took
a tenth of the time of a product for each; for one adapter it is the other way round.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pdmux_actor.models.linear import Projection, SummedProjection
from pdmux_actor.models.lora_checkpoint import LoraAdapter
from profiler.adapter_sites import Site, padded_rank, projection_shapes
from profiler.specs import ModelSpec

# Tokens of one adapter, side by side, from which products of their own are faster.
_LONG_RUN_TOKENS = 16


class TokenRun(NamedTuple):
    """Tokens `[first, first + length)` of a batch, of one sequence; `adapter` None: of the base alone."""

    adapter: str | None
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class _SiteStack:
    """`a` is [slots, parts * rank, in]; `b[i]`, of part i, [slots, rank, out]; its output has `columns[i]`."""

    a: Tensor
    b: tuple[Tensor, ...]
    columns: tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stacks:
    """Room for `num_slots` adapters of at most `rank`, at the `sites` that one of them changes."""

    num_slots: int
    rank: int
    sites: frozenset[Site]
    layers: tuple[Mapping[Site, _SiteStack], ...]

    @classmethod
    def make(
        cls, spec: ModelSpec, num_slots: int, rank: int, sites: frozenset[Site], like: Tensor, old: "_Stacks | None"
    ) -> "_Stacks":
        """Zeros, and what `old` holds in its slots."""
        layers = tuple(
            {site: _empty(spec, site, num_slots, rank, like) for site in sites} for _ in range(spec.num_layers)
        )
        made = cls(num_slots=num_slots, rank=rank, sites=sites, layers=layers)
        for before, after in zip(() if old is None else old.layers, layers, strict=False):
            assert old is not None
            for site, stack in before.items():
                parts = len(site.value)
                kept = stack.a.view(old.num_slots, parts, old.rank, -1)
                after[site].a.view(num_slots, parts, rank, -1)[: old.num_slots, :, : old.rank] = kept
                for part, kept_b in enumerate(stack.b):
                    after[site].b[part][: old.num_slots, : old.rank] = kept_b
        return made

    def write(self, slot: int, adapter: LoraAdapter | None) -> None:
        """Leaves nothing of what was in the slot."""
        for index, layer in enumerate(self.layers):
            pairs = {} if adapter is None else adapter.layers[index]
            for site, stack in layer.items():
                stack.a[slot] = 0
                for part, name in enumerate(site.value):
                    stack.b[part][slot] = 0
                    if name in pairs:
                        pair, first = pairs[name], part * self.rank
                        stack.a[slot, first : first + len(pair.a)] = pair.a
                        stack.b[part][slot, : len(pair.b)] = pair.b


def _empty(spec: ModelSpec, site: Site, num_slots: int, rank: int, like: Tensor) -> _SiteStack:
    shapes = [projection_shapes(spec)[part] for part in site.value]
    columns, first = [], 0
    for size_out, _ in shapes:
        columns.append(slice(first, first + size_out))
        first += size_out
    return _SiteStack(
        like.new_zeros(num_slots, len(shapes) * rank, shapes[0][1]),
        tuple(like.new_zeros(num_slots, rank, size_out) for size_out, _ in shapes),
        tuple(columns),
    )


class AdapterSlots:
    """Adapters of one decoder. `load` and `drop` come from one thread, for adapters of which no launch is in flight;
    launches of others go on meanwhile.
    """

    def __init__(self, spec: ModelSpec, like: Tensor) -> None:
        """`like` has the type and the device of the decoder's activations."""
        self._spec = spec
        self._like = like
        self._slots: dict[str, int] = {}
        # The last are in use; those before them stay until the next change: a device may still be at work on them.
        self._stacks: deque[_Stacks] = deque(maxlen=2)

    def load(self, name: str, adapter: LoraAdapter) -> None:
        assert name not in self._slots, f"adapter {name} is loaded"
        slot = next(i for i in range(len(self._slots) + 1) if i not in self._slots.values())
        stacks = self._stacks[-1] if self._stacks else None
        sites = frozenset(s for s in Site for layer in adapter.layers if not layer.keys().isdisjoint(s.value))
        rank = padded_rank(adapter.rank)
        if stacks is None or slot >= stacks.num_slots or rank > stacks.rank or not sites <= stacks.sites:
            num_slots = 1 if stacks is None else stacks.num_slots
            num_slots = num_slots if slot < num_slots else 2 * num_slots
            if stacks is not None:
                rank, sites = max(rank, stacks.rank), sites | stacks.sites
            stacks = _Stacks.make(self._spec, num_slots, rank, sites, self._like, stacks)
            self._stacks.append(stacks)  # launches in flight go on with those that they began with
        stacks.write(slot, adapter)
        self._slots[name] = slot
        if self._like.is_cuda:
            # Launches read it on streams of their own. To wait for the whole device is forbidden while the engine's
            # thread captures, and ends the capture.
            torch.cuda.current_stream(self._like.device).synchronize()

    def drop(self, name: str) -> None:
        """Its place is taken by the next; when the last has gone, so has the memory of all."""
        del self._slots[name]
        if not self._slots:
            self._stacks.clear()

    def batch(self, runs: Sequence[TokenRun]) -> "AdapterBatch":
        """`runs`: all tokens of a launch, some of them of an adapter."""
        assert self._stacks, "an adapter of the batch is not loaded"
        slots = [None if run.adapter is None else self._slots[run.adapter] for run in runs]
        return AdapterBatch.of(self._stacks[-1], [(s, r) for s, r in zip(slots, runs, strict=True) if s is not None])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    """Short runs. `tokens` [adapters * most tokens] are gathered from rows `[first, last)` of the batch, and `places`
    says for each of these rows which product is its; the one behind the last is zero. `slots` None: all, in order.
    """

    first: int
    last: int
    num_adapters: int
    slots: Tensor | None
    tokens: Tensor
    places: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBatch:
    """Says which tokens of a launch are of which adapter; `runs` are those that are of one."""

    stacks: _Stacks
    runs: tuple[TokenRun, ...]
    long: tuple[tuple[int, slice], ...]
    gathered: _Gathered | None = field(default=None)

    @classmethod
    def of(cls, stacks: _Stacks, runs: Sequence[tuple[int, TokenRun]]) -> "AdapterBatch":
        is_alone = len(runs) == 1
        long = [(s, slice(r.first, r.first + r.length)) for s, r in runs if is_alone or r.length >= _LONG_RUN_TOKENS]
        tokens: dict[int, list[int]] = {}
        for slot, run in runs:
            if not is_alone and run.length < _LONG_RUN_TOKENS:
                tokens.setdefault(slot, []).extend(range(run.first, run.first + run.length))
        return cls(
            stacks=stacks,
            runs=tuple(run for _, run in runs),
            long=tuple(long),
            gathered=_gather(stacks, tokens) if tokens else None,
        )

    def plus(self, layer: int, site: Site, projection: Projection, inputs: Tensor, addend: Tensor) -> Tensor:
        """Returns a projection's product, the residual `addend` and what the adapters add. Where products are summed
        over ranks, each adds its part of all of it before.
        """
        change = partial(self.add, layer, site, inputs)
        if isinstance(projection, SummedProjection):
            return projection.plus_changed(inputs, addend, change)
        outputs = projection.plus(inputs, addend)
        change(outputs)
        return outputs

    def add(self, layer: int, site: Site, inputs: Tensor, outputs: Tensor) -> None:
        """Adds to a projection's `outputs` [tokens, out] what the adapters make of its `inputs` [tokens, in]."""
        stack = self.stacks.layers[layer].get(site)
        if stack is None:
            return
        rank = self.stacks.rank
        for slot, rows in self.long:
            shrunk = inputs[rows] @ stack.a[slot].t()
            for part, (columns, b) in enumerate(zip(stack.columns, stack.b, strict=True)):
                outputs[rows, columns].addmm_(shrunk[:, part * rank : (part + 1) * rank], b[slot])
        if self.gathered is not None:
            _add_gathered(self.gathered, stack, rank, inputs, outputs)


def _gather(stacks: _Stacks, tokens: Mapping[int, Sequence[int]]) -> _Gathered:
    device = stacks.layers[0][next(iter(stacks.sites))].a.device
    # Stacks of a part of the slots are copies: from half of them on, products with all are cheaper.
    takes_all = 2 * len(tokens) >= stacks.num_slots
    slots = range(stacks.num_slots) if takes_all else sorted(tokens)
    most = max(len(of_slot) for of_slot in tokens.values())
    first = min(min(of_slot) for of_slot in tokens.values())
    last = max(max(of_slot) for of_slot in tokens.values()) + 1
    padding = len(slots) * most
    gathered, places = [first] * padding, [padding] * (last - first)
    for group, slot in enumerate(slots):
        for i, token in enumerate(tokens.get(slot, ())):
            gathered[group * most + i] = token
            places[token - first] = group * most + i
    in_order = places == list(range(padding))
    return _Gathered(
        first=first,
        last=last,
        num_adapters=len(slots),
        slots=None if takes_all else _on_device(slots, device),
        tokens=_on_device(gathered, device),
        places=None if in_order else _on_device(places, device),
    )


def _on_device(indices: Sequence[int], device: torch.device) -> Tensor:
    """Without waiting for the device."""
    return torch.tensor(indices, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _add_gathered(batch: _Gathered, stack: _SiteStack, rank: int, inputs: Tensor, outputs: Tensor) -> None:
    num_rows = len(batch.tokens)

    def of_batch(matrices: Tensor) -> Tensor:
        return matrices if batch.slots is None else matrices.index_select(0, batch.slots)

    grouped = inputs.index_select(0, batch.tokens).view(batch.num_adapters, -1, inputs.shape[1])
    shrunk = torch.bmm(grouped, of_batch(stack.a).transpose(1, 2))
    added = outputs.new_zeros(num_rows + 1, outputs.shape[1])
    for part, (columns, b) in enumerate(zip(stack.columns, stack.b, strict=True)):
        of_part = torch.bmm(shrunk[:, :, part * rank : (part + 1) * rank], of_batch(b))
        added[:num_rows, columns] = of_part.flatten(0, 1)
    rows = added[:num_rows] if batch.places is None else added.index_select(0, batch.places)
    outputs[batch.first : batch.last].add_(rows)
