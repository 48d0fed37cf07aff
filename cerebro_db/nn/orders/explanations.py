"""Explanations: the Shapley values of a model's columns, for each row, compared with background rows.

A coalition is a set of columns that have the row's values; all others have those of one background row.  The Shapley
value of a column is the mean, over all orders of the columns and all background rows, of what the output gains when the
column joins the columns before it.  So the values of all columns add up to the output of the row minus the mean output
of the background rows, whichever orders are taken.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import NamedTuple, Protocol

import numpy as np

from cerebro_db.core.protocol import Explanation
from cerebro_db.nn.rows.data import Dataset
from cerebro_db.nn.rows.exchange import along, place_of

SMALL_GAME = 10  # columns; their values are as exact as PRECISION, of more columns as there is time for
PRECISION = 0.004  # standard error of a row's values; of a number, in standard deviations of the background's outputs
LEAST_ROUNDS = 3  # an order forwards and backwards for each background row; fewer say little about the error
MOST_OUTPUTS = 1 << 20  # of the model, for the rows that come together; more only for a pair of orders
MOST_PAIRS = 64  # of orders of more columns, for each background row
BLOCK_ROWS, BLOCK_BYTES = 1 << 15, 32 << 20  # that are predicted at once
BLOCK_WEIGHTS = 1 << 22

Outputs = Callable[[Dataset], list[np.ndarray]]  # of each output: a number, or the probabilities of all classes


def explain(explanation: Explanation, dataset: Dataset, outputs: Outputs) -> list[np.ndarray]:
    """Of each output, for each row: the place of the class (0 of a number), the base, the output, then each column."""
    game = Game(explanation, dataset, outputs)
    columns, background = len(explanation.columns), game.background.rows
    if columns <= SMALL_GAME and dataset.rows * background * (2**columns - 2) > MOST_OUTPUTS:
        added = _until_precise(game)
    else:
        added = game.added(planned(columns, background, dataset.rows), np.arange(dataset.rows))
    return [
        np.column_stack([chosen, base, its, values])
        for chosen, base, its, values in zip(game.classes, game.bases, game.explained, added)
    ]


def _until_precise(game: Game) -> list[np.ndarray]:
    """The values of all columns by more and more orders, or by all coalitions where these are fewer."""
    rows, columns = game.dataset.rows, len(game.places)
    total = np.zeros((len(game.classes), rows, columns))
    squares, rounds, active = np.zeros_like(total), np.zeros(rows), np.arange(rows)
    while len(active):
        times = int(rounds[active[0]]) + 1  # the rows that are not ready have had the same rounds
        found = np.stack(game.added(SomeOrders(columns, game.background.rows, 1, times), active))
        total[:, active] += found
        squares[:, active] += found**2
        rounds[active] = times
        if times < LEAST_ROUNDS:
            continue
        variance = (squares[:, active] - total[:, active] ** 2 / times) / (times * (times - 1))
        error = (np.sqrt(np.maximum(variance, 0).mean(2)) / game.scales[:, None]).max(0)
        needed = times * (error / PRECISION) ** 2
        hard = needed * 2 * (columns - 1) > 2**columns - 2
        if hard.any():
            total[:, active[hard]] = game.added(AllCoalitions(columns, game.background.rows), active[hard])
            rounds[active[hard]] = 1
        active = active[(needed > times) & ~hard]
    return list(total / rounds[:, None])


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
        dataset = self.dataset if len(rows) == self.dataset.rows else self.dataset.taken(rows)
        found = [
            np.outer(its[rows], plan.of_all) + before[rows] @ plan.of_none
            for its, before in zip(self.explained, self._before)
        ]
        row_bytes = sum(array.nbytes for array in dataset.inputs) // max(1, dataset.rows)
        at_once = min(BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)) // max(1, dataset.rows)
        step = max(1, min(at_once, BLOCK_WEIGHTS // len(self.places)))
        each = np.arange(dataset.rows)
        for start in range(0, plan.size, step):
            block = plan.block(np.arange(start, min(start + step, plan.size)))
            mixed = _mixed(dataset, self.background, self.places, block)
            for values, answer, chosen in zip(self._outputs(mixed), found, self.classes):
                of_class = values.reshape(-1, dataset.rows, values.shape[1])[:, each, chosen[rows]]
                answer += of_class.T @ block.weights
        return found


def _spread(outputs: np.ndarray, most: int) -> np.ndarray:
    """The places of so many rows whose outputs are spread as those of all rows are."""
    order = np.lexsort((outputs.max(1), outputs.argmax(1)))
    return np.sort(order[(2 * np.arange(most) + 1) * len(order) // (2 * most)])


def _mixed(
    dataset: Dataset, background: Dataset, places: Sequence[Sequence[tuple[int, slice]]], block: Block
) -> Dataset:
    """All rows for the first coalition, then all rows for the second one, and so on."""
    inputs = []
    for place, (its, others) in enumerate(zip(dataset.inputs, background.inputs)):
        own = np.ones((len(block.members), its.shape[-1]), bool)  # along the last dimension
        for column, elements in enumerate(places):
            for where, some in elements:
                if where == place:
                    own[:, some] = block.members[:, column, None]
        of_row = own.reshape(len(own), *[1] * (its.ndim - 1), own.shape[1])
        mixed = np.where(of_row, its, others[block.background, None])
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
        sizes = range(columns)  # of the coalition that a column joins
        self._joining = np.array([1 / (columns * background * math.comb(columns - 1, size)) for size in sizes])

    def block(self, numbers: np.ndarray) -> Block:
        members = (1 + numbers[:, None] % self._each >> np.arange(self._columns)) & 1 == 1
        sizes = members.sum(1)
        weights = np.where(members, self._joining[sizes - 1, None], -self._joining[sizes, None])
        return Block(members, numbers // self._each, weights)


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
