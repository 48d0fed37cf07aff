"""The adapters of a Keras model: variables within frozen layers that train, added when the layers have been built.

A state has the weights of the layers first, as without adapters, and those of the adapters behind them.  So the frozen
body is one stretch of it, and weights that were given for the layers are a beginning of those of the model.

Keras comes as an argument: the trainer and the client have it, and core imports no framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ConfigurationFailed
from .document import ALPHA, BIAS, BOTTLENECK, KEY, LAYER, LORA, PARTS, RATE, ends

Json = dict[str, Any]


def install(keras: Any, model: Any, architecture: Json) -> list[Callable[[], None]]:
    """Add the adapters that the document of an architecture lists to the built model.

    Each function that is returned adds one to the weights of its layer; a bottleneck has none.
    """
    merging = []
    for one in architecture.get(KEY, ()):
        layer = _found(model, one[LAYER])
        if LORA in one:
            alpha, rate = float(one.get(ALPHA, one[LORA])), float(one.get(RATE, 0))
            add = _add_low_rank_rows if isinstance(layer, keras.layers.Embedding) else _add_low_rank
            merging.append(add(keras, layer, one[LORA], alpha / one[LORA], rate))
        elif BIAS in one:
            merging.append(_add_to_biases(keras, layer))
        else:
            _add_bottleneck(keras, layer, one[BOTTLENECK])
    return merging


def are(variable: Any) -> bool:
    """Whether a variable is part of an adapter."""
    return getattr(variable, "of_adapter", False)


def weights(model: Any) -> list[Any]:
    """The weights of a model in the order of its state."""
    every = list(model.weights)
    return [one for one in every if not are(one)] + [one for one in every if are(one)]


def of_layers(variables: Sequence[Any]) -> int:
    """How many of the first weights are those of the layers."""
    return sum(not are(one) for one in variables)


def _found(model: Any, path: str) -> Any:
    """The layer at a path.  What is on the way may train, but for its own weights."""
    owner: Any = model
    names = path.split("/")
    while names:
        owner._trainable = True  # the property would let all in it train
        layers = {layer.name: layer for layer in getattr(owner, "layers", ())}
        count = next((n for n in range(len(names), 0, -1) if "/".join(names[:n]) in layers), 0)
        if count:
            owner, names = layers["/".join(names[:count])], names[count:]
        elif len(names) == 1 and names[0] in PARTS:
            _let_train(owner)
            owner, names = getattr(owner, f"_{names[0]}_dense"), []
        else:
            raise ConfigurationFailed(f"the model has no layer {path} for an adapter")
    _let_train(owner)
    return owner


def _let_train(layer: Any) -> None:
    """Let the adapters in a layer train, and nothing else in it that does not train already."""
    if layer.trainable and any(are(variable) for variable in layer.weights):
        return  # another adapter is there
    layer.trainable = True
    for variable in layer.weights:
        variable.trainable = False


def _added(layer: Any, name: str, shape: Sequence[int], initializer: str) -> Any:
    layer._tracker.unlock()
    try:
        variable = layer.add_weight(name=name, shape=tuple(shape), initializer=initializer, dtype="float32")
    finally:
        layer._tracker.lock()
    variable.of_adapter = True
    return variable


def _calls(layer: Any, call: Callable[..., Any]) -> None:
    """Have a layer call this function, which gets the layer's own one first."""
    plain = layer.call

    def calling(*args: Any, **kwargs: Any) -> Any:
        return call(plain, *args, **kwargs)

    object.__setattr__(layer, "call", calling)


def _add_low_rank(keras: Any, layer: Any, rank: int, scale: float, rate: float) -> Callable[[], None]:
    # Keras' own enable_lora() multiplies a and b first, and needs the gradient of the whole matrix for theirs.  The
    # heads of attention have a narrow matrix each with it: six times the numbers for MiniLM.
    ops = keras.ops
    before, after, whole, sizes = _equations(keras, layer)
    a = _added(layer, "lora_kernel_a", (math.prod(sizes[0]), rank), "he_uniform")
    b = _added(layer, "lora_kernel_b", (rank, math.prod(sizes[1])), "zeros")
    seeds = None
    if rate:
        layer._tracker.unlock()
        seeds = layer.lora_seeds = keras.random.SeedGenerator()
        layer._tracker.lock()
    activation = layer.activation

    def narrow(dtype: Any) -> tuple[Any, Any]:
        return (
            ops.cast(ops.reshape(a, (*sizes[0], rank)), dtype),
            ops.cast(ops.reshape(b, (rank, *sizes[1])), dtype),
        )

    def call(plain: Any, inputs: Any, training: Any = None, **kwargs: Any) -> Any:
        layer.__dict__["activation"] = None  # the sum goes through it
        try:
            found = plain(inputs, **kwargs)
        finally:
            layer.__dict__["activation"] = activation
        if seeds is not None and training:
            inputs = keras.random.dropout(inputs, rate, seed=seeds)
        into, out = narrow(inputs.dtype)
        if before is None:
            product = ops.matmul(ops.matmul(inputs, into), out)
        else:
            product = ops.einsum(after, ops.einsum(before, inputs, into), out)
        found = ops.add(found, ops.multiply(product, scale))
        return found if activation is None else activation(found)

    def merge() -> None:
        layer._kernel.assign_add(scale * ops.einsum(whole, *narrow("float32")))

    _calls(layer, call)
    return merge


def _add_low_rank_rows(keras: Any, layer: Any, rank: int, scale: float, rate: float) -> Callable[[], None]:
    """To an Embedding, whose inputs are numbers of rows: none of them is dropped."""
    ops = keras.ops
    a = _added(layer, "lora_embeddings_a", (layer.input_dim, rank), "he_uniform")
    b = _added(layer, "lora_embeddings_b", (rank, layer.output_dim), "zeros")

    def call(plain: Any, inputs: Any) -> Any:
        found = plain(inputs)
        narrow = ops.cast(ops.take(a, ops.cast(inputs, "int32"), axis=0), found.dtype)
        return ops.add(found, ops.multiply(ops.matmul(narrow, ops.cast(b, found.dtype)), scale))

    _calls(layer, call)
    return lambda: layer._embeddings.assign_add(scale * ops.matmul(a, b))


def _equations(keras: Any, layer: Any) -> tuple[str | None, str, str, tuple[list[int], list[int]]]:
    """What makes few numbers of an input, an output of these, and the whole matrix; its dimensions at either end.

    The first one is None for a layer that multiplies matrices.
    """
    if isinstance(layer, keras.layers.Dense):
        return None, "", "az,zb->ab", ([layer._kernel.shape[0]], [layer._kernel.shape[1]])
    given, _, rest = layer.equation.partition(",")
    kernel, _, output = rest.partition("->")
    found = ends(layer.equation)
    if found is None:
        raise ConfigurationFailed(
            f"the layer {layer.name} cannot have a low-rank product: in its equation {layer.equation} the matrix is not"
            " one from an input to an output"
        )
    (left, right), size = found, dict(zip(kernel, layer._kernel.shape))
    rank = next(one for one in "zyxwvutsrqponm" if one not in layer.equation)
    narrow = "".join(one for one in given if one not in left) + rank
    return (
        f"{given},{left}{rank}->{narrow}",
        f"{narrow},{rank}{right}->{output}",
        f"{left}{rank},{rank}{right}->{kernel}",
        ([size[one] for one in left], [size[one] for one in right]),
    )


def _add_to_biases(keras: Any, layer: Any) -> Callable[[], None]:
    ops = keras.ops
    name = "bias" if getattr(layer, "bias", None) is not None else "beta"
    bias = getattr(layer, name, None)
    if bias is None:
        raise ConfigurationFailed(f"the layer {layer.name} has no biases")
    difference = _added(layer, f"{name}_difference", bias.shape, "zeros")

    def call(plain: Any, *args: Any, **kwargs: Any) -> Any:
        layer.__dict__[name] = ops.add(bias, difference)
        try:
            return plain(*args, **kwargs)
        finally:
            layer.__dict__[name] = bias

    _calls(layer, call)
    return lambda: bias.assign_add(difference)


def _add_bottleneck(keras: Any, layer: Any, units: int) -> None:
    ops = keras.ops
    output = layer.output
    size = None if isinstance(output, (list, tuple, dict)) else output.shape[-1]
    if size is None:
        raise ConfigurationFailed(f"the layer {layer.name} has not one output of a known size, as an adapter needs")
    down, down_bias = _added(layer, "down", (size, units), "he_uniform"), _added(layer, "down_bias", (units,), "zeros")
    up, up_bias = _added(layer, "up", (units, size), "zeros"), _added(layer, "up_bias", (size,), "zeros")

    def call(plain: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        inner = ops.relu(ops.add(ops.matmul(found, ops.cast(down, found.dtype)), ops.cast(down_bias, found.dtype)))
        more = ops.add(ops.matmul(inner, ops.cast(up, found.dtype)), ops.cast(up_bias, found.dtype))
        return ops.add(found, more)

    _calls(layer, call)
