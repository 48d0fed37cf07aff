"""A program whose model is in memory one shard at a time; the rest of its state is in a file.

A batch goes forward shard by shard, and only the boundary tensors are kept.  Then it goes backward: each shard computes
its layers again under a gradient tape, and its part of the optimizer's step follows at once.  The layers draw the same
random numbers both times, because they read the same states from the file; what they write goes back to the file once.
The operations are those of Keras' train_step in the same order, so the bits are those of a model that is not cut.
"""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.clocks import Stopwatch
from cerebro_db.nn.engines.program import whole_state
from cerebro_db.nn.engines.tensorflow import TensorFlowEngine, TensorFlowProgram
from cerebro_db.nn.models import build, group_statistics
from cerebro_db.nn.rows.data import Dataset, Slab
from cerebro_db.nn.shards import graph, plan
from cerebro_db.nn.shards.graph import Shard
from cerebro_db.nn.shards.passes import ShardPasses
from cerebro_db.nn.shards.plan import Planner, ShardPlan
from cerebro_db.nn.shards.steps import require_optimizer, without_memory
from cerebro_db.nn.shards.store import Courier, Extent, Store

LEAST_SHARED = 1 << 10  # bytes of an array whose memory a variable takes over
LEAST_MARGIN = 1.05  # over what two batches have needed: the heap gets holes
MORE_THAN_THERE_IS = 1.15  # times what there is: what a batch is taken to need that found no memory
MOST_TRIALS = 3  # of cuts, each with less in a shard
# A model that needs at most so much, and no more than there is, is trained as a whole, too, to compare.
LARGEST_COMPARED = 256 << 20
COMPARED_BATCHES = 8
# When a model is evaluated or predicts:
MOST_AT_ONCE = 64  # batches that go through a shard together
BOUNDARY_BYTES = 32 << 20  # of the tensors between two shards, of all these batches
ROWS_BYTES = 16 << 20  # of what a layer reads and gives


class ShardedProgram(TensorFlowProgram):
    def __init__(
        self,
        engine: TensorFlowEngine,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None,
        cut: Callable[[Planner], ShardPlan],
        *,
        batch_size: int,
        base: int = 0,
        room: int | None = None,
        folder: str | None = None,
        listen: Callable[[], None] = lambda: None,
        ahead: bool = True,
    ) -> None:
        """``cut``: chooses the shards.  ``base``: bytes of the process without the model.  ``room``: those
        that there are for it; None: no limit is known.

        ``folder``: for the file of the state.  ``listen``: called between shards.
        """
        self._slots: list[tuple[Any, Any]] = []
        self._whole = functools.partial(engine.program, configuration, layout, 0), configuration
        self.listen, self._batch_size, self._ahead = listen, batch_size, ahead
        super().__init__(engine._tf, engine._kept, configuration, layout, seed)
        if group_statistics.any_layer(self.model):
            raise ConfigurationFailed(
                "a model with statistics of groups cannot be cut into shards", hint='Train it with {"shard": "never"}.'
            )
        self._is_out_of_memory = engine.is_out_of_memory
        self._places = {id(variable): place for place, variable in enumerate(self._state)}
        slots = {id(slot) for slot, _ in self._slots}
        model = {id(variable) for variable in self.model.variables}
        # Those of the optimizer that belong to no weight are always in memory, such as its count of steps.
        self._resident = {place for identity, place in self._places.items() if identity not in slots | model}
        self._store = Store(folder, [(_numpy(dtype), tuple(shape)) for _, dtype, shape in self.variables])
        self._courier = Courier(self._store, ahead)
        self._loaded: set[int] = set()
        self._planner = Planner(self.model, graph.pieces(self.model), self._slots, batch_size)
        self._choose, self._base, self._room = cut, base, room
        self.measured_bytes: int | None = None  # that a batch has needed
        # How many times as long a batch takes as one of the whole model; of a model that does not fit as a whole, as
        # its operations, each done once as without shards.  0: not measured.
        self.slower = 0.0
        self._batch_seconds = 0.0
        self.operations = Stopwatch()
        self._passes: ShardPasses | None = None  # the traced functions
        self._cut(cut(self._planner))

    def built(self, configuration: dict[str, Any], seed: int | None) -> Any:
        if seed is not None:
            require_optimizer(configuration)
        model, self._slots = build.build_in_pieces(configuration, self.layout, seed, without_memory)
        return model

    def _cut(self, chosen: ShardPlan) -> None:
        self._plan = chosen
        if self._courier.ahead != (chosen.ahead and self._ahead):
            self._courier = Courier(self._store, chosen.ahead and self._ahead)
        self._passes = None

    @property
    def shards(self) -> list[Shard]:
        return self._plan.shards

    @property
    def needed_bytes(self) -> int:
        """That training needs in memory beside the process."""
        return self._plan.needed

    @property
    def uncut_bytes(self) -> int:
        return self._planner.uncut

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that were read from the file and written to it."""
        return self._store.read_bytes, self._store.written_bytes

    # --- the state in the file ---

    @property
    def file_bytes(self) -> int:
        """That the state has on the disk now."""
        return self._store.bytes if self._store.is_there else 0

    def fits_on_disk(self) -> bool:
        """Whether there is room for the file of the state."""
        return self._store.fits()

    def drop_file(self) -> None:
        """Give back the room on the disk.  The state is lost."""
        self._release()
        self._store.drop()

    def touched(self) -> None:
        self._untouched = self._makers = None

    def initialise(self, configuration: dict[str, Any], seed: int, weights: Iterable[np.ndarray] | None = None) -> None:
        self.known_frozen = None
        self._release()
        self._store.clear()
        fresh, slots = build.build_in_pieces(configuration, self.layout, seed, without_memory)
        given = 0  # weights; adapters may have none
        for value in weights or ():
            self.set(given, value)
            given += 1
        made = {id(variable) for variable in fresh.variables} | {id(slot) for slot, _ in slots}
        for place, variable in enumerate(whole_state(fresh)):
            if place >= given:
                known = id(variable) not in made
                self._begin(place, np.asarray(variable) if known else _initial(variable))
                self.listen()

    def _begin(self, place: int, value: np.ndarray) -> None:
        """The first value of a variable; zeros are in the file already."""
        if place in self._resident or value.dtype.kind not in "fiu" or value.any():
            self.set(place, value)

    def get(self, index: int) -> np.ndarray:
        if index in self._resident:
            return super().get(index)
        self._release()
        return self._store.value(index)

    def set(self, index: int, value: np.ndarray, *, stays: bool = False) -> None:
        self._untouched = None
        if index in self._resident:
            self._assign([self._state[index]], [np.asarray(value, self.variables[index][1])])
            return
        self._release()
        self._store.set(index, np.asarray(value, _numpy(self.variables[index][1])))

    def get_all(self) -> list[np.ndarray]:
        return [self.get(index) for index in range(len(self._state))]

    def set_all(self, values: Sequence[np.ndarray]) -> None:
        for index, value in enumerate(values):
            self.set(index, value)

    def set_weights(self, weights: Iterable[np.ndarray]) -> None:
        self.known_frozen = None
        for index, value in enumerate(weights):
            self.set(index, value)
        if not self.model.compiled:
            for place in range(self.weights, len(self._state)):
                self._begin(place, _initial(self._state[place]))

    def put_back(self) -> Callable[[], None]:
        """Evaluating and predicting write nothing to the file."""
        return lambda: None

    def average(self) -> None:
        pass  # optimizers that average are refused

    def require_joint(self) -> None:
        raise ConfigurationFailed(
            "a model that is cut into shards cannot be trained by several segments together",
            hint='Leave out the option parallel, or train it with {"shard": "never"}.',
        )

    # --- variables in memory ---

    def bring(self, places: Sequence[int], following: Sequence[Extent] = ()) -> None:
        """Bring the values of variables into memory, and let what follows be read meanwhile."""
        missing = [place for place in places if place not in self._loaded]
        for place, value in zip(missing, self.take(self.spans(missing), following)):
            variable = self._state[place]
            self.assign(variable, self.as_tensor(value.reshape(tuple(variable.shape))))
        self._loaded.update(missing)

    def take(self, spans: Sequence[Extent], following: Sequence[Extent] = ()) -> list[np.ndarray]:
        """Numbers of variables from the file, while what follows is read."""
        found = self._courier.take(spans)
        self._courier.expect(following)
        return found

    def spans(self, places: Iterable[int]) -> list[Extent]:
        return [self._store.whole(place) for place in places]

    def drop(self, places: Iterable[int]) -> None:
        """Have the values of variables no longer in memory."""
        for place in self._loaded.intersection(places):
            self.empty(self._state[place])
            self._loaded.discard(place)

    def put(self, spans: Sequence[Extent], values: Sequence[Callable[[], np.ndarray]]) -> None:
        """Have the values written to the file."""
        if spans:
            self._courier.put(spans, values)

    def put_places(self, places: Sequence[int]) -> None:
        self.put(self.spans(places), [self.value_of(self._state[place]) for place in places])

    def _release(self) -> None:
        """Nothing is in memory, and all is in the file."""
        self._courier.forget()
        self._courier.settle()
        self.drop(list(self._loaded))
        self._store.memory.give_back()

    # --- values of TensorFlow's variables, whose memory changes hands without a copy where it can ---

    def as_tensor(self, value: np.ndarray) -> Any:
        if value.dtype == np.float32 and value.nbytes >= LEAST_SHARED and not self._gpu:
            return self._tf.experimental.dlpack.from_dlpack(value.__dlpack__())
        return self._tf.constant(value)

    def tensor_of(self, place: int) -> Any:
        variable = self._state[place].value
        return self._tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)

    def assign(self, variable: Any, tensor: Any) -> None:
        self._tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=tensor)

    def empty(self, variable: Any) -> None:
        self.assign(variable, np.zeros(0, _numpy(str(variable.dtype))))

    def value_of(self, variable: Any) -> Callable[[], np.ndarray]:
        """A function that gives the value that the variable has now."""
        own = variable.value
        read = self._tf.raw_ops.ReadVariableOp(resource=own.handle, dtype=own.dtype)
        if own.dtype != self._tf.float32 or self._gpu:
            return lambda: np.asarray(read.numpy())
        return lambda: np.asarray(memoryview(read))  # the variable's own memory

    @functools.cached_property
    def _gpu(self) -> bool:
        return bool(self._tf.config.list_physical_devices("GPU"))

    # --- the loops ---

    @property
    def _ready_passes(self) -> ShardPasses:
        if self._passes is None:
            self._passes = ShardPasses(self)
        return self._passes

    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None:
        if members:
            raise ConfigurationFailed("models that are cut into shards are not fused")
        if what == "train" and self._room is not None and self.measured_bytes is None:
            self._measure()

    def prepare_ahead(self) -> None:
        if self.output_columns and self.measured_bytes is None:
            self._measure()

    @property
    def batches_at_once(self) -> int:
        """That go through a shard together when the model is evaluated or predicts."""
        widest = max(sum(map(plan.row_bytes, shard.entering)) for shard in self.shards)
        return max(1, min(MOST_AT_ONCE, BOUNDARY_BYTES // max(1, widest * self._rows_at_once)))

    @functools.cached_property
    def _rows_at_once(self) -> int:
        """Rows of a batch that is evaluated or predicted: more than are trained on only if they need little memory."""
        widest = max(
            sum(map(plan.row_bytes, [*node.input_tensors, *node.outputs]))
            for each in self.shards
            for node in each.nodes
        )
        return max(self._batch_size, ROWS_BYTES // max(1, widest))

    def train(self, slab: Slab, batch_size: int) -> None:
        self.touched()
        self._reset_metrics()
        self._counted = None
        try:
            for batch in slab.batches(batch_size):
                self._ready_passes.train(batch.gathered(batch.dataset.columns))
            self._courier.settle()
        except BaseException:
            self._courier.abandon()  # else the next order, of another model, would raise an error of writing
            raise

    def evaluate(self, slab: Slab, batch_size: int) -> None:
        self._reset_metrics()
        self._counted = None
        batches = slab.batches(min(batch_size, self._rows_at_once))
        self._ready_passes.evaluate([one.gathered(one.dataset.columns) for one in batches])

    def predict(self, slab: Slab, batch_size: int) -> list[np.ndarray]:
        batches = slab.batches(min(batch_size, self._rows_at_once))
        found = self._ready_passes.predict([one.gathered(one.dataset.inputs) for one in batches])
        return [np.concatenate(each) for each in zip(*found)]

    def outputs_of(self, batch: Slab) -> list[np.ndarray]:
        return self._ready_passes.predict([batch.gathered(batch.dataset.inputs)])[0]

    def gradients(self, batch: Slab) -> list[np.ndarray]:
        self.require_joint()
        return []

    def _measure(self) -> None:
        """Train two batches of zeros, and cut again if that needs more memory than there is."""
        for trials_left in reversed(range(MOST_TRIALS)):
            self._release()
            with plan.measured() as most:
                try:
                    self._try_batches()
                    self.measured_bytes = int(LEAST_MARGIN * (most() - self._base))
                except Exception as error:
                    if not (trials_left and self._finds_no_memory(error)):
                        raise
                    self.measured_bytes = int(MORE_THAN_THERE_IS * max(self._room or 0, self._plan.needed))
            graphs = self._plan.graphs
            self._planner.margin *= max(1.0, (self.measured_bytes - graphs) / max(1, self._plan.needed - graphs))
            if self._room is None or self.measured_bytes <= self._room:
                self._compare()
                return
            self._cut(self._choose(self._planner))

    def _compare(self) -> None:
        """Measure batches of the whole model, if it fits.

        The operations of small layers take much longer one by one than in the graph of the whole model.
        """
        if self.uncut_bytes > min(LARGEST_COMPARED, self._room or LARGEST_COMPARED):
            return
        make, configuration = self._whole
        try:
            whole = make()
            whole.put_numbers(configuration)
            whole.initialise(configuration, 0)
            seconds = whole.seconds_of_batch(self._batch_size, COMPARED_BATCHES)
        except Exception as error:
            if not self._finds_no_memory(error):
                raise
            return
        self.slower = self._batch_seconds / max(seconds, 1e-9)

    def _finds_no_memory(self, error: Exception) -> bool:
        """Of TensorFlow, of NumPy, or of the kernel, whose memory arrays get (store.py)."""
        of_kernel = isinstance(error, OSError) and error.errno == errno.ENOMEM
        return of_kernel or isinstance(error, MemoryError) or self._is_out_of_memory(error)

    def _try_batches(self) -> None:
        """With the state that is there, which stays: the values go to a file of their own."""
        rows = self.zeros(self._batch_size)
        resident = {place: super(ShardedProgram, self).get(place) for place in self._resident}
        store, courier = self._store, self._courier
        scratch = store.another()
        scratch.clear()
        self._store = scratch
        self._courier = Courier(self._store, courier.ahead)
        self._reset_metrics()
        try:
            largest = max((each for each in self._state), key=graph.bytes_of)
            if build.has_initializer(largest):
                _initial(largest)  # it takes several times the variable's memory
            for _ in range(2):  # the second needs more memory: the heap has holes then; and it traces nothing
                self.operations = Stopwatch(self._tf.test.experimental.sync_devices if self._gpu else lambda: None)
                begun = time.monotonic()
                self._ready_passes.train(rows)
                self._courier.settle()
                self._batch_seconds = time.monotonic() - begun
                self.slower = self._batch_seconds / max(self.operations.seconds, 1e-9)
        finally:
            self._courier.abandon()
            self._release()
            self._store.close()
            self._store, self._courier = store, courier
            self.operations = Stopwatch()
            for place, value in resident.items():
                self.set(place, value)
            self.start_metrics()


def _initial(variable: Any) -> np.ndarray:
    """The value with which Keras begins."""
    from keras import ops

    value = variable._initializer(tuple(variable.shape), dtype=variable.dtype)
    return np.asarray(ops.convert_to_numpy(value), _numpy(str(variable.dtype)))


def _numpy(dtype: str) -> np.dtype:
    import ml_dtypes  # noqa: F401  (adds bfloat16 and the float8 types to NumPy)

    return np.dtype(dtype)
