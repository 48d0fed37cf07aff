"""What an engine offers to the trainer, whatever its framework.

An ``Engine`` is opened once per process.  A ``Program`` is a configuration's shape, built and compiled: the variables,
and the loops over a slab of rows.  Configurations that differ only in values held by variables (the weights, the
learning rate, a penalty) share one program; their states and numbers are exchanged in its variables.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, Protocol

import numpy as np

from cerebro_db.core import entry_points
from cerebro_db.core.engines import DISPLAY_NAMES, ENGINES, OURS
from cerebro_db.core.entry_points import Extensible
from cerebro_db.core.errors import ConfigurationFailed, Unsupported
from cerebro_db.core.protocol import MetricStates
from cerebro_db.nn.models.frozen import FrozenBeginning
from cerebro_db.nn.rows.data import Dataset, Slab

# Packages that a framework imports merely because they are installed, and that a trainer never uses. Importing them
# takes a third of a trainer's start (1.6 s of CPU without them, 2.7 s with them).
NOT_NEEDED = ("PIL", "h5py", "matplotlib", "pandas", "sklearn", "tensorboard")
NOT_NEEDED_BY = {
    "tensorflow": ("scipy", "jax", "torch"),
    "jax": ("torch",),
    "torch": ("scipy", "jax"),
}

OTHERS: Extensible[Any] = Extensible(entry_points.ENGINES, {})  # modules of engines that other packages add

Configuration = dict[str, Any]


class Program(Protocol):
    """A compiled configuration, with one state in its variables."""

    parameters: int
    inputs: list[list[int | None]]  # shapes of a row
    outputs: list[list[int | None]]
    weights: int  # number of variables that are the model's weights; they come first
    weights_of_layers: int  # number of these that are not of adapters; they come first
    constants: list[int]  # places in the state of weights that neither training nor a call of the model changes
    known_frozen: Any  # what state_file.py knows of those that are in the variables now; None: nothing
    variables: list[tuple[str, str, tuple[int, ...]]]  # (name, dtype, shape), in the order of the state
    volatile: bool  # whether weights alone are not all that evaluating and predicting need
    statistics: list[int]  # places in the state of what layers write when they are called, such as moving averages
    averages: bool  # whether the optimizer averages the weights, so that others are evaluated than are trained
    measures_groups: bool  # whether there are layers with statistics of a group
    steps: int  # of each target, if it has a value for each step of a row; else 0
    fusion: Fusion | None  # None: the engine cannot fuse such configurations
    columns: dict[str, Any] | None  # the layout of what a step gets
    cut: FrozenBeginning | None  # if its steps begin behind frozen layers, and get features instead of the rows' inputs
    sources: list[int | None]  # then: of the columns of a step, which packed column it is; None: the next feature
    features_key: str  # equal for programs whose features are the same if their frozen weights are

    def initialise(self, configuration: Configuration, seed: int, weights: Iterable[np.ndarray] | None = None) -> None:
        """Put the initial state into the variables: a function of the seed, and of the weights if they are given."""

    def measure_group(self, dataset: Dataset, rows: np.ndarray, listen: Callable[[], None]) -> None:
        """Put the statistics of a group's rows into the layers that want them (models/group_statistics.py)."""

    def put_numbers(self, configuration: Configuration) -> None:
        """From now on compute with the numbers of this configuration (those that are no part of the state)."""

    def get(self, index: int) -> np.ndarray: ...

    def set(self, index: int, value: np.ndarray, *, stays: bool = False) -> None:
        """Give a variable a value.  ``stays``: its memory is never written, and the variable may have it."""

    def get_all(self) -> list[np.ndarray]:
        """As ``get`` of every variable, at the cost of few calls of the framework."""

    def set_all(self, values: Sequence[np.ndarray]) -> None:
        """As ``set`` of every variable, at the cost of few calls of the framework; for small states."""

    def features_name(self) -> str:
        """Of the features that follow from the frozen weights that are in the variables now."""

    def features_of(self, batch: Slab) -> list[np.ndarray]:
        """What the frozen layers give for a few rows, as float32."""

    def set_weights(self, weights: Iterable[np.ndarray]) -> None:
        """Put these weights into the variables, and leave all other variables as they are."""

    def put_learning_rate(self, configuration: dict[str, Any]) -> None:
        """After the state of another configuration was read: give its variable this configuration's learning rate."""

    def evaluated(self, index: int, get: Callable[[int], np.ndarray] | None = None) -> np.ndarray:
        """The value of a weight to evaluate and to predict with: the average, if the optimizer averages weights.

        ``get``: values of the state that are those of the variables.
        """

    def average(self) -> None:
        """Put the values to evaluate and to predict with into the weights."""

    def put_back(self) -> Callable[[], None]:
        """Remember what evaluating and predicting may write, averages included; the function puts it back."""

    def start_metrics(self) -> None: ...

    def metric_states(self) -> MetricStates:
        """What the metrics have counted since ``start_metrics``; 'loss' is among them."""

    def metric_values(self, states: MetricStates) -> dict[str, Any]:
        """The metrics that follow from states, as Keras computes and names them; without the loss."""

    def running_loss(self) -> float: ...

    def require_values(self, dataset: Dataset) -> None:
        """Refuse rows with values that an Embedding or a loss cannot take."""

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None:
        """Compile what "train", "evaluate" or "predict" of so many rows needs, unless it is compiled already.

        ``members``: how many are fused; 0: the program trains one model.
        """

    def prepare_ahead(self) -> None:
        """Compile what any training needs, if that helps other trainers, too."""

    def train(self, slab: Slab, batch_size: int) -> None: ...

    def require_joint(self) -> None:
        """Refuse a model that several trainers cannot train by adding up the gradients of their rows."""

    def vary_seeds(self, place: int) -> None:
        """Have layers draw other random numbers than in the trainers at other places; at place 0 as ever."""

    def gradients(self, batch: Slab) -> list[np.ndarray]:
        """The gradients of the mean loss of a batch, whose metrics are counted; no weight changes."""

    def step(self, gradients: Sequence[np.ndarray]) -> None:
        """Have the optimizer make a step with gradients as ``gradients`` gives them."""

    def evaluate(self, slab: Slab, batch_size: int) -> None: ...

    def predict(self, slab: Slab, batch_size: int) -> list[np.ndarray]:
        """The model's outputs, as float32."""


class Fusion(Protocol):
    """Trains several states in one pass over the rows; each gets the numbers that it gets alone, within rounding."""

    pays_below: float  # seconds that a batch takes alone, above which fusing never makes it cheaper

    def taken(self) -> Any:
        """A copy of the state, the numbers and the metrics that are in the variables."""

    def put_back(self, taken: Any) -> None: ...

    def train(self, many: list[Any], slab: Slab, batch_size: int) -> list[Any]:
        """The states after the slab.  The slab's order has a line for each state."""


class Engine(Protocol):
    def versions(self) -> dict[str, str]: ...

    def devices(self) -> list[str]: ...

    def program(
        self,
        configuration: Configuration,
        layout: dict[str, Any] | None,
        seed: int | None = 0,
        features: str | None = None,
    ) -> Program:
        """A program whose variables have the initial state of that seed.

        ``features``: the type of the numbers in features, if the model may be cut (``Program.cut``); None: it may not.
        Without a seed it can only predict, its configuration needs an architecture only, and its variables have no
        values before ``set_weights``.
        """

    def warm_up(self) -> None:
        """Have the framework do what it does before its first operation; the bits of later ones stay the same."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...


class WithoutTensorFlow:
    """A finder of modules for which TensorFlow is not installed.

    An entry None in sys.modules, as for other packages, would tell Keras that TensorFlow is imported.  Then Rescaling,
    Normalization and all other layers that look for a graph of TensorFlow would fail.
    """

    def __init__(self, finder: Any):
        self._finder = finder

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname == "tensorflow" else self._finder.find_spec(fullname, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def import_engine(name: str) -> Any:
    """The module of an engine, whose framework is imported.  No device is open yet, and no thread runs."""
    if name not in ENGINES:
        raise Unsupported(f"there is no engine {name!r}", hint=f"Use one of: {', '.join(ENGINES.names())}.")
    module = None if name in OURS else OTHERS[name]
    framework = ENGINES[name] if module is None else module.PACKAGE
    for package in (*NOT_NEEDED, *NOT_NEEDED_BY.get(name, ())):
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    if framework != "tensorflow":
        sys.meta_path[:] = [WithoutTensorFlow(finder) for finder in sys.meta_path]
    os.environ.update(KERAS_BACKEND=name, TF_CPP_MIN_LOG_LEVEL="3")
    if module is None:
        module = importlib.import_module(f"cerebro_db.nn.engines.{name}")
    try:
        module.import_framework()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != framework:
            raise
        raise Unsupported(
            f"{DISPLAY_NAMES[name]} is not installed in the trainers' environment",
            hint=f"Install the package {framework} into the environment of {sys.executable}, on every host.",
        ) from error
    return module


def open_engine(name: str, *, threads: int | None, deterministic: bool, compiled: str | None = None) -> Engine:
    """Import one framework, and set what can be set only before its first use.

    ``compiled``: a folder where compiled programs may be kept for other processes.
    """
    engine: Engine = import_engine(name).open(threads, deterministic, compiled)
    return engine


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Turns Keras' error about a missing TensorFlow into one that a user can act on.

    Some of Keras' layers (RandomFlip, IntegerLookup) need TensorFlow with any engine. TensorFlow may be installed,
    only not imported, so Keras' advice to install it would mislead.
    """
    try:
        yield
    except Exception as error:
        if not re.search("requires (the tensorflow module|TensorFlow)", str(error)):
            raise
        raise ConfigurationFailed(
            "a layer of the architecture works with TensorFlow only",
            hint='Train it with the engine tensorflow, or with "auto", which tries the engines for each architecture.',
        ) from error
