"""A recording in a file: who it is of, how often it samples, and its samples as lines for COPY."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ..errors import ClientError


class Recording(abc.ABC):
    path: Path
    subject: str | None  # that the file names
    rate: int | None  # samples per second; None: each sample has its time

    @abc.abstractmethod
    def lines(self, subject: bytes) -> Iterator[bytes]:
        """Some lines at a time: subject, time, x, y and z with tabs between them. An error names the place."""

    @abc.abstractmethod
    def close(self) -> None: ...


def wrong(path: Path, place: str, reason: str, hint: str | None = None) -> ClientError:
    """An error about a place in a file, such as line 12."""
    return ClientError(f"{path}, {place}: {reason}", hint)


def fractions(rate: int) -> list[bytes]:
    """What follows the seconds of a time, for each sample of a second."""
    return [b".%06d" % round(place * 1_000_000 / rate) for place in range(rate)]


def second(moment: datetime) -> bytes:
    """The time without fractions of a second, as PostgreSQL reads it."""
    return moment.isoformat(" ", "seconds").encode()


def rounded(value: float) -> bytes:
    """An acceleration in g with three decimals, as ActiLife writes it: a half goes away from zero."""
    thousandths = math.floor(abs(value) * 1000 + 0.5)
    sign = b"-" if value < 0 and thousandths else b""
    return sign + b"%d.%03d" % divmod(thousandths, 1000)
