"""The arguments of the functions that pack, in the order of the SQL functions."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.packed_summary import ARGUMENTS
from cerebro_db.core.records import dataclass


@dataclass(frozen=True)
class PackArguments:
    """Those of ``cerebro.pack``."""

    source_table: str | None
    output_table: str | None
    target: str | None
    inputs: str | None = None
    prepare: str | None = None
    validation: float | None = None
    validation_table: str | None = None
    split_by: str | None = None
    split_at: str | None = None
    stratify: bool | None = None
    buffer_size: int | None = None
    segments: int | None = None
    distribution_rules: str | None = None
    seed: int | None = None
    sequence: str | None = None
    weights: str | None = None
    class_weight: str | None = None
    folds: int | None = None
    group_by: str | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        """What packing other rows in the same way needs: those that are not NULL, but for the tables."""
        return {name: value for name in ARGUMENTS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class PlainArguments:
    """Those of ``cerebro.pack_plain``."""

    source_table: str | None
    output_table: str | None
    target: str | None
    inputs: str | None
    buffer_size: int | None = None
    divide_by: float | None = None
    classes: list[int | None] | None = None
    segments: int | None = None
    distribution_rules: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class LikeArguments:
    """Those of ``cerebro.pack_like``."""

    source_table: str | None
    output_table: str | None
    target: str | None
    inputs: str | None
    packed_table: str | None
    buffer_size: int | None = None
    distribution_rules: str | None = None
