"""What the log has of a model that trains on a part of the rows: of all folds but one, of one group, or both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.packing.layout import DataSet
from cerebro_db.core.search.decision import Variant


def rows_on_record(
    source: DataSet, validation: DataSet | None, variant: Variant, jointly: bool, home: int | None = None
) -> dict[str, Any]:
    """The columns of cerebro.model that say on which rows a model trains, and on how many it is evaluated.

    ``jointly``: all segments with its rows train it at the same time.  ``home``: as for ``visits_of``.
    """
    fold, group = variant.fold, variant.group_number
    visits = visits_of(source, variant, jointly, home)
    columns: dict[str, Any] = {"visits": None if visits is None else list(visits)} if visits or jointly else {}
    if fold is not None:
        columns.update(fold=fold, fold_rows=source.rows_of_fold(fold, group))
    if group is not None:
        columns.update(
            group_number=group,
            group_value=label_of(source.groups[group - 1]),
            group_rows=sum(source.pieces[group].values()),
            validation_rows=_validation_rows(source, validation, group),
        )
    return columns


def visits_of(
    source: DataSet, variant: Variant | None, jointly: bool, home: int | None = None
) -> tuple[int, ...] | None:
    """The segments of an epoch's hops of a model; None: each segment once.

    A joint visit is one hop, on the segment that stores the state.  ``variant``: None: the model on all rows.
    ``home``: the model does not hop, because trees grow from all rows at once: this is the number of its segment.
    """
    if home is not None:
        found = _with_rows(source, variant)
        fold = 0 if variant is None else variant.fold or 0  # the models of folds grow side by side
        return (found[(home + fold) % len(found)],)
    joint = joint_segments(source, variant) if jointly else ()
    if joint:
        return joint[:1]
    return None if variant is None or variant.group_number is None else _with_rows(source, variant)


def joint_segments(source: DataSet, variant: Variant | None) -> tuple[int, ...]:
    """The segments that can train a model together: those with rows of it; none if there is only one."""
    found = _with_rows(source, variant)
    return found if len(found) > 1 else ()


def _with_rows(source: DataSet, variant: Variant | None) -> tuple[int, ...]:
    rows = Variant() if variant is None else variant
    return tuple(sorted(source.rows_for(rows.fold, rows.group_number, trained=True)))


def _validation_rows(source: DataSet, validation: DataSet | None, group: int) -> int | None:
    """How many rows of a group are for validation: with folds, each row is that for one of its models."""
    if source.folds:
        return sum(source.rows_of_fold(fold, group) for fold in source.folds_of(group))
    return None if validation is None else sum(validation.pieces.get(group, {}).values())


def label_of(values: Sequence[str | None]) -> str | None:
    """The values of a group as one text: of several columns, a JSON array."""
    return values[0] if len(values) == 1 else json.dumps(values, ensure_ascii=False)
