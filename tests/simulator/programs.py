"""Programs for every cause of ATTRIBUTION that a single rank can show, each with the rows that it is about worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tests.simulator import work
from tests.simulator.machine import COMMUNICATION, COMPUTE, COPYING, MS, US, WATCHDOG, Range, Run

Rows = dict[tuple[str, str], int]


class Case(NamedTuple):
    """A program, and rows of its ledger worked out by hand."""

    program: Callable[[Run], None]
    rows: Rows
    made: Callable[[], Run] = Run


CASES: dict[str, Case] = {}


def case(made: Callable[[], Run] = Run, **by_cause: int) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a program; rows are given as wall__cause_in_words=ns."""

    def register(program: Callable[[Run], None]) -> Callable[[Run], None]:
        rows = {_row(name): time_ns for name, time_ns in by_cause.items()}
        CASES[program.__name__] = Case(program, rows, made)
        return program

    return register


PROPER = {
    "model flops": "model FLOPs",
    "launch bound": "launch-bound",
    "device side gap": "device-side gap",
    "peer to peer copy": "peer-to-peer copy",
    "too short to fill the gpu": "too short to fill the GPU",
    "tensor work without flops": "tensor work without FLOPs",
}


def untold(op: work.Op) -> work.Op:
    """The same work under an op whose traffic no formula knows."""
    return replace(op, name="my_extension::op", launches=tuple(replace(one, bytes_moved=None) for one in op.launches))


def _row(name: str) -> tuple[str, str]:
    wall, words = name.split("__")
    cause = words.replace("_", " ")
    return wall, PROPER.get(cause, cause)


# 2 x 4096^3 FLOP at 989.4 TFLOP/s take 138 911.4 ns; at 70 % of the peak 198 445 ns
MATMUL = work.mm(4096, 4096, 4096, efficiency=0.7)
MATMUL_NS, IDEAL_NS = 198_445, 138_911
# 3 x 2 x 4096^2 bytes at 3.35 TB/s take 30 048.5 ns
SUM_SHAPE, SUM_NS = [4096, 4096], 30_048


def matmul_until_idle(run: Run) -> None:
    """The op returns 2 us before its kernel starts; then the host does something until that ends."""
    run.do(MATMUL)
    run.host(2 * US + MATMUL_NS)


# ---- tensor work


@case(mfu__model_flops=IDEAL_NS, compute__below_the_roofline=MATMUL_NS - IDEAL_NS)
def below_the_roofline(run: Run) -> None:
    with run.step():
        run.do(MATMUL)


@case(recompute__recompute=IDEAL_NS, mfu__model_flops=277_823)
def recompute(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        with run.backward("CheckpointFunctionBackward"):
            run.do(MATMUL, recompute=True)
            with run.backward("MmBackward0"):
                run.do(MATMUL)


@case(mfu__model_flops=IDEAL_NS, compute__precision=IDEAL_NS)
def tf32_costs_precision(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 4096, 4096, efficiency=0.7, of=work.FP32))


@case(mfu__model_flops=IDEAL_NS, compute__precision_gain=115_748 - IDEAL_NS)
def fp8_gains_precision(run: Run) -> None:
    with run.step():
        run.do(work.scaled_mm(4096, 4096, 4096, efficiency=0.6))


@case(mfu__model_flops=IDEAL_NS, unattributed__model_error=111_129 - IDEAL_NS)
def faster_than_the_peak(run: Run) -> None:
    with run.step():
        run.do(work.mm(4096, 4096, 4096, efficiency=1.25))


@case(mfu__model_flops=543, memory__low_arithmetic_intensity=9_552, compute__below_the_roofline=3_471)
def skinny_matmul(run: Run) -> None:
    # 33.82 MB take 10 094.5 ns, 0.54 GFLOP take 542.6 ns, at 4 % of the peak the kernel takes 13 566 ns
    with run.step():
        run.do(work.mm(16, 4096, 4096, efficiency=0.04))


@case(lambda: Run(records_shapes=False), unattributed__tensor_work_without_flops=MATMUL_NS)
def no_shapes(run: Run) -> None:
    with run.step():
        run.do(MATMUL)


@case(mfu__model_flops=17_364, compute__below_the_roofline=14_207)
def causal_attention(run: Run) -> None:
    # 4 x 1 x 16 x 2048^2 x 128 / 2 FLOP = 17.18 GFLOP
    with run.step():
        run.do(work.flash_forward(1, 16, 2048, 128, efficiency=0.55))


@case(mfu__model_flops=34_728)
def causal_attention_backward(run: Run) -> None:
    with run.step(), run.backward("ScaledDotProductFlashAttentionBackward0"):
        run.do(work.flash_backward(1, 16, 2048, 128))


# ---- other compute


@case(memory__elementwise=SUM_NS, small_kernels__too_short_to_fill_the_gpu=3_000, memory__poor_access_pattern=26_952)
def elementwise_with_poor_access(run: Run) -> None:
    with run.step():
        run.do(work.add(SUM_SHAPE, duration_ns=60 * US))


@case(memory__normalisation=20_047)
def normalisation(run: Run) -> None:
    # 2 x (2 x 4096 x 4096 + 2 x 4096) + 8 x 4096 bytes
    with run.step():
        run.do(work.layer_norm([4096], 4096))


@case(memory__softmax=20_032)
def softmax(run: Run) -> None:
    with run.step():
        run.do(work.softmax([64, 512, 512]))


@case(memory__reduction=10_018)
def reduction(run: Run) -> None:
    with run.step():
        run.do(work.total(4096, 4096))


@case(memory__optimizer=140_245)
def optimizer(run: Run) -> None:
    with run.step(), run.range("Optimizer.step#AdamW.step", "user_annotation"):
        run.do(work.adamw([[4096, 4096], [4096, 4096], [4096]]))


@case(memory__embedding=20_052)
def embedding(run: Run) -> None:
    with run.step():
        run.do(work.embedding(50_304, 2048, 8192))


@case(memory__layout=20_032)
def layout(run: Run) -> None:
    with run.step():
        run.do(work.transpose([4096, 4096]))


@case(memory__random=25_040)
def random(run: Run) -> None:
    with run.step():
        run.do(work.dropout([4096, 4096]))


# 4096 x (8 + 2 + 2) bytes at 3350 GB/s; the floor; the rest
@case(memory__loss=15, small_kernels__too_short_to_fill_the_gpu=3_000, memory__poor_access_pattern=4_985)
def loss(run: Run) -> None:
    with run.step():
        run.do(work.nll_loss(4096, 50_304, duration_ns=8_000))


@case(memory__loss=8_000)
def loss_of_unknown_traffic(run: Run) -> None:
    with run.step():
        run.do(untold(work.nll_loss(4096, 50_304, duration_ns=8_000)))


@case(memory__sort=40_000)
def sort_of_unknown_traffic(run: Run) -> None:
    with run.step():
        run.do(untold(work.sort(100_000, duration_ns=40_000)))


@case(unattributed__unknown_kernel=50_000, small_kernels__too_short_to_fill_the_gpu=6_000)
def unknown_kernels(run: Run) -> None:
    with run.step():
        run.do(work.unknown(50_000))
        run.do(work.unknown(6_000))


@case(small_kernels__too_short_to_fill_the_gpu=10 * 2_000)
def too_short(run: Run) -> None:
    with run.step():
        for _ in range(10):
            run.do(work.add([8], duration_ns=2_000))


@case(small_kernels__too_short_to_fill_the_gpu=20 * 2_000 + 2_000)
def floor_is_measured(run: Run) -> None:
    # twenty kernels without traffic set the floor to their median, 2 us instead of 3
    with run.step():
        for _ in range(20):
            run.do(work.add([8], duration_ns=2_000))
        run.do(work.add(SUM_SHAPE, duration_ns=60 * US))


# ---- communication


def eight() -> Run:
    return Run(rank=0, world_size=8)


@case(eight, communication__wire_time=208_791, communication__waiting_or_slow=791_209)
def exposed_all_reduce(run: Run) -> None:
    # 2 x 7/8 x 53.69 MB at 450 GB/s
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("allreduce", 26_844_554, duration_ns=MS))
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)


@case(eight, communication__wire_time=5 * US, mfu__model_flops=1_111_291)
def overlapped_all_reduce(run: Run) -> None:
    # seven matmuls hide it but for the five gaps between them that it lasts
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("allreduce", 26_844_554, duration_ns=MS))
        for _ in range(7):
            run.do(MATMUL)


@case(eight, communication__wire_time=156_000, communication__waiting_or_slow=844_000)
def exposed_gather(run: Run) -> None:
    # 7 x 10.029 MB at 450 GB/s
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("_allgather_base", 5_014_286, duration_ns=MS))
        run.synchronise()


@case(eight, communication__pipeline_bubble=700_000)
def pipeline_bubble(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.collective(work.collective("recv", 1_000_000, duration_ns=700_000))
        run.order(COMPUTE, after=COMMUNICATION)
        run.do(MATMUL)


@case(communication__peer_to_peer_copy=300_000)
def peer_to_peer_copy(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("PtoP", 100_000_000, duration_ns=300_000))
        run.do(MATMUL)


# ---- copies


@case(memory__copy=100_000 + 5_000)
def device_copies(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("DtoD", 70_000_000, duration_ns=100_000))
        run.launch(work.memset(1_000_000, duration_ns=5_000))
        run.do(MATMUL)


@case(memory__offload=400_000 + 380_000)
def offload(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("DtoH", 20_000_000, duration_ns=400_000))
        run.launch(work.copy("HtoD", 20_000_000, duration_ns=380_000, cause="offload"))
        run.do(MATMUL)


@case(host__input_transfer=250_000)
def input_transfer(run: Run) -> None:
    with run.step():
        run.launch(work.copy("HtoD", 12_000_000, duration_ns=250_000))
        run.do(MATMUL)


@case(host__input_transfer=50_000)
def copy_half_hidden(run: Run) -> None:
    # starts 6 us after the matmul
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("HtoD", 12_000_000, duration_ns=MATMUL_NS + 50_000 - 6_000), stream=COPYING)
        run.order(COMPUTE, after=COPYING)
        run.do(MATMUL)


# ---- the host before a launch


def _named(cause: str, name: str, category: str = "user_annotation") -> Callable[[Run], None]:
    def program(run: Run) -> None:
        with run.step():
            matmul_until_idle(run)
            with run.doing(cause, name, category):
                run.host(500 * US)
            run.do(MATMUL)

    return program


for _cause, _name, _category in (
    ("input pipeline", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"),
    ("input pipeline", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation"),
    ("compilation", "_compile.compile_inner (dynamo_timed)", "cpu_op"),
    ("compilation", "entire_frame_compile", "cpu_op"),
    ("checkpoint saving", "save_checkpoint", "user_annotation"),
    ("garbage collection", "Python GC", "user_annotation"),
    ("evaluation", "evaluate", "user_annotation"),
    ("logging", "log_metrics", "user_annotation"),
):
    CASES[f"{_cause}: {_name}"] = Case(_named(_cause, _name, _category), {("host", _cause): 500 * US})

CASES["profiler overhead"] = Case(
    _named("profiler overhead", "Buffer Flush", "overhead"), {("unattributed", "profiler overhead"): 500 * US}
)
CASES["queue back-pressure is no profiler overhead"] = Case(
    _named("", "Command Buffer Full", "overhead"), {("unattributed", "profiler overhead"): 0}
)
CASES["an op of a telling name is no cause"] = Case(
    _named("", "aten::compile_logging", "cpu_op"), {("host", "compilation"): 0, ("host", "logging"): 0}
)


@case(host__host_code=400 * US + 2 * 3 * US, small_kernels__launch_bound=2 * (5 + 3) * US)
def host_code(run: Run) -> None:
    # before each launch 3 us of dispatch
    with run.step():
        matmul_until_idle(run)
        run.host(400 * US)
        run.do(MATMUL)


@case(small_kernels__launch_bound=9 * (1 + 3 + 5 + 3 - 3 - 2) * US + (5 + 3) * US, host__host_code=3 * US)
def launch_bound(run: Run) -> None:
    # a launch every 9 us, a kernel of 2 us: 7 us idle each; the first has nothing before it but host code
    with run.step():
        for _ in range(10):
            run.do(work.add([8], duration_ns=2_000))


@case(small_kernels__device_side_gap=9 * US)
def device_side_gaps(run: Run) -> None:
    with run.step():
        for _ in range(10):
            run.do(MATMUL)


@case(host__launch_call_blocked=30 * US, small_kernels__launch_bound=(50 + 3) * US)
def launch_call_blocked(run: Run) -> None:
    with run.step():
        run.do(MATMUL, call_ns=80 * US)


@case(unattributed__queued_but_not_started=80 * US, small_kernels__device_side_gap=20 * US)
def queued_but_not_started(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.launch(MATMUL.launches[0], delay_ns=99 * US)


@case(memory__allocator=300 * US)
def allocator(run: Run) -> None:
    with run.step():
        matmul_until_idle(run)
        run.call("cudaFree", 200 * US, cause="allocator")
        run.call("cudaMalloc", 100 * US, cause="allocator")
        run.do(MATMUL)


@case(host__initialisation=150 * MS + 400 * US, memory__allocator=0)
def initialisation(run: Run) -> None:
    with run.step():
        run.call("cudaMalloc", 400 * US, cause="initialisation")
        matmul_until_idle(run)
        run.call("cudaMalloc", 150 * MS, cause="initialisation")
        run.do(MATMUL)


@case(memory__allocator=100 * US, host__input_pipeline=200 * US)
def first_match_wins(run: Run) -> None:
    with run.step():
        matmul_until_idle(run)
        with run.doing("input pipeline", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            run.host(100 * US)
            run.call("cudaHostAlloc", 100 * US, cause="allocator")
            run.host(100 * US)
        run.do(MATMUL)


@case(lambda: Run(records_host=False), unattributed__no_host_events=2 * US)
def no_host_events(run: Run) -> None:
    with run.step():
        run.unrecorded(MATMUL.launches[0])
        run.host(3 * US + MATMUL_NS + 2 * US)


# ---- the debt of waits


@case(host__synchronisation=3 * 1_200 + 2 * (6 + 3) * US + 6 * US)
def item_each_step(run: Run) -> None:
    # the copy of the number; the return from the wait and 3 us of dispatch between steps; the return at the end
    for _ in range(3):
        with run.step():
            run.do(MATMUL)
            run.item()


@case(host__synchronisation=0, host__host_code=(2 + 3) * US)
def waits_of_an_idle_gpu_cost_nothing(run: Run) -> None:
    with run.step():
        run.synchronise()
        run.do(MATMUL)
        run.do(MATMUL)


@case(host__synchronisation=100 * US, host__host_code=203 * US)
def debt_is_paid_once(run: Run) -> None:
    # waits 100 us of the matmul's time; of 300 us of host code that follow, 100 are its fault
    with run.step():
        run.do(MATMUL)
        run.host(MATMUL_NS - 100 * US + 3 * US - 1 * US)
        run.synchronise()
        run.host(300 * US - 6 * US - 3 * US)
        run.do(MATMUL)


@case(host__synchronisation=10 * US)
def pageable_copy_is_a_wait(run: Run) -> None:
    # the copy queues behind the matmul, and its call returns 6 us after the copy; then 3 us of dispatch and one of the op's end
    with run.step():
        run.do(MATMUL)
        run.launch(work.copy("HtoD", 1_000_000, pinned=False, duration_ns=50_000), blocking=True)
        run.host(1 * US)
        run.do(MATMUL)


# ---- structure


@case(small_kernels__device_side_gap=4 * US, unattributed__tensor_work_without_flops=5 * MATMUL_NS)
def one_graph_launch_for_many_kernels(run: Run) -> None:
    with run.step():
        run.graph([MATMUL.launches[0]] * 5)


@case(mfu__model_flops=277_823)
def other_threads_cost_nothing(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        at_ns = run.now_ns
        run.ranges.append(
            Range(
                category="user_annotation",
                name="evaluate",
                thread=WATCHDOG,
                start_ns=at_ns,
                end_ns=at_ns + MS,
                external=99_999,
            )
        )
        run.host(MATMUL_NS + 300 * US)
        run.do(MATMUL)


@case(mfu__model_flops=833_468, small_kernels__device_side_gap=5 * US)
def host_runs_ahead_over_steps(run: Run) -> None:
    for _ in range(3):
        with run.step():
            run.do(MATMUL)
            run.do(MATMUL)
    run.synchronise()


@case(mfu__model_flops=277_823)
def tensor_work_hides_the_rest(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.do(work.add(SUM_SHAPE, duration_ns=50 * US), stream=30)
        run.do(MATMUL)


@case(mfu__model_flops=277_823)
def two_matmuls_at_once(run: Run) -> None:
    with run.step():
        run.do(MATMUL)
        run.do(MATMUL, stream=30)


def simulated(name: str) -> Run:
    run = CASES[name].made()
    CASES[name].program(run)
    return run


ACTIONS: tuple[Callable[[Run], object], ...] = (
    lambda run: run.do(MATMUL),
    lambda run: run.do(MATMUL, stream=30),
    lambda run: run.do(work.add(SUM_SHAPE, duration_ns=47_001)),
    lambda run: run.do(work.add([8], duration_ns=1_703)),
    lambda run: run.do(work.unknown(9_999), stream=30),
    lambda run: run.host(17_003),
    lambda run: run.host(450_007),
    lambda run: run.item(),
    lambda run: run.synchronise(),
    lambda run: run.order(COMPUTE, after=30),
    lambda run: run.collective(work.collective("allreduce", 3_000_000, duration_ns=333_333)),
    lambda run: run.order(COMPUTE, after=COMMUNICATION),
    lambda run: run.launch(work.copy("HtoD", 900_000, duration_ns=21_001), stream=COPYING),
    lambda run: run.launch(work.copy("DtoD", 900_000, duration_ns=5_001)),
    lambda run: run.call("cudaMalloc", 77_777, cause="allocator"),
    lambda run: run.graph([MATMUL.launches[0], work.add([8], duration_ns=2_001).launches[0]]),
)
"""What a random program may do; see `any_steps`."""


def any_steps(steps: list[list[Callable[[Run], object]]]) -> Run:
    """A run of steps that each begin with a matmul and go on with some of ACTIONS."""
    run = eight()
    for actions in steps:
        with run.step():
            run.do(MATMUL)
            for act in actions:
                act(run)
    return run
