"""Builds a model for the inputs and outputs of a packed table: the Keras JSON, and the loss for each output.

All kinds begin and end alike.  They begin with a vector of what the inputs hold: each number goes through a small layer
of its own, each category and each word is looked up, arrays are normalized.  They end with a layer for each output.
What is between is the kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BadData, InvalidArgument
from ..features import Category, Words
from ..layout import Layout, Variable
from ..preparation import Measured
from .graph import Graph

Json = dict[str, Any]

NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")  # of a layer, for all engines

OPTIMIZER = "AdamW(learning_rate=0.001, weight_decay=0.0001)"
MOST_EMBEDDED = 4096  # elements of all numbers together; more numbers are taken as they are
WIDEST_LOOKUP = 32

# kind -> parameter -> (default, lowest, highest)
COMMON = {"embedding": (16, 0, 256), "dropout": (0.1, 0.0, 0.95)}
PARAMETERS: dict[str, dict[str, tuple[float, float, float]]] = {
    "mlp": {"layers": (3, 0, 50), "units": (128, 1, 65536), **COMMON},
    "resnet": {"blocks": (3, 0, 50), "units": (128, 1, 65536), "hidden": (256, 1, 65536), **COMMON},
}


def architecture(kind: str, layout: Layout, parameters: Json | None, where: str) -> Json:
    """What ``to_json()`` of a compiled Keras model would return."""
    if kind not in PARAMETERS:
        raise InvalidArgument(f"{where}: there is no kind {kind!r}.", hint=f"Kinds: {', '.join(PARAMETERS)}.")
    chosen = _chosen(kind, parameters, where)
    named = _names([*layout.inputs, *layout.outputs])
    graph = Graph(set(named))
    begin = [
        tensor
        for variable, name in zip(layout.inputs, named)
        for tensor in _begin(graph, variable, name, chosen["embedding"], where)
    ]
    last = BODIES[kind](graph, graph.joined(begin), chosen)
    outputs = list(zip(layout.outputs, named[len(layout.inputs) :]))
    for variable, name in outputs:
        graph.output(_end(graph, variable, name, last, where))
    return graph.model(kind, _compiled([(name, loss(variable)) for variable, name in outputs]))


def loss(variable: Variable) -> str:
    return "mse" if variable.target == "real" else "categorical_crossentropy"


def metric(variable: Variable) -> str:
    return "mae" if variable.target == "real" else "accuracy"


def compile_params(layout: Layout, optimizer: str) -> str:
    """The parameters, as a model selection table holds them."""
    losses = [loss(variable) for variable in layout.outputs]
    metrics = [metric(variable) for variable in layout.outputs]
    if len(losses) == 1:
        return f"optimizer={optimizer!r}, loss={losses[0]!r}, metrics={metrics!r}"
    return f"optimizer={optimizer!r}, loss={losses!r}, metrics={[[one] for one in metrics]!r}"


def _compiled(losses: Sequence[tuple[str, str]]) -> Json:
    return {
        "optimizer": "adamw",
        "loss": losses[0][1] if len(losses) == 1 else dict(losses),
        "metrics": None,
        "loss_weights": None,
        "weighted_metrics": None,
        "run_eagerly": False,
        "steps_per_execution": 1,
        "jit_compile": False,
    }


def _chosen(kind: str, parameters: Json | None, where: str) -> Json:
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidArgument(f"{where}: parameters must be a JSON object.", hint='For instance {"units": 64}.')
    known = PARAMETERS[kind]
    chosen: Json = {name: default for name, (default, _, _) in known.items()}
    for name, value in (parameters or {}).items():
        if name not in known:
            raise InvalidArgument(f"{where}: {kind} has no parameter {name!r}.", hint=f"It has {', '.join(known)}.")
        default, low, high = known[name]
        # The number of layers decides which layers there are; the others can be filled in later.
        if isinstance(value, str) and value.startswith("$") and name not in ("layers", "blocks", "embedding"):
            chosen[name] = value
            continue
        fraction = isinstance(default, float)
        if type(value) not in ((int, float) if fraction else (int,)) or not low <= value <= high:
            raise InvalidArgument(
                f"{where}: {name} cannot be {value!r}.",
                hint=f"It must be {'a number' if fraction else 'an integer'} from {low} to {high}.",
            )
        chosen[name] = value
    return chosen


def _names(variables: Sequence[Variable]) -> list[str]:
    """The names of the variables, where a layer can have them; else ``input_1``, …  Then inputs are taken in order."""
    return [
        variable.name if NAME.fullmatch(variable.name) else f"{'output' if variable.target else 'input'}_{place}"
        for place, variable in enumerate(variables, 1)
    ]


# -- the inputs ----------------------------------------------------------------------------------------------


def _begin(graph: Graph, variable: Variable, name: str, embedding: int, where: str) -> list[str]:
    """Tensors of the shape (rows, elements)."""
    features = variable.preparation.features
    if variable.preparation.kind == "categories":
        tensor = graph.input(name, variable.shape, "int32")
        sizes = [feature.size for feature in features if isinstance(feature, Category)]
        return [_looked_up(graph, graph.element(tensor, place), size) for place, size in enumerate(sizes)]
    if variable.preparation.kind == "words":
        (words,) = [feature for feature in features if isinstance(feature, Words)]
        tensor = graph.input(name, variable.shape, "int32")
        # Without a mask: the mean of a text without words would be NaN.
        found = graph.layer("Embedding", tensor, input_dim=words.ids, output_dim=WIDEST_LOOKUP)
        return [graph.layer("GlobalAveragePooling1D", found)]
    tensor = graph.input(name, variable.shape, "float32")
    if variable.preparation.kind == "numbers":
        return [_embedded(graph, tensor, variable.elements, embedding)]
    if len(variable.shape) > 1:
        tensor = graph.layer("Flatten", tensor)
    return [graph.layer("BatchNormalization", tensor)]


def _looked_up(graph: Graph, tensor: str, size: int) -> str:
    width = max(2, min(WIDEST_LOOKUP, round(1.6 * size**0.56)))
    return graph.layer("Embedding", tensor, input_dim=size, output_dim=width)


def _embedded(graph: Graph, tensor: str, numbers: int, width: int) -> str:
    """Each number times a vector of its own, plus another, then ReLU: a bent line for each element of the vectors."""
    if not width or numbers * width > MOST_EMBEDDED:
        return tensor
    found = graph.layer(
        "EinsumDense", tensor, equation="bf,fe->bfe", output_shape=[numbers, width], bias_axes="fe",
        activation="relu", kernel_initializer=_normal(1.0), bias_initializer=_normal(1.0),
    )  # fmt: skip
    # The numbers themselves, too: a line needs no bends.
    return graph.joined([graph.layer("Flatten", found), tensor])


def _normal(deviation: float) -> Json:
    config = {"mean": 0.0, "stddev": deviation, "seed": None}
    return {"module": "keras.initializers", "class_name": "RandomNormal", "config": config, "registered_name": None}


# -- between -------------------------------------------------------------------------------------------------


def _mlp(graph: Graph, tensor: str, chosen: Json) -> str:
    for _ in range(chosen["layers"]):
        tensor = graph.layer("Dense", tensor, units=chosen["units"], activation="relu")
        tensor = _dropped(graph, tensor, chosen)
    return tensor


def _resnet(graph: Graph, tensor: str, chosen: Json) -> str:
    """As in Gorishniy et al., Revisiting Deep Learning Models for Tabular Data (2021), with layer normalization."""
    tensor = graph.layer("Dense", tensor, units=chosen["units"])
    for _ in range(chosen["blocks"]):
        inner = graph.layer("LayerNormalization", tensor)
        inner = graph.layer("Dense", inner, units=chosen["hidden"], activation="relu")
        inner = _dropped(graph, inner, chosen)
        inner = graph.layer("Dense", inner, units=chosen["units"])
        tensor = graph.layer("Add", [tensor, _dropped(graph, inner, chosen)])
    return graph.layer("ReLU", graph.layer("LayerNormalization", tensor))


def _dropped(graph: Graph, tensor: str, chosen: Json) -> str:
    return graph.layer("Dropout", tensor, rate=chosen["dropout"]) if chosen["dropout"] else tensor


BODIES: dict[str, Callable[[Graph, str, Json], str]] = {"mlp": _mlp, "resnet": _resnet}


# -- the outputs ---------------------------------------------------------------------------------------------


def _end(graph: Graph, variable: Variable, name: str, tensor: str, where: str) -> str:
    if variable.target != "real":
        if len(variable.shape) != 1:
            raise BadData(
                f"{where}: the target {variable.name} has the shape {list(variable.shape)} per row.",
                hint="This function knows targets of one dimension. Write the architecture's JSON with Keras.",
            )
        return graph.layer("Dense", tensor, name, units=variable.shape[0], activation="softmax")
    preparation = variable.preparation
    if isinstance(preparation, Measured):
        # The layers before learn a number around 0; predictions and the loss are in the unit of the target.
        found = graph.layer("Dense", tensor, units=variable.elements)
        return graph.layer("Rescaling", found, name, scale=preparation.deviation, offset=preparation.mean)
    if len(variable.shape) == 1:
        return graph.layer("Dense", tensor, name, units=variable.elements)
    found = graph.layer("Dense", tensor, units=variable.elements)
    return graph.layer("Reshape", found, name, target_shape=list(variable.shape))
