"""Explanations: the Shapley values of a model's columns, for each row, compared with background rows.

A coalition is a set of columns that have the row's values; all others have those of one background row.  The Shapley
value of a column is the mean, over all orders of the columns and all background rows, of what the output gains when the
column joins the columns before it.  So the values of all columns add up to the output of the row minus the mean output
of the background rows.

Of few columns and rows all coalitions are played; of few columns and many rows some of each size, from which the values
are estimated (Fits) until they hardly change; of many columns those of some orders.
"""

from __future__ import annotations

import base64
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple, Protocol

import numpy as np

from cerebro_db.core.protocol import MOST_BACKGROUND, Explanation
from cerebro_db.nn.rows.data import Dataset
from cerebro_db.nn.rows.exchange import along, place_of

SMALL_GAME = 10  # columns; their values are as exact as PRECISION, of more columns as there is time for
ROUNDS = (32, 64, 128, 256, 384, 512)  # coalitions of each size that are known after each round
PRECISION = 0.0045  # the most that the last round changes a row's values; of a number, in deviations of the outputs
ROWS_AT_ONCE = 1024  # whose coalitions are remembered from round to round
GROUP = 16  # background rows of a fit
COVARIANCES = 0.82, 0.67  # for each column that differs: of what background rows have in common, and have not
OF_SUMS = 10.0  # so large that sums of columns are exact
MOST_OUTPUTS = 1 << 20  # of the model, for the rows that come together; more only for a pair of orders
MOST_PAIRS = 64  # of orders of more columns, for each background row
BLOCK_ROWS, BLOCK_BYTES = 1 << 15, 32 << 20  # that are predicted at once
BLOCK_WEIGHTS = 1 << 22

Outputs = Callable[[Dataset], list[np.ndarray]]  # of each output: a number, or the probabilities of all classes


def explain(explanation: Explanation, dataset: Dataset, outputs: Outputs) -> list[np.ndarray]:
    """Of each output, for each row: the place of the class (0 of a number), the base, the output, then each column."""
    game = Game(explanation, dataset, outputs)
    columns, background = len(explanation.columns), game.background.rows
    every = np.arange(dataset.rows)
    if columns <= SMALL_GAME and dataset.rows * background * (2**columns - 2) > MOST_OUTPUTS:
        parts = [_until_precise(game, every[at : at + ROWS_AT_ONCE]) for at in range(0, dataset.rows, ROWS_AT_ONCE)]
        added = [np.concatenate(its) for its in zip(*parts)]
    else:
        added = game.added(planned(columns, background, dataset.rows), every)
    return [
        np.column_stack([chosen, base, its, values])
        for chosen, base, its, values in zip(game.classes, game.bases, game.explained, added)
    ]


def _until_precise(game: Game, rows: np.ndarray) -> np.ndarray:
    """Of each output, the values of all columns, by fits to more and more coalitions, then by all coalitions."""
    columns, background = len(game.places), game.background.rows
    count = -(-background // GROUP)
    members = [np.arange(first, background, count) for first in range(count)]  # of each group
    of_groups = [fits(columns, len(its), seed) for seed, its in enumerate(members)]
    found = np.full((len(game.classes), len(rows), columns), np.inf)
    known = [game.halves_of_none(its, rows) for its in members]
    active, before = np.arange(len(rows)), 0
    for most in ROUNDS:
        if 2 * sum(fit.size(most) for fit in of_groups) > background * (2**columns - 2) / 2:
            break
        fitted = np.zeros((len(found), len(active), columns))
        for place, (fit, its) in enumerate(zip(of_groups, members)):
            coalitions, others = fit.coalitions(before, most)
            halves = game.halves(coalitions, its[others], rows[active])
            known[place] = np.concatenate([known[place], halves], axis=2)
            fitted += len(its) / background * (known[place] @ fit.weights(most))
        change = np.sqrt(((fitted - found[:, active]) ** 2).mean(2)) / game.scales[:, None]
        found[:, active], before = fitted, most
        left = change.max(0) > PRECISION
        active, known = active[left], [its[:, left] for its in known]
        if not len(active):
            break
    if len(active):
        found[:, active] = game.added(AllCoalitions(columns, background), rows[active])
    gains = np.array(game.explained)[:, rows] - np.array(game.bases)[:, rows]
    return found + (gains - found.sum(2))[:, :, None] / columns  # rounding errors of the fits


class Game:
    """The columns of rows that are explained, as players who win the model's output."""

    def __init__(self, explanation: Explanation, dataset: Dataset, outputs: Outputs) -> None:
        layout = {"inputs": [asdict(column) for column in explanation.inputs], "outputs": []}
        files = {one.name: base64.b64decode(its) for one, its in zip(explanation.inputs, explanation.values)}
        background = dataset.with_inputs(Dataset(layout, explanation.rows, files, packed=False).inputs)
        self.dataset, self._outputs = dataset, outputs
        self.places = [[(place_of(dataset, one), along(one)) for one in column] for column in explanation.columns]
        whole, empty = outputs(dataset), outputs(background)
        if explanation.most is not None and explanation.most < background.rows:
            chosen = _spread(empty[0], explanation.most)
            background, empty = background.taken(chosen), [values[chosen] for values in empty]
        self.background = background
        self.classes = [
            values.argmax(1) if wanted is None else np.full(len(values), wanted)
            for values, wanted in zip(whole, explanation.classes)
        ]
        self.explained = [values[np.arange(len(values)), its] for values, its in zip(whole, self.classes)]
        self._before = [values.T[its] for values, its in zip(empty, self.classes)]  # (rows, background rows)
        self.bases = [values.mean(1) for values in self._before]
        self.scales = np.array([1.0 if values.shape[1] > 1 else values.std() or 1.0 for values in empty])

    def added(self, plan: ChosenCoalitions, rows: np.ndarray) -> list[np.ndarray]:
        """Of each output, what each column adds to it in these rows."""
        found = [
            np.outer(its[rows], plan.of_all) + before[rows] @ plan.of_none
            for its, before in zip(self.explained, self._before)
        ]
        step = self._at_once(len(rows))
        for start in range(0, plan.size, step):
            block = plan.block(np.arange(start, min(start + step, plan.size)))
            for answer, values in zip(found, self._played(block.members, block.background, rows)):
                answer += values.T @ block.weights
        return found

    def halves(self, members: np.ndarray, background: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Of each output and row, half of what each coalition wins more than its complement, all other columns."""
        found = np.empty((len(self.classes), len(rows), len(members)), "f4")
        step = max(1, self._at_once(len(rows)) // 2)
        for start in range(0, len(members), step):
            some, others = members[start : start + step], background[start : start + step]
            played = self._played(np.concatenate([some, ~some]), np.concatenate([others, others]), rows)
            for answer, values in zip(found, played):
                answer[:, start : start + step] = (values[: len(some)] - values[len(some) :]).T / 2
        return found

    def halves_of_none(self, background: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The same for the coalition of no column, with each of these background rows."""
        pairs = zip(self.explained, self._before)
        return np.array([before[np.ix_(rows, background)] - its[rows, None] for its, before in pairs], "f4") / 2

    def _at_once(self, rows: int) -> int:
        """The number of coalitions that are played at once."""
        row_bytes = sum(array.nbytes for array in self.dataset.inputs) // max(1, self.dataset.rows)
        at_once = min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)) // max(1, rows)
        return max(1, min(at_once, BLOCK_WEIGHTS // len(self.places)))

    def _played(self, members: np.ndarray, background: np.ndarray, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Of each output, what each coalition wins in each row: an array (coalitions, rows)."""
        dataset = self.dataset if len(rows) == self.dataset.rows else self.dataset.taken(rows)
        each = np.arange(len(rows))
        mixed = _mixed(dataset, self.background, self.places, members, background)
        for values, chosen in zip(self._outputs(mixed), self.classes):
            yield values.reshape(-1, len(rows), values.shape[1])[:, each, chosen[rows]]


def _spread(outputs: np.ndarray, most: int) -> np.ndarray:
    """The places of so many rows whose outputs are spread as those of all rows are."""
    order = np.lexsort((outputs.max(1), outputs.argmax(1)))
    return np.sort(order[(2 * np.arange(most) + 1) * len(order) // (2 * most)])


def _mixed(
    dataset: Dataset,
    background: Dataset,
    places: Sequence[Sequence[tuple[int, slice]]],
    members: np.ndarray,
    chosen: np.ndarray,
) -> Dataset:
    """All rows for the first coalition, then all rows for the second one, and so on."""
    inputs = []
    for place, (its, others) in enumerate(zip(dataset.inputs, background.inputs)):
        own = np.ones((len(members), its.shape[-1]), bool)  # along the last dimension
        for column, elements in enumerate(places):
            for where, some in elements:
                if where == place:
                    own[:, some] = members[:, column, None]
        of_row = own.reshape(len(own), *[1] * (its.ndim - 1), own.shape[1])
        mixed = np.where(of_row, its, others[chosen, None])
        inputs.append(mixed.reshape(-1, *its.shape[1:]))
    return dataset.with_inputs(inputs)


class Block(NamedTuple):
    """Some coalitions, the background row of each, and what its output adds to the value of each column."""

    members: np.ndarray  # (coalitions, columns), whether a column has the row's value
    background: np.ndarray  # (coalitions)
    weights: np.ndarray  # (coalitions, columns)


class ChosenCoalitions(Protocol):
    """To which coalitions the model is applied, besides the explained row and the background rows themselves."""

    size: int  # number of coalitions
    of_all: np.ndarray  # (columns), what the output of the row adds to each
    of_none: np.ndarray  # (background rows, columns), what the outputs of the background rows add to each

    def block(self, numbers: np.ndarray) -> Block: ...


def planned(columns: int, background: int, rows: int) -> ChosenCoalitions:
    """All coalitions of few columns, else those of as many orders of the columns as there is time for."""
    if columns <= SMALL_GAME:
        return AllCoalitions(columns, background)
    of_a_pair = rows * background * 2 * (columns - 1)
    return SomeOrders(columns, background, max(1, min(MOST_PAIRS, MOST_OUTPUTS // of_a_pair)))


class AllCoalitions:
    """Each coalition with each background row."""

    def __init__(self, columns: int, background: int) -> None:
        self._columns, self._background = columns, background
        self._each = 2**columns - 2
        self.size = background * self._each
        self.of_all = np.full(columns, 1 / columns)
        self.of_none = np.full((background, columns), -1 / (columns * background))

    def block(self, numbers: np.ndarray) -> Block:
        members = _members(1 + numbers % self._each, self._columns)
        return Block(members, numbers // self._each, _added_by(members) / self._background)


def _members(numbers: np.ndarray, columns: int) -> np.ndarray:
    """The coalitions with these numbers, which have a bit for each column."""
    return (numbers[:, None] >> np.arange(columns)) & 1 == 1


def _added_by(members: np.ndarray) -> np.ndarray:
    """What each coalition's output adds to the value of each column."""
    columns = members.shape[1]
    joining = np.array([1 / (columns * math.comb(columns - 1, size)) for size in range(columns)])
    sizes = members.sum(1)
    return np.where(members, joining[sizes - 1, None], -joining[sizes % columns, None])


class SomeOrders:
    """The coalitions of some orders, in which column after column joins, with each background row.

    Each order is also taken backwards, which cancels errors of first and second order.  A new order is the one before,
    moved on by one place, so that in turn each column comes at each place.
    """

    def __init__(self, columns: int, background: int, pairs: int, seed: int = 0) -> None:
        random = np.random.Generator(np.random.PCG64(seed))
        first, chosen = np.arange(columns), []
        for number in range(pairs * background):
            turn = number % columns
            if turn == 0:
                first = random.permutation(columns)
            chosen += [np.roll(first, turn), np.roll(first, turn)[::-1]]
        self._orders, count = np.array(chosen), len(chosen)
        self._places = np.argsort(self._orders, axis=1)
        self._background, self._weight = np.arange(count) // 2 % background, 1 / count
        self.size = count * (columns - 1)
        self.of_all = np.bincount(self._orders[:, -1], minlength=columns) / count
        self.of_none = np.zeros((background, columns))
        np.subtract.at(self.of_none, (self._background, self._orders[:, 0]), 1 / count)

    def block(self, numbers: np.ndarray) -> Block:
        order, joined = np.divmod(numbers, self._orders.shape[1] - 1)
        each, weights = np.arange(len(numbers)), np.zeros((len(numbers), self._orders.shape[1]))
        weights[each, self._orders[order, joined]] = self._weight
        weights[each, self._orders[order, joined + 1]] = -self._weight
        return Block(self._places[order] <= joined[:, None], self._background[order], weights)


class Fits:
    """Estimates of the values of few columns: linear functions of what some coalitions win with some background rows.

    The values depend only on half of what each coalition wins more than its complement, because complements have
    opposite weights; there the interactions of two, four, ... columns cancel.  The estimate is that of a Gaussian
    process: how much two coalitions have in common falls with the number of columns in which they differ, as in sums of
    random interactions that are the smaller the more columns they have.  The mean over all background rows is smoother
    than what one of them adds to it.
    """

    def __init__(self, columns: int, background: int, seed: int) -> None:
        random = np.random.Generator(np.random.PCG64(seed))
        self._columns, self._background = columns, background
        self._others, self._weights = np.arange(background), dict[int, np.ndarray]()
        self._pairs, every = [], np.arange(2**columns)  # of each size: coalitions and background rows, none twice
        sizes = _members(every, columns).sum(1)
        for size in range(1, columns // 2 + 1):
            # of a coalition and its complement only one
            chosen = random.permutation(every[(sizes == size) & ((2 * size < columns) | (every & 1 == 1))])
            numbers = np.arange(len(chosen) * background)
            turn = numbers // math.lcm(len(chosen), background)
            others = random.permutation(background)[(numbers + turn) % background]
            self._pairs.append(np.column_stack([chosen[numbers % len(chosen)], others]))

    def size(self, most: int) -> int:
        return sum(len(pairs[:most]) for pairs in self._pairs)

    def coalitions(self, after: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Those that a round adds to those of the round before, and the background row of each."""
        numbers, background = self._numbers(after, most).T
        return _members(numbers, self._columns), background

    def _numbers(self, after: int, most: int) -> np.ndarray:
        return np.concatenate([pairs[after:most] for pairs in self._pairs])

    def weights(self, most: int) -> np.ndarray:
        """(seen, columns): first those of no column with each background row, then those of all rounds until this."""
        if most not in self._weights:
            rounds = [
                self._numbers(before, after) for before, after in itertools.pairwise([0, *ROUNDS]) if after <= most
            ]
            numbers, others = np.concatenate([np.column_stack([0 * self._others, self._others]), *rounds]).T
            every = _members(np.arange(2**self._columns), self._columns)
            signs = np.where(every, 1.0, -1.0)
            apart = np.rint((self._columns - signs @ signs[numbers].T) / 2).astype("i4")  # columns
            common, own = (self._covariances(one) for one in COVARIANCES)
            among = common[apart[numbers]]
            among += own[apart[numbers]] * ((others[:, None] == others) - 1 / self._background)
            among[np.diag_indices(len(among))] *= 1 + 1e-10
            self._weights[most] = np.linalg.solve(among, common[apart].T @ _added_by(every))
        return self._weights[most]

    def _covariances(self, by_column: float) -> np.ndarray:
        """By the number of columns in which two coalitions differ: of sums of columns, and of interactions."""
        apart = np.arange(self._columns + 1)
        return by_column**apart - by_column ** apart[::-1] + OF_SUMS * (self._columns - 2 * apart)


@functools.lru_cache(2 * MOST_BACKGROUND // GROUP)
def fits(columns: int, background: int, seed: int) -> Fits:
    return Fits(columns, background, seed)
