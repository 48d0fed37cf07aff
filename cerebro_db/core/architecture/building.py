"""Builds a model for the inputs and outputs of a packed table: the Keras JSON, and the loss for each output.

A kind decides what the first layers make of the inputs (beginnings.py) and which layers follow (bodies.py).  All kinds
end with a layer for each output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BadData, InvalidArgument
from ..packing.distributions import KNOTS
from ..packing.features import NumberFeature
from ..packing.layout import Layout, Variable
from ..packing.preparation import PACK_AGAIN, Measured
from . import beginnings, bodies, trees
from .graph import ZEROS, Graph

Json = dict[str, Any]

NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")  # of a layer, for all engines

# kind -> parameter -> (default, lowest, highest)
EMBEDDING, LINEAR, BINS = (16, 0, 256), (1, 0, 1), (0, 0, KNOTS - 1)
OF_ALL: dict[str, tuple[float, float, float]] = {"dropout": (0.1, 0.0, 0.95), "group_statistics": (0, 0, 1)}
PARAMETERS: dict[str, dict[str, tuple[float, float, float]]] = {
    "mlp": {"layers": (3, 0, 50), "units": (128, 1, 65536), "linear": LINEAR, "embedding": EMBEDDING, "bins": BINS,
            **OF_ALL},
    "resnet": {"blocks": (3, 0, 50), "units": (128, 1, 65536), "hidden": (256, 1, 65536), "linear": LINEAR,
               "embedding": EMBEDDING, "bins": BINS, **OF_ALL},
    "transformer": {"blocks": (2, 0, 50), "units": (64, 1, 4096), "heads": (4, 1, 64), "key": (16, 1, 1024),
                    "hidden": (128, 1, 65536), **OF_ALL},
    "lstm": {"layers": (1, 1, 10), "units": (64, 1, 4096), "embedding": EMBEDDING, **OF_ALL},
    "conv1d": {"blocks": (2, 1, 20), "filters": (64, 1, 4096), "kernel": (5, 1, 1024), "units": (64, 1, 65536),
               "embedding": EMBEDDING, **OF_ALL},
    "cnn": {"blocks": (2, 1, 20), "filters": (32, 1, 4096), "kernel": (3, 1, 64), "units": (128, 1, 65536),
            "embedding": EMBEDDING, **OF_ALL},
    trees.KIND: {"rounds": (500, 1, 10_000), "depth": (6, 1, 12), "rate": (0.1, 0.001, 1.0)},
}  # fmt: skip
# They decide which layers there are.
STRUCTURE = ("layers", "blocks", "linear", "embedding", "bins", "group_statistics", "rounds", "depth", "rate")


def architecture(kind: str, layout: Layout, parameters: Json | None, where: str) -> Json:
    """What ``to_json()`` of a compiled Keras model would return."""
    if kind not in PARAMETERS:
        raise InvalidArgument(f"{where}: there is no kind {kind!r}.", hint=f"Kinds: {', '.join(PARAMETERS)}.")
    chosen = parameters_of(kind, parameters, where)
    if chosen.get("bins") and not _has_edges(layout):
        raise BadData(
            f"{where}: bins cannot be {chosen['bins']}: an earlier version has packed the table, without the quantiles"
            " of its numbers.",
            hint=PACK_AGAIN,
        )
    named = _names([*layout.inputs, *layout.outputs])
    graph = Graph(set(named), bool(chosen.get("group_statistics")))
    inputs = list(zip(layout.inputs, named))
    outputs = list(zip(layout.outputs, named[len(layout.inputs) :]))
    if kind == trees.KIND:
        trees.require_fitting(layout.inputs, layout.outputs, chosen, layout.windows is not None, where)
        scores = trees.body(graph, inputs, layout.outputs, chosen)
        graph.output(_end_of_trees(graph, *outputs[0], scores))
    else:
        last = BODIES[kind](graph, inputs, layout.windows is not None, chosen, where)
        for variable, name in outputs:
            graph.output(_end(graph, variable, name, last, where))
    graph.inputs = named[: len(layout.inputs)]  # those without a name of their own are told by their order
    return graph.model(kind, _compiled([(name, loss(variable)) for variable, name in outputs]))


def can_have_bins(layout: Layout) -> bool:
    """Whether bins change a model of these columns."""
    return layout.windows is None and bool(_numbers(layout)) and _has_edges(layout)


def _has_edges(layout: Layout) -> bool:
    return all(feature.edges for feature in _numbers(layout))


def _numbers(layout: Layout) -> list[NumberFeature]:
    features = [feature for variable in layout.inputs for feature in variable.preparation.features]
    return [feature for feature in features if isinstance(feature, NumberFeature)]


def loss(variable: Variable) -> str:
    return "mse" if variable.target == "real" else "categorical_crossentropy"


def metric(variable: Variable) -> str:
    return "mae" if variable.target == "real" else "accuracy"


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


def parameters_of(kind: str, parameters: Json | None, where: str) -> Json:
    """The parameters of a kind, with defaults; an error if one of those given cannot be used."""
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidArgument(f"{where}: the parameters must be a JSON object.", hint='For instance {"units": 64}.')
    known = PARAMETERS[kind]
    chosen: Json = {name: default for name, (default, _, _) in known.items()}
    for name, value in (parameters or {}).items():
        if name not in known:
            raise InvalidArgument(f"{where}: {kind} has no parameter {name!r}.", hint=f"It has {', '.join(known)}.")
        default, low, high = known[name]
        if isinstance(value, str) and value.startswith("$") and name not in STRUCTURE:
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


# -- the kinds -----------------------------------------------------------------------------------------------

Inputs = Sequence[tuple[Variable, str]]


def _of_vectors(body: Callable[[Graph, str, Json], str]) -> Callable[..., str]:
    def build(graph: Graph, inputs: Inputs, windowed: bool, chosen: Json, where: str) -> str:
        beginning = graph.joined(_vectors(graph, inputs, windowed, chosen))
        end = body(graph, beginning, chosen)
        # The output layer then is a linear model of the inputs beside the layers between.
        return graph.joined([end, beginning]) if chosen["linear"] and end != beginning else end

    return build


def _of_tokens(graph: Graph, inputs: Inputs, windowed: bool, chosen: Json, where: str) -> str:
    return bodies.transformer(graph, beginnings.tokens(graph, inputs, chosen["units"], windowed, where), chosen)


def _of_series(kind: str, body: Callable[[Graph, str, int, Json], str]) -> Callable[..., str]:
    def build(graph: Graph, inputs: Inputs, windowed: bool, chosen: Json, where: str) -> str:
        read = [one for one in inputs if beginnings.is_series(one[0], windowed)]
        if not read:
            raise _unfit(kind, inputs, "series: windows of rows (the argument sequence of cerebro.pack), texts, and"
                         " arrays of one or two dimensions", where)  # fmt: skip
        if windowed:
            steps = [tensor for one, name in read for tensor in beginnings.series(graph, one, name, windowed)]
            return body(graph, graph.joined(steps), read[0][0].shape[0], chosen)
        ends = []
        for one, name in read:
            (tensor,) = beginnings.series(graph, one, name, windowed)
            ends.append(body(graph, tensor, one.shape[0], chosen))
        return _beside_others(graph, ends, [one for one in inputs if one not in read], chosen)

    return build


def _of_images(graph: Graph, inputs: Inputs, windowed: bool, chosen: Json, where: str) -> str:
    read = [one for one in inputs if beginnings.is_image(one[0], windowed)]
    if not read:
        raise _unfit("cnn", inputs, "images: arrays of two or three dimensions (height, width, channels)", where)
    ends = [
        bodies.cnn(graph, beginnings.image(graph, one, name), one.shape[0], one.shape[1], chosen) for one, name in read
    ]
    return _beside_others(graph, ends, [one for one in inputs if one not in read], chosen)


def _beside_others(graph: Graph, ends: list[str], others: Inputs, chosen: Json) -> str:
    """A layer that brings all inputs together."""
    joined = graph.joined([*ends, *_vectors(graph, others, False, chosen)])
    found = graph.layer("Dense", joined, units=chosen["units"], activation="relu")
    return bodies.dropped(graph, found, chosen)


def _vectors(graph: Graph, inputs: Inputs, windowed: bool, chosen: Json) -> list[str]:
    return [
        tensor
        for variable, name in inputs
        for tensor in beginnings.vectors(graph, variable, name, chosen["embedding"], chosen.get("bins", 0), windowed)
    ]


def _unfit(kind: str, inputs: Inputs, what: str, where: str) -> BadData:
    listed = ", ".join(f"{one.name} {list(one.shape)}" for one, _ in inputs)
    fit = [other for other in PARAMETERS if other in ("mlp", "resnet", "transformer")]
    return BadData(
        f"{where}: {kind} reads {what}. The packed table has none; its inputs are {listed}.",
        hint=f"These kinds fit: {', '.join(fit)}.",
    )


BODIES: dict[str, Callable[..., str]] = {
    "mlp": _of_vectors(bodies.mlp),
    "resnet": _of_vectors(bodies.resnet),
    "transformer": _of_tokens,
    "lstm": _of_series("lstm", bodies.lstm),
    "conv1d": _of_series("conv1d", bodies.conv1d),
    "cnn": _of_images,
}


# -- the outputs ---------------------------------------------------------------------------------------------


def _end(graph: Graph, variable: Variable, name: str, tensor: str, where: str) -> str:
    """The layer of an output.  It begins with zeros: the first predictions are the mean, or equal probabilities."""
    if variable.target != "real":
        if len(variable.shape) != 1:
            raise BadData(
                f"{where}: the target {variable.name} has the shape {list(variable.shape)} per row.",
                hint="cerebro.architecture() makes outputs of one dimension only. Write the JSON with Keras.",
            )
        return _dense(graph, tensor, name, units=variable.shape[0], activation="softmax")
    preparation = variable.preparation
    if isinstance(preparation, Measured):
        # The layers before learn a number around 0; predictions and the loss are in the unit of the target.
        found = _dense(graph, tensor, units=variable.elements)
        return graph.measured(found, name, variable.elements, preparation.deviation, preparation.mean)
    if len(variable.shape) == 1:
        return _dense(graph, tensor, name, units=variable.elements)
    found = _dense(graph, tensor, units=variable.elements)
    return graph.layer("Reshape", found, name, target_shape=list(variable.shape))


def _end_of_trees(graph: Graph, variable: Variable, name: str, scores: str) -> str:
    if variable.target != "real":
        if trees.scores_of(variable) == 1:
            both = graph.joined([scores, scores])
            scores = graph.layer("Rescaling", both, scale=[-0.5, 0.5], offset=[0.0, 0.0])
        return graph.layer("Softmax", scores, name)
    preparation = variable.preparation
    deviation, mean = (preparation.deviation, preparation.mean) if isinstance(preparation, Measured) else (1.0, 0.0)
    return graph.layer("Rescaling", scores, name, scale=deviation, offset=mean)


def _dense(graph: Graph, tensor: str, name: str = "", **config: Any) -> str:
    return graph.layer("Dense", tensor, name, kernel_initializer=ZEROS, **config)
