from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from trace_doctor.errors import CorruptTraceError, TraceDoctorError
from trace_doctor.loaders import workers


def square(number: int) -> int:
    print("noise")
    return number * number


def process(_: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def refuse(number: int) -> int:
    if number == 3:
        msg = "three"
        raise CorruptTraceError(msg, where="here", hint="try four")
    return number


def die(number: int) -> int:
    if number == 3:
        os._exit(9)
    return number


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_results_come_in_order(jobs: int) -> None:
    assert list(workers.imap(square, range(40), jobs=jobs)) == [number * number for number in range(40)]


def test_several_processes_work_and_this_one_does_not() -> None:
    found = set(workers.imap(process, range(20), jobs=2))
    assert len(found) == 2
    assert os.getpid() not in found


def test_few_items_are_taken_ahead() -> None:
    taken = itertools.count()

    def items() -> Iterator[int]:
        for _ in range(100):
            yield next(taken)

    results = workers.imap(square, items(), jobs=2)
    assert next(results) == 0
    assert next(taken) < 10
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_arrive_whole(jobs: int) -> None:
    with pytest.raises(CorruptTraceError) as caught:
        list(workers.imap(refuse, range(10), jobs=jobs))
    assert (caught.value.what, caught.value.where, caught.value.hint) == ("three", "here", "try four")


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(TraceDoctorError, match=r"worker process ended unexpectedly.*9"):
        list(workers.imap(die, range(100), jobs=2))


def test_no_more_workers_start_than_there_are_items(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda function: started.append(start(function)) or started[-1])
    assert list(workers.imap(square, range(3), jobs=1_000_000)) == [0, 1, 4]
    assert len(started) == 3


@pytest.mark.parametrize("sent", [b"", b"\x80\x05"])
def test_a_worker_whose_caller_has_gone_ends_without_a_word(sent: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", workers._COMMAND], input=sent, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_interrupted_caller_leaves_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda function: started.append(start(function)) or started[-1])
    results = workers.imap(square, range(1000), jobs=2)
    assert next(results) == 0
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert [worker.poll() is not None for worker in started] == [True, True]
