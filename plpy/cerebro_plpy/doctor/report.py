"""What the doctor's checks share: the rows that they return, what they are given, and how they word figures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Callable

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.protocol import ServerFacts
from cerebro_db.core.records import dataclass

from .. import platform
from ..database.access import Database
from ..database.cancellation import Listen
from ..platform import Platform
from ..platform.machine import megabytes

OK, WARNING, PROBLEM = "ok", "warning", "problem"
ENOUGH_DISK = 1 << 30  # bytes


@dataclass(frozen=True)
class Row:
    """A finding.  Advice says what to do about it."""

    component: str
    check: str
    status: str
    found: str
    advice: str | None = None


@dataclass(frozen=True)
class Examined:
    """The server, as checks look at it."""

    db: Database
    listen: Listen
    segments_asked: int | None  # the doctor's argument
    here: ServerFacts  # of the coordinator
    platform: Platform

    @property
    def segments(self) -> int:
        """On how many segments trainers are tried."""
        wanted = platform.segments_wanted(self.db, self.segments_asked)
        return wanted or self.platform.segments(self.db)


Check = Callable[[Examined], Iterable[Row]]


def disk_row(component: str, check: str, free: int | None, where: str) -> Row:
    if free is None:
        return Row(component, check, WARNING, f"could not determine the free space {where}")
    found = f"{megabytes(free)} free {where}"
    if free < ENOUGH_DISK:
        return Row(component, check, WARNING, found, "Make room: model states and cached rows are stored there.")
    return Row(component, check, OK, found)


def with_detail(error: CerebroError) -> str:
    return f"{error.message} ({error.detail})" if error.detail else error.message


def numbers(version: str) -> tuple[int, ...]:
    """``3.15.1`` as numbers that can be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
