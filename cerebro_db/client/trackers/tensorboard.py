"""Event files of TensorBoard, written without TensorFlow: a curve per metric, and the hyper-parameters of each model.

An event is a message of Protocol Buffers in a record with checksums. What is written here of both fits on a page.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ..errors import ClientError
from .tracked import TrackedModel, TrackedRun

FILE = "events.out.tfevents.0.cerebro_db"
HPARAMS = "hparams"  # the name of TensorBoard's plugin
POLYNOMIAL = 0x82F63B78  # of CRC-32C, with its bits reversed
ENDED = {"finished": 1, "failed": 2}  # Status of the plugin; others are running or unknown


def write(run: TrackedRun, folder: Path) -> Path:
    """Writes ``folder/run_12/model_3/events…`` for each model; files of an earlier call are replaced."""
    top = folder / f"run_{run.run}"
    try:
        for model in run.models:
            place = top / f"model_{model.model}"
            place.mkdir(parents=True, exist_ok=True)
            _extend(place / FILE, b"".join(map(_record, _events(run, model))))
    except OSError as error:
        raise ClientError(f"The folder {top} cannot be written: {error.strerror}.") from error
    return top


def _extend(file: Path, content: bytes) -> None:
    """Append what is new, so that a TensorBoard that reads the file goes on; else write it whole or not at all."""
    before = file.read_bytes() if file.exists() else None
    if before is not None and content.startswith(before):
        with open(file, "ab") as end:
            end.write(content[len(before) :])
        return
    unfinished = file.with_name(".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, file)


def _events(run: TrackedRun, model: TrackedModel) -> Iterable[bytes]:
    began = run.started_at
    yield _double(1, began) + _bytes(3, b"brain.Event:2")
    parameters = b"".join(_bytes(1, _text(1, name) + _bytes(2, _value(one))) for name, one in model.parameters.items())
    group = _text(4, f"run {run.run}, configuration {model.configuration}, model {model.model}")
    yield _summary(began, 0, _plugin("_hparams_/session_start_info", _bytes(3, parameters + group + _double(5, began))))
    points = [(epoch, name, value) for name, values in model.curves.items() for epoch, value in values.items()]
    for epoch, name, value in sorted(points):
        yield _summary(model.times.get(epoch, began), epoch, _scalar(name.replace(" ", "/"), value))
    if run.ended and model.value is not None:
        last = max(model.times.values(), default=began)
        yield _summary(last, max(model.times, default=0), _scalar(f"objective/{run.objective}", model.value))
    if run.ended and model.status in ENDED:
        ended = run.ended_at or began
        content = _bytes(4, _number(1, ENDED[model.status]) + _double(2, ended))
        yield _summary(ended, 0, _plugin("_hparams_/session_end_info", content))


def _scalar(tag: str, value: float) -> bytes:
    return _text(1, tag) + _float(2, value)


def _summary(seconds: float, step: int, value: bytes) -> bytes:
    return _double(1, seconds) + _number(2, step) + _bytes(5, _bytes(1, value))


def _plugin(tag: str, content: bytes) -> bytes:
    """A value that only the plugin of hyper-parameters reads: its content is in the metadata."""
    data = _text(1, HPARAMS) + _bytes(2, content)
    tensor = _number(1, 1) + _bytes(2, b"") + _float_list(0.0)
    return _text(1, tag) + _bytes(9, _bytes(1, data)) + _bytes(8, tensor)


def _value(value: float | int | str | bool) -> bytes:
    """google.protobuf.Value"""
    if isinstance(value, bool):
        return _number(4, int(value))
    return _text(3, value) if isinstance(value, str) else _double(2, float(value))


# -- Protocol Buffers --------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _bytes(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _float(field: int, number: float) -> bytes:
    try:
        return _varint(field << 3 | 5) + struct.pack("<f", number)
    except OverflowError:  # beyond the numbers of 32 bits
        return _float(field, math.copysign(math.inf, number))


def _float_list(number: float) -> bytes:
    return _bytes(5, struct.pack("<f", number))


# -- records -----------------------------------------------------------------------------------------------------


def _table() -> list[int]:
    found = []
    for one in range(256):
        for _ in range(8):
            one = one >> 1 ^ (POLYNOMIAL if one & 1 else 0)
        found.append(one)
    return found


TABLE = _table()


def _checksum(payload: bytes) -> bytes:
    """CRC-32C, rotated and shifted as records have it."""
    crc = 0xFFFFFFFF
    for byte in payload:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(payload: bytes) -> bytes:
    size = struct.pack("<Q", len(payload))
    return size + _checksum(size) + payload + _checksum(payload)
