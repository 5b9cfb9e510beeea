"""A report without what tells of people, machines and file systems; what exactly stays, docs/how-to/privacy.md says.

Names of GPU code and of the frameworks' own ranges stay, all other names go: what a user wrote can't be told from a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from trace_doctor import sizes
from trace_doctor.report import Report, Source

HIDDEN = "(redacted)"
PYTHON_FRAME = "(Python frame)"
BEFORE = "before "
"""Host code that no range names is named by what it came before."""
FRAGMENT = 16
"""A text that holds so many characters of a hidden name in a row, from its start or its end, holds a part of it."""
_FRAME = re.compile(
    r"[^\s'\"`,;(]*\.pyx?\(\d+\)(?::\s?[\w.<>]+)?|<(?:frozen|string|stdin)[^>]*>\(\d+\)(?::\s?[\w.<>]+)?|<built-in [^>]*>"
)
_PLACES = re.compile(
    r"""
    \w+://[^\s'"`,;)]+                                      # an address of the web
    | \\\\[^\s'"`,;]+ | \b[A-Za-z]:\\[^'"`,;\n]*?(?=['"`,;\n]|\s|$)   # a Windows path
    | (?<![\w)>.~/-])~?/(?:[^\s/'"`,;:()]+/)*[^\s/'"`,;:()]+/?       # an absolute path
    | (?<![\w/])(?:[\w.@+~-]+/)+[\w.@+~-]+\.\w{1,8}\b       # a path to a file
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)*                          # user@host
    | (?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])            # an IP address
    | \b[A-Z][A-Z0-9_]{2,}=[^\s,;]+                         # a variable of the environment
    """,
    re.VERBOSE,
)
_QUOTED = re.compile(r"'[^'\n]+'|\"[^\"\n]+\"")
_KNOWN = re.compile(
    r"""
    ProfilerStep(?:\#\d+|\*)?
    | (?:struct\ )?[A-Za-z_][\w.]*(?:::[\w~.<>]+)+(?::\ [\w:]+)?   # aten::mm, autograd::engine::evaluate_function: MmBackward0
    | \w*Backward\d* | record_param_comms | nccl:\w+ | triton_\w+
    | (?:cuda|cu|hip|nccl|rccl|ze|ur|cudnn|cublas)[A-Z]\w*         # API calls
    | (?:Memcpy|Memset)\ (?:\w+\ )?\([\w>\ -]*\)
    | Optimizer\.(?:step|zero_grad)\#\w+\.(?:step|zero_grad)
    | enumerate\(DataLoader\)\#_\w+\.__next__
    | (?:DistributedDataParallel|FullyShardedDataParallel)\.(?:forward|backward|_\w+)
    | Torch-Compiled\ Region(?::\ \d+/\d+)?
    | Command\ Buffer\ Full | Buffer\ Flush | Instrumentation | Resource | Runtime\ Triggered\ Module\ Loading
    | torch::autograd::CppNode<[\w:&<>,\ ]+> | MPI_[A-Z]\w+
    | all_to_all | all_reduce | all_gather | reduce_scatter | broadcast | reduce | gather | scatter | send | recv | barrier
    | CUDA\ (?:module|lazy\ function)\ loading | TLS\ allocation | Unknown
    | the\ end\ of\ the\ step | \(between\ recorded\ ranges\) | Python\ GC(?:\ of\ generation\ \d)? | \d+ | default_pg
    """,
    re.VERBOSE,
)
"""Host ranges and groups that profilers and frameworks name themselves."""
_NAMES = {
    ("top", "name"), ("top", "op"), ("rows", "name"), ("rows", "op"), ("differences", "name"), ("strip", "names"),
    ("collectives", "name"), ("collectives", "group"),
}  # fmt: skip
"""Fields that hold a name of the trace and nothing else."""
_SEEN = ("activity", "idle")
"""Kinds of evidence whose name is that of an op and of what it launched."""
_OURS = {
    ("fix", "code"), ("fix", "doc"), ("tool", "version"), ("sources", "sha256"), ("sources", "path"), ("gpus", "source"),
}  # fmt: skip
"""Texts that no trace has a part in, or not any more."""
_QUOTING = {("window", "rule"), ("warnings", "message"), ("coverage", "why")}
"""Texts that quote names."""
_LISTING = {"unknown_categories"}
"""Warnings that list names after a colon."""
_MODEL = re.compile(r"^.*?(?=, [\d,.e+]+ GFLOP a token)", re.DOTALL)
_WORDS = {"device", "peak_dtype", "convention", "group_by", "steps"}
"""Options whose texts are words of trace-doctor."""
_OF_HOST = {("memory", "allocator"), ("unattributed", "profiler overhead"), ("unattributed", "no host events")}
"""Rows of the ledger beside those of the host wall whose contributors are host ranges."""
Path = tuple[str, ...]


def redact(report: Report, kernels: Collection[str] = ()) -> Report:
    """The report without paths, hosts, users, stacks, command lines and the user's own names of ranges.

    `kernels`: names that GPU activities have in the traces, beside those that the report holds.
    """
    shown = namer({*kernels, *_kernels(report), *(row.cause for row in report.ledger)})
    written: dict[str, Any] = msgspec.to_builtins(_placeless(report))
    nameless = _nameless({*(name for name in _names(written) if shown(name) != name), *_private(report)})

    def walk(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            is_seen = path[-1:] == ("evidence",) and value["kind"] in _SEEN
            return {
                key: " / ".join(map(shown, item.split(" / ")))
                if is_seen and key == "name"
                else walk(item, (*path, key)[-2:])
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [walk(item, path) for item in value]
        if not isinstance(value, str) or path in _OURS:
            return value
        if path in _NAMES:
            return shown(value)
        words = nameless(value)
        if path[0] == "fix":  # advice may well name a variable or a file
            return words
        placeless = _PLACES.sub(HIDDEN, words)
        return _QUOTED.sub(_unquoted, placeless) if path in _QUOTING else placeless

    return msgspec.convert(walk(written, ()), Report)


def namer(kernels: Collection[str]) -> Callable[[str], str]:
    """What is shown of a name: that of a kernel or of a framework's range as it is, no other."""
    kept = frozenset(kernels)

    @cache
    def shown(name: str) -> str:
        if _FRAME.search(name):
            return PYTHON_FRAME
        if name.startswith(BEFORE):
            return BEFORE + shown(name.removeprefix(BEFORE))
        if name in kept or _KNOWN.fullmatch(name):
            return _PLACES.sub(HIDDEN, name)
        return HIDDEN

    return shown


def _nameless(hidden: Collection[str]) -> Callable[[str], str]:
    """Sentences without the hidden names, or parts of them."""
    ordered = sorted((name for name in hidden if name not in ("", HIDDEN, PYTHON_FRAME)), key=len, reverse=True)
    whole = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in ordered)) if ordered else None
    ends = {part for name in ordered if len(name) > FRAGMENT for part in (name[:FRAGMENT], name[-FRAGMENT:])}

    @cache
    def shown(words: str) -> str:
        words = _FRAME.sub(PYTHON_FRAME, words)
        words = whole.sub(HIDDEN, words) if whole else words
        return HIDDEN if any(part in words for part in ends) else words

    return shown


def _kernels(report: Report) -> Iterator[str]:
    """Names of GPU activities in the report."""
    if report.kernels.group_by == "kernel":
        yield from (row.name for row in report.kernels.rows)
    for ledger in (report.ledger, *(gpu.ledger for gpu in report.gpus)):
        for row in ledger:
            if row.wall != "host" and (row.wall, row.cause) not in _OF_HOST:
                yield from (top.name for top in row.top)


def _names(value: Any, path: Path = ()) -> Iterator[str]:
    """All names of the trace in a report."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _names(item, (*path, key)[-2:])
        if path[-1:] == ("evidence",) and value["kind"] in _SEEN:
            yield from value["name"].split(" / ")
    elif isinstance(value, list):
        for item in value:
            yield from _names(item, path)
    elif isinstance(value, str) and path in _NAMES:
        yield value


def _private(report: Report) -> Iterator[str]:
    """What the user named: traces and other files, whole and without their folders, processes, labels, texts of options."""
    texts = [source.path for source in report.sources]
    texts += [text for gpu in report.gpus for text in (gpu.source, gpu.process or "", gpu.device)]
    texts += [value for key, value in report.tool.options.items() if key not in _WORDS and isinstance(value, str)]
    for text in texts:
        yield from (part for part in (text, re.split(r"[\\/]", text)[-1]) if not part.isdecimal())


def _placeless(report: Report) -> Report:
    """Traces by their hash, GPUs by their number, no processes, and of the options no texts but words of trace-doctor."""
    labels = {source.path: _label(source, place) for place, source in enumerate(report.sources, 1)}
    devices = {gpu.device: gpu.device if gpu.device.isdecimal() else str(n) for n, gpu in enumerate(report.gpus)}
    options = {
        key: HIDDEN if isinstance(value, str) and key not in _WORDS else value
        for key, value in report.tool.options.items()
    }
    return replace(
        report,
        tool=replace(report.tool, options=options),
        sources=[replace(source, path=labels[source.path]) for source in report.sources],
        gpus=[
            replace(gpu, source=labels.get(gpu.source, HIDDEN), process=None, device=devices[gpu.device])
            for gpu in report.gpus
        ],
        strip=report.strip and replace(report.strip, device=devices.get(report.strip.device, "")),
        workload=replace(report.workload, formula=_MODEL.sub("the model", report.workload.formula or "") or None),
        warnings=[
            replace(one, message=one.message.partition(":")[0]) if one.code in _LISTING else one
            for one in report.warnings
        ],
    )


def _label(source: Source, place: int) -> str:
    """What can be said of a trace: the start of its hash, or its place, and the sizes that its name tells."""
    return " ".join(["trace", (source.sha256 or "")[:8] or str(place), *sizes.words(source.path)])


def _unquoted(found: re.Match[str]) -> str:
    return found[0] if _KNOWN.fullmatch(found[0][1:-1]) else HIDDEN
