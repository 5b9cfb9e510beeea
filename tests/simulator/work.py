"""What a GPU is asked to do: ops with their shapes and the activities they launch, each with what it is by construction.

FLOPs and bytes are written out here as ATTRIBUTION section 4 defines them (2MNK; inputs read once, outputs written once), so that
they can be held against what trace_doctor finds from names and shapes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

BF16, FP32, FP8, INT64 = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "long int"
SIZE = {BF16: 2, FP32: 4, FP8: 1, INT64: 8, "bool": 1, "unsigned char": 1}

KERNELS: dict[str, str] = tomllib.loads(Path(__file__).with_name("kernels.toml").read_text(encoding="utf-8"))

Kind = Literal["tensor", "compute", "communication", "copy", "set"]


class Gpu(NamedTuple):
    """A device with the peaks that its work is held against."""

    name: str
    peak_flops: dict[str, float]
    bandwidth: float
    link_bandwidth: float
    memory_bytes: int
    compute_capability: tuple[int, int]
    multiprocessors: int


H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    peak_flops={"bf16": 989.4e12, "tf32": 494.7e12, "fp8": 1979e12, "fp32": 67e12},
    bandwidth=3350e9,
    link_bandwidth=450e9,
    memory_bytes=85_028_372_480,
    compute_capability=(9, 0),
    multiprocessors=132,
)


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One kernel, collective, copy or memset."""

    name: str
    duration_ns: int
    kind: Kind
    cause: str = ""
    """Cause of the ledger that holds its time: the family of a memory-bound kernel, or what an exposed copy or collective is."""
    flops: float | None = None
    bytes_moved: float | None = None
    """At least to be moved; for copies their size."""
    dtype: str = "bf16"
    """Peak that tensor work is held against."""
    wire_bytes: float | None = None
    collective: dict[str, Any] | None = None
    grid: tuple[int, int, int] = (1024, 1, 1)
    block: tuple[int, int, int] = (256, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Op:
    """A dispatcher op as `record_shapes` shows it, with what it launches; `inside` are the ops that wrap it, outermost first."""

    name: str
    shapes: list[Any]
    dtypes: list[str]
    concrete: list[str] | None = None
    launches: tuple[Activity, ...] = ()
    inside: tuple[Op, ...] = ()

    def within(self, *outer: Op) -> Op:
        """The same op called by others."""
        return replace(self, inside=(*outer, *self.inside))


# ---- tensor work


def tensor(
    op: str,
    shapes: list[Any],
    dtypes: list[str],
    kernel: str,
    flops: float,
    bytes_moved: float,
    efficiency: float,
    *,
    dtype: str = "bf16",
    concrete: list[str] | None = None,
    gpu: Gpu = H100,
) -> Op:
    """An op with one tensor kernel that reaches `efficiency` of its dtype's peak."""
    duration_ns = round(1e9 * flops / gpu.peak_flops[dtype] / efficiency)
    run = Activity(
        name=kernel, duration_ns=duration_ns, kind="tensor", flops=flops, bytes_moved=bytes_moved, dtype=dtype
    )
    return Op(name=op, shapes=shapes, dtypes=dtypes, concrete=concrete, launches=(run,))


GEMM_BY_DTYPE = {BF16: ("gemm", "bf16"), FP32: ("gemm_tf32", "tf32")}


def mm(m: int, n: int, k: int, *, efficiency: float = 0.7, of: str = BF16) -> Op:
    """aten::mm of [m, k] and [k, n]; float inputs run in TF32."""
    kernel, dtype = GEMM_BY_DTYPE[of]
    traffic = SIZE[of] * (m * k + k * n + m * n)
    return tensor(
        "aten::mm", [[m, k], [k, n]], [of, of], KERNELS[kernel], 2.0 * m * n * k, traffic, efficiency, dtype=dtype
    )


def addmm(m: int, n: int, k: int, *, efficiency: float = 0.7) -> Op:
    """aten::addmm, the linear layer with bias: [n] + [m, k] @ [k, n]."""
    traffic = 2 * (n + m * k + k * n + m * n)
    shapes: list[Any] = [[n], [m, k], [k, n], [], []]
    dtypes = [BF16, BF16, BF16, "Scalar", "Scalar"]
    concrete = ["", "", "", "1", "1"]
    return tensor(
        "aten::addmm", shapes, dtypes, KERNELS["gemm"], 2.0 * m * n * k, traffic, efficiency, concrete=concrete
    )


def bmm(b: int, m: int, n: int, k: int, *, efficiency: float = 0.6) -> Op:
    """aten::bmm of [b, m, k] and [b, k, n]."""
    traffic = 2 * b * (m * k + k * n + m * n)
    return tensor(
        "aten::bmm", [[b, m, k], [b, k, n]], [BF16, BF16], KERNELS["gemm"], 2.0 * b * m * n * k, traffic, efficiency
    )


def scaled_mm(m: int, n: int, k: int, *, efficiency: float = 0.6) -> Op:
    """aten::_scaled_mm: FP8 inputs, BF16 output, one FP32 scale each."""
    shapes: list[Any] = [[m, k], [k, n], [], [], [], [], [], []]
    dtypes = [FP8, FP8, FP32, FP32, "", "", "Scalar", "Scalar"]
    concrete = ["", "", "", "", "", "", "15", "True"]
    traffic = m * k + k * n + 2 * m * n
    return tensor(
        "aten::_scaled_mm",
        shapes,
        dtypes,
        KERNELS["gemm_fp8"],
        2.0 * m * n * k,
        traffic,
        efficiency,
        dtype="fp8",
        concrete=concrete,
    )


def flash_forward(batch: int, heads: int, tokens: int, width: int, *, efficiency: float = 0.55) -> Op:
    """Causal flash attention: two matmuls of which half is masked away."""
    shape = [batch, heads, tokens, width]
    flops = 2 * 2.0 * prod(shape) * tokens / 2
    traffic = 2 * 4 * prod(shape) + 4 * batch * heads * tokens
    kernel = KERNELS["flash_forward"].format(width=width)
    by_head = [batch, tokens, heads, width]
    outer = Op(
        name="aten::scaled_dot_product_attention",
        shapes=[shape, shape, shape, [], [], [], [], []],
        dtypes=[BF16, BF16, BF16, "", "Scalar", "Scalar", "", "Scalar"],
        concrete=["", "", "", "", "0.", "True", "", "False"],
    )
    middle = Op(
        name="aten::_scaled_dot_product_flash_attention",
        shapes=[shape, shape, shape, [], [], [], []],
        dtypes=[BF16, BF16, BF16, "Scalar", "Scalar", "Scalar", ""],
        concrete=["", "", "", "0.", "True", "False", ""],
    )
    inner = tensor(
        "aten::_flash_attention_forward",
        [*[by_head] * 3, *[[]] * 12],
        [*[BF16] * 3, "", "", *["Scalar"] * 5, *[""] * 5],
        kernel,
        flops,
        traffic,
        efficiency,
        concrete=[*[""] * 5, str(tokens), str(tokens), "0.", "True", "False", *[""] * 5],
    )
    return inner.within(outer, middle)


def flash_backward(batch: int, heads: int, tokens: int, width: int, *, efficiency: float = 0.45) -> Op:
    """Its backward: four matmuls of the model (the fifth, that recomputes the scores, is the kernel's own affair), half masked away."""
    shape, by_head = [batch, heads, tokens, width], [batch, tokens, heads, width]
    flops = 4 * 2.0 * prod(shape) * tokens / 2
    traffic = 2 * 8 * prod(shape) + 4 * batch * heads * tokens
    kernel = KERNELS["flash_backward"].format(width=width)
    outer = Op(
        name="aten::_scaled_dot_product_flash_attention_backward",
        shapes=[*[shape] * 5, [batch, heads, tokens], *[[]] * 9],
        dtypes=[*[BF16] * 5, FP32, "", "", *["Scalar"] * 4, "unsigned long int", "", ""],
        concrete=[*[""] * 8, str(tokens), str(tokens), "0.", "True", *[""] * 3],
    )
    inner = tensor(
        "aten::_flash_attention_backward",
        [*[by_head] * 5, [batch, heads, tokens], *[[]] * 11],
        [*[BF16] * 5, FP32, "", "", *["Scalar"] * 4, "unsigned long int", *[""] * 4],
        kernel,
        flops,
        traffic,
        efficiency,
        concrete=[*[""] * 8, str(tokens), str(tokens), "0.", "True", *[""] * 5],
    )
    return inner.within(outer)


# ---- other compute


def moving(
    op: str,
    shapes: list[Any],
    dtypes: list[str],
    kernel: str,
    cause: str,
    bytes_moved: float | None,
    *,
    efficiency: float = 0.85,
    duration_ns: int | None = None,
    concrete: list[str] | None = None,
    gpu: Gpu = H100,
) -> Op:
    """An op with one kernel that only moves data, at `efficiency` of the bandwidth after 2 us of start and end."""
    if duration_ns is None:
        duration_ns = 2_000 + round(1e9 * (bytes_moved or 0) / gpu.bandwidth / efficiency)
    run = Activity(name=kernel, duration_ns=duration_ns, kind="compute", cause=cause, bytes_moved=bytes_moved)
    return Op(name=op, shapes=shapes, dtypes=dtypes, concrete=concrete, launches=(run,))


def add(shape: list[int], **how: Any) -> Op:
    """aten::add of two tensors: the residual connection."""
    return moving(
        "aten::add",
        [shape, shape, []],
        [BF16, BF16, "Scalar"],
        KERNELS["add"],
        "elementwise",
        6 * prod(shape),
        concrete=["", "", "1"],
        **how,
    )


def mul(shape: list[int], **how: Any) -> Op:
    """aten::mul of two tensors."""
    return moving("aten::mul", [shape, shape], [BF16, BF16], KERNELS["mul"], "elementwise", 6 * prod(shape), **how)


def gelu(shape: list[int], **how: Any) -> Op:
    """aten::gelu."""
    return moving("aten::gelu", [shape, []], [BF16, ""], KERNELS["gelu"], "elementwise", 4 * prod(shape), **how)


def gelu_backward(shape: list[int], **how: Any) -> Op:
    """aten::gelu_backward."""
    return moving(
        "aten::gelu_backward",
        [shape, shape, []],
        [BF16, BF16, ""],
        KERNELS["gelu_backward"],
        "elementwise",
        6 * prod(shape),
        **how,
    )


def layer_norm(rows: list[int], width: int, **how: Any) -> Op:
    """aten::native_layer_norm over the last dimension: reads x, weight and bias; writes y and two statistics a row."""
    traffic = 2 * (2 * prod(rows) * width + 2 * width) + 2 * 4 * prod(rows)
    outer = Op(
        name="aten::layer_norm",
        shapes=[[*rows, width], [], [width], [width], [], []],
        dtypes=[BF16, "ScalarList", BF16, BF16, "Scalar", "Scalar"],
        concrete=["", f"[{width}]", "", "", "1.0000000000000001e-05", "True"],
    )
    return moving(
        "aten::native_layer_norm",
        [[*rows, width], [], [width], [width], []],
        [BF16, "ScalarList", BF16, BF16, "Scalar"],
        KERNELS["layer_norm"],
        "normalisation",
        traffic,
        concrete=["", f"[{width}]", "", "", "1.0000000000000001e-05"],
        **how,
    ).within(outer)


def layer_norm_backward(rows: list[int], width: int, **how: Any) -> Op:
    """aten::native_layer_norm_backward: reads the gradient, x, two statistics a row and the weight; writes three gradients."""
    return moving(
        "aten::native_layer_norm_backward",
        [[*rows, width], [*rows, width], [], [*rows, 1], [*rows, 1], [width], [width], []],
        [BF16, BF16, "ScalarList", FP32, FP32, BF16, BF16, "ScalarList"],
        KERNELS["layer_norm_backward"],
        "normalisation",
        2 * (3 * prod(rows) * width + 3 * width) + 2 * 4 * prod(rows),
        concrete=["", "", f"[{width}]", "", "", "", "", "[True, True, True]"],
        **how,
    )


def softmax(shape: list[int], **how: Any) -> Op:
    """aten::_softmax over the last dimension."""
    return moving(
        "aten::_softmax",
        [shape, [], []],
        [BF16, "Scalar", "Scalar"],
        KERNELS["softmax"],
        "softmax",
        4 * prod(shape),
        concrete=["", "-1", "False"],
        **how,
    )


def softmax_backward(shape: list[int], **how: Any) -> Op:
    """aten::_softmax_backward_data."""
    return moving(
        "aten::_softmax_backward_data",
        [shape, shape, [], []],
        [BF16, BF16, "Scalar", "Scalar"],
        KERNELS["softmax_backward"],
        "softmax",
        6 * prod(shape),
        concrete=["", "", "-1", "15"],
        **how,
    )


def total(rows: int, width: int, **how: Any) -> Op:
    """aten::sum over the rows: the gradient of a bias."""
    return moving(
        "aten::sum",
        [[rows, width], [], [], []],
        [BF16, "ScalarList", "Scalar", ""],
        KERNELS["total"],
        "reduction",
        2 * (rows * width + width),
        concrete=["", "[0]", "True", ""],
        **how,
    )


def embedding(entries: int, width: int, tokens: int, **how: Any) -> Op:
    """aten::embedding: one row read and written a token."""
    outer = Op(
        name="aten::embedding",
        shapes=[[entries, width], [tokens], [], [], []],
        dtypes=[BF16, INT64, "Scalar", "Scalar", "Scalar"],
        concrete=["", "", "-1", "False", "False"],
    )
    return moving(
        "aten::index_select",
        [[entries, width], [], [tokens]],
        [BF16, "Scalar", INT64],
        KERNELS["embedding"],
        "embedding",
        2 * 2 * tokens * width + 8 * tokens,
        concrete=["", "0", ""],
        **how,
    ).within(outer)


def log_softmax(rows: int, width: int, **how: Any) -> Op:
    """aten::_log_softmax of the logits: part of the loss."""
    return moving(
        "aten::_log_softmax",
        [[rows, width], [], []],
        [BF16, "Scalar", "Scalar"],
        KERNELS["log_softmax"],
        "softmax",
        4 * rows * width,
        concrete=["", "1", "False"],
        **how,
    )


def log_softmax_backward(rows: int, width: int, **how: Any) -> Op:
    """aten::_log_softmax_backward_data."""
    return moving(
        "aten::_log_softmax_backward_data",
        [[rows, width], [rows, width], [], []],
        [BF16, BF16, "Scalar", "Scalar"],
        KERNELS["log_softmax_backward"],
        "softmax",
        6 * rows * width,
        concrete=["", "", "1", "15"],
        **how,
    )


def nll_loss(rows: int, width: int, *, duration_ns: int = 8_000) -> Op:
    """aten::nll_loss_forward: the targets are read, and one number a row read and written."""
    return moving(
        "aten::nll_loss_forward",
        [[rows, width], [rows], [], [], []],
        [BF16, INT64, "", "Scalar", "Scalar"],
        KERNELS["nll_loss"],
        "loss",
        rows * (8 + 2 + 2),
        duration_ns=duration_ns,
        concrete=["", "", "", "1", "-100"],
    )


def transpose(shape: list[int], **how: Any) -> Op:
    """aten::copy_ into another layout: what `.contiguous()` does."""
    return moving(
        "aten::copy_",
        [shape, shape, []],
        [BF16, BF16, "Scalar"],
        KERNELS["transpose"],
        "layout",
        4 * prod(shape),
        concrete=["", "", "False"],
        **how,
    )


def dropout(shape: list[int], **how: Any) -> Op:
    """aten::native_dropout: reads x, writes y and a mask of one byte an element."""
    return moving(
        "aten::native_dropout",
        [shape, [], []],
        [BF16, "Scalar", "Scalar"],
        KERNELS["dropout"],
        "random",
        5 * prod(shape),
        concrete=["", "0.10000000000000001", "True"],
        **how,
    )


def sort(length: int, *, duration_ns: int) -> Op:
    """aten::sort of one row: the values are read and written, and their places written."""
    return moving(
        "aten::sort",
        [[length], [], [], []],
        [FP32, "", "Scalar", "Scalar"],
        KERNELS["sort"],
        "sort",
        (4 + 4 + 8) * length,
        duration_ns=duration_ns,
        concrete=["", "", "-1", "True"],
    )


def adamw(sizes: list[list[int]], **how: Any) -> Op:
    """aten::_fused_adamw_: reads parameter, gradient and two moments, writes all but the gradient."""
    return moving(
        "aten::_fused_adamw_",
        [sizes, sizes, sizes, sizes, [], [[]] * len(sizes), [], [], [], [], [], [], [], [], []],
        ["TensorList"] * 6 + ["Scalar"] * 7 + ["", ""],
        KERNELS["adamw"],
        "optimizer",
        2 * 7 * sum(prod(size) for size in sizes),
        **how,
    )


def unknown(duration_ns: int, *, name: str = "my_secret_kernel_v7") -> Op:
    """A kernel of nobody's library, from an op without shapes."""
    run = Activity(name=name, duration_ns=duration_ns, kind="compute", cause="unknown")
    return Op(name="mylib::secret", shapes=[], dtypes=[], launches=(run,))


# ---- communication, copies


def collective(
    name: str,
    elements: int,
    *,
    duration_ns: int,
    ranks: int = 8,
    group: str = "0",
    description: str = "default_pg",
) -> Activity:
    """An NCCL kernel as the process group names it; wire bytes as nccl-tests count them."""
    kernel, factor, out = {
        "allreduce": ("AllReduce_Sum_bf16_RING_LL", 2 * (ranks - 1) / ranks, elements),
        "_allgather_base": ("AllGather_RING_LL", ranks - 1, elements * ranks),
        "_reduce_scatter_base": ("ReduceScatter_Sum_bf16_RING_LL", (ranks - 1) / ranks, elements // ranks),
        "send": ("SendRecv", 1, elements),
        "recv": ("SendRecv", 1, elements),
    }[name]
    # NCCL names a point-to-point kernel SendRecv whichever end this rank is
    is_pipeline = name in ("send", "recv")
    return Activity(
        name=f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)",
        duration_ns=duration_ns,
        kind="communication",
        cause="pipeline bubble" if is_pipeline else "",
        wire_bytes=2 * elements * factor,
        grid=(24, 1, 1),
        block=(544, 1, 1),
        collective={
            "Collective name": name,
            "In msg nelems": elements,
            "Out msg nelems": out,
            "Group size": ranks,
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group,
            "Process Group Description": description,
            "Process Group Ranks": str(list(range(ranks))),
        },
    )


COPIES = {
    "HtoD": ("Memcpy HtoD ({} -> Device)", "input transfer", 52e9),
    "DtoH": ("Memcpy DtoH (Device -> {})", "offload", 52e9),
    "DtoD": ("Memcpy DtoD (Device -> Device)", "copy", 1400e9),
    "PtoP": ("Memcpy PtoP (Device -> Device)", "peer-to-peer copy", 360e9),
}


def copy(
    direction: str, size_bytes: int, *, pinned: bool = True, cause: str | None = None, duration_ns: int | None = None
) -> Activity:
    """A copy; host memory is pinned or pageable (five times slower)."""
    name, usual, rate = COPIES[direction]
    if not pinned:
        rate /= 5
    if direction == "DtoH" and size_bytes < 65_536:
        usual = "synchronisation"
    return Activity(
        name=name.format("Pinned" if pinned else "Pageable"),
        duration_ns=1_200 + round(1e9 * size_bytes / rate) if duration_ns is None else duration_ns,
        kind="copy",
        cause=cause or usual,
        bytes_moved=size_bytes,
    )


def memset(size_bytes: int, *, duration_ns: int = 1_300) -> Activity:
    """A memset."""
    return Activity(name="Memset (Device)", duration_ns=duration_ns, kind="set", cause="copy", bytes_moved=size_bytes)
