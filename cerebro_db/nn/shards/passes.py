"""The order in which a batch goes through the shards of a model, and what TensorFlow computes of each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebro_db.nn.shards import graph
from cerebro_db.nn.shards.graph import Shard
from cerebro_db.nn.shards.steps import Portion, Steps
from cerebro_db.nn.shards.store import Extent


class ShardPasses:
    """The functions of a program's shards, traced once, and the order in which a batch goes through them."""

    def __init__(self, program: Any) -> None:
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
        self._backward_is_traced = False

    # -- what the functions share --

    @functools.cached_property
    def steps(self) -> Steps:
        return Steps(self._program)

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
        for shard, after in zip(shards, shards[1:]):
            program.bring(shard.places, program.spans(after.places))
            leaving, added = shard.forward(carried[-1])
            if not shard.active:
                program.put_places(shard.written)
            program.drop(shard.places)
            carried.append(leaving)
            penalties += added
            program.listen()
        program.bring(self.last.places, self.last.first_slots or self._before(self.last))
        gradients, upstream = self.last.loss(carried.pop(), columns, penalties)
        self._trace_backward()
        self._finish(self.last, gradients)
        for shard in reversed(shards[:-1]):
            entering = carried.pop()
            if not shard.active:
                continue
            program.bring(shard.places, shard.first_slots or self._before(shard))
            gradients, upstream = shard.backward(entering, upstream)
            del entering
            self._finish(shard, gradients)
            program.listen()

    def _trace_backward(self) -> None:
        """Before the first step: which weights have gradients, and so which part closes a batch, is known only then."""
        if not self._backward_is_traced:
            for shard in reversed(self.shards[:-1]):
                if shard.active:
                    shard.trace_backward()
            self._backward_is_traced = True

    def _before(self, shard: _ShardFunctions) -> list[Extent]:
        """What is read after this shard went backward."""
        before = next((one for one in reversed(self.shards[: shard.number]) if one.active), None)
        return [] if before is None else self._program.spans(before.places)

    def _finish(self, shard: _ShardFunctions, gradients: list[Any]) -> None:
        """The part of the optimizer's step that belongs to a shard; what is ready goes to the file."""
        program = self._program
        closing = self._closing
        for group, after in itertools.zip_longest(shard.groups, shard.groups[1:]):
            following = [span for part in after for span in part.slots] if after else self._before(shard)
            slots = program.take([span for part in group for span in part.slots], following)
            spans: list[Extent] = []
            values: list[Any] = []
            for part in group:
                own = [slots.pop(0) for _ in part.slots]
                values += self.steps.step(part, gradients[part.gradient], own, part is closing)
                spans += [part.weight, *part.slots]
                if part.last:
                    gradients[part.gradient] = None
                    program.drop([part.weight.place])
            del own
            program.put(spans, values)
            program.listen()
        program.put_places(shard.written)
        program.drop(shard.places)

    @property
    def _closing(self) -> Portion | None:
        """The last part that the optimizer changes in a batch."""
        return next((shard.groups[-1][-1] for shard in self.shards if shard.groups), None)

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
            following = shards[number + 1].places if number + 1 < len(shards) else ()
            program.bring(shard.places, program.spans(following))
            for place in range(len(batches)):
                if shard is self.last:
                    end(place, carried[place], penalties[place])
                else:
                    carried[place], added = shard.inferred(carried[place])
                    penalties[place] += added
            if len(shards) > 1 or program.volatile:
                program.drop(shard.places)
            program.listen()


class _ShardFunctions:
    """What TensorFlow computes of a shard."""

    def __init__(self, passes: ShardPasses, shard: Shard, number: int, trained: set[int], behind: set[int]) -> None:
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
        self._groups: list[list[Portion]] | None = None
        self._sparse: set[int] = set()  # the places of weights whose gradients are of some rows only

    @functools.cached_property
    def _own(self) -> set[int]:
        return {id(variable) for variable in self.shard.variables}

    @property
    def groups(self) -> list[list[Portion]]:
        """The parts of the weights that the optimizer changes, and of which the slots are read together."""
        if self._groups is None:
            self._groups = self._passes.steps.groups(self.weights, self._sparse)
        return self._groups

    @property
    def first_slots(self) -> list[Extent]:
        return [span for part in self.groups[0] for span in part.slots] if self.groups else []

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

    def trace_backward(self) -> None:
        self._backward.get_concrete_function()

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
        self._sparse = {place for place, one in enumerate(weights) if isinstance(one, tf.IndexedSlices)}
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
        # A mask that a layer was called with may be of numbers.
        return [*leaving, *(backend.cast(mask, "bool") for mask in masks if mask is not None)]

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


def _is_float(tensor: Any) -> bool:
    return "float" in str(tensor.dtype)
