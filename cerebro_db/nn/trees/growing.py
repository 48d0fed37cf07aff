"""Grows a symmetric tree: level by level, the one question whose answers lessen the loss most in all nodes together.

Of each feature the gradients are summed up by bin and node.  Of the two halves of each node only the smaller half is
summed up; the other one is what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cerebro_db.nn.trees.bins import Array, BinnedRows

PENALTY = 3.0  # of large leaves (l2), as in CatBoost
AT_ONCE = 1 << 20  # values that are summed up in one call
SHARE = 0.8  # of the rows, by which the questions of a tree are chosen
MOST_FEATURES = 128  # about which a tree may ask
MOST_SUMMED, FEWEST_ROWS = 1 << 22, 10_000  # numbers in each level; and rows, if that many are there
MOST_SUMS = 1 << 25  # numbers in memory that were summed up; beyond it the features come one after the other
GAINS_AT_ONCE = 1 << 17  # of these numbers: as many as the cache of a processor has room for


@dataclass(frozen=True)
class Tree:
    features: list[int]  # that the questions are about, from the root on
    thresholds: list[float]  # the answer is yes above it
    leaves: Array  # (2^depth, scores): the first question is the lowest bit of a leaf's number


@dataclass(frozen=True)
class SampleOfTree:
    """By what the questions of a tree are chosen.  Its leaves follow from all rows."""

    rows: Array
    features: Array


def sampled(random: np.random.Generator, rows: int, features: int, columns: int) -> SampleOfTree:
    """``columns``: numbers of each row that are summed up."""
    some = np.arange(features) if features <= MOST_FEATURES else random.permutation(features)[:MOST_FEATURES]
    most = max(FEWEST_ROWS, MOST_SUMMED // (len(some) * columns))
    chosen = np.flatnonzero(random.random(rows) < min(SHARE, most / rows))
    return SampleOfTree(chosen if len(chosen) > 1 else np.arange(rows), np.sort(some))


def grown(rows: BinnedRows, gradients: Array, curvatures: Array, depth: int, sample: SampleOfTree) -> Tree:
    """A tree whose leaves lessen a loss.

    ``gradients`` and ``curvatures``: of the loss by each score of each row, or with one curvature for all scores.
    """
    questions = _questions(rows, gradients[sample.rows], curvatures[sample.rows], depth, sample)
    tree = Tree([feature for feature, _ in questions], [threshold for _, threshold in questions], np.empty(0))
    places, count = leaves_of(rows, tree), 1 << depth
    steepness = np.stack([np.bincount(places, one, count) for one in gradients.T], 1)
    curvature = np.stack([np.bincount(places, one, count) for one in curvatures.T], 1)
    return replace(tree, leaves=-steepness / (curvature + PENALTY))


def leaves_of(rows: BinnedRows, tree: Tree) -> Array:
    """The number of the leaf of each row."""
    found = np.zeros(rows.bins.shape[1], np.int64)
    for level, (feature, threshold) in enumerate(zip(tree.features, tree.thresholds)):
        found |= rows.answers(feature, threshold).astype(np.int64) << level
    return found


def _questions(
    rows: BinnedRows, gradients: Array, curvatures: Array, depth: int, sample: SampleOfTree
) -> list[tuple[int, float]]:
    edges = [rows.edges[feature] for feature in sample.features]
    bins, width, scores = rows.bins[np.ix_(sample.features, sample.rows)], rows.most_bins, gradients.shape[1]
    counted = np.concatenate([gradients, curvatures], 1)
    possible = np.arange(width) < np.array([[len(one)] for one in edges])
    nodes, found = np.zeros(len(sample.rows), np.int64), []
    sums: Array | None = _sums(bins, nodes, counted, 1, width)
    for level in range(depth):
        gain = np.empty(possible.shape)
        size = counted.shape[1] * width << level  # of a feature
        step = max(1, (GAINS_AT_ONCE if sums is not None else MOST_SUMS) // size)
        for start in range(0, len(bins), step):
            some = slice(start, start + step)
            of_some = _sums(bins[some], nodes, counted, 1 << level, width) if sums is None else sums[some]
            gain[some] = _gain(of_some, scores)
        feature, edge = divmod(int(np.argmax(np.where(possible, gain, -np.inf))), width)
        if not possible[feature, edge]:  # all values of all features are equal
            return [(0, 0.0)] * depth
        found.append((int(sample.features[feature]), float(edges[feature][edge])))
        answers = bins[feature] > edge
        if sums is not None and 2 * size * len(bins) > MOST_SUMS:  # then those of all features are not kept
            sums = None
        if sums is not None and level < depth - 1:
            is_larger = 2 * np.count_nonzero(answers) > len(answers)
            smaller = np.flatnonzero(answers != is_larger)
            part = _sums(bins[:, smaller], nodes[smaller], counted[smaller], 1 << level, width)
            sums = np.concatenate([part, sums - part] if is_larger else [sums - part, part], 2)
        nodes += answers.astype(np.int64) << level
    return found


def _gain(sums: Array, scores: int) -> Array:
    """How much each question lessens the loss, in all nodes together: (features, bins)."""
    below = np.cumsum(sums, axis=3)
    above = below[:, :, :, -1:] - below
    found: Array = np.zeros((len(sums), sums.shape[3]))
    for half in (below, above):
        found += (half[:, :scores] ** 2 / (half[:, scores:] + PENALTY)).sum(axis=(1, 2))
    return found


def _sums(bins: Array, nodes: Array, counted: Array, most_nodes: int, width: int) -> Array:
    """What was counted, summed up: (features, columns of ``counted``, nodes, bins)."""
    features, rows = bins.shape
    columns, size = counted.shape[1], most_nodes * width
    found = np.empty((features, columns, size))
    step = max(1, AT_ONCE // max(1, rows))
    for start in range(0, features, step):
        some = bins[start : start + step]
        places = (some + nodes * width + (np.arange(len(some)) * size)[:, None]).ravel()
        for column in range(columns):
            values = np.broadcast_to(counted[:, column], some.shape).ravel()
            found[start : start + step, column] = np.bincount(places, values, len(some) * size).reshape(-1, size)
    return found.reshape(features, columns, most_nodes, width)
