"""The layers that read a neighbourhood: the latest related rows of an example, the newest first.

Where there is no row, the first number of its place is 0.  Such places change nothing: what they hold is multiplied by
that 0, they get no attention, and a recurrent state passes them by.  No weight depends on the number of places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...parameters.kind_parameters import Keyword
from .. import beginnings
from ..graph import ANGLES, Graph
from .related_inputs import ENCODER, Neighbourhood

Json = dict[str, Any]

UNITS = 64  # of each row; parameters such as units can be names that are filled in later
HEADS, KEY = 4, 16  # of attention between the rows
QUERIES = 4
WAVES = 8  # numbers that tell the place of a row
LONGEST_WAVE = 256.0  # places


def vectors(graph: Graph, near: Sequence[Neighbourhood], chosen: Json) -> list[str]:
    """For each neighbourhood what its encoder makes of the rows, and how many rows there are."""
    found: list[str] = []
    for one in near:
        there, tensors = rows(graph, one)
        encoded = ENCODERS[chosen[ENCODER]](graph, there, tensors, chosen)
        count = graph.operation("Log1p", graph.operation("Sum", there, axis=[1], keepdims=False))
        found += [*encoded, count]
    return found


def series(graph: Graph, one: Neighbourhood) -> tuple[str, str]:
    """The rows from the oldest to the newest, with zeros where there is none; and where there is one (places)."""
    there, tensors = rows(graph, one)
    return _oldest_first(graph, there, graph.joined(tensors))


def tokens(graph: Graph, one: Neighbourhood, units: Any) -> tuple[str, str]:
    """Where there is a row, and a token of so many units for each."""
    there, tensors = rows(graph, one)
    return there, graph.layer("Dense", graph.joined([*tensors, _places(graph, there)]), units=units)


def rows(graph: Graph, one: Neighbourhood) -> tuple[str, list[str]]:
    """Where there is a row (places, 1), and the numbers and embedded codes of the rows, with zeros elsewhere."""
    variable, name = one.numbers
    numbers = graph.input(name, variable.shape, "float32")
    there = graph.slice(numbers, 0, 1, len(variable.shape))
    tensors = [numbers]
    if one.codes is not None:
        variable, name = one.codes
        codes = graph.input(name, variable.shape, "int32")
        sizes = enumerate(one.latest.sizes)
        tensors += [beginnings.looked_up(graph, graph.element(codes, place, axis=2), size) for place, size in sizes]
    return there, [graph.layer("Multiply", [tensor, there]) for tensor in tensors]


# -- encoders ------------------------------------------------------------------------------------------------


def _mean(graph: Graph, there: str, tensors: list[str], chosen: Json) -> list[str]:
    """The mean and the maximum of what two layers make of each row."""
    found = _each(graph, tensors, chosen)
    found = graph.layer("Multiply", [graph.layer("Dense", found, units=UNITS, activation="relu"), there])
    # The numbers are at least 0, so a place without a row is no maximum.
    return [masked_mean(graph, there, found, UNITS), graph.layer("GlobalMaxPooling1D", found)]


def _gru(graph: Graph, there: str, tensors: list[str], chosen: Json) -> list[str]:
    found, where = _oldest_first(graph, there, _each(graph, tensors, chosen))
    # cuDNN takes no series without a row.
    return [graph.layer("GRU", found, called_with={"mask": where}, units=UNITS, use_cudnn=False)]


def _attention(graph: Graph, there: str, tensors: list[str], chosen: Json) -> list[str]:
    """Rows read each other once; then each of some learned queries weighs the rows, and sums them up."""
    found = _each(graph, [*tensors, _places(graph, there)], chosen)
    inner = graph.layer("LayerNormalization", found)
    inner = graph.layer(
        "MultiHeadAttention", [inner, inner], apart=True, called_with={"attention_mask": as_keys(graph, there)},
        num_heads=HEADS, key_dim=KEY,
    )  # fmt: skip
    found = graph.layer("LayerNormalization", graph.layer("Add", [found, inner]))
    found = graph.layer("Dense", found, units=UNITS, activation="relu")
    scores = graph.layer("Dense", found, units=QUERIES, use_bias=False)
    weights = graph.layer("Softmax", scores, called_with={"mask": there}, axis=1)
    return [graph.layer("Flatten", graph.layer("Dot", [weights, found], axes=1))]


ENCODERS: dict[str, Callable[[Graph, str, list[str], Json], list[str]]] = {
    "attention": _attention,
    "gru": _gru,
    "mean": _mean,
}
OF_ENCODER = Keyword("attention", tuple(ENCODERS))


def masked_mean(graph: Graph, there: str, tensor: str, units: Any) -> str:
    """The mean of the places that have a row; zeros if none has."""
    even = graph.layer("Rescaling", there, scale=0.0, offset=0.0)
    weights = graph.layer("Softmax", even, called_with={"mask": there}, axis=1)
    return graph.layer("Reshape", graph.layer("Dot", [weights, tensor], axes=1), target_shape=[units])


def ones(graph: Graph, there: str, count: int) -> list[str]:
    """A tensor (count, 1) of ones beside it, for places that always have something."""
    if not count:
        return []
    one = graph.layer("Rescaling", graph.element(there, 0), scale=0.0, offset=1.0)
    return [graph.layer("RepeatVector", one, n=count)]


def as_keys(graph: Graph, there: str) -> str:
    """(places, 1) becomes (1, places): whichever row reads, it may read these."""
    return graph.layer("Permute", there, dims=[2, 1])


def _each(graph: Graph, tensors: list[str], chosen: Json) -> str:
    found = graph.layer("Dense", graph.joined(tensors), units=UNITS, activation="relu")
    return graph.layer("Dropout", found, rate=chosen["dropout"]) if chosen["dropout"] else found


def _oldest_first(graph: Graph, there: str, tensor: str) -> tuple[str, str]:
    flipped = graph.operation("Flip", there, axis=1)
    return graph.operation("Flip", tensor, axis=1), graph.element(flipped, 0, axis=2)


def _places(graph: Graph, there: str) -> str:
    """The place of each row, counted from the newest, as sines and cosines; zeros elsewhere."""
    place = graph.operation("Cumsum", there, axis=1)
    slow = (LONGEST_WAVE / 4) ** (1 / (WAVES // 2 - 1))
    speeds = [math.pi / 2 / slow**wave for wave in range(WAVES // 2)]
    scale = [round(speed, 6) for speed in speeds for _ in range(2)]
    offset = [0.0, round(math.pi / 2, 6)] * (WAVES // 2)
    places = graph.joined([place] * WAVES)
    angles = graph.layer("Rescaling", places, graph.free(ANGLES), scale=scale, offset=offset)
    return graph.layer("Multiply", [graph.operation("Sin", angles), there])
