"""The first layers of a model for a packed table: they make vectors, series, tokens or images of a row's inputs.

Vectors have the shape (elements,), series (steps, channels), tokens (tokens, units), images (height, width, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BadData
from ..packing.distributions import six_digits
from ..packing.features import CategoryFeature, WordsFeature
from ..packing.layout import Variable
from ..packing.preparation import Numbers, Pixels
from .graph import Graph

Json = dict[str, Any]

MOST_EMBEDDED = 4096  # elements of all numbers together; more numbers are taken as they are
WIDEST_LOOKUP = 32
FAR = 30.0  # a softmax gives one that is so much smaller than others a weight of 1e-13
MOST_TOKENS = 4096  # attention compares each with each


# -- vectors -------------------------------------------------------------------------------------------------


def vectors(graph: Graph, variable: Variable, name: str, embedding: int, bins: int, windowed: bool) -> list[str]:
    """Each number goes through small layers of its own, each code and word is looked up, arrays are normalized."""
    if windowed:
        return [graph.layer("Flatten", one) for one in series(graph, variable, name, windowed)]
    if variable.preparation.kind == "categories":
        tensor = graph.input(name, variable.shape, "int32")
        return [looked_up(graph, graph.element(tensor, place), size) for place, size in enumerate(sizes(variable))]
    if variable.preparation.kind == "words":
        means = [mean_of_words(graph, name, one) for one in series(graph, variable, name, windowed)]
        return [graph.layer("LayerNormalization", mean) for mean in means]  # a mean of many words is small
    if isinstance(variable.preparation, Numbers):
        return [_embedded(graph, *graph.numbers(name, variable.shape), variable.preparation, embedding, bins)]
    tensor = graph.input(name, variable.shape, "float32")
    if len(variable.shape) > 1:
        tensor = graph.layer("Flatten", tensor)
    return [graph.layer("BatchNormalization", tensor)]


def sizes(variable: Variable) -> list[int]:
    """The number of codes of each column."""
    return [feature.size for feature in variable.preparation.features if isinstance(feature, CategoryFeature)]


def word_ids(variable: Variable) -> int:
    (words,) = [feature for feature in variable.preparation.features if isinstance(feature, WordsFeature)]
    return words.ids


def looked_up(graph: Graph, tensor: str, size: int) -> str:
    width = max(2, min(WIDEST_LOOKUP, round(1.6 * size**0.56)))
    return graph.layer("Embedding", tensor, input_dim=size, output_dim=width)


def mean_of_words(graph: Graph, ids: str, words: str) -> str:
    """The mean of a text's words, without the zeros after them.

    With a mask of Keras, the mean of a text without words would be NaN.  Here it is the mean of its zeros.
    """
    known = graph.layer("ReLU", graph.layer("Rescaling", ids, scale=FAR, offset=0.0), max_value=FAR)
    return graph.layer("Dot", [graph.layer("Softmax", known), words], axes=1)


def _embedded(graph: Graph, packed: str, tensor: str, numbers: Numbers, width: int, bins: int) -> str:
    """``width`` functions of each number, beside the numbers themselves: a line needs no bends.

    ``packed``: the numbers as they were packed, for which the edges of bins were found.

    Without bins, a function has one bend, which training moves.  With bins, it has a bend at each edge.
    """
    count = numbers.width
    width, bins = (size if count * size <= MOST_EMBEDDED else 0 for size in (width, bins))
    if not width and not bins:
        return tensor
    found = _in_bins(graph, packed, numbers, bins) if bins else tensor
    if width and bins:
        steps = graph.layer("Reshape", found, target_shape=[bins, count])
        found = _weighed(graph, steps, "btf,tfe->bfe", count, width, _normal(bins**-0.5), activation="relu")
    elif width:
        found = _each(graph, tensor, count, width, activation="relu")
    return graph.joined([graph.layer("Flatten", found) if width else found, tensor])


def _in_bins(graph: Graph, tensor: str, numbers: Numbers, bins: int) -> str:
    """How far each number is on its way through each of its bins: 0 before the bin, 1 after it.

    These are the piecewise-linear encodings of Gorishniy et al., On Embeddings for Numerical Features in Tabular Deep
    Learning (2022).  A number with fewer bins than others has zeros instead.
    """
    lines = [_lines(_some(edges, bins + 1), bins) for edges in numbers.bins]
    scale, offset = ([line[place][part] for place in range(bins) for line in lines] for part in range(2))
    found = graph.layer("Rescaling", graph.joined([tensor] * bins), scale=scale, offset=offset)
    return graph.layer("ReLU", found, max_value=1.0)


def _some(edges: Sequence[float], most: int) -> Sequence[float]:
    """The edges, or so many of them at equal distances in the list, the ends included."""
    if len(edges) <= most:
        return edges
    return [edges[round(place * (len(edges) - 1) / (most - 1))] for place in range(most)]


def _lines(edges: Sequence[float], bins: int) -> list[tuple[float, float]]:
    """For each bin the slope and the offset of the line that is 0 at its lower and 1 at its upper edge."""
    found = [(1 / (high - low), -low / (high - low)) for low, high in zip(edges, edges[1:])]
    shown = [(six_digits(slope), six_digits(offset)) for slope, offset in found]
    return shown + [(0.0, 0.0)] * (bins - len(shown))


def _each(graph: Graph, tensor: str, numbers: int, width: Any, **more: Any) -> str:
    """A vector for each number: the number times a vector of its own, plus another."""
    return _weighed(graph, tensor, "bf,fe->bfe", numbers, width, _normal(1.0), bias_initializer=_normal(1.0), **more)


def _weighed(graph: Graph, tensor: str, equation: str, numbers: int, width: Any, weights: Json, **more: Any) -> str:
    return graph.layer(
        "EinsumDense", tensor, equation=equation, output_shape=[numbers, width], bias_axes="fe",
        kernel_initializer=weights, **more,
    )  # fmt: skip


def _normal(deviation: float) -> Json:
    config = {"mean": 0.0, "stddev": deviation, "seed": None}
    return {"module": "keras.initializers", "class_name": "RandomNormal", "config": config, "registered_name": None}


# -- series --------------------------------------------------------------------------------------------------


def is_series(variable: Variable, windowed: bool) -> bool:
    """Whether the order of a row's values matters: windows, texts, and arrays of one or two dimensions."""
    plain = not variable.preparation.features
    return windowed or variable.preparation.kind == "words" or (plain and len(variable.shape) <= 2)


def series(graph: Graph, variable: Variable, name: str, windowed: bool) -> list[str]:
    """Tensors of the shape (rows, steps, channels)."""
    kind = variable.preparation.kind
    if kind == "categories":
        tensor = graph.input(name, variable.shape, "int32")
        columns = enumerate(sizes(variable))
        return [looked_up(graph, graph.element(tensor, place, axis=2), size) for place, size in columns]
    if kind == "words":
        tensor = graph.input(name, variable.shape, "int32")
        found = graph.layer("Embedding", tensor, input_dim=word_ids(variable), output_dim=WIDEST_LOOKUP)
        if not windowed:
            return [found]
        mean = graph.layer("AveragePooling2D", found, pool_size=[1, variable.shape[1]])
        return [graph.layer("Reshape", mean, target_shape=[variable.shape[0], WIDEST_LOOKUP])]
    if kind == "numbers":
        return [graph.numbers(name, variable.shape)[1]]
    tensor = graph.input(name, variable.shape, "float32")
    if len(variable.shape) != 2:
        shape = [variable.shape[0], variable.elements // variable.shape[0]]
        tensor = graph.layer("Reshape", tensor, target_shape=shape)
    return [graph.layer("BatchNormalization", tensor)]


# -- tokens --------------------------------------------------------------------------------------------------


def tokens(
    graph: Graph, variables: Sequence[tuple[Variable, str]], units: Any, windowed: bool
) -> tuple[list[str], int]:
    """Tensors of the shape (rows, tokens, units), and how many tokens there are: a token for each step of a series,
    number, code and word."""
    found: list[str] = []
    count = 0
    if windowed and variables:
        steps = [one for variable, name in variables for one in series(graph, variable, name, windowed)]
        count = variables[0][0].shape[0]
        found.append(_placed(graph, graph.joined(steps), count, units))
    for variable, name in () if windowed else variables:
        kind = variable.preparation.kind
        if kind == "categories":
            tensor = graph.input(name, variable.shape, "int32")
            for place, size in enumerate(sizes(variable)):
                one = graph.layer("Embedding", graph.element(tensor, place), input_dim=size, output_dim=units)
                found.append(graph.layer("Reshape", one, target_shape=[1, units]))
            count += variable.shape[0]
        elif kind == "numbers":
            found.append(_each(graph, graph.numbers(name, variable.shape)[1], variable.elements, units))
            count += variable.elements
        elif is_series(variable, windowed):
            (one,) = series(graph, variable, name, windowed)
            found.append(_placed(graph, one, variable.shape[0], units))
            count += variable.shape[0]
        else:
            (one,) = vectors(graph, variable, name, 0, 0, windowed)
            found.append(graph.layer("Reshape", graph.layer("Dense", one, units=units), target_shape=[1, units]))
            count += 1
    return found, count


def require_few_tokens(count: int, where: str) -> None:
    if count > MOST_TOKENS:
        raise BadData(
            f"{where}: a transformer would compare {count} tokens of each row with each other;"
            f" the limit is {MOST_TOKENS}.",
            hint="Choose fewer columns or shorter windows, or another kind.",
        )


def _placed(graph: Graph, tensor: str, steps: int, units: Any) -> str:
    """The steps with their places: the layer has a bias for each."""
    return graph.layer(
        "EinsumDense", tensor, equation="bld,de->ble", output_shape=[steps, units], bias_axes="le",
        bias_initializer=_normal(0.02),
    )  # fmt: skip


# -- images --------------------------------------------------------------------------------------------------


def is_image(variable: Variable, windowed: bool) -> bool:
    return not windowed and not variable.preparation.features and len(variable.shape) in (2, 3)


def is_surely_image(variable: Variable) -> bool:
    """Whether it is no series: pixels, or an array with channels."""
    return is_image(variable, False) and (isinstance(variable.preparation, Pixels) or len(variable.shape) == 3)


def image(graph: Graph, variable: Variable, name: str) -> str:
    """A tensor of the shape (rows, height, width, channels)."""
    tensor = graph.input(name, variable.shape, "float32")
    if len(variable.shape) == 2:
        tensor = graph.layer("Reshape", tensor, target_shape=[*variable.shape, 1])
    return graph.layer("BatchNormalization", tensor)
