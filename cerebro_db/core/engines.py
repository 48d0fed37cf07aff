"""The engines (the frameworks that a trainer can compute with), the choice that ``auto`` makes among them, and GPUs.

The measurements below are from the benchmarks W1 (multi-layer perceptrons) and W2 (a small CNN).  On a GPU, the
engines have not been compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import entry_points
from .entry_points import Extensible

DEFAULT = "tensorflow"  # of runs; where it is not installed, the first of ENGINES that is

# The engines that docker/install.sh does not install, with the versions that pyproject.toml pins: PyTorch with CUDA is
# larger than all other packages together.
OPTIONAL_PACKAGES = {"torch": "torch==2.13.0"}

# What the search method tpe runs in, in the trainer's environment. docker/install.sh installs it.
OPTUNA = "optuna==5.0.0"

# The value of the option ``engine`` that leaves the choice to cerebro_db, and the engines among which it chooses.
# PyTorch is not among them, because Keras runs its steps from Python, and a trial costs 1.8 s of CPU to start it.  One
# step on a CPU took 1160 µs for a 64-128-64-2 MLP with batches of 32 (TensorFlow 170, JAX 30), 1480 µs with batches of
# 256 (620, 170), 21 ms for a small CNN (5, 32), and 29 ms for a 3072-1024-1024-10 MLP (24, 24).
AUTO = "auto"
AUTO_ENGINES = ("tensorflow", "jax")

OURS = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}  # engine -> its Python package
_SHOWN = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# Without an import, only the name and the package of an engine of another package are known.
ENGINES = Extensible(
    entry_points.ENGINES, OURS, lambda one: one.value.partition(":")[0].partition(".")[0].strip(), taken=(AUTO,)
)
DISPLAY_NAMES = Extensible(entry_points.ENGINES, _SHOWN, lambda one: one.name)

# The values of the option ``reuse``: whether trainers keep what frozen layers give for a row.
NO_REUSE, AUTO_REUSE, ALL_REUSE = "none", "auto", "all"
FLOAT32, FLOAT16 = "float32", "float16"  # the values of the option ``features_type``

# The values of the option ``shard`` beside a number: whether a model that is larger than a trainer's memory is cut.
AUTO_SHARD, NEVER_SHARD = "auto", "never"
MOST_SHARDS = 1000  # of a model
SHARDING_ENGINES = frozenset({"tensorflow"})  # those that can train a model that is cut

# The engines that compile for each batch size, which takes longer than reading what another trainer has compiled.
COMPILED_PER_BATCH_SIZE = frozenset({"jax"})

# The threads of a trainer.  The operating-system account may start only so many, and a trainer starts them all.
MOST_THREADS = 256

# ``auto`` tries a second engine only if a segment has more seconds of training left than this.  To start and to try a
# second engine takes a segment 3 to 4 s, and the wrong engine takes at least twice as long as the right engine.  So a
# trial cannot pay below 8 s.  From 15 s on, it saves more after a wrong first choice than it costs after a right one.
SECOND_TRIAL_SECONDS = 15.0


def default_among(installed: Sequence[str]) -> str | None:
    """The engine of a call that names none, given the engines that are installed; None if no engine is installed."""
    return next((engine for engine in ENGINES if engine in installed), None)


def known_faster(architecture: Any, gpus: bool) -> str | None:
    """The engine that ``auto`` takes without a trial: on a CPU, TensorFlow for convolutions.  None: a trial decides.

    A step of a small CNN takes JAX 2.7 to 6 times as long, and the trial of W2 took 0.5 s of each segment.
    """
    return "tensorflow" if not gpus and has_convolution(architecture) else None


def expected_faster(architectures: Iterable[Any], gpus: bool) -> str:
    """The engine that ``auto`` tries first, and the only engine of a short run.

    On a CPU, JAX trains dense layers in half of TensorFlow's time (W1), and convolutions in 2.7 times TensorFlow's time
    (W2).  In a model with both, the convolutions are most of the work.
    """
    return "tensorflow" if gpus or any(map(has_convolution, architectures)) else "jax"


def has_convolution(architecture: Any) -> bool:
    """Whether any layer of an architecture, at any depth of its JSON, is a convolution."""
    pending = [architecture]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if "Conv" in str(part.get("class_name")):
                return True
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return False


def estimated_seconds(
    trials: Mapping[str, Mapping[str, Any]], batch_sizes: Iterable[int], batches: float, segments: int = 1
) -> dict[str, float]:
    """For each engine that was tried, the seconds that a segment needs to train ``batches``; the fastest engine first.

    The trials give the seconds to build a model, to compile it, and to train one batch.  Segments share compiled
    programs, so each segment compiles for its part of the batch sizes.
    """
    sizes = len(set(batch_sizes))
    seconds = {}
    for engine, trial in trials.items():
        compilations = max(1.0, sizes / segments) if engine in COMPILED_PER_BATCH_SIZE else 1.0
        seconds[engine] = round(trial["build"] + trial["compile"] * compilations + trial["batch"] * batches, 3)
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def gpu_of_each_segment(hosts: Sequence[str], gpus: Mapping[str, int]) -> list[int | None]:
    """The GPU number of each segment, given the segments' hosts and the number of GPUs of each host.

    The segments of a host take its GPUs in rotation.  None means that the host has no GPU.
    """
    segments_before: Counter[str] = Counter()
    chosen: list[int | None] = []
    for host in hosts:
        chosen.append(segments_before[host] % gpus[host] if gpus[host] else None)
        segments_before[host] += 1
    return chosen
