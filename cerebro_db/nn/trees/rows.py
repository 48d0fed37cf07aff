"""The rows from which the trees of a model grow: features in bins, targets in the unit of the scores, and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.nn.models.adapt import loss_name
from cerebro_db.nn.rows.data import Dataset, Slab
from cerebro_db.nn.trees.bins import Array, BinnedRows, binned
from cerebro_db.nn.trees.losses import Loss, loss_of
from cerebro_db.nn.trees.model import TreeModel

AT_ONCE, VALUES_AT_ONCE = 8192, 1 << 24  # rows, and numbers that are looked up for them
PARTS = 5  # of the rows: codes of the rows of each part follow from the rows of the others
Part = tuple[Dataset, "Array | None"]  # with the places of its rows; None: all


@dataclass(frozen=True)
class TreeRows:
    binned: BinnedRows
    targets: Array  # (rows, scores)
    weights: Array
    loss: Loss
    codes: list[Array]  # with which a model begins

    def fits(self, model: TreeModel) -> bool:
        """Whether the features are those that the model reads: it begins, or has begun with these codes."""
        return not model.count or all(map(np.array_equal, model.codes(), self.codes))

    @property
    def count(self) -> int:
        return len(self.weights)


def read(
    program: Any, model: TreeModel, configuration: dict[str, Any], parts: Sequence[Part], listen: Callable[[], None]
) -> TreeRows:
    """The rows of the parts, one part after the other.  Before the first tree, the codes are put into the model."""
    found = [_outputs(program, slab) for slab in _slabs(parts)]
    outputs = np.concatenate([target for target, _ in found])
    weights = np.concatenate([weight for _, weight in found]).astype(np.float64)
    if not len(outputs) or not weights.sum() > 0:
        raise ConfigurationFailed("there are no rows from which trees could grow")
    targets, loss = _targets(program, model, configuration, outputs)
    features = _features(program, model, targets, weights, parts, listen)
    return TreeRows(binned(features), targets, weights / weights.mean(), loss, model.codes())


def limited(parts: Sequence[Part], width: int, values: int) -> Sequence[Part]:
    """All rows; or some at equal distances, if all of them have more values than so many."""
    rows = sum(_count(part) for part in parts)
    most = max(1, values // max(1, width))
    if rows <= most:
        return parts
    found = []
    for dataset, chosen in parts:
        count = _count((dataset, chosen))
        places = np.arange(0, count, rows / most).astype(np.int64)
        found.append((dataset, places if chosen is None else chosen[places]))
    return found


def _among(parts: Sequence[Part], wanted: Array) -> list[Part]:
    """The rows that are wanted; ``wanted``: whether each row is, one part after the other."""
    ends = np.cumsum([_count(part) for part in parts])
    places = [np.flatnonzero(some) for some in np.split(wanted, ends[:-1])]
    return [
        (dataset, its if chosen is None else chosen[its]) for (dataset, chosen), its in zip(parts, places) if len(its)
    ]


def _count(part: Part) -> int:
    dataset, chosen = part
    return dataset.rows if chosen is None else len(chosen)


def _outputs(program: Any, slab: Slab) -> tuple[Array, Array]:
    """The targets and the weights of rows."""
    import keras

    _, target, *weights = program.step_data("train", slab.gathered(slab.dataset.columns))
    (flat,) = keras.tree.flatten(target)
    return np.asarray(flat), np.asarray(weights[0]) if weights else np.ones(slab.rows, np.float32)


def _slabs(parts: Sequence[Part], at_once: int = AT_ONCE) -> Iterator[Slab]:
    for dataset, chosen in parts:
        rows = _count((dataset, chosen))
        for start in range(0, rows, at_once):
            yield Slab(dataset, chosen, start, min(rows, start + at_once))


def _targets(program: Any, model: TreeModel, configuration: dict[str, Any], outputs: Array) -> tuple[Array, Loss]:
    losses = configuration["compile"]["loss"]
    name, arguments = loss_name(losses, 0, program.model.output_names[0]), _arguments(losses)
    if program.layout["outputs"][0].get("kind") == "real":
        unit, zero = model.unit_and_zero()
        loss = loss_of(name, arguments, classes=0, unit=unit)
        return (outputs.reshape(len(outputs), -1) - zero) / unit, loss
    units = program.outputs[0][-1]
    loss = loss_of(name, arguments, classes=units, unit=np.ones(1))
    of_rows = outputs.reshape(len(outputs), -1)
    classes = of_rows if of_rows.shape[1] == units else np.eye(units)[of_rows[:, 0].astype(np.int64)]
    return classes[:, 1:] if units == 2 else classes, loss


def _arguments(losses: Any) -> dict[str, Any]:
    one = losses[0] if isinstance(losses, list) else losses
    if isinstance(one, dict) and "class_name" not in one:
        one = next(iter(one.values()))
    return dict(one.get("config") or {}) if isinstance(one, dict) else {}


def _features(
    program: Any, model: TreeModel, targets: Array, weights: Array, parts: Sequence[Part], listen: Callable[[], None]
) -> Array:
    def gathered(of: Callable[[Any], Any], some: Sequence[Part] = parts) -> Iterator[Any]:
        for slab in _slabs(some, max(1, min(AT_ONCE, VALUES_AT_ONCE // max(1, model.looked_up)))):
            yield of(program.model_inputs(slab.gathered(slab.dataset.inputs)))
            listen()

    if not model.has_codes:
        return np.concatenate(list(gathered(model.features)))
    coded = [np.concatenate(one) for one in zip(*gathered(model.coded))]
    # Other than the codes, the words that are asked about follow from all rows: each row has little to do with these.
    of_words = model.of_words(coded, targets, weights)
    stored, of_all = model.codes(), model.codes_by(coded, of_words, targets, weights)
    if model.count and any(not np.array_equal(one, other) for one, other in zip(stored, of_all)):
        return np.concatenate(list(gathered(model.features)))  # other rows than those with which the model began
    # A row's own target may not be in its codes: a category of one row would tell it.
    part_of = np.random.Generator(np.random.PCG64(PARTS)).integers(0, PARTS, len(targets))
    found = np.empty((len(targets), model.width), np.float32)
    for part in range(PARTS):
        mine, others = part_of == part, part_of != part
        if mine.any():
            of_others = [one[others] for one in coded]
            its = model.codes_by(of_others, of_words, targets[others], weights[others]) if others.any() else of_all
            model.put_codes(its)
            found[mine] = np.concatenate(list(gathered(model.features, _among(parts, mine))))
    model.put_codes(of_all)
    return found
