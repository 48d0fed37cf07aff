"""The arguments of the functions that pack columns as they are."""

from __future__ import annotations

from cerebro_db.core.records import dataclass


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
