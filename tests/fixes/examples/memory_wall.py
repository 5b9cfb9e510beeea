"""The memory wall, and the parts of a model that pass through memory too often."""

from __future__ import annotations

from dataclasses import replace

from tests.fixes.build import Program, fires, spares
from tests.simulator import US, Run, work
from tests.simulator.machine import COPYING
from tests.simulator.programs import MATMUL, MATMUL_NS, SUM_SHAPE

FLOOR_NS = 3 * US
"""What the shortest kernel takes, where a trace has too few to measure it."""


def duration_ns(*ops: work.Op) -> int:
    """What the kernels of some ops take."""
    return sum(one.duration_ns for op in ops for one in op.launches)


def matmuls(run: Run, count: int) -> None:
    for _ in range(count):
        run.do(MATMUL)


# ---- the optimizer


def _optimizer(*ops: work.Op) -> Program:
    def step(run: Run) -> None:
        with run.step(), run.range("Optimizer.step#AdamW.step", "user_annotation"):
            for op in ops:
                run.do(op)

    return step


# a kernel of 2 us every 9 us, and before the first one 3 us of dispatch, the call and its latency
@fires("unfused-optimizer", lost_ns=60 * 2 * US + 59 * 7 * US + (3 + 5 + 3) * US)
def sixty_parameters_one_by_one(run: Run) -> None:
    _optimizer(*[work.add([8], duration_ns=2 * US)] * 60)(run)


@spares("unfused-optimizer")
def few_parameters_one_by_one(run: Run) -> None:
    _optimizer(*[work.add([8], duration_ns=2 * US)] * 40)(run)


@spares("unfused-optimizer")
def sixty_parameters_at_once(run: Run) -> None:
    _optimizer(work.adamw([[4096, 4096]] * 60))(run)


@spares("unfused-optimizer")
def sixty_parameters_beside_matmuls(run: Run) -> None:
    _optimizer(*[work.add([8], duration_ns=2 * US)] * 60, *[work.mm(256, 256, 256)] * 20)(run)


@spares("unfused-optimizer")
def sixty_small_kernels_of_the_model(run: Run) -> None:
    with run.step():
        for _ in range(60):
            run.do(work.add([8], duration_ns=2 * US))


# ---- recomputation


@fires("recomputation", lost_ns=MATMUL_NS)
def a_checkpointed_matmul(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        with run.backward("CheckpointFunctionBackward"):
            run.do(MATMUL, recompute=True)
            with run.backward("MmBackward0"):
                run.do(MATMUL)


@spares("recomputation")
def a_matmul_and_its_gradient(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        with run.backward("MmBackward0"):
            run.do(MATMUL)


# ---- attention, loss, layout

SCORES = [4, 16, 1024, 1024]
BY_PARTS = (work.mul(SCORES), work.softmax(SCORES), work.dropout(SCORES))


def _between_matmuls(run: Run, *ops: work.Op) -> None:
    with run.step():
        run.do(work.bmm(64, 1024, 1024, 128))
        for op in ops:
            run.do(op)
        run.do(work.bmm(64, 1024, 128, 1024))


@fires("unfused-attention", lost_ns=duration_ns(*BY_PARTS))
def attention_by_parts(run: Run) -> None:
    _between_matmuls(run, *BY_PARTS)


@spares("unfused-attention")
def attention_in_one_kernel(run: Run) -> None:
    with run.step():
        run.do(work.flash_forward(4, 16, 1024, 128))
        run.do(work.softmax(SCORES))


@spares("unfused-attention")
def a_product_without_softmax(run: Run) -> None:
    _between_matmuls(run, work.mul(SCORES), work.dropout(SCORES))


@spares("unfused-attention")
def a_softmax_among_much_else(run: Run) -> None:
    _between_matmuls(run, work.softmax(SCORES), *[work.mul(SCORES)] * 10)


LOGITS = (8192, 50_304)
LOSS = (work.log_softmax(*LOGITS), work.nll_loss(*LOGITS), work.log_softmax_backward(*LOGITS))


# each of the three kernels but for what the shortest one would take anyway
@fires("unfused-loss", lost_ns=duration_ns(*LOSS) - 3 * FLOOR_NS)
@spares("unfused-attention")
def a_loss_over_a_large_vocabulary(run: Run) -> None:
    with run.step():
        run.do(work.mm(LOGITS[0], LOGITS[1], 1024))
        for op in LOSS:
            run.do(op)
        run.do(work.mm(LOGITS[0], 1024, LOGITS[1]))


@spares("unfused-loss")
def a_loss_over_few_classes(run: Run) -> None:
    with run.step():
        matmuls(run, 4)
        run.do(work.log_softmax(8192, 100))
        run.do(work.nll_loss(8192, 100))


IMAGES = work.transpose([256, 64, 56, 56])
TO_NHWC = replace(
    IMAGES,
    launches=(
        replace(
            IMAGES.launches[0],
            name="void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"
            "(cudnn::ops::nchw2nhwc_params_t<float>, __half const*, __half*)",
        ),
    ),
)


@fires("layout-conversion", lost_ns=duration_ns(TO_NHWC))
def images_are_turned_around(run: Run) -> None:
    with run.step():
        run.do(TO_NHWC)
        matmuls(run, 2)


@spares("layout-conversion")
def a_tensor_is_made_contiguous(run: Run) -> None:
    with run.step():
        run.do(IMAGES)
        matmuls(run, 2)


# ---- families


# 2 x (2 x 4096 x 4096 + 2 x 4096) + 8 x 4096 bytes at 3.35 TB/s
@fires("memory-bound", lost_ns=20_047)
def a_norm(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.do(work.layer_norm([4096], 4096))


@spares("memory-bound")
def a_norm_beside_a_matmul(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.do(work.layer_norm([4096], 4096), stream=30)
        run.do(MATMUL)


# 3 x 2 x 4096^2 bytes at 3.35 TB/s take 30 048.7 ns, and no kernel takes less than 3 us
@fires("poor-access-pattern", lost_ns=26_951)
def a_sum_at_half_the_bandwidth(run: Run) -> None:
    with run.step():
        run.do(work.add(SUM_SHAPE, duration_ns=60 * US))


@spares("poor-access-pattern")
def a_sum_at_almost_the_bandwidth(run: Run) -> None:
    with run.step():
        run.do(work.add(SUM_SHAPE, duration_ns=32 * US))


@fires("device-copies", lost_ns=100 * US + 5 * US)
def copies_between_matmuls(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("DtoD", 70_000_000, duration_ns=100 * US))
        run.launch(work.memset(1_000_000, duration_ns=5 * US))
        run.do(MATMUL)


@spares("device-copies")
def copies_beside_matmuls(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("DtoD", 70_000_000, duration_ns=100 * US), stream=COPYING)
        run.do(MATMUL)


@fires("offload", lost_ns=400 * US + 380 * US)
def activations_go_to_the_host_and_back(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("DtoH", 20_000_000, duration_ns=400 * US))
        run.launch(work.copy("HtoD", 20_000_000, duration_ns=380 * US, cause="offload"))
        run.do(MATMUL)


@spares("offload")
def activations_go_to_the_host_beside_compute(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("DtoH", 20_000_000, duration_ns=150 * US), stream=COPYING)
        run.do(MATMUL)
        run.launch(work.copy("HtoD", 20_000_000, duration_ns=150 * US, cause="offload"), stream=COPYING)
        run.do(MATMUL)


# ---- room in the memory

GIB = 2**30


def _many_small_kernels(run: Run, *, moving_bytes: int) -> None:
    """10 GiB stay, and `moving_bytes` come and go within the step."""
    run.hold(10 * GIB)
    run.host(US)
    with run.step():
        run.do(MATMUL)
        run.hold(moving_bytes)
        for _ in range(100):
            run.do(work.add([8], duration_ns=2 * US))
        run.hold(-moving_bytes)
        run.do(MATMUL)


# 0.9 x 79.2 GiB hold 10 GiB and twice 30.6, not twice 30.7
@fires("spare-memory", lost_ns=0)
def small_kernels_on_a_half_empty_gpu(run: Run) -> None:
    _many_small_kernels(run, moving_bytes=306 * GIB // 10)


@spares("spare-memory")
def small_kernels_on_a_fuller_gpu(run: Run) -> None:
    _many_small_kernels(run, moving_bytes=307 * GIB // 10)


@spares("spare-memory")
def large_kernels_on_an_empty_gpu(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.hold(GIB)
        matmuls(run, 20)
        run.hold(-GIB)
        run.do(MATMUL)
