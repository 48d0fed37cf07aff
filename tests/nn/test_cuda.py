"""Why CUDA does not start: with a driver that is pretended, because most machines have none."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.nn import cuda


class Driver:
    def __init__(self, status: int, devices: int) -> None:
        self.status, self.devices = status, devices

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_OPERATING_SYSTEM" if status == 304 else None
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return 0


@pytest.mark.parametrize(
    ("status", "devices", "expected"),
    [
        (0, 1, None),
        (0, 0, "CUDA has no device"),
        (304, 0, "cuInit: CUDA_ERROR_OPERATING_SYSTEM (304)"),
        (12345, 0, "cuInit: unknown error (12345)"),
    ],
)
def test_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, devices: int, expected: str | None
) -> None:
    monkeypatch.setattr(cuda, "MEMORY", str(tmp_path))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(status, devices))
    assert cuda.problem() == expected


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda, "MEMORY", str(tmp_path / "none"))
    assert "nvidia-modprobe -u -c=0" in str(cuda.problem())
    monkeypatch.setattr(cuda, "MEMORY", str(tmp_path))
    monkeypatch.setattr(cuda, "LIBRARY", "libnone.so.1")
    assert "libnone.so.1" in str(cuda.problem())
