"""An estimate of the energy that a training took, from the CPU time of its workers."""

from __future__ import annotations

WATTS_PER_CPU = 3.84
"""Of a logical CPU that is busy: the mean of what Cloud Carbon Footprint takes for AWS (3.5),
Google Cloud (4.26) and Azure (3.76).

Source: https://www.cloudcarbonfootprint.org/docs/methodology, "Compute", of SPECpower.
"""


def watt_hours(cpu_seconds: float) -> float:
    """Energy of the CPUs alone, without memory, network, cooling and GPUs.

    Args:
        cpu_seconds: CPU time of all threads of all workers.
    """
    return cpu_seconds / 3600 * WATTS_PER_CPU
