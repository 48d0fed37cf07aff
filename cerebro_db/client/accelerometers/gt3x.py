"""Files of ActiGraph's devices (GT3X): a ZIP archive of info.txt and log.bin, in older ones activity.bin.

The formats are those of github.com/actigraph/GT3X-File-Format and github.com/actigraph/NHANES-GT3X-File-Format.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from sys import byteorder
from typing import IO

from ..errors import ClientError
from . import recordings
from .recordings import Recording

HEADER = struct.Struct("<BBIH")  # separator, type, seconds since 1970 in local time, bytes of the payload
SEPARATOR = 0x1E
PACKED, SHORTS, PARAMETERS = 0, 26, 21  # types of records: 12 bits a value, 16 bits a value, parameters
SCALE_PARAMETER = (0, 55)
SCALES = {"NEO": 341.0, "CLE": 341.0, "MRA": 341.0}  # units in one g, by the beginning of the serial number
OTHER_SCALE = 256.0
MOST_INFO = 1 << 20  # bytes of info.txt
MOST_RATE = 1000  # samples per second
BEFORE_1970 = 62_135_596_800  # seconds from the year 1 on, which info.txt counts from
AT_ONCE = 60  # seconds of samples


class Gt3x(Recording):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise ClientError(f"{path} is no GT3X file: {error}") from error
        try:
            self._names = self._archive.namelist()
            info = self._info()
            if not {"log.bin", "activity.bin"} & set(self._names):
                raise ClientError(f"{path} is no GT3X file: it has neither log.bin nor activity.bin.")
            rate = info.get("Sample Rate", "")
            if not rate.isdecimal() or not 0 < int(rate) <= MOST_RATE:
                raise recordings.wrong(path, "info.txt", f"the sample rate is '{rate[:40]}'")
            self.rate = self._rate = int(rate)
            self.subject = info.get("Subject Name") or None
            scale = re.fullmatch(r"(\d+)(?:[.,]0*)?", info.get("Acceleration Scale", ""))
            by_serial = SCALES.get(info.get("Serial Number", "")[:3], OTHER_SCALE)
            self._scale = float(scale[1]) if scale and int(scale[1]) else by_serial
            self._start = info.get("Start Date", "")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._archive.close()

    def _info(self) -> dict[str, str]:
        if "info.txt" not in self._names:
            raise ClientError(f"{self.path} is no GT3X file: it has no info.txt.")
        with self._archive.open("info.txt") as file:
            text = file.read(MOST_INFO).decode("utf-8-sig", "replace")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}

    def lines(self, subject: bytes) -> Iterator[bytes]:
        """Idle seconds, which the device does not record, have no lines. An incomplete last record is left out."""
        of_log = "log.bin" in self._names
        seconds = self._of_log() if of_log else self._of_activity()
        made: list[bytes] = []
        try:
            for samples in seconds:
                made += [b"%b\t%b" % (subject, sample) for sample in samples]
                if len(made) >= AT_ONCE * self._rate:
                    yield b"".join(made)
                    made = []
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise recordings.wrong(
                self.path, "log.bin" if of_log else "activity.bin", f"it is damaged: {error}"
            ) from error
        yield b"".join(made)

    # -- records ---------------------------------------------------------------------------------------------

    def _of_log(self) -> Iterator[list[bytes]]:
        """The lines of each second, without the subject."""
        texts = _Texts(self._scale)
        with self._archive.open("log.bin") as file:
            for kind, moment, payload in self._records(file):
                if kind == PARAMETERS:
                    texts = _Texts(_scale_of(payload) or texts.scale)
                elif kind == PACKED and len(payload) > 1:  # one byte says that the device was plugged in
                    yield self._lines(moment, texts.of_packed(payload))
                elif kind == SHORTS and len(payload) > 1:
                    yield self._lines(moment, texts.of_shorts(payload))

    def _records(self, file: IO[bytes]) -> Iterator[tuple[int, datetime, bytes]]:
        place, epoch = 0, datetime(1970, 1, 1)
        while head := file.read(1):
            if head == b"\0":  # a few may be between two records
                place += 1
                continue
            head += file.read(HEADER.size - 1)
            if len(head) < HEADER.size:
                return
            separator, kind, seconds, size = HEADER.unpack(head)
            if separator != SEPARATOR:
                raise recordings.wrong(self.path, f"log.bin, byte {place:,}", "no record begins here")
            rest = file.read(size + 1)
            if len(rest) <= size:
                return
            if _exclusive_or(head + rest) != 0xFF:  # the last byte is the complement of all others
                raise recordings.wrong(self.path, f"log.bin, byte {place:,}", "the record's checksum is wrong")
            place += len(head) + len(rest)
            yield kind, epoch + timedelta(seconds=seconds), rest[:-1]

    def _of_activity(self) -> Iterator[list[bytes]]:
        """As ``_of_log``, of a file that has no records: samples of 36 bits, without a gap."""
        ticks = self._start
        if not ticks.isdecimal() or not BEFORE_1970 < int(ticks) // 10_000_000 < 4 * BEFORE_1970:
            raise recordings.wrong(self.path, "info.txt", f"the start date is '{ticks[:40]}'")
        moment = datetime(1970, 1, 1) + timedelta(seconds=int(ticks) // 10_000_000 - BEFORE_1970)
        texts = _Texts(self._scale)
        with self._archive.open("activity.bin") as file:
            while payload := file.read(9 * self._rate):  # of two seconds
                samples = texts.of_packed(payload)
                for _ in range(2):
                    yield self._lines(moment, samples[: self._rate])
                    samples, moment = samples[self._rate :], moment + timedelta(seconds=1)

    def _lines(self, moment: datetime, samples: list[bytes]) -> list[bytes]:
        second = recordings.second(moment)
        ends = recordings.fractions(max(self._rate, len(samples)))
        return [b"%b%b\t%b\n" % (second, end, sample) for end, sample in zip(ends, samples)]


class _Texts:
    """The samples of a second as texts: x, y and z in g, with tabs between them."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._of_nibbles = {
            f"{n:03x}": recordings.rounded((n ^ 0x800) - 0x800 and ((n ^ 0x800) - 0x800) / scale) for n in range(4096)
        }
        self._of_short: dict[int, bytes] = {}

    def of_packed(self, payload: bytes) -> list[bytes]:
        """Values of 12 bits, which are three digits of hexadecimal numbers, in the order y, x, z."""
        digits, text = payload.hex(), self._of_nibbles
        return [
            b"%b\t%b\t%b" % (text[digits[i + 3 : i + 6]], text[digits[i : i + 3]], text[digits[i + 6 : i + 9]])
            for i in range(0, len(digits) - 8, 9)
        ]

    def of_shorts(self, payload: bytes) -> list[bytes]:
        values = array("h", payload[: len(payload) // 6 * 6])
        if byteorder == "big":
            values.byteswap()
        texts = [self._of_short.get(value) or self._short(value) for value in values]
        return [b"%b\t%b\t%b" % (x, y, z) for x, y, z in zip(texts[::3], texts[1::3], texts[2::3])]

    def _short(self, value: int) -> bytes:
        made = self._of_short[value] = recordings.rounded(value / self.scale)
        return made


def _scale_of(payload: bytes) -> float | None:
    """The parameter with the units in one g, as a fraction of 24 bits and an exponent of 8."""
    for space, name, value in struct.iter_unpack("<HHI", payload[: len(payload) // 8 * 8]):
        if (space, name) == SCALE_PARAMETER:
            exponent, fraction = ((value >> 24) ^ 0x80) - 0x80, ((value & 0xFFFFFF) ^ 0x800000) - 0x800000
            return fraction / 8_388_608 * 2.0**exponent if fraction > 0 else None
    return None


def _exclusive_or(data: bytes) -> int:
    """The exclusive or of all bytes, by halves."""
    value, size = int.from_bytes(data, "little"), len(data)
    while size > 1:
        half = (size + 1) // 2
        value = (value >> 8 * half) ^ (value & ((1 << 8 * half) - 1))
        size = half
    return value
