"""The trees in the variables of a program: what their layers are, and how trees are put into them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cerebro_db.core.architecture import trees
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.trees.bins import Array, BinnedRows
from cerebro_db.nn.trees.growing import Tree, leaves_of
from cerebro_db.nn.trees.words import numbers_of_words

PRIOR = 10.0  # rows with the mean of all: a code of few rows is near that mean


def _require_trees(layers: Mapping[str, Any]) -> None:
    """Refuse a model of a user's own whose layers have these names and are not those of trees."""
    kinds = {trees.QUESTIONS: "Dense", trees.NUMBERS: "Dense", trees.LEAVES: "Embedding", trees.SCORES: "Rescaling"}
    wrong = [name for name, kind in kinds.items() if type(layers.get(name)).__name__ != kind]
    if not wrong:
        questions, leaves = int(layers[trees.QUESTIONS].units), int(layers[trees.LEAVES].input_dim)
        depth = int(layers[trees.NUMBERS].kernel.shape[0])
        wrong = [trees.QUESTIONS] if questions % depth or questions // depth << depth != leaves else []
    if wrong:
        raise ConfigurationFailed(
            f"a layer is named {trees.LEAVES}, as the leaves of trees, but {wrong[0]} is not as trees have it",
            hint="Rename it; or let cerebro.architecture('…', 'trees') make the JSON.",
        )


class TreeModel:
    """The layers of trees.py in the model of a program, and the state in them."""

    def __init__(self, program: Any) -> None:
        import keras

        self._program, model = program, program.model
        layers = {layer.name.rpartition("_")[0]: layer for layer in model.layers}
        _require_trees(layers)
        self._questions, self._numbers = layers[trees.QUESTIONS], layers[trees.NUMBERS]
        self._leaves = layers[trees.LEAVES]
        self._codes = [layer for layer in model.layers if layer.name.rpartition("_")[0] == trees.CODES]
        self.depth = int(self._numbers.kernel.shape[0])
        self.most = int(self._questions.units) // self.depth
        self.scores = int(self._leaves.output_dim)
        self.width = int(self._questions.kernel.shape[0])  # features
        self._code_width = min(trees.WIDEST_CODE, self.scores)
        self.rate = float(layers[trees.SCORES].scale) / self.most
        self._features_of = keras.Model(model.inputs, self._questions.input)
        self._coded = keras.Model(model.inputs, [layer.input for layer in self._codes]) if self._codes else None
        self.looked_up = sum(math.prod(layer.output.shape[1:]) for layer in self._codes)  # numbers of a row, at once
        self._outputs_of = keras.Model(layers[trees.SCORES].output, model.outputs)

    # -- trees ---------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many trees there are: each asks questions.  Weights alone tell it, as a warm start may have no more."""
        questions = self._value(self._questions.kernel).any(axis=0).reshape(self.most, self.depth)
        return int(questions.any(axis=1).sum())

    def trees(self) -> Iterator[Tree]:
        kernel, bias = self._value(self._questions.kernel), self._value(self._questions.bias)
        leaves = self._value(self._leaves.embeddings).reshape(self.most, -1, self.scores)
        for tree in range(self.count):
            places = slice(tree * self.depth, (tree + 1) * self.depth)
            yield Tree(np.argmax(kernel[:, places], axis=0).tolist(), (-bias[places]).tolist(), leaves[tree])

    def add(self, found: Sequence[Tree]) -> None:
        """Put further trees into the variables."""
        kernel, bias = self._value(self._questions.kernel).copy(), self._value(self._questions.bias).copy()
        leaves = self._value(self._leaves.embeddings).copy()
        before, size = self.count, 1 << self.depth
        for tree, one in enumerate(found, before):
            for level, (feature, threshold) in enumerate(zip(one.features, one.thresholds)):
                kernel[feature, tree * self.depth + level] = 1.0
                bias[tree * self.depth + level] = -threshold
            leaves[tree * size : (tree + 1) * size] = one.leaves
        bits = (2.0 ** np.arange(self.depth)).reshape(-1, 1)
        for variable, value in (
            (self._questions.kernel, kernel),
            (self._questions.bias, bias),
            (self._leaves.embeddings, leaves),
            (self._numbers.kernel, bits),
        ):
            self._put(variable, value)

    def scores_of(self, rows: BinnedRows) -> Array:
        """The sum of the trees for each row."""
        found = np.zeros((rows.bins.shape[1], self.scores))
        for tree in self.trees():
            found += self.rate * tree.leaves[leaves_of(rows, tree)].astype(np.float64)
        return found

    def unit_and_zero(self) -> tuple[Array, Array]:
        """What a score of 1 adds to an output of numbers, and the output for a score of 0."""
        (zero,), (one,) = (np.asarray(self._outputs_of(np.full((1, self.scores), of, "float32"))) for of in (0.0, 1.0))
        return one.astype(np.float64) - zero, zero.astype(np.float64)

    # -- features ------------------------------------------------------------------------------------

    @property
    def has_codes(self) -> bool:
        return bool(self._codes)

    def features(self, inputs: Any) -> Array:
        return np.asarray(self._features_of(inputs, training=False), np.float32)

    def coded(self, inputs: Any) -> list[Array]:
        """The categories and words of rows, a column or more for each layer of codes."""
        if self._coded is None:
            return []
        found = self._coded(inputs, training=False)
        return [np.asarray(one).astype(np.int64) for one in (found if isinstance(found, list) else [found])]

    def codes(self) -> list[Array]:
        return [self._value(layer.embeddings) for layer in self._codes]

    def put_codes(self, codes: Sequence[Array]) -> None:
        for layer, value in zip(self._codes, codes):
            self._put(layer.embeddings, value)

    def of_words(self, coded: Sequence[Array], targets: Array, weights: Array) -> list[Array]:
        """The further numbers of the words of each layer of codes, with which a model begins, or has begun."""
        if self.count:
            return [codes[:, self._code_width :] for codes in self.codes()]
        return [
            numbers_of_words(
                ids.reshape(len(ids), -1), int(layer.input_dim), targets, weights,
                int(layer.output_dim) - self._code_width,
            )
            for layer, ids in zip(self._codes, coded)
        ]  # fmt: skip

    def codes_by(
        self, coded: Sequence[Array], of_words: Sequence[Array], targets: Array, weights: Array
    ) -> list[Array]:
        """The mean of the targets where each category or word is, and the further numbers of words."""
        mean, width = np.average(targets, axis=0, weights=weights), self._code_width
        found = []
        for layer, ids, more in zip(self._codes, coded, of_words):
            size = int(layer.input_dim)
            columns = ids.reshape(len(ids), -1)
            flat, each = columns.ravel(), columns.shape[1]
            count = np.bincount(flat, np.repeat(weights, each), size)
            sums = [np.bincount(flat, np.repeat(weights * targets[:, one], each), size) for one in range(width)]
            code = (np.stack(sums, 1) + PRIOR * mean[:width]) / (count + PRIOR)[:, None]
            found.append(np.concatenate([code.astype(np.float32), more], 1))
        return found

    # -- variables -----------------------------------------------------------------------------------

    def _value(self, variable: Any) -> Array:
        return np.asarray(self._program.get(self._program.place(variable)))

    def _put(self, variable: Any, value: Array) -> None:
        place = self._program.place(variable)
        _, dtype, shape = self._program.variables[place]
        self._program.set(place, np.asarray(value, dtype).reshape(shape))
