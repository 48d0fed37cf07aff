"""The PyTorch engine: Keras' own train_step, batch by batch.

Nothing is compiled: torch.compile needs a C++ compiler, which few servers have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cerebro_db.nn.engines.base import without_tensorflow
from cerebro_db.nn.engines.gradients import kept_gradients
from cerebro_db.nn.engines.program import KerasProgram
from cerebro_db.nn.rows.data import Dataset, Slab


def import_framework() -> None:
    """Without Keras, which asks PyTorch for devices when it is imported."""
    import torch  # noqa: F401


def open(threads: int | None, deterministic: bool, compiled: str | None) -> TorchEngine:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
        os.environ["KERAS_TORCH_DEVICE"] = "cpu"  # also on a machine with other devices
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it matrix products on a GPU add in any order
    import torch

    if threads is None and deterministic:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
    if deterministic or not torch.cuda.is_available():  # on a CPU it costs nothing: 1143 or 1146 µs/step
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # it helps to find mistakes only, and costs time
    return TorchEngine(torch)


class TorchEngine:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def versions(self) -> dict[str, str]:
        import keras

        return {"keras": keras.__version__, "engine": "torch", "engine_version": self._torch.__version__}

    def devices(self) -> list[str]:
        return ["CPU:0", *(f"GPU:{number}" for number in range(self._torch.cuda.device_count()))]

    def program(
        self,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None = 0,
        features: str | None = None,
    ) -> TorchProgram:
        with without_tensorflow():
            return TorchProgram(self._torch, configuration, layout, seed, features)

    def warm_up(self) -> None:
        """The first operation takes no longer than others."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, self._torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class TorchProgram(KerasProgram):
    compiles = False

    def __init__(
        self,
        torch: Any,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None,
        features: str | None = None,
    ) -> None:
        super().__init__(configuration, layout, seed, features)
        self._torch = torch
        for layer in self.model._flatten_layers():
            for generator in layer._seed_generators:
                # If an architecture names no seed, this is None, and Keras' Dropout draws from PyTorch's own generator,
                # whose state does not hop. With any number Dropout draws from its seed variable, which has a value.
                generator._initial_seed = 0

    def get(self, index: int) -> np.ndarray:
        """In the variable's own type: PyTorch has no unsigned integers, and computes with wider signed ones."""
        return super().get(index).astype(self.variables[index][1], copy=False)

    def get_all(self) -> list[np.ndarray]:
        return [self.get(index) for index in range(len(self._state))]

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None:
        """There is nothing to compile."""

    def train(self, slab: Slab, batch_size: int) -> None:
        self.touched()
        for batch in self._batches("train", slab, batch_size):
            self.model.train_step(batch)
        self.model.zero_grad()  # frees the last gradients while other models train

    def gradients(self, batch: Slab) -> list[np.ndarray]:
        self.touched()
        (data,) = self._batches("train", batch, batch.rows)
        with kept_gradients(self.model.optimizer) as found:
            self.model.train_step(data)
        return [gradient.detach().cpu().numpy() for gradient in self.with_gradients(found)]

    def step(self, gradients: Sequence[np.ndarray]) -> None:
        from keras import ops

        self.touched()
        with self._torch.no_grad():
            self.model.optimizer.apply([ops.convert_to_tensor(one) for one in gradients], self._stepped)
        self.model.zero_grad()

    def evaluate(self, slab: Slab, batch_size: int) -> None:
        with self._torch.no_grad():
            for batch in self._batches("evaluate", slab, batch_size):
                self.model.test_step(batch)

    def outputs_of(self, batch: Slab) -> list[np.ndarray]:
        return self._called(self.model, self.model_inputs, batch)

    def features_of(self, batch: Slab) -> list[np.ndarray]:
        assert self.cut is not None
        return self._called(self.cut.body, self.body_inputs, batch)

    def _called(self, model: Any, inputs: Callable[[list[Any]], Any], batch: Slab) -> list[np.ndarray]:
        import keras

        with self._torch.no_grad():
            outputs = keras.tree.flatten(model(inputs(self._tensors(batch, batch.dataset.inputs)), training=False))
        return [np.asarray(keras.ops.convert_to_numpy(output), "float32") for output in outputs]

    def _batches(self, what: str, slab: Slab, batch_size: int) -> Iterator[tuple[Any, ...]]:
        """The slab's batches; the last one may have fewer rows, as with Keras."""
        columns = [column.split(batch_size) for column in self._tensors(slab, slab.dataset.columns)]
        return (self.step_data(what, list(batch)) for batch in zip(*columns))

    def _tensors(self, slab: Slab, columns: list[np.ndarray]) -> list[Any]:
        """On a CPU a tensor is the array's own memory."""
        from keras import ops

        return [ops.convert_to_tensor(self._torch.from_numpy(column)) for column in slab.gathered(columns)]
