"""Files of raw samples that ActiLife, the program of ActiGraph, writes as CSV, with and without a time in each line."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ClientError
from . import recordings
from .recordings import Recording

BLOCK = 1 << 16  # bytes that are read at once
LONGEST = 1 << 16  # bytes of a line
MOST_HEADER = 40  # lines
RATE = re.compile(r"\bat (\d+) ?Hz\b")
DATE_FORMAT = re.compile(r"\bdate format ([^\s,;]+)")
START = re.compile(r"^Start (Time|Date)\W+(.*?)[\s,;\"]*$")
EPOCH = re.compile(r"^Epoch Period\D*(\d+):(\d+):(\d+)")
RULE = re.compile(r"^\"?-{10,}[\s,;\"]*$")  # the line after the header; the first line has words, too
AXIS = re.compile(r"(?:^|accelerometer |axis )([xyz])$", re.IGNORECASE)
TIME = re.compile(r"^(\d+):(\d\d):(\d\d)(?:\.(\d+))?(?: ?([AP])\.?M\.?)?$", re.IGNORECASE)
STRANGE = re.compile(rb"[^-+0-9.eE,:/ TAPMapm\n]")  # in a line of samples
HINT = "The file must be a raw export of ActiLife, with its header of ten lines."


class ActiGraphCsv(Recording):
    def __init__(self, path: Path, date_format: str | None = None) -> None:
        """Reads the header. ``date_format``: instead of the one that the header has, for instance d/M/yyyy."""
        self.path, self.subject, self.rate = path, None, None
        self._format = date_format
        self._begin: datetime | None = None
        self._line = 0  # number of the line that was read last
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        self._file: Any = opened(path, "rb")
        try:
            self._read_header()
            self._read_columns()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    # -- the header ------------------------------------------------------------------------------------------

    def _read_header(self) -> None:
        start: dict[str, tuple[str, int]] = {}
        while (text := self._next_line()) is not None and not RULE.match(text):
            if self._line > MOST_HEADER or self._line == 1 and "ActiGraph" not in text:
                self._fail("this is no header of ActiGraph", HINT)
            if self._line == 1:
                rate, stated = RATE.search(text), DATE_FORMAT.search(text)
                self.rate = int(rate[1]) if rate else None
                self._format = self._format or (stated[1] if stated else None)
            if found := START.match(text):
                start[found[1]] = found[2], self._line
            if (found := EPOCH.match(text)) and any(map(int, found.groups())):
                self._fail("the file has counts for epochs, and not raw samples", "Export the raw data with ActiLife.")
        if text is None:
            self._fail("the file ends within its header", HINT)
        if start.keys() == {"Time", "Date"}:
            date, self._line_of_date = start["Date"]
            after = self._line
            self._line = self._line_of_date
            self._begin = self._moment(date, start["Time"][0])
            self._line = after

    def _read_columns(self) -> None:
        """Where the time and the three axes are, from the names of columns or from the first line of samples."""
        text = self._next_line() or ""
        self._swaps = ";" in text  # fields end with semicolons, and numbers have decimal commas
        fields = [one.strip().strip('"') for one in text.split(";" if self._swaps else ",")]
        named = re.search("[a-z]{2}", text, re.IGNORECASE) is not None
        if named:
            axes = {found[1].lower(): place for place, one in enumerate(fields) if (found := AXIS.search(one))}
            times = [place for place, one in enumerate(fields) if "time" in one.lower()]
            if axes.keys() != {"x", "y", "z"}:
                self._fail(f"the columns are {', '.join(fields)}, and not X, Y and Z", HINT)
            self._axes, self._time = (axes["x"], axes["y"], axes["z"]), times[0] if times else None
        else:
            self._time = 0 if ":" in fields[0] else None
            self._axes = (0, 1, 2) if self._time is None else (1, 2, 3)
            if len(fields) != len(self._axes) + (self._time is not None):
                self._fail(f"{len(fields)} values, and not those of X, Y and Z", "Export it with decimal points.")
        self._width = len(fields)
        self._rest = b"" if named else text.encode("utf-8", "surrogateescape") + b"\n"
        self._line -= not named
        if self._time is None and (self._begin is None or not self.rate):
            what = "the sample rate" if self._begin else "Start Time and Start Date"
            raise recordings.wrong(self.path, "line 1", f"the header lacks {what}, and the samples have no times", HINT)

    def _next_line(self) -> str | None:
        line = self._file.readline(LONGEST + 1)
        if len(line) > LONGEST:
            self._line += 1
            self._fail(f"it has more than {LONGEST:,} bytes", HINT)
        self._line += bool(line)
        return line.decode("utf-8-sig", "surrogateescape").strip() if line else None

    def _fail(self, reason: str, hint: str | None = None) -> NoReturn:
        raise recordings.wrong(self.path, f"line {self._line}", reason, hint)

    # -- the samples -----------------------------------------------------------------------------------------

    def lines(self, subject: bytes) -> Iterator[bytes]:
        times = self._counted_times() if self._time is None else None
        (first, second, third), width, start = self._axes, self._width, subject + b"\t"
        for lines in self._blocks():
            made = []
            for line in lines:
                self._line += 1
                fields = line.split(b",")
                try:
                    x, y, z = fields[first], fields[second], fields[third]
                    if len(fields) != width or not isfinite(float(x) + float(y) + float(z)):
                        raise ValueError
                except (ValueError, IndexError):
                    raise self._explained(line) from None
                at = next(times) if times is not None else self._written_time(fields[self._time])  # type: ignore[index]
                made.append(b"%b%b\t%b\t%b\t%b\n" % (start, at, x, y, z))
            yield b"".join(made)

    def _blocks(self) -> Iterator[list[bytes]]:
        """Some lines at a time, with commas between fields and decimal points. The file may end with empty lines."""
        rest = self._rest
        while data := self._file.read(BLOCK):
            whole = (rest + data).rstrip(b"\r\n")
            ending = len(rest) + len(data) - len(whole)
            cut = whole.rfind(b"\n") + 1
            rest = whole[cut:] + data[len(data) - ending :] if ending <= len(data) else whole[cut:] + b"\n" * ending
            if len(rest) > LONGEST:
                self._line += whole.count(b"\n") + 1
                self._fail(f"it has more than {LONGEST:,} bytes")
            if cut:
                yield self._normal(whole[: cut - 1])
        if rest := rest.rstrip(b"\r\n"):
            yield self._normal(rest)

    def _normal(self, whole: bytes) -> list[bytes]:
        whole = whole.replace(b"\r", b"").replace(b'"', b"")
        if self._swaps:
            whole = whole.replace(b",", b".").replace(b";", b",")
        if strange := STRANGE.search(whole):
            self._line += whole.count(b"\n", 0, strange.start()) + 1
            raise self._explained(whole[: whole.find(b"\n", strange.start()) + 1 or None].splitlines()[-1])
        return whole.split(b"\n")

    def _explained(self, line: bytes) -> ClientError:
        fields = line.decode("utf-8", "replace").split(",")
        place = f"line {self._line}"
        if not line.strip():
            return recordings.wrong(self.path, place, "the line is empty")
        if len(fields) != self._width:
            reason = f"{len(fields)} values instead of {self._width}"
            return recordings.wrong(self.path, place, reason, "Is the file complete, with decimal points?")
        bad = next(
            (one for one in (fields[place] for place in self._axes) if not _is_number(one)),
            line.decode("utf-8", "replace"),
        )
        return recordings.wrong(self.path, place, f"'{bad[:40]}' is no number")

    # -- times -----------------------------------------------------------------------------------------------

    def _counted_times(self) -> Iterator[bytes]:
        assert self._begin is not None and self.rate is not None
        moment, ends = self._begin, recordings.fractions(self.rate)
        while True:
            second = recordings.second(moment)
            for end in ends:
                yield second + end
            moment += timedelta(seconds=1)

    _known: tuple[bytes, bytes] = b"", b""  # a time as it is written, up to its seconds, and as PostgreSQL reads it

    def _written_time(self, written: bytes) -> bytes:
        head, _, fraction = written.rpartition(b".")
        if head != self._known[0] or not fraction.isdigit():
            date, _, time = written.decode("ascii", "replace").strip().replace("T", " ").partition(" ")
            moment = self._moment(date, time)
            fraction = b"%06d" % moment.microsecond
            self._known = head, recordings.second(moment)
        return b"%b.%b" % (self._known[1], fraction)

    def _moment(self, date: str, time: str) -> datetime:
        found = TIME.match(time.strip())
        if found is None:
            self._fail(f"'{time[:40]}' is no time")
        hour, minute, whole, fraction, half = found.groups()
        hours = int(hour) if half is None else int(hour) % 12 + 12 * (half.upper() == "P")
        try:
            year, month, day = self._date(date)
            return datetime(
                year=year,
                month=month,
                day=day,
                hour=hours,
                minute=int(minute),
                second=int(whole),
                microsecond=int((fraction or "")[:6].ljust(6, "0")),
            )
        except ValueError as error:
            self._fail(f"'{date[:40]} {time[:40]}' is no time in the format {self._format}: {error}")

    def _date(self, text: str) -> tuple[int, int, int]:
        """Year, month and day."""
        parts = re.findall(r"\d+", text)
        if len(parts) != 3:
            raise ValueError(f"'{text[:40]}' is no date")
        order = "".join(dict.fromkeys(re.findall("[yMd]", self._format or "")))
        if not order and len(parts[0]) == 4:
            order = "yMd"
        if sorted(order) != ["M", "d", "y"]:
            self._fail(f"which part of {text} is the month is not said", "For instance --date-format d/M/yyyy.")
        of = dict(zip(order, map(int, parts)))
        return of["y"] + (2000 if of["y"] < 100 else 0), of["M"], of["d"]


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
