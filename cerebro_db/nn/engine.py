"""What an engine has to offer, whichever framework is below it.

An ``Engine`` is opened once per process.  A ``Program`` is a configuration's shape made ready: the
variables and the compiled loops over a slab of rows.  Configurations that differ only in values held
by variables (the weights, the learning rate, a penalty) share one program; their states and numbers are
swapped in and out.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from cerebro_db.core.errors import Unsupported
from cerebro_db.nn.data import Dataset, Slab

ENGINES = {name: f"cerebro_db.nn.engine_{name}" for name in ("tensorflow", "jax", "torch")}
# What is imported merely because it is installed, and a trainer never uses: a third of the time to start one
# (1.6 instead of 2.7 s of CPU).
NOT_NEEDED = ("PIL", "h5py", "matplotlib", "pandas", "sklearn", "tensorboard")
NOT_NEEDED_BY = {
    "tensorflow": ("scipy", "jax", "torch"),
    "jax": ("tensorflow", "torch"),
    "torch": ("scipy", "tensorflow", "jax"),
}

Configuration = dict[str, Any]


class Program(Protocol):
    """A compiled configuration and the one state that is in its variables now."""

    parameters: int
    inputs: list[list[int | None]]  # shapes of a row
    outputs: list[list[int | None]]
    weights: int  # how many of the variables are the model's weights
    variables: list[tuple[str, str, tuple[int, ...]]]  # (name, dtype, shape), in the order of the state
    volatile: bool  # whether evaluating or predicting changes the state
    together: Together | None  # what trains several states at once, if it can

    def initialise(
        self, configuration: Configuration, seed: int, weights: Iterable[np.ndarray] | None = None
    ) -> None:
        """Put the state in that the configuration starts from: a function of the seed, and of weights if given."""

    def put_numbers(self, configuration: Configuration) -> None:
        """From now on compute with the numbers of this configuration (those that are no part of the state)."""

    def get(self, index: int) -> np.ndarray: ...

    def set(self, index: int, value: np.ndarray) -> None: ...

    def average(self) -> None:
        """Before evaluating: if the optimizer keeps moving averages of the weights, these are the weights."""

    def start_metrics(self) -> None: ...

    def metrics(self) -> dict[str, Any]:
        """The metrics since ``start_metrics``, 'loss' among them, as Keras computes and names them."""

    def running_loss(self) -> float: ...

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, together: int = 0) -> None:
        """Compile what "train", "evaluate" or "predict" of that many rows will need, if that has not been done yet."""

    def train(self, slab: Slab, batch_size: int) -> None: ...

    def evaluate(self, slab: Slab, batch_size: int) -> None: ...

    def predict(self, batch: Slab) -> list[np.ndarray]:
        """The model's outputs."""


class Together(Protocol):
    """Several states in one pass over the rows; each has the numbers that it has alone, within float tolerance."""

    pays_below: float  # seconds that a batch of one alone takes, above which company never makes it cheaper

    def taken(self) -> Any:
        """A copy of what is in the variables now: state, numbers and metrics."""

    def put_back(self, taken: Any) -> None: ...

    def train(self, many: list[Any], slab: Slab, batch_size: int) -> list[Any]:
        """The slab's order has a line for each."""


class Engine(Protocol):
    def versions(self) -> dict[str, str]: ...

    def devices(self) -> list[str]: ...

    def program(self, configuration: Configuration, layout: dict[str, Any] | None, seed: int = 0) -> Program:
        """Made ready, and as ``initialise`` with that seed would have it."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...


def open_engine(name: str, *, threads: int | None, deterministic: bool, compiled: str | None = None) -> Engine:
    """Import the framework, and no other, and settle what can only be settled before its first use.

    ``compiled``: a folder where what is compiled may be kept for other processes.
    """
    if name not in ENGINES:
        raise Unsupported(f"there is no engine {name!r}", hint=f"Use one of: {', '.join(ENGINES)}.")
    for package in (*NOT_NEEDED, *NOT_NEEDED_BY[name]):
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    return importlib.import_module(ENGINES[name]).open(threads, deterministic, compiled)
