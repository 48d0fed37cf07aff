"""What the model tables of a run are made of."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.names import Name
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.packing.packed_summary import PackedSummary
from cerebro_db.core.records import dataclass

from ..record.log import StateOnRecord

Values = tuple[str, str, Any]  # name, type and value of a column


@dataclass(frozen=True)
class MadeTables:
    """The tables that were made, and of what."""

    name: Name
    run: dict[str, Any]  # the row of cerebro.run_plan, with its status, start and end, and its options as they are read
    layout: Layout
    summary: PackedSummary  # of the packed table
    states: list[StateOnRecord]
    which: str
    fold: int | None
    replace: bool  # tables that the run had made before are gone
