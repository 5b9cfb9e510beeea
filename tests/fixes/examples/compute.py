"""Compute inefficiency: the wrong dtype, shape or kernel."""

from __future__ import annotations

from dataclasses import replace

from tests.fixes.build import fires, spares
from tests.simulator import MS, Run, work
from tests.simulator.programs import IDEAL_NS, MATMUL, MATMUL_NS, eight

A100 = work.Gpu(
    name="NVIDIA A100-SXM4-80GB",
    peak_flops={"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
    bandwidth=2039e9,
    link_bandwidth=300e9,
    memory_bytes=85_899_345_920,
    compute_capability=(8, 0),
    multiprocessors=108,
)
FLASH_3 = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> > > > > >(flash::FlashAttnFwdSm90::Params)"
)
MEMORY_EFFICIENT = (
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)"
)
CUTLASS = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage4_warpsize2x2x1_tensor16x8x16_kernel"
CUTLASS_LARGE = CUTLASS.replace("128x128x64", "128x256x64")
_UNALIGNED = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_nn_align2"
CUTLASS_UNALIGNED = f"void cutlass::Kernel2<{_UNALIGNED}>({_UNALIGNED}::Params)"
CUTLASS_ALIGNED = CUTLASS_UNALIGNED.replace("align2", "align8")


def a100() -> Run:
    return Run(gpu=A100)


def without_shapes() -> Run:
    return Run(records_shapes=False)


def in_kernel(op: work.Op, name: str, **more: object) -> work.Op:
    """The op, done by a kernel of another name or grid."""
    return replace(op, launches=tuple(replace(one, name=name, **more) for one in op.launches))  # type: ignore[arg-type]


# ---- precision


# held against BF16, TF32 takes twice as long
@fires("wrong-precision", lost_ns=IDEAL_NS)
def a_matmul_in_tf32(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 4096, 4096, of=work.FP32))


# without FLOPs half of the kernel's time at most: 2 x 198 445.5 ns
@fires("wrong-precision", lost_ns=MATMUL_NS, made=without_shapes)
def a_matmul_of_unknown_flops_in_tf32(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 4096, 4096, of=work.FP32))


@spares("wrong-precision")
@spares("badly-shaped-matmul")
@spares("low-intensity-matmul")
def a_matmul_in_bf16(run: Run) -> None:
    with run.step():
        run.do(MATMUL)


@spares("wrong-precision", made=without_shapes)
def a_matmul_of_unknown_flops_in_bf16(run: Run) -> None:
    with run.step():
        run.do(MATMUL)


@spares("wrong-precision")
@spares("fp8-opportunity")
def a_matmul_in_fp8(run: Run) -> None:
    with run.step():
        run.do(work.scaled_mm(4096, 4096, 4096))


@spares("wrong-precision")
def one_small_matmul_in_tf32(run: Run) -> None:
    with run.step():
        for _ in range(8):
            run.do(MATMUL)
        run.do(work.mm(256, 4096, 1024, of=work.FP32))


@fires("fp8-opportunity", lost_ns=0)
def matmuls_in_bf16_fill_the_time(run: Run) -> None:
    with run.step():
        for _ in range(4):
            run.do(MATMUL)


@spares("fp8-opportunity", made=a100)
def this_gpu_has_no_fp8(run: Run) -> None:
    with run.step():
        for _ in range(4):
            run.do(MATMUL)


# 198 of 339 us
@spares("fp8-opportunity")
def matmuls_in_bf16_fill_little_more_than_half(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.do(work.adamw([[4096, 4096]], duration_ns=140_000))


# ---- attention

ATTENTION = work.flash_forward(1, 16, 2048, 128)


# what the kernel takes above its ideal time at 55 % of the peak
@fires("old-attention-kernel", lost_ns=14_207)
def flash_attention_2_on_hopper(run: Run) -> None:
    with run.step():
        run.do(ATTENTION)


@spares("old-attention-kernel")
def flash_attention_3_on_hopper(run: Run) -> None:
    with run.step():
        run.do(in_kernel(ATTENTION, FLASH_3))


@spares("old-attention-kernel", made=a100)
def flash_attention_2_on_ampere(run: Run) -> None:
    with run.step():
        run.do(in_kernel(ATTENTION, ATTENTION.launches[0].name, duration_ns=100_000))


# 17.18 GFLOP take 55 064 ns at 312 TFLOP/s
@fires("old-attention-kernel", lost_ns=100_000 - 55_064, made=a100)
def memory_efficient_attention_on_ampere(run: Run) -> None:
    with run.step():
        run.do(in_kernel(ATTENTION, MEMORY_EFFICIENT, duration_ns=100_000))


@spares("old-attention-kernel")
def flash_attention_2_that_takes_no_time_to_speak_of(run: Run) -> None:
    with run.step():
        for _ in range(40):
            run.do(MATMUL)
        run.do(ATTENTION)


# ---- shapes

# 2 x 4096 x 1024 x 50257 FLOP take 426 103 ns at the peak and 1 420 343 ns at 30 %; bytes 159 430 ns
UNPADDED = work.mm(4096, 50_257, 1024, efficiency=0.3)
PADDED = work.mm(4096, 50_304, 1024, efficiency=0.3)


@fires("badly-shaped-matmul", lost_ns=1_420_343 - 426_103)
def the_vocabulary_is_odd(run: Run) -> None:
    with run.step():
        run.do(UNPADDED)


# the same FLOPs the other way round: the hidden size is odd
@fires("badly-shaped-matmul", lost_ns=1_420_343 - 426_103)
def the_hidden_size_is_odd(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 1024, 50_257, efficiency=0.3))


@spares("badly-shaped-matmul")
def the_vocabulary_is_padded(run: Run) -> None:
    with run.step():
        run.do(PADDED)


@spares("badly-shaped-matmul")
def an_odd_shape_runs_well(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 50_257, 1024, efficiency=0.7))


# 2 x 2048 x 2304 x 4096 FLOP take 39 068.8 ns, at 30 % 130 229 ns; 4096^3 at 50 % 277 823 ns
WAVES_IDEAL_NS, WAVES_NS, SLOWER_NS = 39_069, 130_229, 277_823


# at 30 % of the peak 463 038 ns
@fires("badly-shaped-matmul", lost_ns=463_038 - IDEAL_NS)
def too_few_tiles_for_the_gpu(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(4096, 4096, 4096, efficiency=0.3), CUTLASS, grid=(64, 1, 1)))


@spares("badly-shaped-matmul")
def enough_tiles_for_the_gpu(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(4096, 4096, 4096, efficiency=0.3), CUTLASS, grid=(128, 1, 1)))


@spares("badly-shaped-matmul")
def a_persistent_kernel_has_few_blocks(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(4096, 4096, 4096, efficiency=0.3), MATMUL.launches[0].name, grid=(64, 1, 1)))


@fires("badly-shaped-matmul", lost_ns=463_038 - IDEAL_NS)
def the_kernel_reads_unaligned_rows(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(4096, 4096, 4096, efficiency=0.3), CUTLASS_UNALIGNED))


@spares("badly-shaped-matmul")
def the_kernel_reads_aligned_rows(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(4096, 4096, 4096, efficiency=0.3), CUTLASS_ALIGNED))


# 16 x 9 tiles of 128 x 256: two waves, the second of 12 tiles
@fires("badly-shaped-matmul", lost_ns=WAVES_NS - WAVES_IDEAL_NS)
def a_last_wave_is_nearly_empty(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(2048, 2304, 4096, efficiency=0.3), CUTLASS_LARGE, grid=(16, 9, 1)))


@spares("badly-shaped-matmul")
def two_waves_are_full(run: Run) -> None:
    with run.step():
        run.do(in_kernel(work.mm(2048, 4224, 4096, efficiency=0.3), CUTLASS_LARGE, grid=(8, 33, 1)))


# ---- clocks


def launches(run: Run, *efficiencies: float) -> None:
    with run.step():
        for efficiency in efficiencies:
            run.do(work.mm(4096, 4096, 4096, efficiency=efficiency))


# nine launches, two of them at their best
@fires("slower-than-best", lost_ns=7 * (SLOWER_NS - MATMUL_NS))
def most_launches_are_slower_than_the_best(run: Run) -> None:
    launches(run, 0.7, 0.7, *[0.5] * 7)


@spares("slower-than-best")
def a_few_launches_are_slower(run: Run) -> None:
    launches(run, *[0.7] * 7, 0.5, 0.5)


@spares("slower-than-best")
def launches_of_other_shapes(run: Run) -> None:
    with run.step():
        for rows in range(4096, 4096 + 8 * 9, 8):
            run.do(work.mm(rows, 4096, 4096, efficiency=0.7 if rows < 4110 else 0.5))


# ---- interference

SLOWER = work.mm(4096, 4096, 4096, efficiency=0.5)


def beside_an_all_reduce(run: Run, op: work.Op) -> None:
    """Three matmuls alone, then three while gradients are reduced."""
    with run.step():
        for _ in range(3):
            run.do(MATMUL)
        run.collective(work.collective("allreduce", 26_844_554, duration_ns=MS))
        for _ in range(3):
            run.do(op)


@fires("slowed-by-communication", lost_ns=3 * (SLOWER_NS - MATMUL_NS), made=eight)
def matmuls_are_slower_beside_a_collective(run: Run) -> None:
    beside_an_all_reduce(run, SLOWER)


@spares("slowed-by-communication", made=eight)
def matmuls_are_as_fast_beside_a_collective(run: Run) -> None:
    beside_an_all_reduce(run, MATMUL)


@spares("slowed-by-communication", made=eight)
def other_matmuls_run_beside_the_collective(run: Run) -> None:
    beside_an_all_reduce(run, work.mm(4096, 4096, 2048, efficiency=0.5))


@spares("slowed-by-communication", made=eight)
def some_matmuls_are_slower_without_a_collective(run: Run) -> None:
    with run.step():
        for op in (MATMUL, MATMUL, MATMUL, SLOWER, SLOWER, SLOWER):
            run.do(op)


# 33.82 MB take 10 094.5 ns, 0.54 GFLOP 542.6 ns
@fires("low-intensity-matmul", lost_ns=9_552)
@spares("badly-shaped-matmul")
def sixteen_rows(run: Run) -> None:
    with run.step():
        run.do(work.mm(16, 4096, 4096, efficiency=0.04))


@spares("low-intensity-matmul")
def attention_of_one_short_row(run: Run) -> None:
    # 32 tokens: 16 FLOP a byte
    with run.step():
        run.do(work.flash_forward(64, 16, 32, 128, efficiency=0.02))


@spares("low-intensity-matmul")
def a_thousand_rows(run: Run) -> None:
    with run.step():
        run.do(work.mm(1024, 4096, 4096))
