"""The columns of a packed table's summary that its models' summary repeats: those of MADlib, without the layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .documents import Fields
from .packing import MOST_CLASSES
from .preparation import MOST_COLUMNS
from .records import dataclass

Labels = Mapping[str, Optional[tuple[Optional[str], ...]]]

CLASS_VALUES = "_class_values"  # ending of the column with the labels of an output
NAMES = ("dependent_varname", "independent_varname", "dependent_vartype")
COLUMNS = (*NAMES, "num_classes", "normalizing_const")


@dataclass(frozen=True)
class PackedSummary:
    """``None``: the summary does not say it."""

    dependent_varname: tuple[str, ...] | None
    independent_varname: tuple[str, ...] | None
    dependent_vartype: tuple[str, ...] | None
    num_classes: tuple[int, ...] | None
    normalizing_const: float | None
    class_values: Labels  # by output; NULL for a class without a label; None: the output has no labels

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in COLUMNS}
        found = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
        labels = {name: None if one is None else list(one) for name, one in self.class_values.items()}
        return {**found, **{name + CLASS_VALUES: one for name, one in labels.items()}}

    @classmethod
    def read(cls, document: Any, outputs: Sequence[str], where: str) -> PackedSummary:
        """BadData if a column that is needed has a wrong value.  ``outputs``: their names."""
        fields = Fields(document, where)

        def texts(name: str) -> tuple[str, ...] | None:
            found = fields.value(name, None)
            return None if found is None else fields.texts(name, MOST_COLUMNS, different=False)

        labels = {}
        for output in outputs:
            name = output + CLASS_VALUES
            found = fields.value(name, None)
            if found is not None:
                found = fields.list(name, 0, MOST_CLASSES)
                known = {name: [one for one in found if one is not None]}
                Fields(known, where).texts(name, MOST_CLASSES)
            labels[output] = None if found is None else tuple(found)
        dependent, independent, kinds = map(texts, NAMES)
        return cls(
            dependent_varname=dependent,
            independent_varname=independent,
            dependent_vartype=kinds,
            num_classes=fields.wholes("num_classes", 0, MOST_COLUMNS, 0, MOST_CLASSES)
            if fields.value("num_classes", None) is not None
            else None,
            normalizing_const=fields.number("normalizing_const")
            if fields.value("normalizing_const", None) is not None
            else None,
            class_values=labels,
        )
