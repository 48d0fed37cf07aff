"""Rows with values that were exchanged among them.  The files of the rows stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.protocol import Exchange, InputElements
from cerebro_db.nn.rows.data import Dataset, Slab, row_order


def exchanged(dataset: Dataset, exchange: Exchange, repeat: int, most: int) -> Iterator[Dataset]:
    """All rows, in parts of ``most`` rows, so that no more than one part is copied at a time.

    Row i gets the values of row ``row_order(rows, seed, repeat)[i]``, which may be in another part.
    """
    places = [(place_of(dataset, elements), along(elements)) for elements in exchange.elements]
    order = row_order(dataset.rows, exchange.seed, repeat)
    for start in range(0, dataset.rows, most):
        part = dataset.part(start, start + most)
        rows = Slab(dataset, order, start, start + part.rows)
        for place, some in places:
            (values,) = rows.gathered([dataset.inputs[place][..., some]])
            if some != slice(None):
                whole = np.array(part.inputs[place])
                whole[..., some] = values
                values = whole
            part.inputs[place] = values
        part.columns = part.inputs + part.outputs
        yield part


def place_of(dataset: Dataset, elements: InputElements) -> int:
    """The place of the input that has the elements."""
    names = [variable["name"] for variable in dataset.layout["inputs"]]
    if elements.input not in names:
        raise InvalidArgument(f"these rows have no input {elements.input[:80]!r}")
    place = names.index(elements.input)
    shape = dataset.inputs[place].shape[1:]
    if elements.width is not None and elements.start + elements.width > (shape[-1] if shape else 0):
        raise InvalidArgument(
            f"a row of the input {elements.input!r} has the shape {list(shape)},"
            f" and no {elements.width} elements from {elements.start} on"
        )
    return place


def along(elements: InputElements) -> slice:
    """The elements along the last dimension."""
    return slice(None) if elements.width is None else slice(elements.start, elements.start + elements.width)
