"""When the host and the GPU run: a discrete-event model of one rank, small enough to be read at once.

The host is one clock that its threads take turns on. A launch is a call; its activity starts when the call has returned, the
stream is free and what the stream waits for has ended. The host runs ahead until it waits for the GPU or the queue is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.simulator.work import H100, Activity, Gpu, Op, copy

US, MS = 1_000, 1_000_000

PROCESS = 4242
MAIN, AUTOGRAD, WATCHDOG = 4242, 4310, 4377
COMPUTE, COMMUNICATION, COPYING = 7, 20, 24

CALL_NS = 5 * US
"""A launch call."""
LATENCY_NS = 3 * US
"""From the return of a launch call to its kernel on a free stream."""
DEVICE_GAP_NS = 1 * US
"""Between two kernels that are both queued on a stream."""
RETURN_NS = 6 * US
"""From the end of the GPU's work to the return of the wait for it."""
QUEUE_DEPTH = 1024
"""Launches that the driver queues before a launch call blocks."""


@dataclass(kw_only=True)
class Range:
    """A host range as the profiler records it."""

    category: str
    name: str
    thread: int
    start_ns: int
    end_ns: int = 0
    op: Op | None = None
    sequence: int | None = None
    forward_thread: int | None = None
    external: int | None = None


@dataclass(kw_only=True)
class Call:
    """A runtime or driver call."""

    name: str
    thread: int
    start_ns: int
    end_ns: int
    correlation: int
    external: int | None
    waits: bool = False
    """The host waits for the GPU in it."""
    launches: bool = False


@dataclass(kw_only=True)
class Ran:
    """An activity in its place."""

    work: Activity
    stream: int
    start_ns: int
    end_ns: int
    correlation: int
    call: Call | None
    external: int | None
    is_described: bool = False
    """Launched under an op whose shapes the profiler may record; the nodes of a graph are not."""
    recompute: bool = False


@dataclass(kw_only=True)
class Label:
    """What the host was doing by construction: a cause of the ledger."""

    cause: str
    start_ns: int
    end_ns: int


@dataclass(kw_only=True)
class Step:
    """A `ProfilerStep#` mark."""

    number: int
    start_ns: int
    end_ns: int = 0


@dataclass(kw_only=True)
class Held:
    """What the caching allocator holds after a change."""

    at_ns: int
    thread: int
    change_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(kw_only=True)
class Run:
    """One rank: describe what its program does, in order; what happened when stands in the lists."""

    gpu: Gpu = H100
    rank: int | None = None
    world_size: int = 1
    node_devices: int = 8
    records_shapes: bool = True
    records_host: bool = True
    """Launch calls and host ops; without them the file knows steps and GPU activities alone."""
    agreed_ends_ns: Sequence[int] = ()
    """When each collective ends, because the last rank came late (see `simulate`)."""

    now_ns: int = 10 * MS
    thread: int = MAIN
    ranges: list[Range] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """Start and own duration of each collective."""
    held: list[Held] = field(default_factory=list)
    """Of the GPU's memory (`profile_memory=True`); empty where the program does not `hold`."""

    _free_ns: dict[int, int] = field(default_factory=dict)
    _hold_ns: dict[int, int] = field(default_factory=dict)
    _open: list[Range] = field(default_factory=list)
    _correlation: int = 1_000
    _sequence: int = 100
    _externals: int = 0

    # ---- the host

    def host(self, duration_ns: int) -> None:
        """The host does something that the profiler doesn't name."""
        self.now_ns += duration_ns

    @contextmanager
    def step(self) -> Iterator[Step]:
        """One training iteration, as `profiler.step()` marks it."""
        mark = Step(number=len(self.steps) + 1, start_ns=self.now_ns)
        self.steps.append(mark)
        with self.range(f"ProfilerStep#{mark.number}", "user_annotation"):
            yield mark
        mark.end_ns = self.now_ns

    @contextmanager
    def range(
        self,
        name: str,
        category: str = "cpu_op",
        *,
        op: Op | None = None,
        sequence: int | None = None,
        forward_thread: int | None = None,
    ) -> Iterator[Range]:
        """A named host range; ops, annotations and the profiler's own overhead differ by category."""
        self._externals += 1
        entry = Range(
            category=category,
            name=name,
            thread=self.thread,
            start_ns=self.now_ns,
            op=op,
            sequence=sequence,
            forward_thread=forward_thread,
            external=self._externals,
        )
        self.ranges.append(entry)
        self._open.append(entry)
        yield entry
        self._open.pop()
        entry.end_ns = self.now_ns

    @contextmanager
    def doing(self, cause: str, name: str, category: str = "user_annotation") -> Iterator[None]:
        """A host range that says of itself what cause of the ledger it is."""
        start_ns = self.now_ns
        with self.range(name, category):
            yield
        self.labels.append(Label(cause=cause, start_ns=start_ns, end_ns=self.now_ns))

    @contextmanager
    def on_thread(self, thread: int) -> Iterator[None]:
        """Another thread takes over; this one waits for it."""
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    @contextmanager
    def backward(self, node: str) -> Iterator[None]:
        """A node of the autograd graph, run by autograd's own thread."""
        self._sequence -= 1
        engine = f"autograd::engine::evaluate_function: {node}"
        with self.on_thread(AUTOGRAD), self.range(engine, sequence=self._sequence, forward_thread=1):
            self.host(1 * US)
            with self.range(node, sequence=self._sequence, forward_thread=1):
                self.host(1 * US)
                yield
            self.host(1 * US)

    def call(self, name: str, duration_ns: int = 1 * US, *, cause: str | None = None, waits: bool = False) -> Call:
        """A runtime call that takes its time; `cause` where the ledger names it."""
        self._correlation += 1
        external = next((entry.external for entry in reversed(self._open) if entry.category == "cpu_op"), None)
        call = Call(
            name=name,
            thread=self.thread,
            start_ns=self.now_ns,
            end_ns=self.now_ns + duration_ns,
            correlation=self._correlation,
            external=external,
            waits=waits,
        )
        self.calls.append(call)
        self.now_ns = call.end_ns
        if cause:
            self.labels.append(Label(cause=cause, start_ns=call.start_ns, end_ns=call.end_ns))
        return call

    def hold(self, change_bytes: int, *, reserved_bytes: int = 0) -> None:
        """Tensors are allocated (or freed, below 0); the allocator keeps what it has of the device, at least `reserved_bytes`."""
        before = (
            self.held[-1] if self.held else Held(at_ns=0, thread=0, change_bytes=0, allocated_bytes=0, reserved_bytes=0)
        )
        allocated_bytes = before.allocated_bytes + change_bytes
        self.held.append(
            Held(
                at_ns=self.now_ns,
                thread=self.thread,
                change_bytes=change_bytes,
                allocated_bytes=allocated_bytes,
                reserved_bytes=max(before.reserved_bytes, allocated_bytes, reserved_bytes),
            )
        )

    # ---- the GPU

    def do(
        self, op: Op, *, stream: int = COMPUTE, before_ns: int = 3 * US, recompute: bool = False, call_ns: int = CALL_NS
    ) -> None:
        """Call an op: its wrappers, some dispatch, its launches."""
        is_forward = self.thread == MAIN or recompute
        self._sequence += is_forward
        opened = []
        for layer in (*op.inside, op):
            sequence = self._sequence if is_forward else None
            opened.append(self.range(layer.name, op=layer, sequence=sequence, forward_thread=0 if is_forward else None))
            opened[-1].__enter__()
            self.host(1 * US if layer is not op else before_ns)
        for work in op.launches:
            self.launch(work, stream=stream, recompute=recompute, call_ns=call_ns)
        for layer_range in reversed(opened):
            self.host(1 * US)
            layer_range.__exit__(None, None, None)

    def launch(
        self,
        work: Activity,
        *,
        stream: int = COMPUTE,
        call_ns: int = CALL_NS,
        delay_ns: int = 0,
        recompute: bool = False,
        blocking: bool = False,
    ) -> Ran:
        """Enqueue one activity. `delay_ns`: something that no profiler sees holds it back; `blocking`: the call returns after it."""
        call = self.call(_launch_call(work), call_ns, waits=blocking)
        call.launches = True
        ran = self._run(work, call, stream=stream, delay_ns=delay_ns, recompute=recompute)
        if len(self.ran) > QUEUE_DEPTH:
            call.end_ns = max(call.end_ns, self.ran[-QUEUE_DEPTH - 1].start_ns)
        if blocking:
            call.end_ns = max(call.end_ns, ran.end_ns + RETURN_NS)
        self.now_ns = call.end_ns
        return ran

    def graph(self, works: Sequence[Activity], *, call_ns: int = 12 * US) -> None:
        """One graph launch for many kernels."""
        call = self.call("cudaGraphLaunch", call_ns)
        call.launches = True
        for work in works:
            self._run(work, call, stream=COMPUTE)

    def unrecorded(self, work: Activity, *, stream: int = COMPUTE, delay_ns: int = 0) -> None:
        """An activity whose launch the profiler did not record."""
        self._run(work, None, stream=stream, delay_ns=delay_ns)

    def _run(
        self, work: Activity, call: Call | None, *, stream: int, delay_ns: int = 0, recompute: bool = False
    ) -> Ran:
        ready_ns = (self.now_ns if call is None else call.end_ns) + LATENCY_NS
        free_ns = self._free_ns.get(stream, 0) + DEVICE_GAP_NS
        start_ns = max(ready_ns, free_ns, self._hold_ns.pop(stream, 0)) + delay_ns
        end_ns = start_ns + work.duration_ns
        if work.kind == "communication":
            place = len(self.arrivals)
            self.arrivals.append((start_ns, work.duration_ns))
            if place < len(self.agreed_ends_ns):
                end_ns = max(end_ns, self.agreed_ends_ns[place])
        self._free_ns[stream] = end_ns
        ran = Ran(
            work=work,
            stream=stream,
            start_ns=start_ns,
            end_ns=end_ns,
            correlation=self._correlation if call is None else call.correlation,
            call=call if self.records_host else None,
            external=call.external if call else None,
            is_described=call is not None and call.name != "cudaGraphLaunch" and any(entry.op for entry in self._open),
            recompute=recompute,
        )
        self.ran.append(ran)
        return ran

    def order(self, stream: int, after: int) -> None:
        """What comes next on `stream` waits for what is queued on `after` now: an event recorded there, awaited here."""
        self.call("cudaEventRecord")
        self.call("cudaStreamWaitEvent")
        self._hold_ns[stream] = max(self._hold_ns.get(stream, 0), self._free_ns.get(after, 0) + DEVICE_GAP_NS)

    def collective(self, work: Activity, *, stream: int = COMMUNICATION) -> None:
        """A collective as a process group launches it: on its own stream, after what the compute stream holds now."""
        with self.range("record_param_comms", op=Op(name="record_param_comms", shapes=[], dtypes=[])):
            self.order(stream, after=COMPUTE)
            with self.range(f"nccl:{(work.collective or {}).get('Collective name')}", "user_annotation"):
                self.launch(work, stream=stream)

    # ---- waiting

    def synchronise(self, name: str = "cudaDeviceSynchronize", *streams: int) -> None:
        """The host waits for some streams, or for all."""
        call = self.call(name, 2 * US, waits=True)
        ends = [end_ns for stream, end_ns in self._free_ns.items() if not streams or stream in streams]
        call.end_ns = max([call.end_ns, *(end_ns + RETURN_NS for end_ns in ends if end_ns > call.start_ns)])
        self.now_ns = call.end_ns

    def item(self) -> None:
        """`tensor.item()`: a copy of one number, and the wait for it."""
        outer = Op(name="aten::item", shapes=[[]], dtypes=["c10::BFloat16"])
        inner = replace(outer, name="aten::_local_scalar_dense")
        with self.range(outer.name, op=outer), self.range(inner.name, op=inner):
            self.host(1 * US)
            self.launch(copy("DtoH", 2))
            self.synchronise("cudaStreamSynchronize", COMPUTE)


def _launch_call(work: Activity) -> str:
    if work.kind == "copy":
        return "cudaMemcpyAsync"
    if work.kind == "set":
        return "cudaMemsetAsync"
    return "cuLaunchKernelEx" if work.name.startswith("nvjet") else "cudaLaunchKernel"


def simulate(program: Callable[[Run], None], ranks: int, **job: object) -> list[Run]:
    """Run one program on all ranks: a collective ends everywhere once the last rank has come and the data are through.

    Repeated until no end moves any more: each pass settles at least the next collective.
    """
    ends: list[int] = []
    while True:
        runs = [Run(rank=rank, world_size=ranks, agreed_ends_ns=ends, **job) for rank in range(ranks)]  # type: ignore[arg-type]
        for run in runs:
            program(run)
        together = zip(*(run.arrivals for run in runs), strict=True)
        found = [max(start_ns + own_ns for start_ns, own_ns in arrivals) for arrivals in together]
        if found == ends:
            return runs
        ends = found
