from __future__ import annotations

import pytest

from trace_doctor.hardware.counters import catalogue, counter


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("SMs Active [Throughput %]", "sm_active"),
        ("SM Active [Throughput %]", "sm_active"),
        ("SM Issue [Throughput %]", "sm_issue"),
        ("Tensor Active [Throughput %]", "tensor_active"),
        ("GR Active [Throughput %]", "gr_active"),
        ("DRAM Read Bandwidth [Throughput %]", "dram_read"),
        ("DRAM Write Bandwidth [Throughput %]", "dram_write"),
        ("NVLink RX Responses Protocol Data [Throughput %]", "nvlink_received"),
        ("NVLink TX Requests User Data [Throughput %]", "nvlink_sent"),
        ("PCIe RX Throughput [Throughput %]", "pcie_received"),
        ("GPC Clock Frequency [MHz]", "clock"),
        ("Compute Warps in Flight [Avg Warps per Cycle]", None),
        ("Unallocated Warps in Active SMs [Throughput %]", None),
        ("SYS Clock Frequency [MHz]", None),
    ],
)
def test_recorded_names(recorded: str, name: str | None) -> None:
    found = counter(recorded)
    assert (found.name if found else None) == name


def test_each_counter_stands_once() -> None:
    names = [row.name for row in catalogue()]
    assert len(names) == len(set(names))
