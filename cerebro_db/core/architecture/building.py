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
from ..parameters.kind_parameters import Amount, Parameter
from . import beginnings, bodies, trees
from .graph import ZEROS, Graph, Level
from .related import neighbourhoods, related_inputs
from .related.related_inputs import Inputs, Neighbourhood, Read

Json = dict[str, Any]

# Kinds whose last tensor has a vector for each step of a target.
STEPS_APART = ("transformer", "lstm", "conv1d", "cnn_lstm")
PINBALL = "Pinball"  # the loss of quantiles: nn/models/pinball.py
NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")  # of a layer, for all engines

# kind -> parameter
EMBEDDING, LINEAR, BINS = Amount(16, 0, 256), Amount(1, 0, 1), Amount(0, 0, KNOTS - 1)
RELATED = {related_inputs.RELATED: related_inputs.OF_RELATED}
OF_ALL: dict[str, Parameter] = {"dropout": Amount(0.1, 0.0, 0.95), "group_statistics": Amount(0, 0, 1), **RELATED}
OF_VECTORS: dict[str, Parameter] = {**OF_ALL, related_inputs.ENCODER: neighbourhoods.OF_ENCODER}
LEVEL = {"level": Amount(1, 0, 1)}  # of windows that forecast
PARAMETERS: dict[str, dict[str, Parameter]] = {
    "mlp": {"layers": Amount(3, 0, 50), "units": Amount(128, 1, 65536), "linear": LINEAR, "embedding": EMBEDDING,
            "bins": BINS, **OF_VECTORS, **LEVEL},
    "resnet": {"blocks": Amount(3, 0, 50), "units": Amount(128, 1, 65536), "hidden": Amount(256, 1, 65536),
               "linear": LINEAR, "embedding": EMBEDDING, "bins": BINS, **OF_VECTORS, **LEVEL},
    "transformer": {"blocks": Amount(2, 0, 50), "units": Amount(64, 1, 4096), "heads": Amount(4, 1, 64),
                    "key": Amount(16, 1, 1024), "hidden": Amount(128, 1, 65536), **OF_ALL, **LEVEL},
    "lstm": {"layers": Amount(1, 1, 10), "units": Amount(64, 1, 4096), "embedding": EMBEDDING, **OF_ALL, **LEVEL},
    "conv1d": {"blocks": Amount(2, 1, 20), "filters": Amount(64, 1, 4096), "kernel": Amount(5, 1, 1024),
               "units": Amount(64, 1, 65536), "embedding": EMBEDDING, **OF_ALL, **LEVEL},
    "cnn": {"blocks": Amount(2, 1, 20), "filters": Amount(32, 1, 4096), "kernel": Amount(3, 1, 64),
            "units": Amount(128, 1, 65536), "embedding": EMBEDDING, **OF_VECTORS},
    "cnn_lstm": {"blocks": Amount(5, 1, 10), "channels": Amount(64, 1, 1024), "kernel": Amount(5, 1, 1024),
                 "hidden": Amount(512, 1, 65536), "units": Amount(128, 1, 4096), "rows": Amount(10, 1, 1_000_000),
                 **OF_ALL},
    trees.KIND: {"rounds": Amount(500, 1, 10_000), "depth": Amount(6, 1, 12), "rate": Amount(0.1, 0.001, 1.0),
                 **RELATED},
}  # fmt: skip
# They decide which layers there are.
STRUCTURE = ("layers", "level", "blocks", "channels", "rows", "linear", "embedding", "bins", "group_statistics",
             "rounds", "depth", "rate", related_inputs.RELATED, related_inputs.ENCODER)  # fmt: skip


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
    related_inputs.require_related(layout, chosen, _defaults(kind), where)
    if kind == trees.KIND:
        chosen = trees.without_neighbourhoods(layout, chosen, where)
    read = related_inputs.read(layout, named[: len(layout.inputs)], chosen, where)
    graph = Graph(set(named), bool(chosen.get("group_statistics")), read.parts)
    outputs = list(zip(layout.outputs, named[len(layout.inputs) :]))
    graph.level = _level(layout, named) if chosen.get("level") and not graph.group_statistics else None
    for variable, name, dtype in read.unread:
        graph.input(name, variable.shape, dtype)
    if kind == trees.KIND:
        trees.require_fitting([one for one, _ in read.plain], layout.outputs, chosen, read.windowed, where)
        scores = trees.body(graph, read.plain, layout.outputs, chosen)
        graph.output(_end_of_trees(graph, *outputs[0], scores))
    else:
        last = BODIES[kind](graph, read, chosen, where)
        for variable, name in outputs:
            if graph.level is not None and graph.level.mean:
                graph.output(_forecast(graph, layout, variable, name, last))
            elif variable.steps:
                graph.output(_end_of_steps(graph, variable, name, last, apart=kind in STEPS_APART and read.every > 0))
            else:
                graph.output(_end(graph, variable, name, last, where))
    graph.inputs = named[: len(layout.inputs)]  # those without a name of their own are told by their order
    return graph.model(kind, _compiled([(name, loss(variable)) for variable, name in outputs]))


def _level(layout: Layout, named: Sequence[str]) -> Level | None:
    """Where windows that forecast a number have what it was; None: nowhere, or not in its own unit."""
    if layout.windows is None or not layout.windows.horizon or len(layout.outputs) > 1:
        return None
    (output,) = layout.outputs
    for variable, name in zip(layout.inputs, named):
        place = 0
        for column, feature in zip(variable.columns, variable.preparation.features):
            if column == output.columns[0] and not variable.later and isinstance(feature, NumberFeature):
                fits = feature.transform == "standard" and isinstance(output.preparation, Measured)
                return Level(name, place) if fits else None
            place += len(feature.names)
    return None


def _past(layout: Layout, column: str) -> NumberFeature:
    """What the target was, as an input."""
    features = (
        feature for variable in layout.inputs for name, feature in zip(variable.columns, variable.preparation.features)
        if name == column and isinstance(feature, NumberFeature)
    )  # fmt: skip
    return next(features)


def can_have_bins(layout: Layout) -> bool:
    """Whether bins change a model of these columns."""
    return layout.windows is None and bool(_numbers(layout)) and _has_edges(layout)


def _has_edges(layout: Layout) -> bool:
    return all(feature.edges for feature in _numbers(layout))


def _numbers(layout: Layout) -> list[NumberFeature]:
    features = [feature for variable in layout.inputs for feature in variable.preparation.features]
    return [feature for feature in features if isinstance(feature, NumberFeature)]


def loss(variable: Variable) -> str | Json:
    if variable.quantiles:
        return {"class_name": PINBALL, "config": {"quantiles": list(variable.quantiles)}}
    return "mse" if variable.target == "real" else "categorical_crossentropy"


def metric(variable: Variable) -> str | None:
    """None: the loss says it all."""
    if variable.quantiles:
        return None
    return "mae" if variable.target == "real" else "accuracy"


def _compiled(losses: Sequence[tuple[str, str | Json]]) -> Json:
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
    chosen = _defaults(kind)
    for name, value in (parameters or {}).items():
        if name not in known:
            raise InvalidArgument(f"{where}: {kind} has no parameter {name!r}.", hint=f"It has {', '.join(known)}.")
        left_open = isinstance(value, str) and value.startswith("$") and name not in STRUCTURE
        if not left_open and not known[name].has(value):
            raise InvalidArgument(f"{where}: {name} cannot be {value!r}.", hint=f"It must be {known[name].told}.")
        chosen[name] = value
    return chosen


def _defaults(kind: str) -> Json:
    return {name: one.default for name, one in PARAMETERS[kind].items()}


def _names(variables: Sequence[Variable]) -> list[str]:
    """The names of the variables, where a layer can have them; else ``input_1``, …  Then inputs are taken in order."""
    return [
        variable.name if NAME.fullmatch(variable.name) else f"{'output' if variable.target else 'input'}_{place}"
        for place, variable in enumerate(variables, 1)
    ]


# -- the kinds -----------------------------------------------------------------------------------------------


def _of_vectors(body: Callable[[Graph, str, Json], str]) -> Callable[..., str]:
    def build(graph: Graph, read: Read, chosen: Json, where: str) -> str:
        beginning = graph.joined(_vectors(graph, read.plain, read.neighbourhoods, read.windowed, chosen))
        end = body(graph, beginning, chosen)
        # The output layer then is a linear model of the inputs beside the layers between.
        return graph.joined([end, beginning]) if chosen["linear"] and end != beginning else end

    return build


def _of_tokens(graph: Graph, read: Read, chosen: Json, where: str) -> str:
    units = chosen["units"]
    tensors, count = beginnings.tokens(graph, read.plain, units, read.windowed)
    places = sum(one.latest.rows for one in read.neighbourhoods)
    beginnings.require_few_tokens(count + places, where)
    near = [neighbourhoods.tokens(graph, one, units) for one in read.neighbourhoods]
    there = None
    if near:
        masks = [mask for mask, _ in near]
        there = _in_a_row(graph, [*neighbourhoods.ones(graph, masks[0], count), *masks])
    tensor = _in_a_row(graph, [*tensors, *(one for _, one in near)])
    return bodies.transformer(graph, tensor, chosen, there, read.every)


def _in_a_row(graph: Graph, tensors: list[str]) -> str:
    return graph.layer("Concatenate", tensors, axis=1) if len(tensors) > 1 else tensors[0]


def _of_series(kind: str, body: Callable[..., str]) -> Callable[..., str]:
    def build(graph: Graph, read: Read, chosen: Json, where: str) -> str:
        its = [one for one in read.plain if beginnings.is_series(one[0], read.windowed)]
        if not its and not read.neighbourhoods:
            raise _unfit(kind, read.plain, "series: windows of rows (the argument sequence of cerebro.pack), texts,"
                         " arrays of one or two dimensions, and the latest rows of related tables", where)  # fmt: skip
        if read.windowed:
            steps = [tensor for one, name in its for tensor in beginnings.series(graph, one, name, True)]
            return body(graph, graph.joined(steps), its[0][0].shape[0], chosen, every=read.every)
        ends = []
        for one, name in its:
            (tensor,) = beginnings.series(graph, one, name, False)
            ends.append(body(graph, tensor, one.shape[0], chosen))
        for near in read.neighbourhoods:
            rows, there = neighbourhoods.series(graph, near)
            ends.append(body(graph, rows, near.latest.rows, chosen, there))
        return _beside_others(graph, ends, [one for one in read.plain if one not in its], (), chosen)

    return build


def _of_parts(graph: Graph, read: Read, chosen: Json, where: str) -> str:
    if not read.windowed:
        raise _unfit("cnn_lstm", read.plain, "windows of rows (the argument sequence of cerebro.pack)", where)
    length, rows = read.plain[0][0].shape[0], read.every or chosen["rows"]
    if length % rows:
        raise BadData(
            f"{where}: rows cannot be {rows}: the {length} rows of a window are not so many parts.",
            hint="Choose a divisor of the length of the windows.",
        )
    steps = [tensor for one, name in read.plain for tensor in beginnings.series(graph, one, name, True)]
    return bodies.cnn_lstm(graph, graph.joined(steps), length // rows, rows, chosen, apart=bool(read.every))


def _of_images(graph: Graph, read: Read, chosen: Json, where: str) -> str:
    its = [one for one in read.plain if beginnings.is_image(one[0], read.windowed)]
    if not its:
        raise _unfit("cnn", read.plain, "images: arrays of two or three dimensions (height, width, channels)", where)
    ends = [
        bodies.cnn(graph, beginnings.image(graph, one, name), one.shape[0], one.shape[1], chosen) for one, name in its
    ]
    return _beside_others(graph, ends, [one for one in read.plain if one not in its], read.neighbourhoods, chosen)


def _beside_others(graph: Graph, ends: list[str], others: Inputs, near: Sequence[Neighbourhood], chosen: Json) -> str:
    """A layer that brings all inputs together."""
    joined = graph.joined([*ends, *_vectors(graph, others, near, False, chosen)])
    found = graph.layer("Dense", joined, units=chosen["units"], activation="relu")
    return bodies.dropped(graph, found, chosen)


def _vectors(graph: Graph, inputs: Inputs, near: Sequence[Neighbourhood], windowed: bool, chosen: Json) -> list[str]:
    own = [
        tensor
        for variable, name in inputs
        for tensor in beginnings.vectors(graph, variable, name, chosen["embedding"], chosen.get("bins", 0), windowed)
    ]
    return [*own, *neighbourhoods.vectors(graph, near, chosen)] if near else own


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
    "cnn_lstm": _of_parts,
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
        width = len(variable.quantiles) or variable.elements
        found = _dense(graph, tensor, units=width)
        return graph.measured(found, name, width, preparation.deviation, preparation.mean)
    if len(variable.shape) == 1:
        return _dense(graph, tensor, name, units=len(variable.quantiles) or variable.elements)
    found = _dense(graph, tensor, units=variable.elements)
    return graph.layer("Reshape", found, name, target_shape=list(variable.shape))


def _forecast(graph: Graph, layout: Layout, variable: Variable, name: str, tensor: str) -> str:
    """The layers of an output that are counted from the level of the window, or from what was a season before."""
    assert graph.level is not None and layout.windows is not None
    width, past = len(variable.quantiles) or 1, _past(layout, variable.columns[0])
    found = _dense(graph, tensor, units=(variable.steps or 1) * width)
    if variable.steps:
        found = graph.layer("Reshape", found, target_shape=[variable.steps, width])
    found = graph.from_level(found, graph.level, variable.steps, layout.windows)
    return graph.layer("Rescaling", found, name, scale=past.deviation, offset=past.mean)


def _end_of_steps(graph: Graph, variable: Variable, name: str, tensor: str, *, apart: bool) -> str:
    """As ``_end``, of a target with a value for each step of a window.

    ``apart``: the tensor has a vector for each step; else it is one vector for all.
    """
    (width,) = (len(variable.quantiles),) if variable.quantiles else variable.of_step
    preparation, of_classes = variable.preparation, variable.target != "real"
    last = "" if of_classes or isinstance(preparation, Measured) else name
    if apart:
        found = _dense(graph, tensor, last, units=width)
    else:
        found = _dense(graph, tensor, units=variable.steps * width)
        found = graph.layer("Reshape", found, last, target_shape=[variable.steps, width])
    if of_classes:
        return graph.layer("Softmax", found, name)
    if isinstance(preparation, Measured):
        return graph.measured(found, name, width, preparation.deviation, preparation.mean, variable.steps)
    return found


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
