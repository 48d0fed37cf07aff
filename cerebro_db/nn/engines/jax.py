"""The JAX engine: Keras' own train_step, compiled by XLA together with the loop around it.

The compiled functions are pure functions of (fixed values, values carried from batch to batch, columns, row order).
So several configurations of one program can be fused, by mapping the functions over stacked values.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.nn.engines import jax_cache
from cerebro_db.nn.engines.base import without_tensorflow
from cerebro_db.nn.engines.executables import Executables, machine
from cerebro_db.nn.engines.gradients import kept_gradients
from cerebro_db.nn.engines.kept import Kept
from cerebro_db.nn.engines.program import KerasProgram
from cerebro_db.nn.engines.xla import CARE, HASTE, switches
from cerebro_db.nn.models import build, custom_functions
from cerebro_db.nn.models.build import program_key
from cerebro_db.nn.rows.data import Dataset, Slab, most_batches

Values = list[list[Any]]
Taken = tuple[Values, Values]  # values that stay the same from batch to batch (numbers), values that each batch changes

# The part of a GPU's memory that the rows of one packed table may take. It has models, too, and other trainers.
ROWS_ON_GPU = 1 / 8
ALL_ROWS_ON_GPU = 1 / 4  # the part that the rows of all packed tables, and their features, may take together

# On a CPU only the smallest steps gain by fusing eight models: 7 to 9 µs per model become 2 to 4, but 37 become 72.
SMALL_STEP = 25e-6  # seconds
SMALL_WEIGHT = 1 << 20  # bytes


def import_framework() -> None:
    import jax  # noqa: F401
    import keras  # noqa: F401

    with contextlib.suppress(ImportError):  # JAX imports it when it compiles first; a fork would take 80 ms for it
        import jaxlib.mlir.dialects.mhlo  # noqa: F401


def open(threads: int | None, deterministic: bool, compiled: str | None) -> JaxEngine:
    import jax

    gpu = os.environ.get("CUDA_VISIBLE_DEVICES") != "-1"
    hasty = switches(jax, HASTE, gpu)
    flags = [os.environ.get("XLA_FLAGS", ""), *(f"--{name}={str(value).lower()}" for name, value in hasty.items())]
    if not gpu:
        jax.config.update("jax_platforms", "cpu")  # JAX reads the variable of the environment when it is imported
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several trainers may share a GPU
    if threads is None and deterministic:
        threads = 1
    if threads is not None:
        os.environ["NPROC"] = os.environ["PJRT_NPROC"] = str(threads)  # the size of XLA's pool
    if threads == 1:
        flags.append("--xla_cpu_multi_thread_eigen=false")
    if deterministic:
        flags.append("--xla_gpu_deterministic_ops=true")
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # this process would only wait for the dispatching thread
    if compiled is not None:
        # The number of threads is compiled into a program, but is no part of the name under which JAX keeps it.
        jax_cache.keep_in(jax, os.path.join(compiled, f"jax-{threads or 'all'}"))
    settings = [threads, deterministic, os.environ["XLA_FLAGS"]]
    return JaxEngine(jax, None if compiled is None else Path(compiled) / "jax", settings, gpu)


class DeviceCopies:
    """The columns of data sets on the device, up to a limit; those that were not used for longest make room."""

    def __init__(self, jax: Any, most: float) -> None:
        self._jax, self.most = jax, most  # bytes
        self._used: list[weakref.ref[Dataset]] = []  # the last one was used last

    def columns(self, dataset: Dataset) -> list[Any]:
        found = (one() for one in self._used)
        others = [one for one in found if one is not None and one is not dataset and one.on_device is not None]
        if dataset.on_device is None:
            left = self.most - dataset.bytes - sum(one.bytes for one in others)
            while others and left < 0:
                dropped = others.pop(0)
                dropped.on_device, left = None, left + dropped.bytes
            # On a CPU the mapped memory itself is used.
            dataset.on_device = [self._jax.device_put(column, may_alias=True) for column in dataset.columns]
        self._used = [weakref.ref(one) for one in (*others, dataset)]
        return dataset.on_device  # type: ignore[no-any-return]


class JaxEngine:
    def __init__(self, jax: Any, folder: Path | None, settings: list[Any], gpu: bool) -> None:
        self._jax, self._gpu = jax, gpu
        self._folder, self._settings = folder, settings

    @functools.cached_property
    def _kept(self) -> Executables:
        """Only when it is needed: the devices must be open."""
        circumstances = [self.versions(), self.devices(), *machine(self._jax), *self._settings]
        return Executables(self._jax, Kept(self._folder, circumstances))

    @functools.cached_property
    def _copies(self) -> DeviceCopies:
        return DeviceCopies(self._jax, ALL_ROWS_ON_GPU * memory_of(self._jax))

    def versions(self) -> dict[str, str]:
        import keras

        return {"keras": keras.__version__, "engine": "jax", "engine_version": self._jax.__version__}

    def devices(self) -> list[str]:
        return [f"{device.platform.upper()}:{device.id}" for device in self._jax.devices()]

    def program(
        self,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None = 0,
        features: str | None = None,
    ) -> JaxProgram:
        with without_tensorflow():
            return JaxProgram(
                self._jax, self._kept, configuration, layout, seed, self._gpu, features=features, copies=self._copies
            )

    def warm_up(self) -> None:
        """Listing the devices has initialised JAX."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "RESOURCE_EXHAUSTED" in str(error)


class JaxProgram(KerasProgram):
    def __init__(
        self,
        jax: Any,
        kept: Executables,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None,
        gpu: bool,
        *,
        features: str | None = None,
        copies: DeviceCopies,
    ) -> None:
        super().__init__(configuration, layout, seed, features)
        self.jax, self._kept, self._gpu, self._copies = jax, kept, gpu, copies
        key = program_key(configuration, layout)
        self._name = [key, custom_functions.sources(key), *([f"cut {self.cut.type}"] if self.cut is not None else [])]
        # Within a loop XLA has no fast convolutions on a CPU: 19 instead of 0.6 ms for the gradient of 16 × 32
        # filters of 3 × 3 on 32 images of 13 × 13. Returning to Python after each batch costs far less.
        convolves = any("Conv" in type(layer).__name__ for layer in self.model._flatten_layers())
        self._loops = not convolves or jax.default_backend() != "cpu"
        # The filters of fused models would be one grouped convolution, which is slow as well.  And models with features
        # of their own have no rows in common.
        if self._loops and self.cut is None:
            many = jax.default_backend() != "cpu" or self._has_body  # the rehearsal says whether it pays
            self.fusion = JaxFusion(self, math.inf if many else SMALL_STEP)
        self._executables: dict[Any, Any] = {}
        self._predict = jax.jit(functools.partial(self._called, self.model, self.model_inputs))
        if self.cut is not None:
            self._body = jax.jit(functools.partial(self._called, self.cut.body, self.body_inputs))
        self._gradients, self._step = jax.jit(self._gradients_of_batch), jax.jit(self._one_step)
        self._order: tuple[Any, Any] = (None, None)  # the row order of this visit, and its copy on the device
        self._metrics_reset: list[np.ndarray] | None = None  # the values of the metrics' variables after a reset

    def values_of(self, variables: list[Any]) -> list[np.ndarray]:
        return [np.asarray(value) for value in self.jax.device_get([variable.value for variable in variables])]

    def set_all(self, values: Sequence[np.ndarray]) -> None:
        self.touched()
        for variable, value in zip(self._state, self.jax.device_put(list(values))):
            variable._direct_assign(value)

    def set(self, index: int, value: np.ndarray, *, stays: bool = False) -> None:
        if stays and not self._gpu and build.has_value(self._state[index]):
            self.touched()
            self._state[index]._direct_assign(self.jax.device_put(value, may_alias=True))
        else:
            super().set(index, value)

    def start_metrics(self) -> None:
        if self._metrics_reset is None:
            super().start_metrics()
            self._metrics_reset = self.values_of(self.model.metrics_variables)
        # A compiled call takes over the memory of what it is given.
        for variable, value in zip(self.model.metrics_variables, self.jax.device_put(self._metrics_reset)):
            variable._direct_assign(value)

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None:
        if what != "predict":
            for size in {size for _, _, size in self._calls(0, rows, batch_size)}:
                self._executable(what, dataset, size, batch_size, members)

    def train(self, slab: Slab, batch_size: int) -> None:
        self.touched()
        self._visit("train", slab, batch_size)

    def gradients(self, batch: Slab) -> list[np.ndarray]:
        self.touched()
        fixed, carried = self.fixed_and_carried("train")
        new, found = self._gradients(_values(fixed), _values(carried), batch.gathered(batch.dataset.columns))
        _assign(carried, new)
        return [np.asarray(gradient) for gradient in found]

    def step(self, gradients: Sequence[np.ndarray]) -> None:
        self.touched()
        variables = [self.model.trainable_variables, self.model.optimizer.variables]
        (numbers,) = _values([self.fixed_and_carried("train")[0][0]])
        _assign(variables, self._step(numbers, *_values(variables), list(gradients)))

    def evaluate(self, slab: Slab, batch_size: int) -> None:
        self._visit("evaluate", slab, batch_size)

    def outputs_of(self, batch: Slab) -> list[np.ndarray]:
        return self._row_by_row(self._predict, self.model, batch)

    def features_of(self, batch: Slab) -> list[np.ndarray]:
        assert self.cut is not None
        return self._row_by_row(self._body, self.cut.body, batch)

    def _row_by_row(self, call: Callable[..., list[Any]], model: Any, batch: Slab) -> list[np.ndarray]:
        # Rows do not depend on each other here. With powers of two there are few shapes to compile for.
        padded = _filled_up(batch.gathered(batch.dataset.inputs), 1 << (batch.rows - 1).bit_length())
        outputs = call(*_values([model.trainable_variables, model.non_trainable_variables]), padded)
        return [np.asarray(output, "float32")[: batch.rows] for output in outputs]

    # --- a slab ---

    def _visit(self, what: str, slab: Slab, batch_size: int) -> None:
        fixed, carried = self.fixed_and_carried(what)
        _assign(carried, self.advanced(what, _values(fixed), _values(carried), slab, batch_size))

    def advanced(
        self,
        what: str,
        fixed: Values,
        carried: Values,
        slab: Slab,
        batch_size: int,
        *,
        members: int = 0,
        one_body: bool = True,
    ) -> Values:
        """The carried values after a slab.  ``one_body``: all members have the weights that nothing changes."""
        dataset = slab.dataset
        rows = self._rows_at_once(what, dataset, batch_size, members)
        if rows == dataset.rows:
            columns, order, first = self._copies.columns(dataset), self._row_numbers(rows, slab.order), 0
        elif members:
            assert slab.order is not None  # a line for each member
            each = [replace(slab, order=line).gathered(dataset.columns) for line in slab.order]
            columns = [np.stack(column) for column in zip(*(_filled_up(gathered, rows) for gathered in each))]
            order, first = self._row_numbers(rows), slab.start
        else:
            columns = _filled_up(slab.gathered(dataset.columns), rows)
            order, first = self._row_numbers(rows), slab.start
        for start, batches, size in self._calls(slab.start, slab.end, batch_size):
            call = self._executable(what, dataset, size, batch_size, members, one_body=one_body)
            carried = call(fixed, carried, columns, order, np.int32(start - first), np.int32(batches))
        # The caller measures how long this call takes. XLA may return before it computes, when arguments are still on
        # their way to the device, so the call waits here.
        return self.jax.block_until_ready(carried)

    def fixed_and_carried(self, what: str) -> tuple[list[list[Any]], list[list[Any]]]:
        """The variables that stay the same from batch to batch, and those that each batch changes."""
        model, numbers = self.model, [each for number in self._numbers for each in (number, number.complement)]
        fixed, changing = (
            [one for one in model.non_trainable_variables if (id(one) in self._fixed) is wanted]
            for wanted in (True, False)
        )
        others = [changing, model.metrics_variables]
        if what == "train":
            return [numbers, fixed], [model.trainable_variables, model.optimizer.variables, *others]
        return [numbers, fixed, model.trainable_variables], others

    @functools.cached_property
    def _fixed(self) -> frozenset[int]:
        """The identities of the weights that nothing changes."""
        return frozenset(id(self._state[place]) for place in self.constants)

    @property
    def _has_body(self) -> bool:
        """Whether fused members have large weights in common, which go through the processor once."""
        return sum(math.prod(self._state[place].shape) for place in self.constants) * 4 >= SMALL_WEIGHT

    def _non_trainable(self, fixed: list[Any], changing: list[Any]) -> list[Any]:
        """The values of all variables that do not train, in the order of the model."""
        rest = iter(fixed), iter(changing)
        return [next(rest[id(one) not in self._fixed]) for one in self.model.non_trainable_variables]

    def _calls(self, start: int, end: int, batch_size: int) -> Iterator[tuple[int, int, int]]:
        """(first row, batches, rows of each batch) of each call. The last batch may have fewer rows, as with Keras."""
        whole, left = divmod(end - start, batch_size)
        if self._loops and whole:
            yield start, whole, batch_size
        elif whole:
            yield from ((start + batch * batch_size, 1, batch_size) for batch in range(whole))
        if left:
            yield end - left, 1, left

    def _executable(
        self, what: str, dataset: Dataset, size: int, batch_size: int, members: int, *, one_body: bool = True
    ) -> Any:
        last, rows = size != batch_size, self._rows_at_once(what, dataset, batch_size, members)
        shared = rows == dataset.rows or not members  # else fused members have rows of their own
        key = what, size, last, rows, members, shared, one_body  # the number of batches is an argument
        if key not in self._executables:
            jax, visit = self.jax, functools.partial(self._batches, what=what, size=size)
            fixed, carried = map(_values, self.fixed_and_carried(what))
            order = jax.ShapeDtypeStruct((rows,), np.int32)
            columns = [jax.ShapeDtypeStruct((rows, *column.shape[1:]), column.dtype) for column in dataset.columns]
            if members:
                of_each = [0, None if one_body else 0]  # the numbers; the weights that nothing changes
                rows_of = (None, 0) if shared else (0, None)
                visit = jax.vmap(visit, in_axes=(of_each, 0, *rows_of, None, None))

                def many(values: Any) -> Any:
                    return jax.tree.map(lambda one: jax.ShapeDtypeStruct((members, *one.shape), one.dtype), values)

                fixed = [many(fixed[0]), fixed[1] if one_body else many(fixed[1])]
                carried = many(carried)
                order, columns = (many(order), columns) if shared else (order, many(columns))
            arguments = fixed, carried, columns, order, np.int32(0), np.int32(1)
            chosen = switches(jax, HASTE if last else CARE, jax.default_backend() != "cpu")
            self._executables[key] = self._kept.executable([*self._name, *key], visit, arguments, chosen)
        return self._executables[key]

    def _rows_at_once(self, what: str, dataset: Dataset, batch_size: int, members: int) -> int:
        """The number of rows that a compiled call is given: all rows, of which it picks those of each batch; or a slab,
        where picking would read from all over a disk, and where a GPU has no room for all rows.

        On a CPU fused members, which have different orders, pick from all rows.
        """
        too_many = dataset.from_disk or dataset.bytes > self._room
        by_slabs = too_many if self._gpu else dataset.from_disk and what == "train" and not members
        return min(dataset.rows, batch_size * most_batches(dataset, batch_size)) if by_slabs else dataset.rows

    @functools.cached_property
    def _room(self) -> float:
        """The bytes that the rows of a packed table may take on the GPU; without limit on a CPU."""
        return ROWS_ON_GPU * memory_of(self.jax)

    def _row_numbers(self, rows: int, order: np.ndarray | None = None) -> Any:
        if order is None:
            return self.jax.numpy.arange(rows, dtype="int32")
        if self._order[0] is not order:
            filled = order
            if order.shape[-1] < rows:  # of some folds; a program is compiled for all rows, and the pass ends before
                filled = np.pad(order, [(0, 0)] * (order.ndim - 1) + [(0, rows - order.shape[-1])])
            self._order = order, self.jax.device_put(np.asarray(filled, "int32"))
        return self._order[1]

    # --- what is compiled ---

    def _batches(
        self,
        fixed: Values,
        carried: Values,
        columns: Any,
        order: Any,
        start: Any,
        batches: Any,
        *,
        what: str,
        size: int,
    ) -> Values:
        """The carried values after some batches of ``size`` rows each, from ``start`` in the order."""
        lax = self.jax.lax

        def one(number: Any, carried: Values) -> Values:
            rows = lax.dynamic_slice(order, (start + number * size,), (size,))
            batch = [column.at[rows].get(mode="promise_in_bounds") for column in columns]
            return step(fixed, carried, self.step_data(what, batch))

        step = self._train_step if what == "train" else self._test_step
        with _standing_for(self.fixed_and_carried(what)[0][0], fixed[0]):
            return lax.fori_loop(0, batches, one, carried) if self._loops else one(0, carried)

    def _train_step(self, fixed: Values, carried: Values, data: Any) -> Values:
        trainable, optimizer, changing, metrics = carried
        others = self._non_trainable(fixed[1], changing)
        _, state = self.model.train_step((trainable, others, optimizer, metrics), data)
        trainable, others, optimizer, metrics = state
        return [trainable, optimizer, self._changing(others), metrics]

    def _gradients_of_batch(self, fixed: Values, carried: Values, columns: list[Any]) -> tuple[Values, list[Any]]:
        numbers = self.fixed_and_carried("train")[0][0]
        with _standing_for(numbers, fixed[0]), kept_gradients(self.model.optimizer) as found:
            carried = self._train_step(fixed, carried, self.step_data("train", columns))
        return carried, found

    def _one_step(self, values: list[Any], trainable: list[Any], optimizer: list[Any], gradients: list[Any]) -> Values:
        with _standing_for(self.fixed_and_carried("train")[0][0], values):
            return list(map(list, self.model.optimizer.stateless_apply(optimizer, gradients, trainable)))

    def _test_step(self, fixed: Values, carried: Values, data: Any) -> Values:
        changing, metrics = carried
        others = self._non_trainable(fixed[1], changing)
        _, (_, others, metrics) = self.model.test_step((fixed[2], others, metrics), data)
        return [self._changing(others), metrics]

    def _changing(self, others: list[Any]) -> list[Any]:
        """Of the values of all variables that do not train, those that a call may change."""
        return [value for one, value in zip(self.model.non_trainable_variables, others) if id(one) not in self._fixed]

    @staticmethod
    def _called(
        model: Any,
        inputs: Callable[[list[Any]], Any],
        trainable: list[Any],
        others: list[Any],
        columns: list[Any],
    ) -> list[Any]:
        import keras

        outputs, _ = model.stateless_call(trainable, others, inputs(columns), training=False)
        return keras.tree.flatten(outputs)


class JaxFusion:
    """Trains several states of a program: the program's loop is mapped over the stacked states."""

    def __init__(self, program: JaxProgram, pays_below: float) -> None:
        jax = program.jax
        self.pays_below = pays_below
        self._program = program
        self._stacked = jax.jit(lambda many: jax.tree.map(lambda *values: jax.numpy.stack(values), *many))
        self._one_of = jax.jit(lambda stacked, number: jax.tree.map(lambda values: values[number], stacked))

    def taken(self) -> Taken:
        fixed, carried = self._program.fixed_and_carried("train")
        return _values(fixed), _values(carried)

    def put_back(self, taken: Taken) -> None:
        self._program.touched()
        for variables, values in zip(self._program.fixed_and_carried("train"), taken):
            _assign(variables, values)

    def train(self, many: list[Taken], slab: Slab, batch_size: int) -> list[Taken]:
        # Members of one program begin with the same frozen weights, unless these are random.
        bodies = [fixed[1] for fixed, _ in many]
        one_body = all(_is_same(each) for each in zip(*bodies))
        varying = [([fixed[0], [] if one_body else fixed[1]], carried) for fixed, carried in many]
        fixed, carried = self._stacked(varying)
        given = [fixed[0], bodies[0]] if one_body else fixed
        after = self._program.advanced("train", given, carried, slab, batch_size, members=len(many), one_body=one_body)
        found = [self._one_of((fixed, after), np.int32(number)) for number in range(len(many))]
        return [([its[0], bodies[0] if one_body else body], after) for (its, after), body in zip(found, bodies)]


def _is_same(values: Sequence[Any]) -> bool:
    """Whether the members have one array, or, of a small one, equal arrays."""
    first, *others = values
    return all(
        other is first or (first.nbytes <= SMALL_WEIGHT and np.array_equal(np.asarray(first), np.asarray(other)))
        for other in others
    )


def memory_of(jax: Any) -> float:
    """The bytes of a GPU's memory; without limit on a CPU."""
    memory = jax.devices()[0].memory_stats() or {}
    return float(memory.get("bytes_limit", math.inf))


def _filled_up(columns: list[np.ndarray], rows: int) -> list[np.ndarray]:
    """The columns, padded to the number of rows for which a program is compiled."""
    if len(columns[0]) == rows:
        return columns
    return [np.pad(column, [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1)) for column in columns]


def _values(variables: list[list[Any]]) -> Values:
    return [[variable.value for variable in group] for group in variables]


def _assign(variables: list[list[Any]], values: Values) -> None:
    for group, new in zip(variables, values):
        for variable, value in zip(group, new):
            variable._direct_assign(value)  # assign() would convert what has the shape and type of the variable anyway


@contextlib.contextmanager
def _standing_for(numbers: list[Any], values: list[Any]) -> Iterator[None]:
    """Makes the numbers arguments while a step is traced; otherwise Keras would compile their values as constants."""
    before = [number._value for number in numbers]
    for number, value in zip(numbers, values):
        number._value = value
    try:
        yield
    finally:
        for number, value in zip(numbers, before):
            number._value = value
