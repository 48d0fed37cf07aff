"""What the trees of a model ask about a text besides the mean of its words' codes: a few numbers for each word.

The trees see the mean of these numbers over a text's words.  Half of them are marks: 1 for one word and 0 for all
others, so that a mean above 0 says that a text has the word.  The others are directions (latent semantic analysis):
words that are used together have similar numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cerebro_db.nn.trees.bins import Array

PRIOR, FEWEST_TEXTS = 10.0, 10  # texts with the mean of all; and texts with a word, so that it is asked about
MOST_TARGETS = 32  # by which words are judged: those that vary most
VOCABULARY, MOST_TEXTS = 1000, 20_000  # of which directions are made: the words of most texts, and the texts
AT_ONCE = 4096  # texts


def numbers_of_words(ids: Array, size: int, targets: Array, weights: Array, count: int) -> Array:
    """``count`` numbers for each of ``size`` words.  ``ids``: (texts, words), 0 where a text has no more words."""
    found = np.zeros((size, count), np.float32)
    if not count:
        return found
    words = telling(ids, size, targets, weights, count // 2)
    found[words, np.arange(len(words))] = 1.0
    found[:, count // 2 :] = directions(ids, size, count - count // 2)
    return found


def telling(ids: Array, size: int, targets: Array, weights: Array, most: int) -> Array:
    """The words that tell most about the targets: knowing which texts have it lessens their variance most."""
    varying = np.argsort(-targets.var(axis=0), kind="stable")[:MOST_TARGETS]
    off = targets[:, varying] - np.average(targets[:, varying], axis=0, weights=weights)
    count, weight, sums = np.zeros(size), np.zeros(size), np.zeros((len(varying), size))
    for texts, words, first in _different(ids):
        its = weights[first + texts]
        count += np.bincount(words, minlength=size)
        weight += np.bincount(words, its, size)
        for place, one in enumerate(off.T):
            sums[place] += np.bincount(words, its * one[first + texts], size)
    others = weights.sum() - weight
    gain = (sums**2).sum(axis=0) * (1 / (weight + PRIOR) + 1 / (others + PRIOR))
    gain[count < FEWEST_TEXTS] = 0.0
    best = np.argsort(-gain, kind="stable")[:most]
    return best[gain[best] > 0]


def directions(ids: Array, size: int, most: int) -> Array:
    """The first singular vectors of the texts as frequencies of words, as numbers of each word: (size, most)."""
    some = ids[:: max(1, -(-len(ids) // MOST_TEXTS))]
    count = sum((np.bincount(words, minlength=size) for _, words, _ in _different(some)), np.zeros(size, np.int64))
    frequent = np.argsort(-count, kind="stable")[:VOCABULARY]
    frequent = frequent[count[frequent] > 1]
    place = np.full(size, -1)
    place[frequent] = np.arange(len(frequent))
    rarity = np.log((1 + len(some)) / (1 + count[frequent])) + 1
    together = np.zeros((len(frequent), len(frequent)))
    for texts, words, _ in _different(some):
        known = place[words] >= 0
        table = np.zeros((AT_ONCE, len(frequent)), np.float32)
        table[texts[known], place[words[known]]] = rarity[place[words[known]]]
        table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
        together += table.T @ table
    found = np.zeros((size, most))
    largest = np.linalg.eigh(together)[1][:, ::-1][:, :most]
    found[frequent, : largest.shape[1]] = rarity[:, None] * largest
    return found


def _different(ids: Array) -> Iterator[tuple[Array, Array, int]]:
    """The different words of texts: for some texts at a time their places, the words, and the place of the first."""
    for first in range(0, len(ids), AT_ONCE):
        ordered = np.sort(ids[first : first + AT_ONCE], axis=1)
        new = ordered > 0
        new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
        yield np.nonzero(new)[0], ordered[new], first
