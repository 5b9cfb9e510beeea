"""Numbers as people write them: 989e12, 989T, 989 TFLOP/s, 3350GB/s, 7B."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    _Parameter = click.ParamType[float]
else:
    _Parameter = click.ParamType

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_NUMBER = re.compile(r"(\d[\d_,]*(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(.*)", re.IGNORECASE)


class Quantity(_Parameter):
    """A positive number with a decimal prefix and, if you like, its unit; `least` tells a forgotten prefix."""

    def __init__(self, name: str, units: tuple[str, ...], prefixes: str, *, least: float = 0.0, example: str) -> None:
        self.name = name
        self.units = units
        self.prefixes = prefixes
        self.least = least
        self.example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number in base units; fails with an example of what is understood."""
        if isinstance(value, float):
            return value
        number, rest = self._split(str(value).strip())
        size = next((_PREFIXES[p] for p in ("", *self.prefixes) for u in ("", *self.units) if rest == p + u), None)
        if number is None or size is None or not 0 < number * size < math.inf:
            self.fail(f"{value!r} is no {self.name}: write it like {self.example}", param, ctx)
        if number * size < self.least:
            self.fail(
                f"{value!r} is too small for a {self.name}: did you mean {value}T? Write it like {self.example}",
                param,
                ctx,
            )
        return number * size

    @staticmethod
    def _split(text: str) -> tuple[float | None, str]:
        found = _NUMBER.fullmatch(text)
        return (float(re.sub("[_,]", "", found[1])), found[2].strip().lower()) if found else (None, "")


class Finite(click.FloatRange):
    """A number in a range; `nan` is in none, whatever it is compared with."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails outside of the range."""
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


FLOPS = Quantity("number of FLOPs", ("flop", "flops"), "kmgtpe", example="1.2e15 or 1.2P")
FLOPS_RATE = Quantity("peak", ("flop/s", "flops", "flops/s"), "gtp", least=1e9, example="989e12, 989T or '989 TFLOP/s'")
BYTES_RATE = Quantity("bandwidth", ("b/s",), "gt", least=1e9, example="3.35e12, 3.35T or 3350GB/s")
COUNT = Quantity("number", (), "kmgbt", example="7e9 or 7B")
