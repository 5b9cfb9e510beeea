"""A training step in a few lines, as a trace and with its ledger known by construction.

::

    run = Run()                                 # one H100 and the host that drives it
    with run.step():
        with run.doing("input pipeline", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            run.host(500 * US)
        run.do(mm(4096, 4096, 4096, efficiency=0.7))
        run.item()
    kineto.write(run, path)                     # what torch.profiler would have recorded
    nsight.write(path, run)                     # what Nsight Systems would have, exported to SQLite
    ledger.of(run)                              # {(wall, cause): ns}, from what each part was built as

`work` says what GPU activities are, `machine` when they and the host run, `kineto` and `nsight` write that down, `ledger` accounts
for it in plain Python, one elementary interval at a time. `recorded` lets torch say what the host does. Nothing here knows trace_doctor.
"""

from __future__ import annotations

from tests.simulator import kineto, ledger, nsight, work
from tests.simulator.machine import MS, US, Run, simulate

__all__ = ["MS", "US", "Run", "kineto", "ledger", "nsight", "simulate", "work"]
