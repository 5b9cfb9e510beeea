"""What an op was called with, read from the JSON texts that the profiler recorded (`Input Dims`, `Input type`, `Concrete Inputs`).

Untrusted input: whatever is not what the profiler writes becomes an argument without a shape, never an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec

Shape = tuple[int, ...]

# c10 name as Kineto writes it -> (bytes an element, word of the report). Source: torch c10/core/ScalarType.h; C++ names
# come from older torch ("long", "int"), Kineto's collectives use the enum's own ("Long", "Int").
DTYPES: dict[str, tuple[float, str | None]] = {
    "double": (8, "fp64"),
    "float": (4, "fp32"),
    "c10::Half": (2, "fp16"),
    "half": (2, "fp16"),
    "c10::BFloat16": (2, "bf16"),
    "bfloat16": (2, "bf16"),
    "c10::Float8_e4m3fn": (1, "fp8"),
    "c10::Float8_e4m3fnuz": (1, "fp8"),
    "c10::Float8_e5m2": (1, "fp8"),
    "c10::Float8_e5m2fnuz": (1, "fp8"),
    "c10::Float8_e8m0fnu": (1, "fp8"),
    "float8_e4m3fn": (1, "fp8"),
    "float8_e4m3fnuz": (1, "fp8"),
    "float8_e5m2": (1, "fp8"),
    "float8_e5m2fnuz": (1, "fp8"),
    "c10::Float4_e2m1fn_x2": (1, "fp4"),
    "signed char": (1, "int8"),
    "char": (1, "int8"),
    "unsigned char": (1, "int8"),
    "byte": (1, "int8"),
    "c10::qint8": (1, "int8"),
    "c10::quint8": (1, "int8"),
    "bool": (1, None),
    "short": (2, None),
    "short int": (2, None),
    "unsigned short": (2, None),
    "short unsigned int": (2, None),
    "int": (4, None),
    "unsigned int": (4, None),
    "long": (8, None),
    "long int": (8, None),
    "long long": (8, None),
    "unsigned long": (8, None),
    "c10::complex<float>": (8, None),
    "c10::complex<double>": (16, None),
}
# The number that stands for a dtype among the concrete inputs. Source: torch c10/core/ScalarType.h, AT_FORALL_SCALAR_TYPES.
SCALAR_TYPES: dict[int, str] = {
    0: "unsigned char",
    1: "signed char",
    2: "short",
    3: "int",
    4: "long",
    5: "c10::Half",
    6: "float",
    7: "double",
    11: "bool",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
}
_NOT_A_TENSOR = ("Scalar", "ScalarList", "None")
# Bounds that no tensor reaches; they keep every product of a hostile file's numbers inside a float.
_MAX_ARGUMENTS, _MAX_DIMENSIONS, _MAX_SIZE, _MAX_ELEMENTS = 512, 12, 1 << 40, 1 << 50


class Argument(NamedTuple):
    """One input of an op. `shape` is null where it is no tensor; `members` are the shapes of a list of tensors."""

    shape: Shape | None = None
    dtype: str = ""
    concrete: str = ""
    members: tuple[Shape, ...] = ()


class Call(NamedTuple):
    """An op and its inputs, and what the rest of the trace tells of it.

    `output`: shape of the result, as another op has it. `partner`: of an autograd function's forward its backward, and the
    reverse. `mask`: which mask the attention kernels' names say they were compiled for ("full", "causal", "local").
    """

    name: str
    arguments: tuple[Argument, ...]
    output: Shape | None = None
    partner: Call | None = None
    mask: str | None = None

    def argument(self, position: int | None) -> Argument:
        """The input at a position; an empty one beyond the end or where there is no such input."""
        inside = position is not None and 0 <= position < len(self.arguments)
        return self.arguments[position] if inside and position is not None else Argument()

    def shape(self, position: int | None) -> Shape | None:
        """Shape of the tensor at a position, or null."""
        return self.argument(position).shape


class Volume(NamedTuple):
    """Data moved: bytes, and elements of a dtype that the trace does not tell (the kernel's name may)."""

    known_bytes: float = 0.0
    untyped_elements: float = 0.0

    def __add__(self, other: Volume) -> Volume:  # type: ignore[override]
        return Volume(self.known_bytes + other.known_bytes, self.untyped_elements + other.untyped_elements)

    def times(self, count: float) -> Volume:
        """The same data `count` times."""
        return Volume(self.known_bytes * count, self.untyped_elements * count)


class Work(NamedTuple):
    """What an op must do at least: FLOPs (null: unknown), data moved, and the dtype word it computes in.

    `most`: FLOPs that unknown ones cannot exceed.
    """

    flops: float | None = None
    moved: Volume = Volume()
    dtype: str | None = None
    most: float | None = None


def parse(name: str, shapes: str | None, dtypes: str | None, concrete: str | None) -> Call | None:
    """The call that the profiler's three JSON texts describe, or null where no shapes were recorded."""
    dims, types, values = _array(shapes), _array(dtypes), _array(concrete)
    if not dims or len(dims) > _MAX_ARGUMENTS:
        return None
    types += [""] * (len(dims) - len(types))
    values += [""] * (len(dims) - len(values))
    typed = any(isinstance(kind, str) and kind for kind in types)
    triples = zip(dims, types, values, strict=False)
    return Call(name, tuple(_argument(dim, str(kind or ""), str(value), typed=typed) for dim, kind, value in triples))


def numel(shape: Iterable[int]) -> int:
    """Elements of a tensor of this shape."""
    return math.prod(shape)


def volume(shape: Shape | None, dtype: str) -> Volume:
    """Data of a whole tensor; nothing for an input that is no tensor."""
    if shape is None:
        return Volume()
    width = element_bytes(dtype)
    return Volume(untyped_elements=float(numel(shape))) if width is None else Volume(numel(shape) * width)


def read(call: Call, *positions: int) -> Volume:
    """Data of the tensors (or lists of tensors) at these positions, each once."""
    return sum((_whole(call.argument(position)) for position in positions), Volume())


def total(volumes: Iterable[Volume]) -> Volume:
    """The data of all of them."""
    return sum(volumes, Volume())


def element_bytes(dtype: str) -> float | None:
    """Width of an element in bytes, or null for an unknown dtype name."""
    known = DTYPES.get(dtype) or DTYPES.get(dtype.lower())
    return known[0] if known else None


def word(dtype: str) -> str | None:
    """The report's word for a dtype ("bf16"), or null for integers and unknown names."""
    known = DTYPES.get(dtype) or DTYPES.get(dtype.lower())
    return known[1] if known else None


def integers(argument: Argument) -> tuple[int, ...] | None:
    """A concrete input that is an integer or a list of them, such as "[1, 1]" or "2"; null otherwise."""
    text = argument.concrete.strip()
    parsed = _decode(text if text.startswith("[") else f"[{text}]")
    if not isinstance(parsed, list) or not 0 < len(parsed) <= _MAX_DIMENSIONS:
        return None
    if not all(type(value) is int and abs(value) < _MAX_SIZE for value in parsed):
        return None
    return tuple(parsed)


def integer(argument: Argument) -> int | None:
    """A concrete input that is one integer; null otherwise."""
    values = integers(argument)
    return values[0] if values and len(values) == 1 else None


def flag(argument: Argument) -> bool | None:
    """A concrete input that the profiler wrote as True or False; null otherwise.

    Numbers are no flags: where another version of an op has other arguments at this place, it is unknown, not misread.
    """
    return {"True": True, "False": False}.get(argument.concrete.strip())


def broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """Shape of the result of an elementwise op, by torch's broadcasting; null where the shapes do not fit."""
    result: list[int] = []
    for shape in shapes:
        longest = max(len(result), len(shape))
        left = [1] * (longest - len(result)) + result
        right = [1] * (longest - len(shape)) + list(shape)
        if any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
            return None
        result = [b if a == 1 else a for a, b in zip(left, right, strict=True)]
    return tuple(result)


def _whole(argument: Argument) -> Volume:
    if argument.members:
        return Volume(untyped_elements=float(sum(numel(member) for member in argument.members)))
    return volume(argument.shape, argument.dtype)


def _argument(dims: Any, dtype: str, concrete: str, *, typed: bool) -> Argument:
    if _is_shape(dims):
        is_tensor = element_bytes(dtype) is not None if typed else bool(dims)
        return Argument(tuple(dims) if is_tensor else None, dtype, concrete)
    is_list = isinstance(dims, list) and all(_is_shape(member) for member in dims)
    is_list = is_list and not dtype.startswith(_NOT_A_TENSOR)
    return Argument(None, dtype, concrete, tuple(tuple(member) for member in dims) if is_list else ())


def _is_shape(dims: Any) -> bool:
    return (
        isinstance(dims, list)
        and len(dims) <= _MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size < _MAX_SIZE for size in dims)
        and math.prod(dims) < _MAX_ELEMENTS
    )


def _array(text: str | None) -> list[Any]:
    parsed = _decode(text) if text else None
    return parsed if isinstance(parsed, list) else []


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder()


def _decode(text: str) -> Any:
    try:
        return _decoder().decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
