"""The answer of `trace-doctor mfu` as text: the number, with peak, device, FLOPs and formula beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from trace_doctor.estimate import Estimate, Training
from trace_doctor.reporter import text

WIDTH = 80
Row = tuple[str, ...]
COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))
"""Parameters and tokens as the field writes them: 7B, 15T."""
FLOPS = tuple(
    (size, f"{prefix}FLOP")
    for size, prefix in zip((1e24, 1e21, 1e18, 1e15, 1e12, 1e9, 1e6, 1e3, 1.0), (*"YZEPTGMk", ""), strict=True)
)


def render(found: Estimate) -> str:
    """The estimate as plain text; every string of the model file is made harmless."""
    sections = [
        _subject(found),
        _number(found),
        _flops(found),
        _conventions(found),
        _training(found.training),
        _notes(found),
    ]
    return text.plain("\n\n".join("\n".join(lines) for lines in sections if lines)) + "\n"


def _subject(found: Estimate) -> list[str]:
    model, device = found.model, found.device
    parameters = f"{text.scaled(model.parameters, COUNTS)} parameters"
    if model.active_parameters != model.parameters:
        parameters += f", {text.scaled(model.active_parameters, COUNTS)} active"
    parts = [
        text.clip(text.clean(model.name), 40),
        parameters,
        f"sequences of {model.sequence:,} tokens" if model.sequence else "",
        f"{found.throughput.gpus:,} x {text.clean(device.name)}"
        if device.name
        else text.plural(found.throughput.gpus, "GPU"),
    ]
    return _wrapped(" · ".join(part for part in parts if part))


def _number(found: Estimate) -> list[str]:
    """MFU and what it is held against; HFU; the speed."""
    device, speed = found.device, found.throughput
    peak = device.peak_flops.get(device.peak_dtype or "")
    against = f"{device.peak_dtype} dense {text.rate(peak, 'FLOP/s')}; " if peak else ""
    lines = [f"MFU {text.percent(found.mfu)} ({against}convention {found.convention.name})"]
    if found.recompute and found.hfu is not None:
        added = {"none": "nothing is computed again", "full": "full recomputation", "selective": "recomputed attention"}
        lines.append(f"HFU {text.percent(found.hfu)} ({added[found.recompute]})")
    if speed.flops_per_s_per_gpu is not None and speed.tokens_per_s is not None:
        facts = [
            f"{text.rate(speed.flops_per_s_per_gpu, 'FLOP/s')} per GPU",
            f"{_whole(speed.tokens_per_s)} tokens/s",
            f"{_whole(speed.tokens_per_s_per_gpu or 0)} per GPU" if speed.gpus > 1 else "",
            f"step {text.duration(1e9 * speed.step_time_s)}" if speed.step_time_s else "",
        ]
        lines += _wrapped("  " + " · ".join(fact for fact in facts if fact), "  ")
    return lines


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else text.number(value)


def _flops(found: Estimate) -> list[str]:
    """The parts of a token's FLOPs, their sum, and the formula."""
    flops = found.flops
    rows: list[Row] = [("FLOPs per token", "forward", "backward", "share")]
    rows += [
        (
            f"  {part.name}",
            text.scaled(part.forward_per_token, FLOPS),
            text.scaled(part.backward_per_token, FLOPS),
            text.percent(part.share),
        )
        for part in flops.parts
    ]
    forward = sum(part.forward_per_token for part in flops.parts)
    rows.append(
        ("  sum", text.scaled(forward, FLOPS), text.scaled(flops.per_token - forward, FLOPS), text.percent(1.0))
    )
    lines = _table(rows)
    sums = [f"model FLOPs {text.scaled(flops.per_token, FLOPS)} per token"]
    if flops.per_step and found.throughput.tokens_per_step:
        tokens = text.scaled(found.throughput.tokens_per_step, COUNTS)
        sums.append(f"{text.scaled(flops.per_step, FLOPS)} per step of {tokens} tokens")
    if flops.recomputed_per_token:
        sums.append(f"{text.scaled(flops.recomputed_per_token, FLOPS)} per token are computed again")
    lines += _wrapped("  " + "; ".join(sums), "  ")
    return lines + _wrapped(f"  formula: {found.convention.formula} ({found.convention.source})", "  ")


def _conventions(found: Estimate) -> list[str]:
    """The same run by every convention: MFU is a convention, not a number."""
    if len(found.conventions) < 2:
        return []
    rows: list[Row] = [("By convention", "FLOPs per token", "MFU")]
    rows += [
        (
            f"{'*' if row.name == found.convention.name else ' '} {row.name}",
            text.scaled(row.flops_per_token, FLOPS),
            text.percent(row.mfu) if row.mfu is not None else "",
        )
        for row in found.conventions
    ]
    return _table(rows)


def _training(training: Training | None) -> list[str]:
    if training is None:
        return []
    cost = f", {training.cost:,.0f} at this price" if training.cost is not None else ""
    days = f"{training.days:,.1f}{text.SPACE}days"
    return _wrapped(
        f"Training on {text.scaled(training.tokens, COUNTS)} tokens at this speed: {days}, {training.gpu_hours:,.0f} GPU-hours{cost}"
    )


def _notes(found: Estimate) -> list[str]:
    notes = [f"Warning: {message.message}" for message in found.warnings]
    notes += [text.clean(note) for note in found.model.notes]
    notes += [f"convention {found.convention.name}: {found.convention.note}"] if found.convention.note else []
    notes += [f"GPU: {found.device.basis}"] if found.device.peak_dtype else []
    return [line for note in notes for line in _wrapped(f"- {text.sentence(note)}", "  ")]


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=True, break_on_hyphens=False)


def _table(rows: Sequence[Row]) -> list[str]:
    """Columns two blanks apart, the first to the left, the others to the right."""
    return list(_lines(rows, [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]))


def _lines(rows: Sequence[Row], widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join((row[0].ljust(widths[0]), *cells)).rstrip()
