"""The visits of a model of trees: each grows some further trees, from all rows of the model at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cerebro_db.nn.trees.bins import Array
from cerebro_db.nn.trees.growing import Tree, grown, leaves_of, sampled
from cerebro_db.nn.trees.model import TreeModel
from cerebro_db.nn.trees.rows import Part, TreeRows, limited, read

ROUNDS = 20  # trees of a visit
MOST_KEPT = 8  # models whose scores are kept
MOST_VALUES = 1 << 27  # of the features of all rows; of more rows some are left out
BYTES = 8  # that one of them takes while they are sorted into bins

Json = dict[str, Any]
Listen = Callable[[], None]


@dataclass
class Growing:
    """A program of trees, and the rows from which its models grow.  They are read once, unless others come between."""

    program: Any
    model: TreeModel
    rows: TreeRows | None = None
    parts: Sequence[Part] = ()
    by: str = ""  # what else the rows follow from: the loss, and the weights of classes
    scores: OrderedDict[str, Array] = field(default_factory=OrderedDict)  # of the rows, by the checksum of the state

    def load(self, configuration: Json, parts: Sequence[Part], memory_mb: int | None, listen: Listen) -> None:
        """Read the rows for the model whose state is in the variables, unless they are there."""
        by = repr([configuration["compile"]["loss"], configuration.get("fit", {}).get("class_weight")])
        if self.rows is None or not _same(parts, self.parts) or by != self.by or not self.rows.fits(self.model):
            most = MOST_VALUES if memory_mb is None else min(MOST_VALUES, (memory_mb << 20) // BYTES)
            self.rows = read(self.program, self.model, configuration, limited(parts, self.model.width, most), listen)
            self.parts, self.by = parts, by
            self.scores.clear()
        elif not self.model.count:
            self.model.put_codes(self.rows.codes)

    def visit(self, seed: int, before: str | None, listen: Listen) -> Array:
        """Grow trees; returns the scores of the rows, to be kept by the checksum of the new state.

        ``before``: the checksum of the state in the variables, if it is known.
        """
        assert self.rows is not None
        rows, model, first, found = self.rows, self.model, self.model.count, []
        scores = self.scores.get(before or "")
        if scores is None:
            scores = model.scores_of(rows.binned)
        for number in range(first, min(first + ROUNDS, model.most)):
            start = None if number else rows.loss.start(rows.targets, rows.weights)
            tree = self._tree(np.random.Generator(np.random.PCG64([seed % (1 << 64), number])), scores, start)
            scores = scores + model.rate * tree.leaves[leaves_of(rows.binned, tree)].astype(np.float64)
            found.append(tree)
            listen()
        model.add(found)
        return scores

    def keep(self, sha256: str, scores: Array) -> None:
        self.scores[sha256] = scores
        while len(self.scores) > MOST_KEPT:
            self.scores.popitem(last=False)

    def _tree(self, random: np.random.Generator, scores: Array, start: Array | None) -> Tree:
        """``start``: the scores with which all rows begin, which become a part of the leaves of the first tree."""
        assert self.rows is not None
        rows = self.rows
        gradients, curvatures = rows.loss.slopes(rows.targets, scores if start is None else scores + start)
        each = rows.weights[:, None]
        columns = gradients.shape[1] + curvatures.shape[1]
        sample = sampled(random, rows.count, len(rows.binned.edges), columns)
        tree = grown(rows.binned, each * gradients, each * curvatures, self.model.depth, sample)
        leaves = tree.leaves if start is None else tree.leaves + start / self.model.rate
        return replace(tree, leaves=leaves.astype(np.float32))


def _same(some: Sequence[Part], others: Sequence[Part]) -> bool:
    return len(some) == len(others) and all(
        one is other and (mine is its or (mine is not None and its is not None and np.array_equal(mine, its)))
        for (one, mine), (other, its) in zip(some, others)
    )
