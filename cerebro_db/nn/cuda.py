"""Finds out from the driver why CUDA does not start."""

from __future__ import annotations

import ctypes
import os

LIBRARY = "libcuda.so.1"
MEMORY = "/dev/nvidia-uvm"  # missing after a start of the machine until root has used CUDA


def problem() -> str | None:
    """The reason in words; None if CUDA has started and has a device."""
    if not os.path.exists(MEMORY):
        return f"there is no {MEMORY}: as root, run nvidia-modprobe -u -c=0"
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return f"the driver's library cannot be loaded: {error}"
    if status := driver.cuInit(0):
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))
        return f"cuInit: {(name.value or b'unknown error').decode()} ({status})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return None if count.value else "CUDA has no device"
