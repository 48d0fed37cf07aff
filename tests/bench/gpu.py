"""The contenders for a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from cerebro_plpy.platform.machine import gpus
from tests.bench.contenders import ours, script
from tests.bench.stage import Contender, Measured, Skipped, Stage

# Several processes share the GPU.
VISIBLE = {
    "CUDA_VISIBLE_DEVICES": "0",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def on_gpu(name: str, contender: Contender) -> Contender:
    def contend(stage: Stage) -> Iterator[Measured]:
        if not gpus():
            raise Skipped(f"without {name}: there is no GPU here")
        yield from contender(stage)

    return contend


_CONTENDERS = {
    "ours-gpu": ours("ours, TensorFlow", gpus=True),
    "ours-jax-gpu": ours("ours, jax", gpus=True, engine="jax"),
    "ours-jax-gpu-unfused": ours("ours, jax, not fused", gpus=True, engine="jax", fuse=False),
    "ours-jax-gpu-fused": ours("ours, jax, fused", gpus=True, engine="jax", fuse=True),
    "ours-jax-gpu-mixed": ours("ours, jax, mixed_bfloat16", gpus=True, engine="jax", precision="mixed_bfloat16"),
    "ours-torch-gpu": ours("ours, torch", gpus=True, engine="torch"),
    "ours-jax-cpu": ours("ours, jax, processors only", engine="jax"),
    "keras-gpu": script("(a) Keras", "keras_queue", **VISIBLE),
    "keras-jax-gpu": script("(a) Keras on JAX", "keras_queue", **VISIBLE, KERAS_BACKEND="jax"),
    "keras-torch-gpu": script("(a) Keras on PyTorch", "keras_queue", needs="torch", **VISIBLE, KERAS_BACKEND="torch"),
    "loop-gpu": script("(b2) bare loop", "graph_loop", "--shared", **VISIBLE),
    "loop-jax-gpu": script("(b2) bare loop, JAX", "scan_loop", "--gpu", **VISIBLE),
}
CONTENDERS = {name: on_gpu(name, contender) for name, contender in _CONTENDERS.items()}
