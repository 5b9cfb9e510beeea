"""Worker processes: a function over many items, in order, on several cores.

They are started as fresh interpreters, so that they import no more than the function needs and never the caller's main
module, and they end when their pipe does, whatever happens to the caller.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import IO, Any, NoReturn, TypeVar

from trace_doctor.errors import TraceDoctorError

T = TypeVar("T")
R = TypeVar("R")

_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
_COMMAND = "from trace_doctor.loaders import workers; workers.serve()"


def imap(function: Callable[[T], R], items: Iterable[T], *, jobs: int) -> Iterator[R]:
    """`map(function, items)` on `jobs` processes; `function` must be importable. Few items are held at a time.

    Raises TraceDoctorError where a worker dies, and whatever the function raised.
    """
    if jobs <= 1:
        yield from map(function, items)
        return
    workers: list[subprocess.Popen[bytes]] = []
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    with ThreadPoolExecutor(jobs) as threads:
        try:
            waiting: deque[Future[R]] = deque()
            for item in items:
                if len(workers) < jobs:  # no more than there are items
                    workers.append(_start(function))
                    idle.put(workers[-1])
                waiting.append(threads.submit(_ask, idle, item))
                if len(waiting) > 2 * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
                worker.communicate()


def serve() -> None:
    """A worker's life: answers items with results until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    gc.disable()
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not break the answers
    try:
        module, name = pickle.load(source)
        function = getattr(importlib.import_module(module), name)
        _answer(function, source, sink)
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):  # the caller has gone
        return


def _answer(function: Callable[[Any], Any], source: IO[bytes], sink: IO[bytes]) -> NoReturn:
    while True:
        item = pickle.load(source)
        try:
            answer = True, function(item)
        except Exception as error:  # noqa: BLE001  # it is raised again in the caller
            answer = False, error
        pickle.dump(answer, sink, protocol=pickle.HIGHEST_PROTOCOL)
        sink.flush()


def _start(function: Callable[[Any], Any]) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-P", "-c", _COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
    )
    assert worker.stdin
    pickle.dump((function.__module__, function.__name__), worker.stdin)
    return worker


def _ask(idle: SimpleQueue[subprocess.Popen[bytes]], item: Any) -> Any:
    worker = idle.get()
    assert worker.stdin and worker.stdout
    try:
        pickle.dump(item, worker.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        worker.stdin.flush()
        done, answer = pickle.load(worker.stdout)
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        worker.kill()
        msg = f"a worker process ended unexpectedly (exit status {worker.wait()})"
        raise TraceDoctorError(msg, hint="it may have run out of memory; try again with --jobs 1") from error
    finally:
        idle.put(worker)
    if not done:
        raise answer
    return answer
