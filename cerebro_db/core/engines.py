"""What a trainer computes with: the engines, which one to take where that is left to us, and which GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# The first one is the default. Each engine and the package that it takes.
ENGINES = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
DEFAULT = "tensorflow"
# Those that are not among the packages that docker/install.sh brings, as pyproject.toml pins them: PyTorch with its
# CUDA is larger than all of the others.
OPTIONAL = {"torch": "torch==2.13.0"}
AUTO = "auto"
# Those among which it chooses. Each one more is a framework more to start for a trial (1.8 s of CPU for PyTorch), and
# PyTorch's step was never the cheapest on a processor, because Keras takes it from Python: 1160 µs for a 64-128-64-2
# MLP and batches of 32 (TensorFlow 170, JAX 30), 1480 for 256 (620, 170); 21 ms for a small CNN (5, 32); 29 ms for a
# 3072-1024-1024-10 MLP, where Python hardly matters (24, 24). On a GPU nobody has measured.
TRIED = ("tensorflow", "jax")
# Those that compile, for each batch size, and for longer than it takes to read what another trainer has compiled.
COMPILING = frozenset({"jax"})
# Seconds of training that a segment has to do, above which it is found out whether another engine takes less than the
# one that was tried first. To start a second framework and to try it takes a segment 3 to 4 s (the benchmarks W1 and
# W2), and the wrong engine takes twice as long as the right one, or more. So below 8 s that cannot pay at all, and from
# 15 on it saves more where the first one was wrong than it costs where it was right.
FINDING_OUT = 15.0


def likelier(architectures: Iterable[Any], gpus: bool) -> str:
    """The engine that is tried first, and alone where there is little to do.

    On processors JAX trains dense layers in half of TensorFlow's time (the benchmark W1), and convolutions in 2.7 times
    as much (W2); where there are both, these are most of the work. On a GPU nobody has compared them.
    """
    return "tensorflow" if gpus or any(map(convolves, architectures)) else "jax"


def convolves(architecture: Any) -> bool:
    """Whether a layer of an architecture (Keras' JSON), however deep in it, is a convolution."""
    parts = [architecture]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if "Conv" in str(part.get("class_name")):
                return True
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return False


def cheapest(
    trials: Mapping[str, Mapping[str, Any]], batch_sizes: Iterable[int], batches: float, segments: int = 1
) -> dict[str, float]:
    """What each engine that was tried would take for all that a segment has to do, in seconds; the best one first.

    Segments share what an engine compiles.
    """
    sizes = len(set(batch_sizes))
    seconds = {}
    for engine, trial in trials.items():
        compiled = max(1.0, sizes / segments) if engine in COMPILING else 1.0
        seconds[engine] = round(trial["build"] + trial["compile"] * compiled + trial["batch"] * batches, 3)
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def in_turn(hosts: Sequence[str], gpus: Mapping[str, int]) -> list[int | None]:
    """The GPU of each segment: those of one host share its GPUs in turn. None: its host has none."""
    before: Counter[str] = Counter()
    chosen: list[int | None] = []
    for host in hosts:
        chosen.append(before[host] % gpus[host] if gpus[host] else None)
        before[host] += 1
    return chosen
