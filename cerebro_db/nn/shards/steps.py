"""The optimizer's step of a cut model: part by part, in memory that the processor has at hand.

Most optimizers change each number of a weight by itself.  A large weight is then changed in parts of some megabytes,
whatever its shape: its slots are read from the file, changed and written part by part, and what an optimizer computes
meanwhile is as small.  One traced function serves all parts of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.models import build
from cerebro_db.nn.models.dtypes import item_bytes
from cerebro_db.nn.shards.store import Extent

# Optimizers that change each weight by itself. Their variables that belong to no weight are told by these names.
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Nadam", "Ftrl", "Lion", "Lamb")
OF_WHOLE_WEIGHTS = ("Lamb",)  # of these, those that need the norm of a weight
REFUSED = {  # arguments of optimizers
    "global_clipnorm": "the norm over all weights is known only when the last gradient is",
    "use_ema": "the averages of weights would be a second model",
    "gradient_accumulation_steps": "gradients would be kept beside the weights",
}
PART_BYTES = 4 << 20  # of a weight
TOGETHER = 64  # numbers; a part has a multiple of so many, so that vectors of numbers begin where they begin uncut


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


def changes_parts(optimizer: Any, weight: Any) -> bool:
    """Whether the optimizer changes each number of a weight by itself, given a gradient for each."""
    return (
        type(optimizer).__name__ not in OF_WHOLE_WEIGHTS
        and getattr(optimizer, "clipnorm", None) is None
        and weight.constraint is None
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


# What a part is: a whole weight, rows of a weight with a sparse gradient, or any numbers of a weight
WHOLE, ROWS, NUMBERS = "whole", "rows", "numbers"


class Portion(NamedTuple):
    """Numbers of a weight that are changed together."""

    gradient: int  # its place among those of the shard
    weight: Extent
    slots: tuple[Extent, ...]
    how: str
    shape: tuple[int, ...]
    last: bool  # of the weight


class Steps:
    """The functions of one program's optimizer, traced once for each size."""

    def __init__(self, program: Any) -> None:
        self._program, self._tf, self._optimizer = program, program._tf, program.model.optimizer
        known = {id(slot) for slot, _ in program._slots}
        self._lists = {  # the optimizer's lists of slots, each with one of each weight
            name: value
            for name, value in vars(self._optimizer).items()
            if isinstance(value, list) and value and all(id(slot) in known for slot in value)
        }
        self._functions: dict[Any, _Function] = {}

    def groups(self, weights: Sequence[Any], sparse: set[int]) -> list[list[Portion]]:
        """The parts of a shard's weights, and of which of them the slots are read together.

        ``sparse``: the weights whose gradients are of some rows only.
        """
        found: list[list[Portion]] = []
        left = 0
        for gradient, weight in enumerate(weights):
            for part in self._parts(gradient, weight, gradient in sparse):
                size = (part.weight.stop - part.weight.start) * item_bytes(str(weight.dtype))
                if left < size:
                    found.append([])
                    left = PART_BYTES
                found[-1].append(part)
                left -= size
        return found

    def step(self, part: Portion, gradient: Any, slots: Sequence[Any], closing: bool) -> list[Any]:
        """The functions that give the new values of the weight's part and of its slots.

        ``closing``: whether it is the last part of a batch.
        """
        weight = self._program._state[part.weight.place]
        key = (part.how, part.shape, str(weight.dtype) if part.how == NUMBERS else id(weight))
        if key not in self._functions:
            self._functions[key] = _Function(self, weight, part, gradient)
        return self._functions[key](part, gradient, slots, closing)

    def _parts(self, gradient: int, weight: Any, sparse: bool) -> Iterator[Portion]:
        program = self._program
        whole = program._store.whole(program._places[id(weight)])
        slots = [program._store.whole(program._places[id(slot)]) for slot in self.slots(weight).values()]
        if not changes_parts(self._optimizer, weight):
            yield Portion(gradient, whole, tuple(slots), WHOLE, tuple(weight.shape), True)
            return
        how, of_row = (ROWS, tuple(weight.shape[1:])) if sparse else (NUMBERS, ())
        row = math.prod(of_row)
        together = TOGETHER * max(1, PART_BYTES // (TOGETHER * row * item_bytes(str(weight.dtype))))
        for start in range(0, whole.stop, together * row):
            stop = min(start + together * row, whole.stop)
            own, *theirs = (span._replace(start=start, stop=stop) for span in (whole, *slots))
            yield Portion(gradient, own, tuple(theirs), how, ((stop - start) // row, *of_row), stop == whole.stop)

    def slots(self, weight: Any) -> dict[str, Any]:
        """Those of a weight, by the names of the optimizer's lists."""
        place = self._optimizer._get_variable_index(weight)
        return {name: slots[place] for name, slots in self._lists.items()}

    def optimizer(self, weight: Any, slots: dict[str, Any]) -> Any:
        """One that has the same numbers as the model's, and changes nothing but this weight."""
        found = object.__new__(type(self._optimizer))
        found.__dict__.update(vars(self._optimizer))
        found.__dict__.update({name: [slot] for name, slot in slots.items()})
        found.__dict__.update(_trainable_variables=[weight], _trainable_variables_indices={found._var_key(weight): 0})
        return found


class _Function:
    """Changes parts of the same shape."""

    def __init__(self, steps: Steps, weight: Any, part: Portion, gradient: Any) -> None:
        self._program, self._tf = steps._program, steps._tf
        self._how, self._shape = part.how, part.shape
        tf, slots = self._tf, steps.slots(weight)
        with build.no_values():
            self._variables = [_like(one, part.shape) for one in (weight, *slots.values())]
        for variable in self._variables:
            without_memory(variable)
        self._variables[0].constraint = weight.constraint
        self._optimizer = steps.optimizer(self._variables[0], dict(zip(slots, self._variables[1:])))
        if self._how == NUMBERS:
            specification = tf.TensorSpec([None], tf.as_dtype(str(weight.dtype)))
        else:
            specification = _specification(tf, gradient, weight)
        signature = [specification, tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.bool)]
        self._function = tf.function(self._traced, autograph=False).get_concrete_function(*signature)

    def __call__(self, part: Portion, gradient: Any, slots: Sequence[Any], closing: bool) -> list[Any]:
        tf, program = self._tf, self._program
        weight = program.tensor_of(part.weight.place)
        if self._how == NUMBERS:
            gradient = tf.reshape(gradient, [-1])
        if self._how != WHOLE:
            size = part.weight.stop - part.weight.start
            weight = tf.reshape(tf.slice(tf.reshape(weight, [-1]), [part.weight.start], [size]), self._shape)
        values = [weight, *(program.as_tensor(slot.reshape(self._shape)) for slot in slots)]
        del weight
        for variable in self._variables:
            program.assign(variable, values.pop(0))  # it is the only one that refers to this memory then
        with program.operations:
            self._function(gradient, tf.constant(part.weight.start, tf.int64), tf.constant(closing))
        found = [program.value_of(variable) for variable in self._variables]
        for variable in self._variables:
            program.empty(variable)
        return found

    def _traced(self, gradient: Any, start: Any, closing: Any) -> None:
        """What belongs to no weight, such as the count of steps, changes with the last part of a batch only."""
        tf, program = self._tf, self._program
        if self._how == NUMBERS:
            gradient = gradient[start : start + self._shape[0]]
        elif self._how == ROWS:
            gradient = self._of_rows(gradient, start // math.prod(self._shape[1:]))
        shared = [program._state[place].value for place in sorted(program._resident)]
        before = [tf.identity(variable) for variable in shared]
        self._optimizer.apply([gradient], self._variables[:1])
        for variable, value in zip(shared, before):
            variable.assign(tf.where(closing, variable, value))

    def _of_rows(self, gradient: Any, first: Any) -> Any:
        """Of a sparse gradient, what belongs to the rows of the part."""
        tf = self._tf
        places = tf.cast(gradient.indices, tf.int64) - first
        mine = (places >= 0) & (places < self._shape[0])
        return tf.IndexedSlices(
            tf.boolean_mask(gradient.values, mine), tf.boolean_mask(places, mine), tf.constant(self._shape, tf.int64)
        )


def _like(variable: Any, shape: tuple[int, ...]) -> Any:
    import keras

    return keras.Variable("zeros", shape=shape, dtype=variable.dtype, trainable=variable.trainable, name="part")


def _specification(tf: Any, gradient: Any, weight: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):  # of the rows that an Embedding looked up
        shape = None if gradient.dense_shape is None else gradient.dense_shape.dtype
        return tf.IndexedSlicesSpec(weight.shape, gradient.dtype, gradient.indices.dtype, shape, [None])
    return tf.TensorSpec(gradient.shape, gradient.dtype)
