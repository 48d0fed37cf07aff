"""Boosted trees as a Keras model: the layers that hold them, and the names by which a trainer knows these.

The trees are symmetric: at one depth, all nodes of a tree ask the same question.  So a tree of depth d is d questions
and 2^d leaves, and the answers, read as a binary number, are the number of the leaf.  A Dense layer asks the questions
of all trees at once, and an Embedding has their leaves: no other kind of layer is needed, and such a model predicts,
and is exported, explained and joined with others like any network.  Only its training is another: cerebro_db/nn/trees.

Prokhorenkova et al., CatBoost: unbiased boosting with categorical features (2018), use the same trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import BadData
from ..packing.layout import Layout, Variable
from . import beginnings
from .graph import ZEROS, Graph
from .related import related_inputs

Json = dict[str, Any]

KIND = "trees"
QUESTIONS, NUMBERS, LEAVES = "tree_questions", "tree_numbers", "tree_leaves"
CODES, SCORES = "tree_codes", "tree_scores"
_LEAVES = re.compile(f"{LEAVES}_[0-9]+")
STEEP = 3e38  # every difference from a threshold becomes 0 or 1, also the smallest one that float32 has
MOST_FEATURES = 4096
MOST_LEAVES = 1 << 22  # numbers in the leaves of a model
WIDEST_CODE = 8  # numbers that a category or a word becomes: of so many classes
OF_WORDS, MOST_OF_WORDS = 32, 96  # further numbers of each word of a text; and of all texts of a row together


def are_grown(architecture: Any) -> bool:
    """Whether a model has trees, so that it grows instead of being trained step by step."""
    config = architecture.get("config") if isinstance(architecture, dict) else None
    layers = config.get("layers") if isinstance(config, dict) else None
    return isinstance(layers, list) and any(
        isinstance(layer, dict) and layer.get("class_name") == "Embedding" and _LEAVES.fullmatch(str(layer.get("name")))
        for layer in layers
    )


def have_leaves(names: Iterable[str]) -> bool:
    """As ``are_grown``, by the names of the layers of a built model."""
    return any(map(_LEAVES.fullmatch, names))


def fits(layout: Layout) -> bool:
    """Whether trees can read such columns, and predict such a target."""
    outputs, flat = layout.outputs, len(layout.outputs) == 1 and len(layout.outputs[0].shape) == 1
    inputs = related_inputs.flat_inputs(layout)
    flat = flat and not layout.outputs[0].quantiles
    return layout.windows is None and flat and bool(inputs) and _count(inputs, outputs) <= MOST_FEATURES


def work(layout: Layout, depth: int) -> int:
    """How much there is to add up for a tree, whatever the rows: of each feature and score, in each node."""
    count = _count(related_inputs.flat_inputs(layout), layout.outputs)
    return count * scores_of(layout.outputs[0]) << depth


def body(graph: Graph, inputs: Sequence[tuple[Variable, str]], outputs: Sequence[Variable], chosen: Json) -> str:
    """The sums of the trees: for each score of a row, the sum of the leaves that it falls into."""
    trees, depth, scores = chosen["rounds"], chosen["depth"], scores_of(outputs[0])
    width = code_width(outputs[0])
    more = _of_words([variable for variable, _ in inputs])
    features = [tensor for variable, name in inputs for tensor in _features(graph, variable, name, width, more)]
    found = graph.layer(
        "Dense", graph.joined(features), graph.free(QUESTIONS), units=trees * depth, kernel_initializer=ZEROS
    )
    found = graph.layer("ReLU", graph.layer("Rescaling", found, scale=STEEP, offset=0.0), max_value=1.0)
    found = graph.layer("Reshape", found, target_shape=[trees, depth])
    found = graph.layer("Dense", found, graph.free(NUMBERS), units=1, use_bias=False, kernel_initializer=ZEROS)
    found = graph.layer("Reshape", found, target_shape=[trees])
    places = [float(tree << depth) for tree in range(trees)]
    found = graph.layer("Rescaling", found, scale=1.0, offset=places)
    found = graph.layer(
        "Embedding", found, graph.free(LEAVES), input_dim=trees << depth, output_dim=scores,
        embeddings_initializer=ZEROS,
    )  # fmt: skip
    mean = graph.layer("GlobalAveragePooling1D", found)
    return graph.layer("Rescaling", mean, graph.free(SCORES), scale=trees * chosen["rate"], offset=0.0)


def scores_of(output: Variable) -> int:
    """How many numbers a row's leaves have.  Two classes need one: how much likelier the second one is."""
    return 1 if output.target != "real" and output.shape[0] == 2 else output.elements


def without_neighbourhoods(layout: Layout, chosen: Json, where: str) -> Json:
    """The parameters as they are for trees, which read columns alone: all but the latest related rows."""
    related = chosen[related_inputs.RELATED]
    if related == related_inputs.NEIGHBOURHOODS:
        raise BadData(
            f"{where}: trees cannot read the latest rows of related tables, so related cannot be 'neighbourhoods'.",
            hint="Aggregates are columns, which trees read. For the latest rows use for instance mlp.",
        )
    if related == related_inputs.BOTH:
        return {**chosen, related_inputs.RELATED: related_inputs.AGGREGATES}
    return chosen


def require_fitting(
    inputs: Sequence[Variable], outputs: Sequence[Variable], chosen: Json, windows: bool, where: str
) -> None:
    if windows:
        raise BadData(f"{where}: trees read rows, and these are windows of rows.", hint="For instance lstm or conv1d.")
    if outputs[0].quantiles:
        raise BadData(f"{where}: trees predict no quantiles.", hint="For instance mlp or resnet.")
    if len(outputs) > 1 or len(outputs[0].shape) != 1:
        raise BadData(f"{where}: trees predict one target, a class or a vector of numbers.", hint="For instance mlp.")
    if (count := _count(inputs, outputs)) > MOST_FEATURES:
        raise BadData(f"{where}: trees read at most {MOST_FEATURES} numbers of a row, and there are {count}.",
                      hint="For instance mlp or cnn.")  # fmt: skip
    leaves = (chosen["rounds"] << chosen["depth"]) * scores_of(outputs[0])
    if leaves > MOST_LEAVES:
        raise BadData(
            f"{where}: {chosen['rounds']} trees of depth {chosen['depth']} have {leaves:,} numbers in their leaves;"
            f" the limit is {MOST_LEAVES:,}.",
            hint="Choose fewer rounds, or a smaller depth.",
        )


def code_width(output: Variable) -> int:
    return min(WIDEST_CODE, scores_of(output))


def _features(graph: Graph, variable: Variable, name: str, width: int, more: int) -> list[str]:
    """Numbers as they are; of each category and word its code, which the trainer finds: what the target is there.

    ``more``: further numbers of each word, which the trainer finds, too.
    """
    kind = variable.preparation.kind
    if kind == "categories":
        tensor = graph.input(name, variable.shape, "int32")
        sizes = beginnings.sizes(variable)
        return [_coded(graph, graph.element(tensor, place), size, width) for place, size in enumerate(sizes)]
    if kind == "words":
        ids = graph.input(name, variable.shape, "int32")
        words = _coded(graph, ids, beginnings.word_ids(variable), width + more)
        return [beginnings.mean_of_words(graph, ids, words)]
    tensor = graph.input(name, variable.shape, "float32")
    return [tensor if len(variable.shape) == 1 else graph.layer("Flatten", tensor)]


def _coded(graph: Graph, ids: str, size: int, width: int) -> str:
    return graph.layer(
        "Embedding", ids, graph.free(CODES), input_dim=size, output_dim=width, embeddings_initializer=ZEROS
    )


def _of_words(inputs: Sequence[Variable]) -> int:
    """How many further numbers each word has: fewer if there are many texts, which would crowd out other columns."""
    texts = sum(variable.preparation.kind == "words" for variable in inputs)
    return min(OF_WORDS, MOST_OF_WORDS // max(1, texts))


def _count(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> int:
    width, more = code_width(outputs[0]), _of_words(inputs)
    return sum(_width(variable, width, more) for variable in inputs)


def _width(variable: Variable, width: int, more: int) -> int:
    kind = variable.preparation.kind
    if kind == "words":
        return width + more
    return variable.elements * (width if kind == "categories" else 1)
