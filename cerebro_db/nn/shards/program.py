"""A program whose model is in memory one shard at a time; the rest of its state is in a file.

A batch goes forward shard by shard, and only the boundary tensors are kept.  Then it goes backward: each shard computes
its layers again under a gradient tape, and its part of the optimizer's step follows at once.  The layers draw the same
random numbers both times, because they read the same states from the file; what they write goes back to the file once.
The operations are those of Keras' train_step in the same order, so the bits are those of a model that is not cut.
"""

from __future__ import annotations

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
from cerebro_db.nn.shards.plan import GROUP_BYTES, Planner, ShardPlan
from cerebro_db.nn.shards.store import Courier, Store

# Optimizers that change each weight by itself. Their variables that belong to no weight are told by these names.
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Nadam", "Ftrl", "Lion", "Lamb")
REFUSED = {  # arguments of optimizers
    "global_clipnorm": "the norm over all weights is known only when the last gradient is",
    "use_ema": "the averages of weights would be a second model",
    "gradient_accumulation_steps": "gradients would be kept beside the weights",
}
LEAST_SHARED = 1 << 10  # bytes of an array whose memory a variable takes over
LEAST_MARGIN = 1.05  # over what two batches have needed: the heap gets holes
MOST_TRIALS = 3  # of cuts, each with less in a shard
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
        self._listen, self._batch_size, self._ahead = listen, batch_size, ahead
        super().__init__(engine._tf, engine._kept, configuration, layout, seed)
        if group_statistics.any_layer(self.model):
            raise ConfigurationFailed(
                "a model with statistics of groups cannot be cut into shards", hint='Train it with {"shard": "never"}.'
            )
        self._configuration = configuration
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
        # How many times as long a batch takes as its operations, each done once as without shards; 0: not measured.
        self.slower = 0.0
        self.operations = Stopwatch()
        self._passes: _ShardPasses | None = None  # the traced functions
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

    def touched(self) -> None:
        self._untouched = self._makers = None

    def initialise(self, configuration: dict[str, Any], seed: int, weights: Iterable[np.ndarray] | None = None) -> None:
        self.known_frozen = None
        self._release()
        self._store.clear()
        fresh, slots = build.build_in_pieces(configuration, self.layout, seed, without_memory)
        if weights is not None:
            for place, value in enumerate(weights):
                self.set(place, value)
        made = {id(variable) for variable in fresh.variables} | {id(slot) for slot, _ in slots}
        for place, variable in enumerate(whole_state(fresh)):
            if weights is None or place >= self.weights:
                known = id(variable) not in made
                self._begin(place, np.asarray(variable) if known else _initial(variable))
                self._listen()

    def _begin(self, place: int, value: np.ndarray) -> None:
        """The first value of a variable; zeros are in the file already."""
        if place in self._resident or value.dtype.kind not in "fiu" or value.any():
            self.set(place, value)

    def get(self, index: int) -> np.ndarray:
        if index in self._resident:
            return super().get(index)
        self._release()
        return self._store.read(index)

    def set(self, index: int, value: np.ndarray) -> None:
        self._untouched = None
        if index in self._resident:
            self._assign([self._state[index]], [np.asarray(value, self.variables[index][1])])
            return
        self._release()
        self._store.write(index, np.asarray(value, _numpy(self.variables[index][1])))

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

    def _bring(self, places: Sequence[int], following: Sequence[int] = ()) -> None:
        """Bring the values of variables into memory, and let those that follow be read meanwhile."""
        missing = [place for place in places if place not in self._loaded]
        for place, value in zip(missing, self._courier.take(missing)):
            self._give(place, value)
        self._loaded.update(missing)
        self._courier.expect(following)

    def _give(self, place: int, value: np.ndarray) -> None:
        tensor: Any = value
        if value.dtype == np.float32 and value.nbytes >= LEAST_SHARED and not self._gpu:
            tensor = self._tf.experimental.dlpack.from_dlpack(value.__dlpack__())  # no copy
        self._tf.raw_ops.AssignVariableOp(resource=self._state[place].value.handle, value=tensor)

    def _drop(self, places: Iterable[int]) -> None:
        for place in places:
            if place in self._loaded:
                empty = np.zeros(0, _numpy(self.variables[place][1]))
                self._tf.raw_ops.AssignVariableOp(resource=self._state[place].value.handle, value=empty)
                self._loaded.discard(place)

    def _put(self, places: Sequence[int]) -> None:
        """Have the values written to the file."""
        if places:
            self._courier.put(places, [self._value_of(place) for place in places])

    def _value_of(self, place: int) -> Callable[[], np.ndarray]:
        variable = self._state[place].value
        read = self._tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        if variable.dtype != self._tf.float32 or self._gpu:
            return lambda: np.asarray(read.numpy())
        return lambda: np.asarray(memoryview(read))  # the variable's own memory

    def _release(self) -> None:
        """Nothing is in memory, and all is in the file."""
        self._courier.forget()
        self._courier.settle()
        self._drop(list(self._loaded))

    @functools.cached_property
    def _gpu(self) -> bool:
        return bool(self._tf.config.list_physical_devices("GPU"))

    # --- the loops ---

    @property
    def _ready_passes(self) -> _ShardPasses:
        if self._passes is None:
            self._passes = _ShardPasses(self)
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
        for batch in slab.batches(batch_size):
            self._ready_passes.train(batch.gathered(batch.dataset.columns))
        self._courier.settle()

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
        for _ in range(MOST_TRIALS):
            self._release()
            with plan.measured() as most:
                self._try_batches()
                self.measured_bytes = int(LEAST_MARGIN * (most() - self._base))
            graphs = self._plan.graphs
            self._planner.margin *= max(1.0, (self.measured_bytes - graphs) / max(1, self._plan.needed - graphs))
            if self._room is None or self.measured_bytes <= self._room:
                return
            self._cut(self._choose(self._planner))

    def _try_batches(self) -> None:
        """With the state that is there, which stays: the values go to a file of their own."""
        assert self.columns is not None
        rows = [
            np.zeros((self._batch_size, *column["shape"]), column["dtype"])
            for column in (*self.columns["inputs"], *self.columns["outputs"])
        ]
        resident = {place: super(ShardedProgram, self).get(place) for place in self._resident}
        store, courier = self._store, self._courier
        self._store = store.another()
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
                self.slower = (time.monotonic() - begun) / max(self.operations.seconds, 1e-9)
        finally:
            self._release()
            self._store.close()
            self._store, self._courier = store, courier
            self.operations = Stopwatch()
            for place, value in resident.items():
                self.set(place, value)
            self.start_metrics()


class _ShardPasses:
    """The functions of a program's shards, traced once, and the order in which a batch goes through them."""

    def __init__(self, program: ShardedProgram) -> None:
        self._program, self._tf = program, program._tf
        model = program.model
        trained = {id(variable) for variable in model.trainable_variables}
        self._numbers = {id(layer): number for number, layer in enumerate(model._flatten_layers(include_self=False))}
        self._penalised = {id(variable): number for number, variable in enumerate(model.trainable_weights)}
        behind: set[int] = set()  # tensors that depend on what is trained
        self.shards = []
        for number, shard in enumerate(program.shards):
            self.shards.append(_ShardFunctions(self, shard, number, trained, behind))
        self.last = self.shards[-1]

    @property
    def _closing(self) -> _Group | None:
        """The last group of a batch."""
        return next((shard.groups[-1] for shard in self.shards if shard.groups), None)

    # -- what the functions share --

    @functools.cached_property
    def _inputs(self) -> Any:
        """Of a batch's packed columns, the model's inputs as Keras gives them to its first layers."""
        import keras

        program = self._program
        functional = graph.functional_of(program.model)

        def inputs(columns: list[Any]) -> list[Any]:
            return list(functional._standardize_inputs(program.model_inputs(columns)))

        assert keras is not None
        return self._tf.function(inputs, input_signature=[program._columns("inputs")], autograph=False)

    # -- the order --

    def train(self, columns: list[np.ndarray]) -> None:
        program, shards = self._program, self.shards
        carried = [self._inputs(columns[: len(program._packed_inputs)])]
        penalties: list[Any] = []
        for number, shard in enumerate(shards[:-1]):
            program._bring(shard.places, shards[number + 1].places)
            leaving, added = shard.forward(carried[-1])
            if not shard.active:
                program._put(shard.written)
            program._drop(shard.places)
            carried.append(leaving)
            penalties += added
            program._listen()
        first = self.last.groups[0].slots if self.last.groups else self._before(len(shards) - 1)
        program._bring(self.last.places, first)
        gradients, upstream = self.last.loss(carried.pop(), columns, penalties)
        self._finish(self.last, gradients)
        for number in range(len(shards) - 2, -1, -1):
            shard, entering = shards[number], carried.pop()
            if not shard.active:
                continue
            program._bring(shard.places, shard.groups[0].slots if shard.groups else self._before(number))
            gradients, upstream = shard.backward(entering, upstream)
            del entering
            self._finish(shard, gradients)
            program._listen()

    def _before(self, number: int) -> list[int]:
        """What is read after the shard with this number went backward."""
        shard = next((shard for shard in reversed(self.shards[:number]) if shard.active), None)
        return [] if shard is None else shard.places

    def _finish(self, shard: _ShardFunctions, gradients: list[Any]) -> None:
        """The part of the optimizer's step that belongs to a shard; what is ready goes to the file."""
        program, kept = self._program, shard.number == 0
        for place, group in enumerate(shard.groups):
            more = place + 1 < len(shard.groups)
            following = shard.groups[place + 1].slots if more else self._before(shard.number)
            program._bring(group.slots, following)
            mine = [gradients[index] for index in group.gradients]
            for index in group.gradients:
                gradients[index] = None
            group.step(mine, group is self._closing)
            del mine
            program._put([*group.weights, *group.slots])
            program._drop(group.slots)
            if not kept:
                program._drop(group.weights)
        program._put(shard.written)
        if not kept:
            program._drop(shard.places)

    def evaluate(self, batches: list[list[np.ndarray]]) -> None:
        inputs = len(self._program._packed_inputs)

        def end(number: int, entering: list[Any], penalties: list[Any]) -> None:
            self.last.evaluated(entering, batches[number], penalties)

        self._forward([columns[:inputs] for columns in batches], end)

    def predict(self, batches: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        found: list[list[np.ndarray]] = []

        def end(number: int, entering: list[Any], penalties: list[Any]) -> None:
            leaving, _ = self.last.inferred(entering)
            outputs = leaving[: len(self.last.shard.leaving)]
            found.append([np.asarray(self._tf.cast(output, self._tf.float32)) for output in outputs])

        self._forward(batches, end)
        return found

    def _forward(self, batches: list[list[np.ndarray]], end: Callable[[int, list[Any], list[Any]], None]) -> None:
        """All batches through each shard, so that weights are read once."""
        program, shards = self._program, self.shards
        carried = [self._inputs(columns) for columns in batches]
        penalties: list[list[Any]] = [[] for _ in batches]
        for number, shard in enumerate(shards):
            program._bring(shard.places, shards[number + 1].places if number + 1 < len(shards) else ())
            for place in range(len(batches)):
                if shard is self.last:
                    end(place, carried[place], penalties[place])
                else:
                    carried[place], added = shard.inferred(carried[place])
                    penalties[place] += added
            if len(shards) > 1 or program.volatile:
                program._drop(shard.places)
            program._listen()


class _Group:
    """Weights of a shard that the optimizer changes in one call."""

    def __init__(self, passes: _ShardPasses, weights: list[Any], gradients: list[int]) -> None:
        self._passes, self._variables, self.gradients = passes, weights, gradients
        program = passes._program
        identities = {id(weight) for weight in weights}
        self.weights = [program._places[id(weight)] for weight in weights]
        self.slots = [program._places[id(slot)] for slot, weight in program._slots if id(weight) in identities]
        self._function: Any = None

    def step(self, gradients: list[Any], closing: bool) -> None:
        tf = self._passes._tf
        if self._function is None:
            pairs = zip(gradients, self._variables)
            signature = [[_specification(tf, one, weight) for one, weight in pairs], tf.TensorSpec((), tf.bool)]
            self._function = tf.function(self._traced, input_signature=signature, autograph=False)
        with self._passes._program.operations:
            self._function(gradients, tf.constant(closing))

    def _traced(self, gradients: list[Any], closing: Any) -> None:
        """What belongs to no weight, such as the count of steps, changes with the last group of a batch only."""
        tf, program = self._passes._tf, self._passes._program
        shared = [program._state[place].value for place in sorted(program._resident)]
        before = [tf.identity(variable) for variable in shared]
        program.model.optimizer.apply(gradients, self._variables)
        for variable, value in zip(shared, before):
            variable.assign(tf.where(closing, variable, value))


class _ShardFunctions:
    """What TensorFlow computes of a shard."""

    def __init__(self, passes: _ShardPasses, shard: Shard, number: int, trained: set[int], behind: set[int]) -> None:
        self._passes, self.shard, self.number = passes, shard, number
        self._tf, self._program = passes._tf, passes._program
        program = passes._program
        self.places = sorted({program._places[id(variable)] for variable in shard.variables})
        self.weights = [variable for variable in program.model.trainable_variables if id(variable) in self._own]
        written = {id(variable) for variable in program._written_by_calls}
        self.written = [place for place in self.places if id(program._state[place]) in written]
        self.watched = [id(tensor) in behind and _is_float(tensor) for tensor in shard.entering]
        for node in shard.nodes:
            variables = getattr(node.operation, "variables", ())
            if any(id(one) in trained for one in variables) or any(id(one) in behind for one in node.input_tensors):
                behind.update(map(id, node.outputs))
        self.active = bool(self.weights) or any(self.watched)
        self.masked: list[bool] = []  # of the leaving tensors, which have a mask
        self.with_gradient: list[bool] = []  # of the entering tensors
        self._groups: list[_Group] | None = None
        self._none: set[int] = set()  # weights without a gradient

    @functools.cached_property
    def _own(self) -> set[int]:
        return {id(variable) for variable in self.shard.variables}

    @property
    def groups(self) -> list[_Group]:
        if self._groups is None:
            self._groups = []
            weights: list[Any] = []
            places: list[int] = []
            size = 0
            for place, weight in enumerate(self.weights):
                if weights and size + graph.bytes_of(weight) > GROUP_BYTES:
                    self._groups.append(_Group(self._passes, weights, places))
                    weights, places, size = [], [], 0
                weights.append(weight)
                places.append(place)
                size += graph.bytes_of(weight)
            if weights:
                self._groups.append(_Group(self._passes, weights, places))
        return self._groups

    # -- functions, traced when they are first called --

    def forward(self, entering: list[Any]) -> tuple[list[Any], list[Any]]:
        found: tuple[list[Any], list[Any]] = self._forward(entering)
        return found

    def inferred(self, entering: list[Any]) -> tuple[list[Any], list[Any]]:
        found: tuple[list[Any], list[Any]] = self._inferred(entering)
        return found

    def loss(self, entering: list[Any], columns: list[Any], penalties: list[Any]) -> tuple[list[Any], list[Any]]:
        with self._program.operations:
            gradients, upstream = self._loss(entering, columns, penalties)
        return list(gradients), upstream

    def backward(self, entering: list[Any], upstream: list[Any]) -> tuple[list[Any], list[Any]]:
        with self._program.operations:
            gradients, further = self._backward(entering, upstream)
        return list(gradients), further

    def evaluated(self, entering: list[Any], columns: list[Any], penalties: list[Any]) -> None:
        self._evaluated(entering, columns, penalties)

    @functools.cached_property
    def _forward(self) -> Any:
        return self._function(functools.partial(self._passed, training=True), self._entering)

    @functools.cached_property
    def _inferred(self) -> Any:
        return self._function(functools.partial(self._passed, training=False), self._entering)

    def _passed(self, entering: list[Any], training: bool) -> tuple[list[Any], list[Any]]:
        leaving, penalties = self._run(entering, training)
        return self._with_masks(leaving), [one for _, one in penalties]

    @functools.cached_property
    def _loss(self) -> Any:
        tf, program = self._tf, self._program

        def loss(entering: list[Any], columns: list[Any], penalties: list[Any]) -> tuple[list[Any], list[Any]]:
            tensors = entering[: len(self.shard.entering)]
            watched = [tensor for tensor, its in zip(tensors, self.watched) if its]
            with tf.GradientTape() as tape:
                tape.watch(watched)
                total, counted = self._total(entering, columns, penalties, training=True)
                scaled = program.model.optimizer.scale_loss(total)
            found = tape.gradient(scaled, [*self.weights, *watched])
            counted()
            return self._gradients(found)

        return self._function(loss, self._entering, program._columns(), self._penalties)

    @functools.cached_property
    def _evaluated(self) -> Any:
        def evaluated(entering: list[Any], columns: list[Any], penalties: list[Any]) -> Any:
            total, counted = self._total(entering, columns, penalties, training=False)
            counted()
            return total

        return self._function(evaluated, self._entering, self._program._columns(), self._penalties)

    @functools.cached_property
    def _backward(self) -> Any:
        tf = self._tf
        after = self._passes.shards[self.number + 1]
        tensors = [
            self._tf.TensorSpec(tensor.shape, self._tf.as_dtype(str(tensor.dtype)))
            for tensor, its in zip(self.shard.leaving, after.with_gradient)
            if its
        ]
        scale = getattr(self._program.model.optimizer, "loss_scale_factor", None)

        def backward(entering: list[Any], upstream: list[Any]) -> tuple[list[Any], list[Any]]:
            inner = entering[: len(self.shard.entering)]
            watched = [tensor for tensor, its in zip(inner, self.watched) if its]
            with tf.GradientTape() as tape:
                tape.watch(watched)
                leaving, penalties = self._run(entering, True)
            targets = [tensor for tensor, its in zip(leaving, after.with_gradient) if its]
            added = [one for _, one in penalties]
            ones = [tf.ones_like(one) * (1.0 if scale is None else scale) for one in added]
            found = tape.gradient([*targets, *added], [*self.weights, *watched], output_gradients=[*upstream, *ones])
            return self._gradients(found)

        return self._function(backward, self._entering, tensors)

    def _gradients(self, found: list[Any]) -> tuple[list[Any], list[Any]]:
        """The gradients of the weights, and those of entering tensors that have one."""
        tf = self._tf
        weights, tensors = found[: len(self.weights)], found[len(self.weights) :]
        if any(one is None for one in weights):
            self.weights, weights = (
                [weight for weight, one in zip(self.weights, weights) if one is not None],
                [one for one in weights if one is not None],
            )
            self._groups = None
        left = iter(tensors)
        of_tensors = [next(left) if its else None for its in self.watched]
        self.with_gradient = [one is not None for one in of_tensors]
        return weights, [tf.convert_to_tensor(one) for one in of_tensors if one is not None]

    def _function(self, function: Callable[..., Any], *signature: Any) -> Any:
        return self._tf.function(function, input_signature=list(signature), autograph=False)

    @functools.cached_property
    def _entering(self) -> list[Any]:
        """The specifications of what enters: the tensors, then the masks of those that have one."""
        tf = self._tf
        tensors = [tf.TensorSpec(tensor.shape, tf.as_dtype(str(tensor.dtype))) for tensor in self.shard.entering]
        masks = [tf.TensorSpec(None, tf.bool) for its in self._masked_before if its]
        return [*tensors, *masks]

    @property
    def _masked_before(self) -> list[bool]:
        if self.number == 0:
            return [False] * len(self.shard.entering)
        return self._passes.shards[self.number - 1].masked

    @property
    def _penalties(self) -> list[Any]:
        """Of the penalties of the shards before this one, which was traced last."""
        count = sum(len(keys) for keys in self._step_keys()[: self.number])
        return [self._tf.TensorSpec((), self._tf.float32)] * count

    def _step_keys(self) -> list[list[tuple[int, int, int]]]:
        return [shard.keys for shard in self._passes.shards]

    keys: list[tuple[int, int, int]] = []  # by which the penalties of all shards are ordered

    # -- the computation, as Keras has it --

    def _run(self, entering: list[Any], training: bool) -> tuple[list[Any], list[tuple[tuple[int, int, int], Any]]]:
        """What leaves the shard, and what its layers add to the loss, each with its place in Keras' list of losses."""
        import keras
        from keras.src import backend  # has no public name
        from keras.src.backend.common import global_state
        from keras.src.layers.layer import CallContext
        from keras.src.models.functional import operation_fn

        count = len(self.shard.entering)
        tensors = {id(one): tensor for one, tensor in zip(self.shard.entering, entering)}
        masks = iter(entering[count:])
        for tensor, its in zip(entering, self._masked_before):
            if its:
                backend.set_keras_mask(tensor, next(masks))
        for layer in self.shard.layers:
            layer._clear_losses()
        context = CallContext(entry_layer=self._program.model)
        context.set_value("training", training)
        global_state.set_global_attribute("current_call_ctx", context)
        try:
            for node in self.shard.nodes:
                arguments, named = node.arguments.fill_in(tensors)
                found = operation_fn(node.operation, training=training)(*arguments, **named)
                tensors.update((id(one), tensor) for one, tensor in zip(node.outputs, keras.tree.flatten(found)))
        finally:
            global_state.set_global_attribute("current_call_ctx", None)
        return [tensors[id(one)] for one in self.shard.leaving], self._losses()

    def _losses(self) -> list[tuple[tuple[int, int, int], Any]]:
        model, passes = self._program.model, self._passes
        found = []
        for layer in self.shard.layers:
            for number, loss in enumerate(layer._get_own_losses()):
                found.append(((0, passes._numbers[id(layer)], number), model._aggregate_additional_loss(loss)))
        for weight in self._program.model.trainable_weights:
            if id(weight) in self._own and weight.regularizer is not None:
                loss = model._aggregate_additional_loss(weight.regularizer(weight))
                found.append(((1, passes._penalised[id(weight)], 0), loss))
        self.keys = [key for key, _ in found]
        return found

    def _with_masks(self, leaving: list[Any]) -> list[Any]:
        from keras.src import backend  # has no public name

        masks = [backend.get_keras_mask(tensor) for tensor in leaving]
        self.masked = [mask is not None for mask in masks]
        return [*leaving, *(mask for mask in masks if mask is not None)]

    def _total(
        self, entering: list[Any], columns: list[Any], penalties: list[Any], training: bool
    ) -> tuple[Any, Callable[[], Any]]:
        """The loss of a batch, and a function that has the metrics count it."""
        import keras
        from keras import ops

        tf, model = self._tf, self._program.model
        x, y, *weights = self._program.step_data("train" if training else "evaluate", columns)
        sample_weight = weights[0] if weights else None
        leaving, own = self._run(entering, training)
        outputs = keras.tree.pack_sequence_as(graph.functional_of(model)._outputs_struct, leaving)
        predicted = outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs
        before = [key for keys in self._step_keys()[: self.number] for key in keys]
        added = [one for _, one in sorted([*zip(before, penalties), *own], key=lambda pair: pair[0])]
        losses = [model._compile_loss(y, predicted, sample_weight), *added]
        total = losses[0] if len(losses) == 1 else ops.sum(losses)

        def counted() -> Any:
            model._loss_tracker.update_state(total, sample_weight=tf.shape(keras.tree.flatten(x)[0])[0])
            return model.compute_metrics(x, y, predicted, sample_weight=sample_weight)

        return total, counted


def require_optimizer(configuration: dict[str, Any]) -> None:
    """Refuse what cannot be done shard by shard."""
    optimizer = configuration["compile"].get("optimizer")
    name = optimizer if isinstance(optimizer, str) else (optimizer or {}).get("class_name")
    config = {} if not isinstance(optimizer, dict) else optimizer.get("config") or {}
    hint = 'Train it with {"shard": "never"}, or give trainers more memory.'
    if str(name).lower() not in map(str.lower, OPTIMIZERS):
        raise ConfigurationFailed(
            f"a model that is cut into shards is not trained with the optimizer {name}, which is not known to change"
            " each weight by itself",
            hint=f"Use one of {', '.join(OPTIMIZERS)}. " + hint,
        )
    for argument, why in REFUSED.items():
        if config.get(argument):
            raise ConfigurationFailed(
                f"a model that is cut into shards is not trained with {argument}: {why}",
                hint=f"Leave out {argument}. " + hint,
            )
    if "mixed_float16" in str(configuration["architecture"]):
        raise ConfigurationFailed(
            "a model that is cut into shards is not trained with mixed_float16: one gradient that is not finite stops"
            " the step of all shards",
            hint="Use mixed_bfloat16. " + hint,
        )


def without_memory(variable: Any) -> None:
    """Give a variable that has no value one that takes no memory until it is assigned."""
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable  # has no public name

    if not build.has_value(variable):
        variable._initialize(
            UninitializedVariable(
                trainable=variable.trainable,
                shape=variable.shape,
                dtype=tf.as_dtype(str(variable.dtype)),
                name=variable.name,
            )
        )


def _initial(variable: Any) -> np.ndarray:
    """The value with which Keras begins."""
    from keras import ops

    value = variable._initializer(tuple(variable.shape), dtype=variable.dtype)
    return np.asarray(ops.convert_to_numpy(value), _numpy(str(variable.dtype)))


def _specification(tf: Any, gradient: Any, weight: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):  # of the rows that an Embedding looked up
        shape = None if gradient.dense_shape is None else gradient.dense_shape.dtype
        return tf.IndexedSlicesSpec(weight.shape, gradient.dtype, gradient.indices.dtype, shape, [None])
    return tf.TensorSpec(gradient.shape, gradient.dtype)


def _is_float(tensor: Any) -> bool:
    return "float" in str(tensor.dtype)


def _numpy(dtype: str) -> np.dtype:
    import ml_dtypes  # noqa: F401  (adds bfloat16 and the float8 types to NumPy)

    return np.dtype(dtype)
