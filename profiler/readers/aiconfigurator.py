"""Operator tables of `aiconfigurator-core` (PyPI, Apache-2.0): GEMMs, attention and all-reduces of vLLM, SGLang and
TensorRT-LLM on NVIDIA GPUs, timed one by one.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from profiler.errors import ProfileUnusable
from profiler.latency import Floats
from profiler.operator_costs import operator_costs
from profiler.operator_profile import MeasuredOperator, OperatorProfile, batches_of
from profiler.specs import DeviceSpec, ModelSpec

ENGINES = ("vllm", "sglang", "trtllm")
_FORM_FACTORS = ("_sxm", "", "_server")  # in the tables' names of GPUs, of those that we know
_PACKAGE = "aiconfigurator_core"
_MILLI = 1e-3
# Of a dense layer beside GEMMs, attention and all-reduces: two norms, rotary embedding, activation, a copy into the KV
# cache. The tables' authors reckon with 3 us each beside the traffic (`mem_empirical_constant_latency`).
_SMALL_KERNELS, _SMALL_KERNEL_S = 5, 3e-6
_SCALED, _TIMED = ("fp8", "nvfp4"), "fp8"  # whose activations are narrowed, too; whose narrowing was timed
_LEAST_PRODUCT = 0.3  # of a timed product, when what was timed with it is taken away: tables of two runs may disagree


def gemm_dtype_of(spec: ModelSpec) -> str:
    """Returns the tables' word for products with such weights. Of fp8 those with one scale for a tensor are taken."""
    kept_as = spec.weights_beside_experts
    return "bfloat16" if kept_as is None else {"fp8": "fp8", "int8": "int8_wo"}.get(kept_as, "int4_wo")


def installed_folder() -> Path:
    """Finds the package's folder without importing it. Raises ProfileUnusable: it is not installed here."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        remedy = "pip install aiconfigurator-core==0.12.0, or name the folder of one that is installed elsewhere"
        raise ProfileUnusable(path=_PACKAGE, reason="is not installed", remedy=remedy)
    return Path(found.submodule_search_locations[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTables:
    """`folder` is the package's. `gemm_dtype` and `kv_dtype` are the tables' words: bfloat16, fp8, fp8_block, nvfp4.
    `fuses_scaling`: the engine narrows activations in the kernel before a product, by scales that the checkpoint has:
    TensorRT-LLM does so with those of ModelOpt.
    """

    folder: Path
    device: DeviceSpec
    engine: str
    gemm_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    fuses_scaling: bool = False

    @property
    def version(self) -> str:
        """The engine's, of which the GEMMs are."""
        return self._newest("gemm", "gemm_perf").parent.name

    def profile(self, spec: ModelSpec, num_gpus: int) -> OperatorProfile:
        """Puts the operators of one GPU of such a mesh together. A mixture of experts is not read.

        Raises:
            ProfileUnusable: a table is missing, or has nothing of this device, dtype and head count.
        """
        if spec.is_moe:
            raise ProfileUnusable(
                path=str(self.folder),
                reason="tables of experts are not read",
                remedy="import models without experts, and measure the others with `muxfleet profile`",
            )
        gemm = self._gemm()
        layer_s = sum(gemm.seconds(n, k) for n, k in _layer_shapes(spec, num_gpus))
        elementwise_s = operator_costs(spec, self.device, num_gpus, self.device.num_sms).elementwise_s_per_token
        tokens = gemm.rows
        as_tokens = batches_of(decode_sequences=tokens, decode_depth=np.zeros_like(tokens))
        classifier_s = gemm.seconds(-(-spec.vocab_size // num_gpus), spec.hidden_size)
        prompts, decodes = self._attention(spec, num_gpus)
        return OperatorProfile(
            per_layer=MeasuredOperator(
                batches=as_tokens, seconds=layer_s + elementwise_s * tokens + _SMALL_KERNELS * _SMALL_KERNEL_S
            ),
            per_pass=MeasuredOperator(batches=as_tokens, seconds=np.full_like(tokens, _SMALL_KERNEL_S)),
            per_row=MeasuredOperator(batches=as_tokens, seconds=classifier_s),
            prefill_attention=prompts,
            decode_attention=decodes,
            all_reduce=self._all_reduce(spec, num_gpus) if num_gpus > 1 else None,
        )

    def _gemm(self) -> "_GemmTimes":
        file = self._newest("gemm", "gemm_perf")
        rows = read_rows(file, ("gemm_dtype", "m", "n", "k", "latency"))
        chosen = require(rows[rows["gemm_dtype"] == self.gemm_dtype], rows[["gemm_dtype"]], file, self.gemm_dtype)
        products = _GemmTimes.of(chosen)
        is_fused = self.fuses_scaling and self.gemm_dtype in _SCALED
        return products.without(self._scalings()) if is_fused else products

    def _scalings(self) -> pd.DataFrame:
        """Finding the scale of [m, k] activations and applying it: two kernels that such products were timed with.
        Those of fp8 stand for the others', which read the same activations.
        """
        steps = []
        for name in ("computescale_perf", "scale_matrix_perf"):
            file = self._newest("quantize", name)
            rows = read_rows(file, ("quant_dtype", "m", "k", "latency"))
            chosen = require(rows[rows["quant_dtype"] == _TIMED], rows[["quant_dtype"]], file, _TIMED)
            steps.append(chosen.groupby(["m", "k"])["latency"].min())
        return pd.DataFrame((steps[0] + steps[1]).mul(_MILLI).dropna().unstack("m").sort_index())

    def _attention(self, spec: ModelSpec, num_gpus: int) -> tuple[MeasuredOperator, MeasuredOperator]:
        prompts = self._attention_rows("context_attention_perf", spec, num_gpus)
        count, new = column(prompts, "batch_size"), column(prompts, "isl")
        decodes = self._attention_rows("generation_attention_perf", spec, num_gpus)
        return (
            MeasuredOperator(
                batches=batches_of(prompts=count, prefill_tokens=count * new, prefill_context=column(prompts, "step")),
                seconds=column(prompts, "latency") * _MILLI,
            ),
            MeasuredOperator(
                batches=batches_of(
                    decode_sequences=column(decodes, "batch_size"), decode_depth=column(decodes, "step")
                ),
                seconds=column(decodes, "latency") * _MILLI,
            ),
        )

    def _attention_rows(self, name: str, spec: ModelSpec, num_gpus: int) -> pd.DataFrame:
        file = self._newest("attention", name)
        heads, kv_heads = -(-spec.num_heads // num_gpus), spec.kv_heads_per_gpu(num_gpus)
        shape = ("num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype")
        rows = read_rows(file, (*shape, "batch_size", "isl", "step", "window_size", "latency"))
        chosen = rows[
            (rows["num_heads"] == heads)
            & (rows["num_key_value_heads"] == kv_heads)
            & (rows["head_dim"] == spec.head_dim)
            & (rows["kv_cache_dtype"] == self.kv_dtype)
            & (rows["window_size"] == 0)
        ]
        wanted = f"{heads} query and {kv_heads} KV heads of {spec.head_dim} with {self.kv_dtype} keys"
        require(chosen, rows[list(shape)], file, wanted)
        return chosen.groupby(["batch_size", "isl", "step"])["latency"].min().reset_index()

    def _all_reduce(self, spec: ModelSpec, num_gpus: int) -> MeasuredOperator:
        """By tokens. Of launches one by one and in a CUDA graph, those in a graph: engines capture their steps."""
        file = self._newest("comm", "custom_allreduce_perf")
        rows = read_rows(file, ("num_gpus", "message_size", "latency"))
        chosen = require(rows[rows["num_gpus"] == num_gpus], rows[["num_gpus"]], file, f"{num_gpus} GPUs")
        by_size = chosen.groupby("message_size")["latency"].min().sort_index()
        # A smaller message can be sent as a larger one, and takes no longer.
        quickest = by_size[::-1].cummin()[::-1].reset_index()
        # Sizes are in elements of two bytes, whatever the operator's name for them.
        tokens = column(quickest, "message_size") / spec.hidden_size
        return MeasuredOperator(
            batches=batches_of(decode_sequences=tokens, decode_depth=np.zeros_like(tokens)),
            seconds=column(quickest, "latency") * _MILLI,
        )

    def _system(self) -> Path:
        """The GPU's folder: of `A100-80G` it is `a100_sxm`."""
        data = self.folder / "systems" / "data"
        words = self.device.name.lower().split("-")
        names = [f"{name}{form}" for name in ("_".join(words), words[0]) for form in _FORM_FACTORS]
        for name in names:
            if (data / name).is_dir():
                return data / name
        known = ", ".join(sorted(home.name for home in data.glob("*"))) or "none"
        remedy = f"it has {known}" if data.is_dir() else "name the folder of the package aiconfigurator_core"
        raise ProfileUnusable(path=str(data), reason=f"has no tables of {self.device.name}", remedy=remedy)

    def _newest(self, group: str, name: str) -> Path:
        """The engine's last version that has the table."""
        home = self._system() / group / self.engine
        files = sorted(home.glob(f"*/{name}.parquet"), key=lambda file: _as_version(file.parent.name))
        if not files:
            reason = f"has no {name} of {self.engine} on {self.device.name}"
            raise ProfileUnusable(path=str(home), reason=reason, remedy=f"name one of {', '.join(ENGINES)}")
        return files[-1]


@dataclass(frozen=True, slots=True)
class _GemmTimes:
    """Seconds of [m, k] x [k, n], interpolated in the logarithms of all four; of several kernels the quickest."""

    rows: Floats
    logarithms: RegularGridInterpolator

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "_GemmTimes":
        axes = [np.sort(rows[name].unique()).astype(np.float64) for name in ("n", "k", "m")]
        quickest = np.log(rows.groupby(["n", "k", "m"])["latency"].min().mul(_MILLI))
        products = pd.MultiIndex.from_product(axes[:2], names=("n", "k"))
        whole = pd.DataFrame(quickest.unstack("m")).reindex(products).interpolate(axis=1, limit_direction="both")
        # The largest products are left out of some tables: they take the time of a multiplication of the next smaller.
        size = np.log(products.get_level_values("n") * products.get_level_values("k"))
        per_product = whole.sub(size, axis=0)
        for level in ("n", "k"):
            per_product = per_product.groupby(level=level).transform(lambda times: times.ffill().bfill())
        cube = per_product.add(size, axis=0).to_numpy().reshape([len(axis) for axis in axes])
        # A product can be computed as part of a larger one, and takes no longer. Where a table says so all the same,
        # the outlier would stand for all layers of a model.
        for axis in range(cube.ndim):
            cube = np.flip(np.minimum.accumulate(np.flip(cube, axis), axis), axis)
        grid = RegularGridInterpolator([np.log(axis) for axis in axes], cube, bounds_error=False, fill_value=None)
        return cls(axes[2], grid)

    def without(self, beside: pd.DataFrame) -> "_GemmTimes":
        """Less what was timed with each product, by rows and k: seconds, a column per m."""
        log_k, log_m = np.log(beside.index.to_numpy(np.float64)), np.log(beside.columns.to_numpy(np.float64))
        filled = beside.interpolate(axis=1, limit_direction="both").to_numpy()
        less = RegularGridInterpolator([log_k, log_m], np.log(filled), bounds_error=False, fill_value=None)
        log_n, own_k, own_m = self.logarithms.grid
        points = np.stack(np.meshgrid(own_k, own_m, indexing="ij"), axis=-1)
        products_s = np.exp(self.logarithms.values)
        rest_s = np.maximum(products_s - np.exp(less(points))[None], _LEAST_PRODUCT * products_s)
        grid = RegularGridInterpolator([log_n, own_k, own_m], np.log(rest_s), bounds_error=False, fill_value=None)
        return _GemmTimes(self.rows, grid)

    def seconds(self, n: int, k: int) -> Floats:
        log_rows = np.log(self.rows)
        points = np.stack([np.full_like(log_rows, np.log(n)), np.full_like(log_rows, np.log(k)), log_rows], axis=1)
        return np.asarray(np.exp(self.logarithms(points)))


def _layer_shapes(spec: ModelSpec, num_gpus: int) -> tuple[tuple[int, int], ...]:
    """(n, k) of the four products of a dense layer on one GPU of the mesh."""
    q_dim = -(-spec.num_heads // num_gpus) * spec.head_dim
    kv_dim = spec.kv_heads_per_gpu(num_gpus) * spec.head_dim
    inner = -(-spec.intermediate_size // num_gpus)
    return (
        (q_dim + 2 * kv_dim, spec.hidden_size),
        (spec.hidden_size, q_dim),
        (2 * inner, spec.hidden_size),
        (spec.hidden_size, inner),
    )


def _as_version(name: str) -> tuple[tuple[int, ...], str]:
    """Release candidates by their number, which sorts after the release's parts."""
    digits = "".join(c if c.isdigit() else " " for c in name).split()
    return tuple(int(d) for d in digits), name


def read_rows(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Raises ProfileUnusable: the file cannot be read, or has not these columns."""
    if not file.exists():
        raise ProfileUnusable(path=str(file), reason="no such file", remedy="give a readable parquet file")
    try:
        rows = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise ProfileUnusable(path=str(file), reason=str(error), remedy="give a readable parquet file") from error
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        reason = f"has no column {missing[0]!r}"
        raise ProfileUnusable(path=str(file), reason=reason, remedy=f"give a file with {', '.join(columns)}")
    return rows


def require(rows: pd.DataFrame, known: pd.DataFrame, file: Path, wanted: str) -> pd.DataFrame:
    """Raises ProfileUnusable: there are no `rows`; the message lists what the file has, from the columns of `known`."""
    if rows.empty:
        has = known.drop_duplicates().astype(str).agg(" ".join, axis=1)
        reason = f"holds nothing of {wanted}"
        raise ProfileUnusable(path=str(file), reason=reason, remedy=f"it has: {'; '.join(has)}")
    return rows


def column(rows: pd.DataFrame, name: str) -> Floats:
    return rows[name].to_numpy(dtype="float64")
