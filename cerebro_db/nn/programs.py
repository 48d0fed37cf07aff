"""The compiled programs of a trainer, and the state that is in the variables of each."""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cerebro_db.core.architecture import trees
from cerebro_db.core.errors import (
    CerebroError,
    ConfigurationFailed,
    CorruptState,
    InvalidArgument,
    OutOfMemory,
    WrongState,
)
from cerebro_db.core.protocol import FeaturesUsed, ModelReplica, Origin, StateRef
from cerebro_db.nn import state_file
from cerebro_db.nn.engines.base import Engine, Program
from cerebro_db.nn.explain import one_line, tail
from cerebro_db.nn.fit_parameters import Fit, fusion_key
from cerebro_db.nn.frozen_features import Features, row_bytes
from cerebro_db.nn.models.build import program_key
from cerebro_db.nn.models.frozen import has_frozen
from cerebro_db.nn.rows.data import Dataset, Slab, SlabOfOneSize, SlabSize
from cerebro_db.nn.shards.cutting import Cutting, uncut_bytes
from cerebro_db.nn.shards.program import ShardedProgram

# Compiled programs are kept for later orders. TensorFlow never gives back the memory of a traced graph (6 MB for a
# small MLP), so dropping a program frees the memory of its variables only.
GRAPH_BYTES = 8 << 20
PREDICT, SHARDS = "predict ", "shards of batches of "  # so begin the keys of programs that only predict, that are cut
FEATURES = "features "  # the keys of programs whose steps begin behind frozen layers begin so
PROGRAM_BYTES = 1 << 30  # of all programs together; the newest program stays in any case

Json = dict[str, Any]


class ReadyProgram:
    """A compiled program, its speed, and what is known of the state in its variables."""

    def __init__(self, key: str, program: Program) -> None:
        self.name = hashlib.sha256(key.removeprefix(FEATURES).encode()).hexdigest()[:16]
        self.program = program
        self.state_bytes = state_file.size(program)
        self.sharded = program if isinstance(program, ShardedProgram) else None
        # Bytes of memory; of a model that is cut, what a trainer may use for it is taken while it computes.
        self.held_bytes = 0 if self.sharded else self.state_bytes
        self.speed: defaultdict[tuple[str, int], SlabSize] = defaultdict(SlabSize)  # by what it does, and members
        if self.sharded is not None:
            self.speed["train", 1] = SlabSize(1)
            for what in ("evaluate", "predict"):
                self.speed[what, 1] = SlabOfOneSize(self.sharded.batches_at_once)
        self.batch_seconds: float | None = None  # once it was tried
        self.uses_features = False  # else steps get the rows as they are
        self.fuses = True  # if the program can
        self.token: str | None = None  # of the resident state
        self.sha256: str | None = None  # of the whole state
        # Of a state from weights: their name, and the seed of all else; None: nothing else was put in.
        self.weights: tuple[str, int | None] | None = None
        self.growing: Any = None  # the rows of a model of trees, once they were read (orders/growing.py)

    def forget_state(self) -> None:
        self.token = self.sha256 = self.weights = None


class Programs:
    """The programs by configuration; those that were not used for longest are dropped."""

    def __init__(self, engine: Engine, features: Features | None = None, cutting: Cutting | None = None) -> None:
        """``features``: None: those of frozen layers are computed in each step.  ``cutting``: None: no model is cut."""
        self._cutting = cutting
        self._engine = engine
        self._features = features
        self._lap = 0.0  # seconds in which features had been computed when the last lap ended
        self._whole: set[str] = set()  # the keys of programs without a cut that is worth it
        self._alone: set[str] = set()  # those of them that have one, which other trainers may find worth it
        self._programs: OrderedDict[str, ReadyProgram] = OrderedDict()
        # Configuration, layout and key of the last program that can train, and of the last prediction.
        self._last: tuple[Json, Json | None, str] | None = None
        self._predicted: tuple[Json, Json, str] | None = None

    def warm_up(self) -> None:
        self._engine.warm_up()

    def ready(
        self, configuration: Json, layout: Json | None, seed: int = 0, *, rows: Dataset | None = None
    ) -> ReadyProgram:
        """The program of a configuration: that of an earlier configuration of the same shape, or a new one.

        ``rows``: that it will train on, or evaluate; then its steps may begin behind its frozen layers.
        """
        key = self._key(configuration, layout)
        ready = None if rows is None else self._behind_frozen(key, configuration, rows, seed)
        if ready is None:
            ready = self._ready(key, configuration, layout, seed)
            ready.fuses = key not in self._alone
        ready.program.put_numbers(configuration)
        return ready

    def described(self, configuration: Json, layout: Json | None, seed: int) -> ReadyProgram:
        """The program that will probably train a configuration."""
        ready = None if layout is None else self._cut(self._key(configuration, layout), configuration, layout, seed)
        if ready is None:
            return self.ready(configuration, layout, seed)
        ready.program.put_numbers(configuration)
        return ready

    def memory(self, ready: ReadyProgram, configuration: Json) -> dict[str, float]:
        """Into how many shards a model is cut, what a trainer needs for it with and without that, and what it costs."""
        if self._cutting is None:
            return {}
        slower = 0.0
        if ready.sharded is not None:
            shards, needed, uncut = len(ready.sharded.shards), ready.sharded.needed_bytes, ready.sharded.uncut_bytes
            slower = round(ready.sharded.slower, 2)
        else:
            try:
                needed = uncut = uncut_bytes(ready.program, Fit.of(configuration).batch_size)
            except ConfigurationFailed:  # a model that cannot be cut can be trained all the same
                return {}
            shards = 1
        in_mb = self._cutting.needed_mb
        return {"shards": shards, "memory_mb": in_mb(needed), "uncut_memory_mb": in_mb(uncut), "slower": slower}

    def _key(self, configuration: Json, layout: Json | None) -> str:
        last = self._last
        if last is None or last[:2] != (configuration, layout):  # the models of groups have the same configuration
            key = self._by_batch_size(program_key(configuration, layout), configuration, layout)
            last = self._last = configuration, layout, key
        return last[2]

    def _by_batch_size(self, key: str, configuration: Json, layout: Json | None, *, to_train: bool = True) -> str:
        """The key of a program; how a model is cut depends on the size of its batches."""
        if self._cutting is None or trees.are_grown(configuration["architecture"]):  # all their features at once
            return key
        with self.configuration_errors():
            if not self._cutting.cuts(configuration, layout, to_train):
                return key
        return f"{SHARDS}{Fit.of(configuration).batch_size} {key}"

    def _behind_frozen(self, key: str, configuration: Json, rows: Dataset, seed: int) -> ReadyProgram | None:
        """The program whose steps begin behind its frozen layers; None if it has none, or if that does not pay."""
        ready = self._cut(key, configuration, rows.layout, seed)
        if ready is not None and not ready.uses_features:
            assert self._features is not None
            with self.configuration_errors():
                ready.uses_features = self._features.pay(ready.program, rows)
            if not ready.uses_features:
                self._whole.add(key)
                self._alone.add(key)
                self._programs.pop(FEATURES + key, None)
                return None
        return ready

    def _cut(self, key: str, configuration: Json, layout: Json, seed: int) -> ReadyProgram | None:
        """The program of a model that is cut behind its frozen layers; None if it has none."""
        if self._features is None or key in self._whole:
            return None
        if key.startswith(SHARDS) or not has_frozen(configuration["architecture"]):
            self._whole.add(key)
            return None
        ready = self._ready(FEATURES + key, configuration, layout, seed, features=self._features.type)
        if ready.program.cut is None:  # then it is the program of the whole model
            self._whole.add(key)
            self._programs.setdefault(key, self._programs.pop(FEATURES + key))
            return None
        return ready

    def _ready(
        self, key: str, configuration: Json, layout: Json | None, seed: int | None, *, features: str | None = None
    ) -> ReadyProgram:
        if key not in self._programs:
            self._evict(room=max((ready.held_bytes for ready in self._programs.values()), default=0))
            with self.configuration_errors():
                program: Any
                if self._cutting is not None and key.removeprefix(PREDICT).startswith(SHARDS):
                    program = self._cutting.program(self._engine, configuration, layout, seed)
                else:
                    program = self._engine.program(configuration, layout, seed, features)
                self._programs[key] = ReadyProgram(key, program)
            self._evict()
        self._programs.move_to_end(key)
        if self._programs[key].sharded is not None:
            self._free_disk(self._programs[key])
        return self._programs[key]

    def rows_of_steps(
        self, ready: ReadyProgram, rows: Dataset, listen: Callable[[], None], passes: int = 1, *, partly: bool = False
    ) -> Dataset:
        """What the steps of a program get of these rows, with the state that is in its variables.

        If there is no room for features, these are the rows as they are, and ``stepped`` computes those of a slab.
        ``partly``: few of the rows are wanted, so the features of the others are not computed now.
        """
        if not ready.uses_features or self._features is None:
            return rows
        kept = None
        if not partly:
            with self.configuration_errors():
                kept = self._features.kept(ready.program, rows, listen, passes)
        if kept is None:
            kept = copy.copy(rows)
            kept.from_disk = True  # slabs of one size: for each, JAX would compile
            kept.bytes_of_steps = row_bytes(ready.program)
        return kept

    def stepped(self, ready: ReadyProgram, slab: Slab, listen: Callable[[], None]) -> Slab:
        """A slab as the steps of a program take it."""
        if not ready.uses_features or self._features is None or slab.dataset.features:
            return slab
        return self._features.of_slab(ready.program, slab, listen)

    def ready_to_predict(self, configuration: Json, layout: Json, state: StateRef) -> ReadyProgram:
        """The program of a configuration, with the state in its variables.

        From weights the model is built without all that trains it, which is sooner done.
        """
        ready = None
        if state.origin is Origin.WEIGHTS:
            ready = self._ready(self._key_to_predict(configuration, layout), configuration, layout, None)
        if ready is None or ready.program.volatile:
            ready = self.ready(configuration, layout)
        self.load_to_read(ready, configuration, state)
        return ready

    def _key_to_predict(self, configuration: Json, layout: Json) -> str:
        """For single rows, making the key would take longer than the prediction."""
        last = self._predicted
        if last is None or last[:2] != (configuration, layout):
            key = self._by_batch_size(program_key(configuration, layout), configuration, layout, to_train=False)
            last = configuration, layout, PREDICT + key
            self._predicted = last
        return last[2]

    def ready_to_train(
        self, configurations: Sequence[Json], dataset: Dataset, seed: int = 0, rows: int | None = None
    ) -> ReadyProgram:
        """The program that all the configurations share, compiled for so many members and for their batch size.

        ``rows``: of one epoch; None: those that an epoch over all rows of the data set has.
        """
        ready = self.ready(configurations[0], dataset.layout, seed, rows=dataset)
        members = len(configurations) if len(configurations) > 1 else 0
        if members:
            keys = {fusion_key(configuration, dataset.layout) for configuration in configurations}
            if len(keys) > 1 or not ready.program.fusion:
                raise InvalidArgument("these configurations cannot be fused")
        fit = Fit.of(configurations[0])
        ready.program.require_values(dataset)
        with self.configuration_errors():
            rows = fit.rows_of(dataset.rows) if rows is None else rows
            if not ready.uses_features:  # else the state has to be in the variables first
                ready.program.prepare("train", dataset, fit.batch_size, rows, members)
        return ready

    def load_to_read(self, ready: ReadyProgram, configuration: Json, state: StateRef) -> None:
        """As ``load``, for orders that do not train: of weights nothing but the weights is needed."""
        if state.origin is not Origin.WEIGHTS or ready.program.volatile:
            self.load(ready, configuration, state)
        elif ready.weights != (state.name, None):
            ready.forget_state()
            ready.program.set_weights(state_file.read_weights(ready.program, _path(state)))
            assert state.name is not None
            ready.weights = state.name, None

    def features_used(self, since: FeaturesUsed | None = None) -> FeaturesUsed | None:
        """What features have cost and saved in all, or since then; None: the trainer keeps none."""
        if self._features is None:
            return None
        found = FeaturesUsed(self._features.bytes, self._features.computing, self._features.saved)
        if since is None:
            return found
        return FeaturesUsed(found.bytes, found.computing - since.computing, found.saved - since.saved)

    def features_lap(self) -> float:
        """The seconds in which features were computed since the last call."""
        before, self._lap = self._lap, 0.0 if self._features is None else self._features.computing
        return self._lap - before

    def feature_seconds(self, ready: ReadyProgram, rows: Dataset | None) -> float:
        """Seconds that the frozen layers of a program take for a row; 0: not known."""
        if self._features is None or ready.program.cut is None or rows is None or not rows.rows:
            return 0.0
        with self.configuration_errors():
            return self._features.row_seconds(ready.program, rows)

    @staticmethod
    def holds(ready: ReadyProgram, state: StateRef) -> bool:
        """Whether ``load_to_read`` of the same weights would need no file."""
        return state.origin is Origin.WEIGHTS and not ready.program.volatile and ready.weights == (state.name, None)

    def load(self, ready: ReadyProgram, configuration: Json, state: StateRef, seed: int = 0) -> None:
        """Bring the state that an order refers to into the program's variables."""
        if state.origin is Origin.RESIDENT:
            self.require_resident([state])
            if ready.token != state.token:
                raise WrongState("that state is in the memory of another program", hint="Send the whole state.")
            return
        known = ready.sha256 is not None and ready.sha256 == state.sha256
        if state.origin is Origin.FULL and known and not state.adopted:
            return  # it is in the variables already
        if state.origin is Origin.WEIGHTS and ready.weights is not None and ready.weights == (state.name, seed):
            return
        ready.forget_state()
        if state.origin is Origin.FULL:
            assert state.sha256 is not None
            state_file.read(
                ready.program, _path(state), state.sha256, adopted=state.adopted, frozen=_frozen_file(state)
            )
            if state.adopted:
                ready.program.put_learning_rate(configuration)
            else:
                ready.sha256 = state.sha256
            return
        weights = None
        if state.origin is Origin.WEIGHTS:
            weights = state_file.read_weights(ready.program, _path(state), to_start=True)
        with self.configuration_errors():
            ready.program.initialise(configuration, seed, weights)
        if state.origin is Origin.WEIGHTS:
            assert state.name is not None
            ready.weights = state.name, seed

    def load_average(self, ready: ReadyProgram, replicas: Sequence[ModelReplica]) -> None:
        """Bring the average of the states of replicas into the program's variables."""
        ready.forget_state()
        states = [(_path(replica.state), replica.state.sha256 or "", replica.rows) for replica in replicas]
        state_file.read_average(ready.program, states, [_frozen_file(replica.state) for replica in replicas])

    def require_resident(self, states: Iterable[StateRef]) -> None:
        """Refuse an order that refers to a state which is no longer in memory: the driver can send it whole."""
        resident = self.resident
        if any(state.origin is Origin.RESIDENT and state.token not in resident for state in states):
            raise WrongState("the trainer no longer has that state in memory", hint="Send the whole state.")

    @property
    def resident(self) -> set[str]:
        """The tokens of the states that are in memory."""
        return {ready.token for ready in self._programs.values() if ready.token is not None}

    @contextlib.contextmanager
    def reading(self, ready: ReadyProgram) -> Iterator[None]:
        """Around evaluating and predicting, which leave the state as it is, except for volatile programs.

        Within it the weights are those to evaluate.  Weights of a model table are such weights already.
        """
        put_back = ready.program.put_back()
        try:
            if ready.weights is None:
                ready.program.average()
            yield
        finally:
            put_back()
            if ready.program.volatile:
                ready.forget_state()

    @contextlib.contextmanager
    def configuration_errors(self) -> Iterator[None]:
        """Around calls of Keras and of the framework: their errors are errors of the configuration."""
        try:
            yield
        except (CerebroError, MemoryError, OSError):
            raise
        except Exception as error:
            if self._engine.is_out_of_memory(error):
                raise OutOfMemory("the model does not fit into memory", detail=one_line(error)) from error
            raise ConfigurationFailed(one_line(error), detail=tail(error)) from error

    def _free_disk(self, used: ReadyProgram) -> None:
        """Drop the files of cut models that were not used for longest: the model used now needs room for its own."""
        assert self._cutting is not None and used.sharded is not None
        most = self._cutting.files_bytes
        kept = [ready for ready in self._programs.values() if ready is not used and ready.sharded is not None]
        held = used.state_bytes + sum(ready.sharded.file_bytes for ready in kept if ready.sharded is not None)
        for ready in kept:
            if ready.sharded is not None and (held > most or not used.sharded.fits_on_disk()):
                held -= ready.sharded.file_bytes
                ready.sharded.drop_file()
                ready.forget_state()

    def _evict(self, room: int = 0) -> None:
        """Drop the programs that were not used for longest; a program that is not built yet needs ``room``, too."""
        kept = sum(ready.held_bytes + GRAPH_BYTES for ready in self._programs.values()) + room
        dropped = False
        while kept > PROGRAM_BYTES and len(self._programs) > (0 if room else 1):
            _, ready = self._programs.popitem(last=False)
            kept -= ready.held_bytes + GRAPH_BYTES
            dropped = True
        if dropped:
            del ready
            gc.collect()  # a Keras model refers to itself


def _frozen_file(state: StateRef) -> state_file.FrozenFile | None:
    """The file with the frozen part of a state whose own file has a hole for it."""
    if state.frozen is None:
        return None
    if state.frozen_path is None:
        raise CorruptState("the frozen part of the model's state is not there")
    return state_file.FrozenFile(state.frozen, state.frozen_path)


def _path(state: StateRef) -> str:
    """The file with the received state.  The segment gives no path if nothing was received under the state's name."""
    if state.path is None:
        raise CorruptState(
            "the model's state is not there",
            hint="Its table in the schema cerebro_state was emptied or dropped by hand.",
        )
    return state.path
