"""Which op, module or annotation a kernel belongs to."""

from __future__ import annotations

from tests.build import Row, kernel, launch, mark, op, trace
from trace_doctor.options import GroupBy
from trace_doctor.trace import Trace
from trace_doctor.work.scopes import scope


def names(built: Trace, by: GroupBy) -> list[str | None]:
    return scope(built, by).to_list()


def frame(start_ns: int, duration_ns: int, name: str) -> Row:
    return mark(start_ns, duration_ns, name, kind="python")


def launched(at_ns: int, *, call: int, **more: object) -> list[Row]:
    return [kernel(1000 + at_ns, 5, f"kernel_{call}", call=call, **more), launch(at_ns, 1)]


def test_a_kernel_is_its_own_group_or_its_ops() -> None:
    built = trace(launched(5, call=0, op=0), launched(50, call=1), op(0, 10, "aten::mm"))
    assert names(built, "kernel") == ["kernel_0", "kernel_1"]
    assert names(built, "op") == ["aten::mm", None]


def test_the_innermost_module_around_the_launch_holds_a_kernel() -> None:
    built = trace(
        launched(5, call=0),
        launched(15, call=1),
        launched(50, call=2),
        frame(0, 20, "nn.Module: Block_0"),
        frame(1, 9, "nn.Module: Linear_3"),
        frame(2, 5, "torch/nn/functional.py(1): linear"),
    )
    assert names(built, "module") == ["nn.Module: Linear_3", "nn.Module: Block_0", None]


def test_annotations_are_the_users_own_and_not_the_profilers_steps() -> None:
    built = trace(
        launched(5, call=0),
        launched(15, call=1),
        launched(25, call=2),
        mark(0, 100, "ProfilerStep#3"),
        mark(1, 8, "forward"),
        op(12, 8, "Optimizer.step#AdamW.step"),
        op(13, 4, "aten::mul"),
        op(22, 8, "MulBackward0"),
    )
    assert names(built, "annotation") == ["forward", "Optimizer.step#AdamW.step", None]


def test_a_backward_kernel_belongs_to_the_module_that_ran_forward() -> None:
    built = trace(
        launched(5, call=0, op=0),
        launched(55, call=1, op=2),
        op(4, 4, "aten::mm", sequence=7, forward_thread=0),
        op(50, 20, "autograd::engine::evaluate_function: MmBackward0", sequence=7, forward_thread=1),
        op(52, 9, "aten::mm", parent=1),
        frame(0, 20, "nn.Module: Linear_3"),
    )
    assert names(built, "module") == ["nn.Module: Linear_3", "nn.Module: Linear_3"]
