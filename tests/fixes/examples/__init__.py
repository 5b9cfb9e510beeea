"""For each rule, simulated programs that must fire it and near ones that must not: `@fires(code, lost_ns=...)` and `@spares(code)`.

A module for each module of rules. What a program costs is worked out by hand, from what its parts were built as.
"""

from __future__ import annotations

from tests.fixes.build import EXAMPLES
from tests.fixes.examples import communication_wall, compute, fusion, host, memory_wall, small_kernels, trust

__all__ = ["EXAMPLES", "communication_wall", "compute", "fusion", "host", "memory_wall", "small_kernels", "trust"]
