"""Who encloses whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.build import Row, frame, launch, op
from trace_doctor.loaders.nesting import nest

Nesting = tuple[list[int | None], list[int | None]]


def nested(*rows: Row) -> Nesting:
    """Parents of the ops and ops of the calls."""
    frames = [frame(name, [row.values for row in rows if row.frame == name]) for name in ("ops", "calls")]
    parent, around = nest(*frames)
    return parent.to_list(), around.to_list()


def test_a_stack_of_ops() -> None:
    stack = nested(
        op(0, 1000), op(100, 500), op(200, 100), op(700, 100), launch(250, 10), launch(650, 10), launch(1200, 10)
    )
    assert stack == ([None, 0, 1, 0], [2, 0, None])


def test_the_longer_of_two_that_start_together_is_outside() -> None:
    assert nested(op(0, 10), op(0, 100), launch(0, 5)) == ([1, None], [0])


def test_a_range_ends_before_what_starts_at_its_end() -> None:
    assert nested(op(0, 10_000), op(0, 5000), op(5000, 5000), launch(5000, 1), launch(10_000, 1)) == (
        [None, 0, 0],
        [2, None],
    )


def test_a_range_without_length_holds_no_longer_call() -> None:
    """Files in whole microseconds are full of them."""
    assert nested(op(0, 20_000), op(5000, 0), launch(5000, 3000)) == ([None, 0], [0])


def test_ranges_without_length_at_the_same_time_nest_in_file_order() -> None:
    assert nested(op(0, 0), op(0, 0), launch(0, 0)) == ([None, 0], [1])


def test_a_child_may_outlast_its_parent_by_the_rounding_of_whole_microseconds() -> None:
    assert nested(op(0, 10_000), op(4000, 7000)) == ([None, 0], [])


def test_an_op_that_outlasts_the_op_it_started_in_is_not_its_child() -> None:
    """The third climbs past the second, which ended too early, to the first."""
    assert nested(op(0, 90_000), op(10_000, 20_000), op(20_000, 40_000), launch(50_000, 1)) == ([None, 0, 0], [2])


def test_threads_do_not_nest_in_each_other() -> None:
    assert nested(op(0, 100), op(10, 10, thread=1), launch(15, 1, thread=1), launch(15, 1, thread=2)) == (
        [None, None],
        [1, None],
    )


def test_rows_need_no_order() -> None:
    assert nested(op(200, 100), op(100, 500), op(0, 1000), launch(650, 1), launch(250, 1)) == ([1, 2, None], [2, 0])


def test_nothing_to_nest() -> None:
    assert nested() == ([], [])


TIMES = st.integers(0, 30).map(lambda time: 10_000 * time)  # far above the tolerance for rounding
RANGES = st.lists(st.tuples(st.integers(0, 1), TIMES, TIMES), max_size=25)


@given(RANGES, RANGES)
def test_as_a_search_from_the_latest_start_backwards(
    ops: list[tuple[int, int, int]], calls: list[tuple[int, int, int]]
) -> None:
    rows = [op(start, length, thread=thread) for thread, start, length in ops]
    rows += [launch(start, length, thread=thread) for thread, start, length in calls]
    order = sorted(range(len(ops)), key=lambda i: (ops[i][1], -ops[i][2], i))

    def is_open(outer: int, thread: int, start: int, length: int) -> bool:
        thread_, start_, length_ = ops[outer]
        together = start_ == start + length
        return thread_ == thread and start_ <= start and (start_ + length_ > start or together)

    parents = [
        next(
            (
                outer
                for outer in reversed(order[: order.index(inner)])
                if is_open(outer, *ops[inner]) and ops[outer][1] + ops[outer][2] >= ops[inner][1] + ops[inner][2]
            ),
            None,
        )
        for inner in range(len(ops))
    ]
    around = [next((outer for outer in reversed(order) if is_open(outer, *call)), None) for call in calls]
    assert nested(*rows) == (parents, around)
