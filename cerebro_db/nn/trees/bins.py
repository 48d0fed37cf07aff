"""The features of rows as the numbers of bins: one byte each, whatever the features are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_BINS = 128
SAMPLE = 100_000  # rows, by whose quantiles the edges are chosen

Array = np.ndarray


@dataclass(frozen=True)
class BinnedRows:
    """A line of ``bins`` per feature: how many of its edges are below the value of each row."""

    edges: list[Array]  # of each feature, ascending, as float32
    bins: Array  # (features, rows), bytes

    @property
    def most_bins(self) -> int:
        return max(2, 1 + max(len(edges) for edges in self.edges))

    def answers(self, feature: int, threshold: float) -> Array:
        """Whether each row's value is above a threshold, which is an edge, or else counts as the next one above it."""
        return self.bins[feature] > np.searchsorted(self.edges[feature], np.float32(threshold))


def binned(features: Array) -> BinnedRows:
    """``features``: (rows, features)."""
    rows, width = features.shape
    edges = [_edges(features[:: max(1, rows // SAMPLE), place]) for place in range(width)]
    bins = np.empty((width, rows), np.uint8)
    for place, one in enumerate(edges):
        bins[place] = np.searchsorted(one, features[:, place])
    return BinnedRows(edges, bins)


def _edges(values: Array) -> Array:
    """Midpoints between values, so that about as many values lie between each two of them."""
    ordered = np.sort(values)
    different = ordered[np.flatnonzero(np.diff(ordered, append=np.float32(np.inf)))]
    below = different[:-1]
    if len(different) > MOST_BINS:
        quantiles = ordered[np.linspace(0, len(ordered) - 1, MOST_BINS + 1).astype(np.int64)[1:-1]]
        below = np.unique(quantiles)
        below = below[below < different[-1]]
    above = different[np.searchsorted(different, below, side="right")]
    middle = ((below.astype(np.float64) + above) / 2).astype(np.float32)
    return np.where(middle < above, middle, below)  # numbers next to each other have no midpoint
