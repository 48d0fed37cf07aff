"""The switches of XLA's compiler."""

from __future__ import annotations

from typing import Any

# Compiling takes XLA longer than a first model selection takes to train. So code that runs once or twice (Keras'
# initial values, a visit's last batch) is compiled fast, and the loops are compiled well. Building a 64-16-10 MLP takes
# 0.3 instead of 1.3 s. A step of a 64-128-64-2 MLP compiles in 0.15 s (fast) or 0.7 s (well), and then runs in 175 or
# 35 µs (of CPU; batches of 32).
HASTE, CARE = 0, 1  # 3 gains nothing over 1


def switches(jax: Any, effort: int, gpu: bool) -> dict[str, Any]:
    """XLA's switches for this effort."""
    if gpu:  # for GPUs XLA supports levels of 2 and above only; its own is 3
        return {}
    chosen: dict[str, Any] = {"xla_backend_optimization_level": effort}
    if jax.__version_info__ < (0, 11, 1):  # later there is no such switch, and an unknown one ends the process
        chosen["xla_cpu_use_fusion_emitters"] = effort != HASTE
    return chosen
