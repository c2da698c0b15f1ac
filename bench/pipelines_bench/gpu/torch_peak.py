"""How fast a device multiplies matrices in bf16: measured, and as its maker says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from pipelines_bench.gpu.checks import Finding, Place
from pipelines_bench.gpu.torch_machine import wait_for

DATASHEETS: Mapping[str, float] = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
}
"""Dense bf16 of tensor cores in TFLOP/s by a part of the device's name, the first that fits; of
NVIDIA's datasheets of these products, halved where they count with sparsity."""
WIDTH, CPU_WIDTH = 8192, 512


def peak(place: Place) -> Finding:
    """Products of two large matrices, beside the datasheet's figure."""
    measured = measured_peak(place.device)
    figures: dict[str, Any] = {"measured TFLOP/s": measured}
    if place.on_gpu:
        figures["datasheet TFLOP/s"] = datasheet_peak(torch.cuda.get_device_name(place.device))
    told = ", ".join(f"{name} {value}" for name, value in figures.items())
    return Finding(told, figures)


def datasheet_peak(name: str) -> float | None:
    """What the maker of a device says; None of one that is not in the table."""
    return next((value for part, value in DATASHEETS.items() if part in name), None)


@lru_cache(maxsize=1)
def measured_peak(device: str) -> float:
    """TFLOP/s of products of square matrices of random numbers in bf16."""
    width = CPU_WIDTH if device == "cpu" else WIDTH
    left, right = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = seconds_of(lambda: torch.mm(left, right), device, times=20 if device != "cpu" else 2)
    return round(2 * width**3 / seconds / 1e12, 3)


def seconds_of(work: Callable[[], object], device: str, *, times: int, warm_up: int = 3) -> float:
    """Seconds of one call, the mean of several behind one another."""
    for _ in range(warm_up):
        work()
    wait_for(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait_for(device)
    return (time.perf_counter() - began) / times
