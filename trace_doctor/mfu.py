"""`estimate`: MFU of a run from its model, its throughput and its GPUs, without a trace (docs/reference/mfu.md)."""

from __future__ import annotations

import difflib
from importlib.metadata import version

import msgspec

from trace_doctor.errors import UsageError
from trace_doctor.estimate import (
    ByConvention,
    ConventionRow,
    Estimate,
    Flops,
    FlopsPart,
    ModelRow,
    Recompute,
    Run,
    Throughput,
    Training,
)
from trace_doctor.hardware import devices
from trace_doctor.hardware.devices import Device
from trace_doctor.options import Options
from trace_doctor.report import DeviceRow, Message, Tool
from trace_doctor.trace import DeviceInfo
from trace_doctor.work import conventions, model_files
from trace_doctor.work.conventions import Convention
from trace_doctor.work.model_flops import Count, count, parameters
from trace_doctor.work.models import Model

SPELLINGS = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "float64": "fp64",
    "float8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4",
}  # fmt: skip

NUMBERS = (
    "params",
    "active_params",
    "tokens_per_step",
    "batch_size",
    "tokens_per_second",
    "train_tokens",
    "step_time",
    "price",
)
SMALLEST, LARGEST = 1e-9, 1e24


def estimate(run: Run, options: Options | None = None) -> Estimate:
    """MFU, HFU, throughput and the cost of training; `options` say the device and its peak.

    Raises UsageError where the numbers contradict each other or don't suffice, InputError where the model file makes no sense.
    """
    _check(run)
    options = options or Options()
    model, sequence = described(run)
    convention = chosen(run.convention, model)
    counted = count(model, sequence, convention)
    if not counted.total:
        msg = "the model has nothing to multiply: no attention, no mlp, no vocabulary"
        raise UsageError(msg, where="--model", hint="docs/reference/mfu.md describes model files")
    speed = _throughput(run, counted)
    dtype = _dtype(run.dtype)
    device = devices.identify(DeviceInfo(label="0"), options) if options.device or options.peak_flops else None
    peak_dtype = devices.default_peak_dtype(device) if device else None
    peak = devices.peak(device, peak_dtype) if device else None
    mfu = speed.flops_per_s_per_gpu / peak if peak and speed.flops_per_s_per_gpu else None
    again = _recomputed(counted, run.recompute)
    found = Estimate(
        tool=Tool(version=version("trace-doctor")),
        model=_model_row(model, sequence if model.layers or run.sequence_length else None),
        device=_device_row(device, peak_dtype, run.gpus),
        dtype=dtype,
        recompute=run.recompute,
        convention=ConventionRow(
            name=convention.name, formula=convention.formula, source=convention.source, note=convention.note
        ),
        flops=_flops(counted, again, speed),
        throughput=speed,
        mfu=mfu,
        hfu=None if mfu is None or again is None else mfu * (1 + again / counted.total),
        mfu_by_peak=_by_own_peak(speed, device, dtype, peak_dtype),
        conventions=_by_convention(model, sequence, speed, peak),
        training=_training(run, speed),
    )
    return msgspec.structs.replace(found, warnings=_warnings(found, device))


def with_model(options: Options) -> Options:
    """The options with the FLOPs of a step that their model and tokens make, and the formula; as they are without a model.

    Raises UsageError where the tokens of a step or the length of a sequence are missing.
    """
    if options.model is None:
        for name in ("convention", "sequence_length"):
            if getattr(options, name) is not None:
                msg = f"{_flag(name)} needs --model: it says how the model's FLOPs are counted"
                raise UsageError(msg, hint="add --model FILE, or leave it out")
        return options
    if options.tokens_per_step is None:
        msg = "--model needs --tokens-per-step: FLOPs of a step are FLOPs of a token x tokens"
        raise UsageError(msg, hint="add --tokens-per-step T, the tokens of one step of the whole job")
    run = Run(
        model=options.model,
        sequence_length=options.sequence_length,
        params=options.params,
        active_params=options.active_params,
    )
    model, sequence = described(run)
    convention = chosen(options.convention, model)
    per_token = count(model, sequence, convention).total / sequence
    formula = (
        f"{model.name}, {per_token / 1e9:,.4g} GFLOP a token x {options.tokens_per_step:,.0f} tokens"
        f" (sequences of {sequence:,}, convention {convention.name}: {convention.formula})"
    )
    return msgspec.structs.replace(options, flops_per_step=per_token * options.tokens_per_step, flops_formula=formula)


def described(run: Run) -> tuple[Model, int]:
    """The model and the tokens of one of its samples; raises where either is not known."""
    if run.model is None:
        if run.params is None and run.active_params is None:
            msg = "what is trained is not known"
            raise UsageError(msg, hint="give --model FILE (a config.json or TOML), or --params N")
        return Model(
            name="", params=run.params or run.active_params, active_params=run.active_params
        ), run.sequence_length or 1
    model = model_files.read(run.model)
    given = {
        "params": run.params,
        "active_params": run.active_params,
        "lora_rank": run.lora_rank,
    }
    model = msgspec.structs.replace(model, **{name: value for name, value in given.items() if value is not None})
    sequence = run.sequence_length or model.sequence
    if sequence is None and model.layers:
        msg = "the length of a sequence is not known: attention depends on it"
        raise UsageError(
            msg,
            where="--sequence-length",
            hint="add --sequence-length N, the tokens of one sequence as trained, e.g. 8192",
        )
    return model, sequence or 1


def chosen(name: str | None, model: Model) -> Convention:
    """The convention of that name; by default our own, or 6 N where only parameters are known."""
    return conventions.named(name or (conventions.DEFAULT if model.layers else conventions.BY_PARAMETERS))


def _check(run: Run) -> None:
    """Raises UsageError where a number makes no sense, or two contradict each other."""
    for name in NUMBERS:
        value = getattr(run, name)
        if value is not None and not SMALLEST <= value <= LARGEST:
            msg = f"{value:g} makes no sense here"
            raise UsageError(
                msg, where=_flag(name), hint=f"give it in whole units or with a prefix, e.g. {_flag(name)} 1.5M"
            )
    pairs = [
        ("tokens_per_step", "batch_size", "give the tokens of a step, or its samples"),
        ("tokens_per_second", "step_time", "give the throughput, or the time of a step"),
    ]
    for one, other, hint in pairs:
        if getattr(run, one) is not None and getattr(run, other) is not None:
            msg = f"{_flag(one)} and {_flag(other)} say the same thing twice"
            raise UsageError(msg, hint=hint)
    if run.step_time is not None and run.tokens_per_step is None and run.batch_size is None:
        msg = "--step-time needs the tokens of a step"
        raise UsageError(msg, hint="add --tokens-per-step T or --batch-size N")
    if run.batch_size is not None and run.model is None and run.sequence_length is None:
        msg = "--batch-size needs the length of a sequence"
        raise UsageError(msg, hint="add --sequence-length N, or give --tokens-per-step T")
    if run.lora_rank is not None and run.model is None:
        msg = "--lora-rank needs the model's layers"
        raise UsageError(msg, hint="add --model FILE")
    if run.params is not None and run.active_params is not None and run.active_params > run.params:
        msg = "there are more active parameters than parameters"
        raise UsageError(
            msg, where="--active-params", hint="--params counts all experts, --active-params those a token is sent to"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _dtype(name: str) -> str:
    """Our word for a dtype; raises UsageError with near names where it has none."""
    wanted = name.strip().lower().removeprefix("torch.").removeprefix("amp_")
    word = SPELLINGS.get(wanted, wanted)
    if word in devices.DTYPES:
        return word
    near = difflib.get_close_matches(wanted[:50], [*devices.DTYPES, *SPELLINGS], n=2, cutoff=0.5)
    msg = f"{name!r} is no dtype that has a peak"
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(devices.DTYPES)}"
    raise UsageError(msg, where="--dtype", hint=hint)


# ---- the parts of the answer


def _throughput(run: Run, counted: Count) -> Throughput:
    """Tokens and model FLOPs a second: as given, or the tokens of a step by its time."""
    tokens = run.tokens_per_step or (run.batch_size * counted.tokens if run.batch_size else None)
    rate = run.tokens_per_second * (run.gpus if run.per_gpu else 1) if run.tokens_per_second else None
    rate = tokens / run.step_time if tokens and run.step_time else rate
    return Throughput(
        gpus=run.gpus,
        tokens_per_step=tokens,
        step_time_s=run.step_time or (tokens / rate if tokens and rate else None),
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / run.gpus if rate else None,
        flops_per_s_per_gpu=counted.total / counted.tokens * rate / run.gpus if rate else None,
    )


def _recomputed(counted: Count, recompute: Recompute | None) -> float | None:
    """FLOPs of a sample that recomputation adds; null where it isn't known whether there is any."""
    if recompute is None:
        return None
    return {"none": 0.0, "selective": counted.selective_recompute, "full": counted.full_recompute}[recompute]


def _flops(counted: Count, again: float | None, speed: Throughput) -> Flops:
    tokens = counted.tokens
    per_token = counted.total / tokens
    return Flops(
        per_token=per_token,
        per_step=per_token * speed.tokens_per_step if speed.tokens_per_step else None,
        recomputed_per_token=None if again is None else again / tokens,
        parts=tuple(
            FlopsPart(
                name=part.name,
                forward_per_token=part.forward / tokens,
                backward_per_token=part.backward / tokens,
                share=(part.forward + part.backward) / counted.total,
            )
            for part in counted.parts
        ),
    )


def _model_row(model: Model, sequence: int | None) -> ModelRow:
    return ModelRow(
        name=model.name,
        parameters=parameters(model),
        active_parameters=parameters(model, active=True),
        sequence=sequence,
        notes=model.notes,
    )


def _device_row(device: Device | None, peak_dtype: str | None, gpus: int) -> DeviceRow:
    if device is None:
        return DeviceRow(count=gpus, basis="no device given")
    return DeviceRow(
        name=device.name,
        count=gpus,
        peak_flops=dict(device.peaks),
        peak_dtype=peak_dtype,
        memory_bandwidth=device.memory_bandwidth,
        link_bandwidth=device.link_bandwidth,
        best_matmul_flops=device.best_matmul_flops,
        basis=device.basis,
    )


def _by_own_peak(speed: Throughput, device: Device | None, dtype: str, peak_dtype: str | None) -> dict[str, float]:
    peak = devices.peak(device, dtype) if device and dtype != peak_dtype else None
    return {dtype: speed.flops_per_s_per_gpu / peak} if peak and speed.flops_per_s_per_gpu else {}


def _by_convention(model: Model, sequence: int, speed: Throughput, peak: float | None) -> tuple[ByConvention, ...]:
    """Every convention that the model suffices for."""
    rate = speed.tokens_per_s_per_gpu
    rows = conventions.catalogue() if model.layers else (conventions.named(conventions.BY_PARAMETERS),)
    found = []
    for row in rows:
        per_token = count(model, sequence, row).total / sequence
        mfu = per_token * rate / peak if rate and peak else None
        found.append(ByConvention(name=row.name, flops_per_token=per_token, mfu=mfu))
    return tuple(found)


def _training(run: Run, speed: Throughput) -> Training | None:
    """Days, GPU-hours and money for the tokens to train on, at this speed without a break."""
    if run.train_tokens is None or speed.tokens_per_s is None:
        return None
    hours = run.train_tokens / speed.tokens_per_s / 3600
    return Training(
        tokens=run.train_tokens,
        days=hours / 24,
        gpu_hours=hours * run.gpus,
        cost=None if run.price is None else hours * run.gpus * run.price,
    )


def _warnings(found: Estimate, device: Device | None) -> tuple[Message, ...]:
    peak_dtype = found.device.peak_dtype
    peak = found.device.peak_flops.get(peak_dtype or "")
    warnings = []
    if peak is None:
        why = device.basis if device else "give --device NAME (trace-doctor devices lists them), or --peak-flops X"
        warnings.append(Message(code="unknown-peak", message=f"no MFU: the peak is not known; {why}"))
    elif found.throughput.tokens_per_s is None:
        told = "no MFU: the speed is not known; give --tokens-per-second, or --tokens-per-step with --step-time"
        warnings.append(Message(code="unknown-speed", message=told))
    if peak is not None and found.dtype != peak_dtype:
        own = found.mfu_by_peak.get(found.dtype)
        instead = (
            f"against the dense {found.dtype} peak it is {own:.1%}"
            if own is not None
            else (
                "" if found.dtype in found.device.peak_flops else f"the {found.dtype} peak of this device is not known"
            )
        )
        told = f"the matmuls run in {found.dtype}, MFU is held against the dense {peak_dtype} peak"
        warnings.append(Message(code="peak-dtype", message=told + (f": {instead}" if instead else "")))
    if found.mfu is not None and found.mfu > 1:
        told = f"MFU is {found.mfu:.3g}: the model, the speed, the number of GPUs or the peak is wrong"
        warnings.append(Message(code="mfu-above-one", message=told))
    if found.convention.name == conventions.BY_PARAMETERS:
        told = "attention is not counted by 6n, which is all that parameters allow; --model FILE tells the layers"
        warnings.append(Message(code="no-attention", message=told))
    return tuple(warnings)
