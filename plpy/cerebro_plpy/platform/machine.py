"""What the machine has: processors, GPUs, memory, disk."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path

from cerebro_db.core.engines import MOST_THREADS
from cerebro_db.core.records import dataclass
from cerebro_db.core.trainers.available_memory import CGROUP, available_memory

from ..database.access import Database
from ..database.entry import INTERNAL, entry

DRIVER = Path("/proc/driver/nvidia/gpus")
FRAMEWORK = 600 << 20  # bytes of memory that a trainer takes before it builds a model, with what it shares
# The share of it that is a trainer's own: trainers are forked from one template, whose pages they share. Trainers of a
# small model had 120 to 130 MB of private memory and 103 to 163 MB of proportional memory (PSS).
OWN_OF_TRAINER = 160 << 20


def megabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{max(1, round(size / 2**20)):,} MB"


def room(folder: Path) -> int | None:
    """Free bytes on the file system of a folder; None if it does not say."""
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return None


def memory_available() -> int | None:
    """Bytes of memory that are available on the machine, or in the container if that is less."""
    return available_memory(CGROUP)


def memory_total() -> int | None:
    """Bytes of memory of the machine, or of the container if that is less."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):
        found.append(int((CGROUP / "memory.max").read_text()))
    return min(found, default=None)


def memory_needed(state_bytes: int) -> int:
    """Bytes of memory for a trainer of a model with this state: the state, its gradients and a state in transit."""
    return FRAMEWORK + 3 * state_bytes


def memory_of_trainers(trainers: int, state_bytes: int = 0, rows_bytes: int = 0) -> int:
    """Bytes of memory for so many trainers: what they share, and what each one has of its own."""
    return FRAMEWORK + trainers * (OWN_OF_TRAINER + 3 * state_bytes + rows_bytes)


def gpus() -> int:
    return sum(1 for device in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", device))


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it; what the driver does not say is an empty text."""

    number: int
    model: str
    uuid: str
    bus: str

    def as_tensorflow(self) -> str:
        return f"device: {self.number}, name: {self.model}, pci bus id: {self.bus}"

    def as_nvidia(self) -> str:
        return f"GPU {self.number}: {self.model} (UUID: {self.uuid})"


def described_gpus() -> list[Gpu]:
    """The GPUs of this host, from the files of the driver."""
    found: dict[int, Gpu] = {number: Gpu(number, "NVIDIA GPU", "", "") for number in range(gpus())}
    for file in sorted(DRIVER.glob("*/information")):
        with contextlib.suppress(OSError, ValueError):
            facts = dict(re.findall(r"^([^:\n]+):\s*(.*?)\s*$", file.read_text(), re.MULTILINE))
            number = int(facts["Device Minor"])
            if number in found:
                found[number] = Gpu(number, facts.get("Model", ""), facts.get("GPU UUID", ""), file.parent.name)
    return list(found.values())


@entry(called=INTERNAL)
def gpus_here(db: Database) -> int:
    """The GPUs of the host on which the function runs: on Greenplum that of a segment."""
    return gpus()


def described(use_gpus: bool) -> str:
    """What the speed of trainers depends on, in words: processors and their model, and the GPU if trainers have one."""
    model = ""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    devices = described_gpus() if use_gpus else []
    gpu = f", {devices[0].model}" if devices else ", GPU" if use_gpus else ""
    return f"{cores()} processors{f' ({model[:100]})' if model else ''}{gpu[:100]}"


def threads(trainers: int) -> int:
    """The threads of each of so many trainers that work at the same time."""
    return min(MOST_THREADS, max(1, cores() // trainers))


def cores() -> int:
    """The processors of the machine, or as many as the container may keep busy if these are fewer."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = map(int, (CGROUP / "cpu.max").read_text().split())  # "max 100000": no limit
        found = min(found, math.ceil(quota / period))
    return found
