"""What the programs of all engines share through Keras: the model, its whole state, and its columns."""

from __future__ import annotations

import abc
import functools
import gc
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from cerebro_db.core.architecture.adapters import layers as adapters
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.core.parameters.vocabulary import DEFAULT_RATE
from cerebro_db.core.protocol import MetricStates
from cerebro_db.core.texts import counted
from cerebro_db.nn import metric_states
from cerebro_db.nn.engines.base import Fusion
from cerebro_db.nn.models import build, class_weights, frozen, group_statistics, initial, numbers, steps
from cerebro_db.nn.models.adapt import (
    InputColumn,
    OutputColumn,
    input_column,
    loss_name,
    output_column,
    require_known,
    require_probabilities,
    takes_probabilities,
)
from cerebro_db.nn.models.averages import Averages
from cerebro_db.nn.models.frozen import FrozenBeginning
from cerebro_db.nn.models.initial import Recipe
from cerebro_db.nn.rows.data import Dataset, Slab

LARGE = 1 << 20  # elements of variables
DRAWS = 1 << 24  # of a layer in one joint visit, at most: so far apart begin the trainers


def whole_state(model: Any) -> list[Any]:
    """All variables that training changes: weights in the order of get_weights(), others (seeds), the optimizer's.

    Behind the weights of the layers are those of adapters.
    """
    weights = adapters.weights(model)
    known = {id(variable) for variable in weights}
    others = [variable for variable in model.variables if id(variable) not in known]
    return weights + others + (list(model.optimizer.variables) if model.compiled else [])


def large(variables: list[Any]) -> bool:
    """Whether collecting garbage at once, to free the memory of such variables, is worth its time."""
    return sum(math.prod(variable.shape) for variable in variables) > LARGE


class KerasProgram(abc.ABC):
    """A compiled model whose columns fit a layout.  A subclass per engine adds the loops over slabs."""

    fusion: Fusion | None = None
    compiles = True  # the framework compiles steps, so a number that may change has to be a variable

    def __init__(
        self,
        configuration: dict[str, Any],
        layout: dict[str, Any] | None,
        seed: int | None = 0,
        features: str | None = None,
    ) -> None:
        """``features``: cut the model behind its frozen beginning, if it has one; its features have this type."""
        self.layout = self.columns = layout  # the columns of the rows, and those that a step gets
        self.cut: FrozenBeginning | None = None
        self.sources: list[int | None] = []  # of the columns of a step: which packed column it is; None: a feature
        self._body_columns: list[tuple[InputColumn, int]] = []  # of each input of the body, and which packed column
        self._numbers: list[Any] = []
        self._untouched: tuple[Any, int] | None = None
        self._makers: initial.Makers | None = None  # until a recipe was made of them
        if seed is None:
            self.model = self.built(configuration, None)
        else:
            shape, _ = numbers.apart(configuration)
            self.model = self.built({**configuration, "architecture": shape["architecture"]}, seed)
            if features is not None and not group_statistics.any_layer(self.model):
                self.cut = frozen.cut(self.model, features)  # before layers get variables of ours, which have no JSON
            self._numbers = numbers.install(self.model, configuration, as_variables=self.compiles)
            self._untouched = (configuration["compile"]["optimizer"], seed)
        self._state = whole_state(self.model)
        # What a layer may write when it is called: states of random numbers (a recurrent layer with dropout draws some
        # also when it evaluates), of stateful layers, moving statistics. Weights that are frozen are none of these.
        self._written_by_calls = [
            variable
            for layer in self.model._flatten_layers()
            for variable in (
                *layer._non_trainable_variables,
                *(generator.state for generator in layer._seed_generators),
            )
        ]
        self._fresh: tuple[tuple[Any, int], Sequence[np.ndarray]] | None = None  # the last initial state, and of what
        self._recipe: Recipe | None = None
        self._recipe_is_right = False
        self._stepped: list[Any] = []  # the weights that have gradients
        self.weights = len(self.model.weights)
        self.weights_of_layers = adapters.of_layers(self._state[: self.weights])
        self.constants = frozen.constant_weights(self.model, self._state[: self.weights])
        self.known_frozen: Any = None
        self._features_names: dict[str, str] = {}  # by the checksum of the frozen weights
        self.variables = [
            # the number makes the name unique: paths need not be
            (f"{number:03d}|{variable.path}", str(variable.dtype), tuple(variable.shape))
            for number, variable in enumerate(self._state)
        ]
        self.parameters = int(self.model.count_params())
        self.inputs = [list(tensor.shape[1:]) for tensor in self.model.inputs]
        self.outputs = [list(tensor.shape[1:]) for tensor in self.model.outputs]
        optimizer = self.model.optimizer if self.model.compiled else None
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # float16's wraps another
        self._averages = Averages(optimizer, self._state)
        self.averages = bool(self._averages)
        self.volatile = any(
            getattr(layer, "stateful", False) for layer in self.model._flatten_layers(include_self=False)
        )
        self.input_columns: list[InputColumn] = []
        self.output_columns: list[OutputColumn] = []
        self._batch_rows: Any = None  # of the batch whose step is being traced
        self._packed_inputs: list[int] = []  # for each of the model's inputs, which packed column it is
        self._packed_outputs: list[int] = []
        self._lookups: list[tuple[str, int, float, str, int]] = []  # name, place and scale of columns; layer, its rows
        self.steps = 0  # of each target, if it has a value for each step of a row
        self._labelled: Any = None  # which steps of the current batch have a label
        self._row_weights: int | None = None  # the place of the packed column with the weights of the rows
        self._targets: list[tuple[str, int, str]] = []  # name and place of packed columns, and their loss
        if layout is not None:
            self._fit_inputs(layout["inputs"])
            if self.cut is not None:
                self._step_behind(self.cut, configuration, layout)
            targets = [column for column in layout["outputs"] if column.get("kind") != "weight"]
            self.steps = steps.of_layout(targets)
            if targets and seed is not None:
                self._fit_outputs(targets, configuration["compile"]["loss"])
                if len(targets) < len(layout["outputs"]):
                    self._row_weights = len(self.input_columns) + len(targets)
        self._class_weights = class_weights.by_number((configuration.get("fit") or {}).get("class_weight"))
        if self._class_weights is not None and len(self.outputs) > 1:
            raise ConfigurationFailed("class_weight can only be used with a model that has one output")
        if self.output_columns:
            self._try_one_row()

    def built(self, configuration: dict[str, Any], seed: int | None) -> Any:
        """The model; without a seed one that can only predict."""
        if seed is None:
            return build.build_to_predict(configuration, self.layout)
        with initial.observed() as self._makers:
            return build.build_model(configuration, self.layout, seed)

    def _all_variables(self) -> list[Any]:
        """All that steps read and write: the state, what the metrics count, and the numbers."""
        counted = [variable for metric in self.model.metrics for variable in metric.variables]
        numbers = [each for one in self._numbers for each in (one, one.complement)] if self.compiles else []
        return [*self._state, *counted, *numbers]

    # --- the state in the variables ---

    def initialise(self, configuration: dict[str, Any], seed: int, weights: Iterable[np.ndarray] | None = None) -> None:
        start = (configuration["compile"]["optimizer"], seed)
        if self._untouched == start and weights is None:
            return  # the variables still have the values with which the program was built
        self.touched()
        self.known_frozen = None
        if large(self._state):
            fresh = whole_state(build.build_model(configuration, self.layout, seed, weights))
            for mine, its in zip(self._state, fresh):
                mine.assign(its.value)
            del fresh, its
            gc.collect()  # a Keras model refers to itself
        else:
            self.set_all(self._initial_values(configuration, seed, weights))
        self._untouched = start if weights is None else None

    @property
    def measures_groups(self) -> bool:
        return bool(self._of_group)

    def measure_group(self, dataset: Dataset, rows: np.ndarray, listen: Callable[[], None]) -> None:
        for layer, column, is_target in self._of_group:
            values = dataset.columns[column]
            if is_target:
                numbers = group_statistics.of_target(values, rows, np.asarray(layer.weights[0]), listen)
            else:
                numbers = group_statistics.of_inputs(values, rows, listen)
            for variable, value in zip(layer.weights, numbers):
                self.set(self.place(variable), value)

    @functools.cached_property
    def _of_group(self) -> list[tuple[Any, int, bool]]:
        """The layers with statistics of a group, each with the place of the packed column that it measures."""
        ends = [*zip(self.model.inputs, self._packed_inputs), *zip(self.model.outputs, self._packed_outputs)]
        return [
            (layer, column, is_target)
            for layer, tensor, is_target in group_statistics.layers(self.model)
            for end, column in ends
            if end is tensor
        ]

    def _initial_values(
        self, configuration: dict[str, Any], seed: int, weights: Iterable[np.ndarray] | None
    ) -> Sequence[np.ndarray]:
        start = (configuration["compile"]["optimizer"], seed)
        if weights is not None:
            return self._built_values(configuration, seed, weights)
        if self._fresh is None or self._fresh[0] != start:  # the models of groups begin with the same values
            self._fresh = (start, self._values_of_seed(configuration, seed))
        return self._fresh[1]

    def _values_of_seed(self, configuration: dict[str, Any], seed: int) -> Sequence[np.ndarray]:
        recipe = self._recipe
        rate = self._learning_rate(configuration) if recipe is not None else None
        if recipe is not None and rate is not None and self._recipe_is_right:
            return recipe.values(seed, rate)
        built = self._built_values(configuration, seed)
        if recipe is not None and rate is not None and not initial.same_seed(recipe.seed, seed):
            self._recipe_is_right = recipe.gives(built, seed, rate)
            if self._recipe_is_right:
                self.recipe_was_right()
            else:
                self._recipe = None
        return built

    def _built_values(
        self, configuration: dict[str, Any], seed: int, weights: Iterable[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        return [np.asarray(one) for one in whole_state(build.build_model(configuration, self.layout, seed, weights))]

    def _learning_rate(self, configuration: dict[str, Any]) -> tuple[int, float] | None:
        """The place of the learning rate in the state, and its value, if the configuration has it as a number."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        rate: Any = (configuration["compile"]["optimizer"].get("config") or {}).get("learning_rate")
        places = [place for place, one in enumerate(self._state) if one is optimizer._learning_rate]
        return (places[0], float(rate)) if places and build.is_number(rate) else None

    def put_learning_rate(self, configuration: dict[str, Any]) -> None:
        """Put the learning rate of the configuration into its variable; a schedule has none."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        given = configuration["compile"]["optimizer"]
        rate = (given.get("config") or {}).get("learning_rate", DEFAULT_RATE.get(given["class_name"], 0.001))
        for place, one in enumerate(self._state):
            if one is optimizer._learning_rate:
                self.set(place, np.asarray(rate, one.dtype))

    def recipe_was_right_before(self) -> bool:
        """Whether another trainer has found out that the recipe of this program is right."""
        return False

    def recipe_was_right(self) -> None:  # noqa: B027  (most engines have no way)
        """Tell other trainers so."""

    def put_numbers(self, configuration: dict[str, Any]) -> None:
        numbers.put(self._numbers, configuration)

    def touched(self) -> None:
        """The variables are about to lose the values with which the program was built."""
        if self._makers and self._untouched is not None and self.output_columns and not large(self._state):
            self._fresh = (self._untouched, self.get_all())
            self._recipe = Recipe(self._state, self._makers, self._fresh[1], self._untouched[1])
            self._recipe_is_right = self.recipe_was_right_before()
        self._untouched = self._makers = None

    def get(self, index: int) -> np.ndarray:
        return np.asarray(self._state[index])

    def place(self, variable: Any) -> int:
        """The place of a variable in the state."""
        (found,) = (place for place, one in enumerate(self._state) if one is variable)
        return found

    def set(self, index: int, value: np.ndarray, *, stays: bool = False) -> None:
        self.touched()
        if build.has_value(self._state[index]):
            self._state[index].assign(value)
        else:
            build.give_value(self._state[index], value)

    def get_all(self) -> list[np.ndarray]:
        return self.values_of(self._state)

    def values_of(self, variables: list[Any]) -> list[np.ndarray]:
        return [np.asarray(variable) for variable in variables]

    def set_all(self, values: Sequence[np.ndarray]) -> None:
        for index, value in enumerate(values):
            self.set(index, value)

    def set_weights(self, weights: Iterable[np.ndarray]) -> None:
        self.known_frozen = None
        for index, value in enumerate(weights):
            self.set(index, value)
        for variable in self._state[self.weights :]:
            if not build.has_value(variable):
                build.give_value(variable)

    def put_back(self) -> Callable[[], None]:
        written = [*self._written_by_calls, *(self._state[place] for place in self._averages)]
        kept = [np.array(np.asarray(variable)) for variable in written]

        def put() -> None:
            for variable, value in zip(written, kept):
                if np.asarray(variable).tobytes() != value.tobytes():  # reading takes a tenth of writing
                    variable.assign(value)

        return put

    def evaluated(self, index: int, get: Callable[[int], np.ndarray] | None = None) -> np.ndarray:
        return self._averages.value(index, get or self.get)

    def average(self) -> None:
        if self._averages:
            self.touched()
        for place in self._averages:
            self._state[place].assign(np.array(self.evaluated(place)))

    # --- metrics ---

    def start_metrics(self) -> None:
        self.model.reset_metrics()

    def metric_states(self) -> MetricStates:
        return metric_states.read(self._metrics_by_name, self.values_of)

    def metric_values(self, states: MetricStates) -> dict[str, Any]:
        return metric_states.values(self._metrics_by_name, states)

    @functools.cached_property
    def _metrics_by_name(self) -> dict[str, Any]:
        """Keras takes longer to name them than to count a small batch."""
        return metric_states.by_name(self.model)

    def running_loss(self) -> float:
        return float(self.model._loss_tracker.result())

    # --- training with other trainers ---

    # An engine need not have these two; then it trains no model with the option parallel.

    def gradients(self, batch: Slab) -> list[np.ndarray]:
        raise _not_joint()

    def step(self, gradients: Sequence[np.ndarray]) -> None:
        raise _not_joint()

    def with_gradients(self, found: list[Any]) -> list[Any]:
        """The gradients that are not None, whose weights ``step`` changes."""
        pairs = [pair for pair in zip(found, self.model.trainable_weights) if pair[0] is not None]
        self._stepped = [weight for _, weight in pairs]
        return [gradient for gradient, _ in pairs]

    def require_joint(self) -> None:
        import keras

        for layer in self.model._flatten_layers():
            if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
                raise ConfigurationFailed(
                    f"the layer {layer.name} masks steps: by what a minibatch's loss is divided follows from all rows",
                    hint="Leave out the option parallel.",
                )
        if self.steps:
            raise ConfigurationFailed(
                "targets of steps cannot be trained on several segments at once: by what a minibatch's loss is divided"
                " follows from all its labels",
                hint="Leave out the option parallel.",
            )
        if any(loss.reduction != "sum_over_batch_size" for loss in self._losses()):
            raise ConfigurationFailed(
                "a loss whose reduction is not the mean over the rows cannot be added up over several segments",
                hint="Leave out its argument reduction, or the option parallel.",
            )

    def _losses(self) -> Iterator[Any]:
        """The losses of the outputs."""
        for one in self.model._compile_loss._flat_losses or ():
            yield getattr(one, "loss", one)

    @functools.cached_property
    def _seeds(self) -> frozenset[int]:
        """The identities of the variables from which layers draw random numbers."""
        return frozenset(id(one.state) for layer in self.model._flatten_layers() for one in layer._seed_generators)

    @functools.cached_property
    def statistics(self) -> list[int]:
        written = {id(variable) for variable in self._written_by_calls} - self._seeds
        return [place for place, variable in enumerate(self._state) if id(variable) in written]

    def vary_seeds(self, place: int) -> None:
        for number, variable in enumerate(self._state):
            if id(variable) in self._seeds:
                seed, drawn = (int(each) for each in self.get(number))
                self.set(number, np.asarray([seed, (drawn + place * DRAWS) % (1 << 32)], self.variables[number][1]))

    # --- the loops, by the engine ---

    @abc.abstractmethod
    def prepare(self, what: str, dataset: Dataset, batch_size: int, rows: int, members: int = 0) -> None: ...

    def prepare_ahead(self) -> None:  # noqa: B027  (most engines have nothing to do)
        pass

    @abc.abstractmethod
    def train(self, slab: Slab, batch_size: int) -> None: ...

    @abc.abstractmethod
    def evaluate(self, slab: Slab, batch_size: int) -> None: ...

    def predict(self, slab: Slab, batch_size: int) -> list[np.ndarray]:
        found = [self.outputs_of(batch) for batch in slab.batches(batch_size)]
        return [np.concatenate(batches) for batches in zip(*found)] if len(found) > 1 else found[0]

    @abc.abstractmethod
    def outputs_of(self, batch: Slab) -> list[np.ndarray]:
        """The model's outputs for a batch, as float32."""

    # --- columns ---

    def require_values(self, dataset: Dataset) -> None:
        """Refuse rows with values that an Embedding or a loss cannot take."""
        for name, place, scale, layer, size in self._lookups:
            least, most = dataset.range(place)
            require_known(name, layer, size, least / scale, most / scale)
        for name, place, loss in self._targets:
            require_probabilities(name, loss, *dataset.range(place))

    def model_inputs(self, batch: list[Any]) -> Any:
        """The packed columns of a batch in the form in which the model takes them."""
        tensors = [column(batch[packed]) for column, packed in zip(self.input_columns, self._packed_inputs)]
        return self._structured(tensors, "input", self.model.inputs)

    def step_data(self, what: str, batch: list[Any]) -> tuple[Any, ...]:
        """A batch as Keras' train_step or test_step takes it: (x, y), and to train with weights those of the rows.

        As in Keras, class weights do not weigh what is evaluated: the losses of all configurations have one unit.
        """
        from keras import ops

        self._batch_rows = batch[0].shape[0] or ops.shape(batch[0])[0]
        if self.steps:
            return self._step_data_of_steps(what, batch)
        targets = [column(batch[packed]) for column, packed in zip(self.output_columns, self._packed_outputs)]
        y = self._structured(targets, "output", self.model.outputs)
        of_rows = None if self._row_weights is None else batch[self._row_weights]
        weights = class_weights.of_batch(of_rows, targets[0], self._class_weights) if what == "train" else None
        return (self.model_inputs(batch), y) if weights is None else (self.model_inputs(batch), y, weights)

    def _step_data_of_steps(self, what: str, batch: list[Any]) -> tuple[Any, ...]:
        """As ``step_data``, if each target has a value for each step of a row.  Steps without a label do not count."""
        assert self.columns is not None
        (place,), (target,) = self._packed_outputs, self.output_columns  # packing gives such models one target
        column, packed = self.columns["outputs"][place - len(self.input_columns)], batch[place]
        self._labelled, known = steps.labelled(column, packed), steps.known(column, packed)
        of_rows = None if self._row_weights is None else batch[self._row_weights]
        weights = class_weights.of_batch(of_rows, known, self._class_weights) if what == "train" else None
        y = self._structured([target(known)], "output", self.model.outputs)
        return self.model_inputs(batch), y, steps.over_labelled(weights, self._labelled)

    def _structured(self, tensors: list[Any], end: str, flat: list[Any]) -> Any:
        """The tensors as the single tensor, list or dict that the model takes."""
        import keras

        if (
            isinstance(self.model, keras.Sequential)
            or len(flat) == 1
            and not isinstance(getattr(self.model, end), (list, tuple, dict))
        ):
            return tensors[0]
        return keras.tree.pack_sequence_as(getattr(self.model, end), tensors)

    def _try_one_row(self) -> None:
        """Have the loss and the metrics build their variables, and raise their errors about these shapes, now."""
        assert self.columns is not None
        metric_states.require_small_auc(self.model)
        columns = self.columns["inputs"] + self.columns["outputs"]
        row = [np.zeros((1, *column["shape"]), column["dtype"]) for column in columns]
        self.model._symbolic_build(data_batch=self.step_data("train", row))
        metric_states.require_small(self.model)
        if self.steps:
            steps.count_labelled(self.model, lambda: self._labelled)
        else:
            metric_states.weigh_output_losses(self.model, lambda: self._batch_rows)

    def _fit_inputs(self, columns: list[dict[str, Any]]) -> None:
        tensors = self.model.inputs
        self._packed_inputs = _match([tensor.name for tensor in tensors], columns, "input")
        self.input_columns = [
            input_column(columns[packed], tuple(tensor.shape[1:]), str(tensor.dtype))
            for tensor, packed in zip(tensors, self._packed_inputs)
        ]

        for tensor, packed in zip(tensors, self._packed_inputs):
            for layer in self.model._flatten_layers():
                if type(layer).__name__ == "Embedding" and _first_input(layer) is tensor:
                    column = columns[packed]
                    scale = float(column.get("scale") or 1.0)
                    self._lookups.append((column["name"], packed, scale, layer.name, layer.input_dim))

    def _step_behind(self, cut: FrozenBeginning, configuration: dict[str, Any], layout: dict[str, Any]) -> None:
        """Have steps begin behind the frozen layers.  The state stays that of the whole model."""
        features, found = iter(cut.body.outputs), []
        for place in cut.sources:
            if place is not None:
                found.append((layout["inputs"][self._packed_inputs[place]], self.input_columns[place]))
            else:
                tensor = next(features)
                column = {"name": tensor.name, "dtype": cut.type, "shape": list(tensor.shape[1:])}
                found.append((column, input_column(column, tuple(tensor.shape[1:]), str(tensor.dtype))))
        build.compile_as(cut.head, self.model, configuration["compile"])
        self.model = cut.head
        self.sources = [None if place is None else self._packed_inputs[place] for place in cut.sources]
        self._body_columns = list(zip(self.input_columns, self._packed_inputs))
        self.columns = {**layout, "inputs": [column for column, _ in found]}
        self.input_columns, self._packed_inputs = [column for _, column in found], list(range(len(found)))

    # --- what the frozen layers give ---

    @property
    def features_key(self) -> str:
        assert self.cut is not None
        return repr([self.cut.key, self.sources, [packed for _, packed in self._body_columns]])

    def features_name(self) -> str:
        known = self.known_frozen
        if known is None or not self._body_places <= {*known.places}:
            return self._features_name()
        if known.sha256 not in self._features_names:
            self._features_names[known.sha256] = self._features_name()
        return self._features_names[known.sha256]

    @functools.cached_property
    def _body_places(self) -> frozenset[int]:
        """The places in the state of the weights before the cut."""
        assert self.cut is not None
        places = {id(variable): place for place, variable in enumerate(self._state)}
        return frozenset(places.get(id(weight), -1) for weight in self.cut.body.weights)

    def _features_name(self) -> str:
        assert self.cut is not None
        digest = hashlib.blake2b(self.features_key.encode())
        for value in self.values_of(self.cut.body.weights):
            digest.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
        return digest.hexdigest()

    def features_of(self, batch: Slab) -> list[np.ndarray]:
        import keras

        assert self.cut is not None
        found = self.cut.body(self.body_inputs(batch.gathered(batch.dataset.inputs)), training=False)
        return [np.asarray(one, "float32") for one in keras.tree.flatten(found)]

    def body_inputs(self, batch: Sequence[Any]) -> list[Any]:
        """As ``model_inputs``, for the layers before the cut."""
        return [column(batch[packed]) for column, packed in self._body_columns]

    def _fit_outputs(self, columns: list[dict[str, Any]], losses: Any) -> None:
        names = list(getattr(self.model, "output_names", None) or [self.model.layers[-1].name])
        order = _match(names, columns, "output")
        self.output_columns = [
            output_column(columns[packed], tuple(shape), loss_name(losses, number, name))
            for number, (name, shape, packed) in enumerate(zip(names, self.outputs, order))
        ]
        if self.steps:
            steps.require_outputs(names, [tuple(shape) for shape in self.outputs], self.steps)
        self._packed_outputs = [len(self.input_columns) + packed for packed in order]
        assert self.layout is not None
        self._targets = [
            (columns[packed]["name"], len(self.layout["inputs"]) + packed, loss_name(losses, number, name))
            for number, (name, packed) in enumerate(zip(names, order))
            if columns[packed].get("kind") != "class" and takes_probabilities(loss_name(losses, number, name))
        ]


def _not_joint() -> ConfigurationFailed:
    return ConfigurationFailed(
        "this engine cannot add up the gradients of several segments", hint="Leave out the option parallel."
    )


def _first_input(layer: Any) -> Any:
    """The tensor that a layer is called on first; None if there is none."""
    nodes = getattr(layer, "_inbound_nodes", ())
    return next(iter(nodes[0].input_tensors), None) if nodes else None


def _match(names: list[str], columns: list[dict[str, Any]], end: str) -> list[int]:
    """The packed column of each of the model's inputs or outputs: by name if the names are the same, else in order."""
    if len(names) != len(columns):
        raise ConfigurationFailed(
            f"the model has {counted(len(names), end)} but the data has {len(columns)} "
            f"({', '.join(column['name'] for column in columns)})"
        )
    packed = [column["name"] for column in columns]
    if sorted(names) == sorted(packed):
        return [packed.index(name) for name in names]
    return list(range(len(names)))
