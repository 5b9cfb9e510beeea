"""Each remedy of the issue's list is told where it fits, and only there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.fixes.build import Program, findings, ran
from tests.fixes.examples import communication_wall, compute, fusion, host, memory_wall
from tests.simulator import MS, US, Run, work
from tests.simulator.machine import COMMUNICATION, COMPUTE
from tests.simulator.programs import MATMUL, eight, matmul_until_idle


class Remedy(NamedTuple):
    """What to look for in the fixes, and programs on some GPUs whose fixes must have it or must not."""

    pattern: str
    fits: tuple[tuple[Program, Callable[[], Run]], ...]
    not_for: tuple[tuple[Program, Callable[[], Run]], ...]


def told(program: Program, made: Callable[[], Run]) -> str:
    """All fixes of a program's findings, with their snippets."""
    fixes = [finding.fix for finding in findings(ran(program, made)).values()]
    return "\n".join(f"{fix.summary}\n{fix.code or ''}" for fix in fixes if fix)


# ---- programs that the examples of rules lack


def healthy(run: Run) -> None:
    """Large matmuls, one after the other."""
    with run.step():
        for _ in range(8):
            run.do(MATMUL)


def batches_come_late(run: Run) -> None:
    """The GPU has nothing to do while the loader works."""
    with run.step():
        matmul_until_idle(run)
        with run.doing("input pipeline", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            run.host(500 * US)
        run.do(MATMUL)


def short_of_memory(run: Run) -> None:
    """The allocator frees and allocates between two matmuls."""
    with run.step():
        matmul_until_idle(run)
        run.call("cudaFree", 200 * US, cause="allocator")
        run.call("cudaMalloc", 100 * US, cause="allocator")
        run.do(MATMUL)


def short_of_memory_under_megatron(run: Run) -> None:
    with run.range("forward_backward_no_pipelining", "user_annotation"):
        run.host(1 * US)
    short_of_memory(run)


def recomputing(run: Run) -> None:
    with run.step():
        checkpointed_matmul(run)


def recomputing_short_of_memory(run: Run) -> None:
    with run.step():
        checkpointed_matmul(run)
        run.host(2 * MS)
        run.call("cudaMalloc", 300 * US, cause="allocator")
        run.do(MATMUL)


GIB = 2**30


def short_of_blocks(run: Run) -> None:
    """The allocator asks the driver though half of the device is free."""
    run.hold(40 * GIB)
    with run.step():
        matmul_until_idle(run)
        with run.range("aten::empty"):
            run.call("cudaMalloc", 300 * US, cause="allocator")
        run.do(MATMUL)


def nearly_full(run: Run) -> None:
    """72 GiB of 79.2 are reserved, 8 of them in no tensor."""
    run.hold(64 * GIB, reserved_bytes=72 * GIB)
    with run.step():
        matmul_until_idle(run)
        run.call("cudaMalloc", 300 * US, cause="allocator")
        run.do(MATMUL)


def full(run: Run) -> None:
    """The device is full: what is cached is given back before the allocation succeeds."""
    run.hold(64 * GIB)
    with run.step():
        matmul_until_idle(run)
        with run.range("aten::empty"):
            run.call("cudaMalloc", 10 * US, cause="allocator")
            run.call("cudaFree", 200 * US, cause="allocator")
            run.call("cudaMalloc", 100 * US, cause="allocator")
        run.do(MATMUL)


def offloading_with_room(run: Run) -> None:
    run.hold(10 * GIB)
    memory_wall.activations_go_to_the_host_and_back(run)


def offloading_without_room(run: Run) -> None:
    run.hold(765 * GIB // 10)
    memory_wall.activations_go_to_the_host_and_back(run)


def recomputing_beside(resident_bytes: int) -> Program:
    """Three blocks, each of which gains 5 GiB while it is computed again, beside what stays: 0.9 x 79.2 GiB hold 71.27."""

    def program(run: Run) -> None:
        run.hold(resident_bytes)
        run.host(US)
        with run.step():
            for _ in range(3):
                run.do(MATMUL)
            for _ in range(3):
                with run.backward("CheckpointFunctionBackward"):
                    run.hold(5 * GIB)
                    run.do(MATMUL, recompute=True)
                    run.host(US)
                    with run.backward("MmBackward0"):
                        run.do(MATMUL)
                run.hold(-5 * GIB)

    return program


# the peak is what stays and one block
WITH_ROOM, WITH_SOME_ROOM, WITHOUT_ROOM = (recomputing_beside(stays * GIB) for stays in (51, 52, 62))


def checkpointed_matmul(run: Run) -> None:
    """Forward, forward again inside backward, backward."""
    run.do(MATMUL)
    with run.backward("CheckpointFunctionBackward"):
        run.do(MATMUL, recompute=True)
        with run.backward("MmBackward0"):
            run.do(MATMUL)


def gradients_reduced_at_the_end(run: Run) -> None:
    """Data parallelism without overlap."""
    with run.step():
        run.do(MATMUL)
        with run.backward("MmBackward0"):
            run.do(MATMUL)
        with run.backward("torch::autograd::AccumulateGrad"):
            communication_wall.all_reduce(run, 250 * US)
        run.do(work.adamw([[4096, 4096]]))


def activations_reduced_between_matmuls(run: Run) -> None:
    """Tensor parallelism: forward and backward wait for each all-reduce."""
    with run.step():
        for _ in range(3):
            run.do(MATMUL)
            communication_wall.all_reduce(run, 250 * US)
        for _ in range(3):
            with run.backward("MmBackward0"):
                run.do(MATMUL)
                communication_wall.all_reduce(run, 250 * US)


def parameters_gathered_before_each_matmul(run: Run) -> None:
    """Sharded parameters without prefetching; gradients are scattered in backward."""
    with run.step():
        for _ in range(3):
            run.collective(work.collective("_allgather_base", 13_422_277, duration_ns=250 * US))
            run.order(COMPUTE, after=COMMUNICATION)
            run.do(MATMUL)
        with run.backward("MmBackward0"):
            run.do(MATMUL)
        with run.backward("RegisterPostBackwardFunctionBackward"):
            run.collective(work.collective("_reduce_scatter_base", 100_000_000, duration_ns=400 * US))
            run.order(COMPUTE, after=COMMUNICATION)
        run.do(work.adamw([[4096, 4096]]))


def weights_orthogonalised_between_scatters(run: Run) -> None:
    """An optimizer that multiplies matrices (Muon): its reductions stand between its own matmuls."""
    with run.step():
        run.do(MATMUL)
        with run.backward("MmBackward0"):
            run.do(MATMUL)
        with run.range("Optimizer.step#Muon.step", "user_annotation"):
            for _ in range(3):
                run.collective(work.collective("_reduce_scatter_base", 100_000_000, duration_ns=400 * US))
                run.order(COMPUTE, after=COMMUNICATION)
                run.do(MATMUL)


def exchanged(run: Run) -> None:
    """An all-to-all between two matmuls."""
    sent = work.collective("allreduce", communication_wall.LARGE, duration_ns=150 * US)
    named = {**(sent.collective or {}), "Collective name": "all_to_allv"}
    with run.step():
        run.do(MATMUL)
        run.collective(replace(sent, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", collective=named))
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)


def exchanged_embeddings(run: Run) -> None:
    with run.range("aten::embedding_bag"):
        run.host(1 * US)
    exchanged(run)


def v100() -> Run:
    """A GPU without BF16 and TF32."""
    return Run(
        gpu=work.Gpu(
            name="Tesla V100-SXM2-32GB",
            peak_flops={"fp16": 125e12, "fp32": 15.7e12},
            bandwidth=900e9,
            link_bandwidth=150e9,
            memory_bytes=34_089_730_048,
            compute_capability=(7, 0),
            multiprocessors=80,
        )
    )


def a_matmul_in_fp32(run: Run) -> None:
    # 137.4 GFLOP take 8.75 ms at 15.7 TFLOP/s
    with run.step():
        run.do(compute.in_kernel(work.mm(4096, 4096, 4096, of=work.FP32), "volta_sgemm_128x64_nn", duration_ns=10 * MS))


def compiled_sums(run: Run) -> None:
    """What torch.compile made of a pointwise chain, in memory's time."""
    with run.step():
        run.do(compute.in_kernel(work.add([8192, 8192]), "triton_poi_fused_add_mul_0"))


one = Run
REMEDIES = {
    "mixed precision": Remedy(
        r"mixed precision|autocast",
        fits=((compute.a_matmul_in_tf32, one), (compute.a_matmul_of_unknown_flops_in_tf32, compute.without_shapes)),
        not_for=((healthy, one), (compute.a_matmul_in_fp8, one)),
    ),
    "mixed precision in BF16": Remedy(
        r"dtype=torch\.bfloat16",
        fits=((compute.a_matmul_in_tf32, one),),
        not_for=((a_matmul_in_fp32, v100),),
    ),
    "mixed precision in FP16": Remedy(
        r"(?s)loss is scaled.*GradScaler",
        fits=((a_matmul_in_fp32, v100),),
        not_for=((compute.a_matmul_in_tf32, one), (compute.a_matmul_in_tf32, compute.a100)),
    ),
    "fp8": Remedy(
        r"FP8",
        fits=((healthy, one),),
        not_for=((healthy, compute.a100), (compute.a_matmul_in_fp8, one), (compute.a_matmul_in_tf32, one)),
    ),
    "recompute activations": Remedy(
        r"recompute activations|recomputing activations|recomputed activations",
        fits=((short_of_memory, one), (short_of_memory, eight), (memory_wall.activations_go_to_the_host_and_back, one)),
        not_for=((healthy, one), (recomputing, one)),
    ),
    "drop recomputation": Remedy(
        r"drop checkpointing",
        fits=((recomputing, one),),
        not_for=((recomputing_short_of_memory, one), (short_of_memory, one), (healthy, one)),
    ),
    "cheaper recomputation": Remedy(
        r"keep recomputing, but less dearly",
        fits=((recomputing_short_of_memory, one),),
        not_for=((recomputing, one),),
    ),
    "no recomputation where there is room": Remedy(
        r"(?s)Drop it, there is room: tensors hold 56\.0 GiB of 79\.2 GiB .* at most about 15\.0 GiB more.*y = block\(x\)",
        fits=((WITH_ROOM, one),),
        not_for=((WITH_SOME_ROOM, one), (WITHOUT_ROOM, one), (recomputing, one), (recomputing_short_of_memory, one)),
    ),
    "less recomputation where there is some room": Remedy(
        r"Keep the activations of 2 of the 3 blocks",
        fits=((WITH_SOME_ROOM, one),),
        not_for=((WITH_ROOM, one), (WITHOUT_ROOM, one), (recomputing, one)),
    ),
    "recomputation stays where there is no room": Remedy(
        r"There is no room to drop it: tensors hold 67\.0 GiB of 79\.2 GiB",
        fits=((WITHOUT_ROOM, one),),
        not_for=((WITH_ROOM, one), (WITH_SOME_ROOM, one), (recomputing, one)),
    ),
    "no offload where there is room": Remedy(
        r"Keep them on the GPU: tensors hold 10\.0 GiB of its 79\.2 GiB",
        fits=((offloading_with_room, one), (offloading_with_room, eight)),
        not_for=((offloading_without_room, one), (memory_wall.activations_go_to_the_host_and_back, one)),
    ),
    "a nearly full device": Remedy(
        r"Memory is nearly full \(72\.0 GiB of 79\.2 GiB reserved, 8\.0 GiB of it in no tensor\)",
        fits=((nearly_full, one), (nearly_full, eight)),
        not_for=((short_of_blocks, one), (full, one), (short_of_memory, one)),
    ),
    "allocator retries": Remedy(
        r"The allocator found the device full once \(64\.0 GiB of 79\.2 GiB reserved",
        fits=((full, one),),
        not_for=((nearly_full, one), (short_of_memory, one), (short_of_blocks, one)),
    ),
    "no saving where the device is not full": Remedy(
        r"Memory is not the limit \(40\.0 GiB of 79\.2 GiB reserved\)",
        fits=((short_of_blocks, one), (short_of_blocks, eight)),
        not_for=((nearly_full, one), (full, one), (short_of_memory, one)),
    ),
    "a larger batch where it fits": Remedy(
        r"raise the micro-batch",
        fits=((memory_wall.small_kernels_on_a_half_empty_gpu, one),),
        not_for=(
            (memory_wall.small_kernels_on_a_fuller_gpu, one),
            (memory_wall.large_kernels_on_an_empty_gpu, one),
            (healthy, one),
        ),
    ),
    "sharding, tensor and pipeline parallelism": Remedy(
        r"(?s)shard.*tensor parallelism.*pipeline parallelism",
        fits=((short_of_memory, eight), (memory_wall.activations_go_to_the_host_and_back, eight)),
        not_for=(
            (short_of_memory, one),
            (short_of_blocks, eight),
            (offloading_with_room, eight),
            (healthy, eight),
            (gradients_reduced_at_the_end, eight),
        ),
    ),
    "fusion": Remedy(
        r"Fuse (them|each chain)",
        fits=((memory_wall.a_norm, one), (fusion.three_pointwise_kernels_in_a_row, one)),
        not_for=((healthy, one), (compiled_sums, one)),
    ),
    "flash attention": Remedy(
        r"scaled_dot_product_attention",
        fits=((memory_wall.attention_by_parts, one), (compute.memory_efficient_attention_on_ampere, compute.a100)),
        not_for=((healthy, one), (compute.flash_attention_3_on_hopper, one), (compute.flash_attention_2_on_ampere, compute.a100)),
    ),
    "overlap gradients": Remedy(
        r"Overlap gradient reduction",
        fits=((gradients_reduced_at_the_end, eight),),
        not_for=(
            (communication_wall.seven_matmuls_hide_the_collective, eight),
            (communication_wall.the_same_collective_is_fast_elsewhere, eight),
            (activations_reduced_between_matmuls, eight),
            (parameters_gathered_before_each_matmul, eight),
            (healthy, one),
        ),
    ),
    "prefetch shards": Remedy(
        r"(?s)Gather parameters before they are needed.*set_modules_to_forward_prefetch",
        fits=((parameters_gathered_before_each_matmul, eight),),
        not_for=((gradients_reduced_at_the_end, eight), (activations_reduced_between_matmuls, eight)),
    ),
    "gradient accumulation": Remedy(
        r"accumulate gradients|gradient accumulation",
        fits=((gradients_reduced_at_the_end, eight), (short_of_memory, one)),
        not_for=((healthy, one), (activations_reduced_between_matmuls, eight), (recomputing, one)),
    ),
    "larger micro-batch or sequence": Remedy(
        r"larger micro-batch or sequence",
        fits=((compute.sixteen_rows, one),),
        not_for=((healthy, one), (compute.a_thousand_rows, one)),
    ),
    "more rows or padding": Remedy(
        r"Pad the dimension",
        fits=((compute.the_vocabulary_is_odd, one), (compute.too_few_tiles_for_the_gpu, one)),
        not_for=((compute.the_vocabulary_is_padded, one), (healthy, one)),
    ),
    "another layout": Remedy(
        r"choose another layout",
        fits=((activations_reduced_between_matmuls, eight),),
        not_for=(
            (gradients_reduced_at_the_end, eight),
            (parameters_gathered_before_each_matmul, eight),
            (weights_orthogonalised_between_scatters, eight),
        ),
    ),
    "overlap experts": Remedy(r"exchange of tokens", fits=((exchanged, eight),), not_for=((exchanged_embeddings, eight),)),
    "pipeline embeddings": Remedy(
        r"embeddings of the next batch",
        fits=((exchanged_embeddings, eight),),
        not_for=((exchanged, eight), (gradients_reduced_at_the_end, eight)),
    ),
    "a framework that brings these": Remedy(
        r"torchtitan, Megatron-Core and",
        fits=((short_of_memory, eight), (memory_wall.activations_go_to_the_host_and_back, eight)),
        not_for=((short_of_memory, one), (short_of_memory_under_megatron, eight), (healthy, eight)),
    ),
    "workers": Remedy(
        r"num_workers",
        fits=((batches_come_late, one),),
        not_for=((host.the_batch_is_pageable, one), (healthy, one)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_is_told_where_it_fits(name: str) -> None:
    remedy = REMEDIES[name]
    for program, made in remedy.fits:
        assert re.search(remedy.pattern, told(program, made)), program.__name__


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_is_not_told_where_it_does_not_fit(name: str) -> None:
    remedy = REMEDIES[name]
    for program, made in remedy.not_for:
        assert not re.search(remedy.pattern, told(program, made)), program.__name__
