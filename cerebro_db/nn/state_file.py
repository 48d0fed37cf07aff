"""A program's state to a file and back, one tensor at a time, so that memory holds one tensor beside the variables."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO
from weakref import WeakKeyDictionary

import numpy as np

from cerebro_db.core import state
from cerebro_db.core.errors import CorruptState
from cerebro_db.core.protocol import OutgoingState
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.models import dtypes

COUNTERS = {"I32", "U32", "I64"}
LEARNING_RATE = "/learning_rate"  # the end of the name of an optimizer's variable; with a schedule it has none

PART = 256 << 10  # bytes that are copied and hashed at a time: as much as the caches of a processor hold
SMALL = 16 << 20  # bytes of a state
_layouts: WeakKeyDictionary[Program, StateLayout] = WeakKeyDictionary()
ALIGNMENT = 64  # bytes; TensorFlow takes over an array's memory only if the memory is aligned like this


@dataclass(frozen=True)
class StateLayout:
    """What is known of a program's state before any is written."""

    header: bytes
    size: int  # of the whole file
    weights: tuple[int, int]  # offset and bytes of MADlib's model_weights


def layout(program: Program) -> StateLayout:
    if program not in _layouts:
        _layouts[program] = _layout(program)
    return _layouts[program]


def _layout(program: Program) -> StateLayout:
    tensors = [(name, dtypes.SAFETENSORS[dtype], shape) for name, dtype, shape in program.variables]
    if _weights_apart(program):
        values = sum(math.prod(shape) for _, _, shape in program.variables[: program.weights])
        tensors.append((state.MADLIB_WEIGHTS, "F32", (values,)))
    header = state.header_bytes(tensors, {"format": "cerebro_db", state.WEIGHTS: str(program.weights)})
    size = len(header) + sum(state.tensor_bytes(dtype, shape) for _, dtype, shape in tensors)
    return StateLayout(header, size, state.weights_slice(state.read_header(header, size)))


def size(program: Program) -> int:
    """The bytes of the file, known without writing it."""
    return layout(program).size


def write(program: Program, path: str, index: int, token: str | None) -> OutgoingState:
    """Write the state that is in the program's variables to a file, and describe it for an answer.

    The file may be there: the one that the state before was read from.  Its memory is used again.
    """
    digest, written = hashlib.sha256(), 0
    pieces = iter([b"".join(_pieces(program, program.get_all()))]) if small(program) else _pieces(program)
    # The file is removed soon, so it needs neither fsync nor rename.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0) as file:
        for piece in pieces:
            for part in _parts(memoryview(piece)):
                _write_all(file, part)
                digest.update(part)
                written += len(part)
        file.truncate(written)
    offset, length = layout(program).weights
    return OutgoingState(index, written, digest.hexdigest(), offset, length, token)


def read(program: Program, path: str, sha256: str, *, adopted: bool = False) -> None:
    """Put a state that ``write`` wrote, in any process, into the program's variables.

    ``adopted``: all but the learning rate, which the state of another configuration may have or not have.
    The file is read and not mapped: mapped memory would count as memory of this process.  If this raises an error, the
    variables of a large program have undefined values.
    """
    with open(path, "rb", buffering=0) as file:
        hashed = _Hashed(file)
        try:
            values = _set_or_kept(program, _arrays(program, hashed, adopted))
        except CorruptState:
            hashed.require(sha256)  # the reason for any other damage
            raise
        hashed.require(sha256)
    _set_kept(program, values)


def read_average(program: Program, replicas: Sequence[tuple[str, str, int]]) -> None:
    """Put the average of several states into the program's variables; of each its path, checksum and weight.

    Memory holds one tensor of one state at a time, and the sum.  If this raises an error, the variables have undefined
    values.
    """
    with contextlib.ExitStack() as opened:
        files = [_Hashed(opened.enter_context(open(path, "rb", buffering=0))) for path, _, _ in replicas]
        weights = [weight for _, _, weight in replicas]

        def averages() -> Iterator[tuple[int, np.ndarray]]:
            first, *others = (_arrays(program, file, False) for file in files)
            for place, array in first:  # each state has every tensor, in the same order
                yield place, averaged(itertools.chain([array], (next(other)[1] for other in others)), weights)

        def require_checksums() -> None:
            for file, (_, sha256, _) in zip(files, replicas):
                file.require(sha256)

        try:
            values = _set_or_kept(program, averages())
        except CorruptState:
            require_checksums()
            raise
        require_checksums()
    _set_kept(program, values)


def averaged(arrays: Iterable[np.ndarray], weights: Sequence[int]) -> np.ndarray:
    """The weighted mean, computed with 64 bits.  Of integers the largest: they count steps, or are seeds."""
    pairs = zip(arrays, weights)
    array, weight = next(pairs)
    dtype = array.dtype
    if dtype.kind in "biu":
        return np.asarray(functools.reduce(np.maximum, (other for other, _ in pairs), array), dtype)
    total = np.multiply(array, weight, dtype="complex128" if dtype.kind == "c" else "float64")
    del array
    for other, weight in pairs:
        total += np.multiply(other, weight, dtype=total.dtype)
    total /= sum(weights)
    return total.astype(dtype)


def _set_or_kept(program: Program, arrays: Iterator[tuple[int, np.ndarray]]) -> dict[int, np.ndarray]:
    """The values for a small program; those for a large one are put into its variables as they come."""
    values: dict[int, np.ndarray] = {}
    for number, array in arrays:
        if small(program):
            values[number] = array
        else:
            program.set(number, array)
    return values


def _set_kept(program: Program, values: dict[int, np.ndarray]) -> None:
    if len(values) == len(program.variables):
        program.set_all(list(values.values()))
    else:
        for number, array in values.items():
            program.set(number, array)


class _Hashed:
    """A file that is read from its beginning to its end, and hashed meanwhile: each part while the caches have it."""

    def __init__(self, file: Any) -> None:
        self._file, self.size = file, os.fstat(file.fileno()).st_size
        if not self.size:
            raise CorruptState("the model state is empty")
        self._digest = hashlib.sha256()

    def seek(self, start: int) -> None:
        if start != self._file.tell():
            raise ValueError(f"byte {start} is not the next one of a file that is read from its beginning to its end")

    def skip_to(self, start: int) -> None:
        while (left := start - self._file.tell()) > 0 and self.read(min(left, PART)):
            pass
        self.seek(start)

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        self._digest.update(data)
        return data

    def readinto(self, memory: memoryview) -> int:
        filled = 0
        for part in _parts(memory):
            while part and (count := self._file.readinto(part)):
                self._digest.update(part[:count])
                part, filled = part[count:], filled + count
        return filled

    def require(self, sha256: str) -> None:
        """Read what is left, and refuse a file that has another checksum."""
        while self.read(PART):
            pass
        if self._digest.hexdigest() != sha256:
            raise CorruptState("the model state does not have the checksum that it was written with")


def _parts(whole: memoryview) -> Iterator[memoryview]:
    return (whole[start : start + PART] for start in range(0, len(whole), PART))


def _arrays(program: Program, file: _Hashed, adopted: bool) -> Iterator[tuple[int, np.ndarray]]:
    """The place of each variable that gets a value, and the value."""
    for place, tensor, array in _tensors(program, file, adopted):
        name, dtype, _ = program.variables[place]
        yield place, array if tensor.dtype == dtypes.SAFETENSORS[dtype] else _converted(array, dtype, name)


def _tensors(program: Program, file: _Hashed, adopted: bool) -> Iterator[tuple[int, state.Tensor, np.ndarray]]:
    """Each tensor of a state with the place of its variable, and its values."""
    found = state.read_header(file, file.size)
    tensors = [tensor for tensor in found.tensors if tensor.name != state.MADLIB_WEIGHTS]  # they follow from the others
    places = list(range(len(program.variables)))
    if adopted:
        tensors = [tensor for tensor in tensors if not tensor.name.endswith(LEARNING_RATE)]
        places = [place for place in places if not program.variables[place][0].endswith(LEARNING_RATE)]
    # By position: equal configurations have equal variables in equal order. Other names are for people only.
    if len(tensors) != len(places) or not all(_fits(each, program.variables[at]) for each, at in zip(tensors, places)):
        raise CorruptState(
            "the model state belongs to another model: its tensors have other shapes or types",
            detail=_difference(tensors, program),
        )
    for tensor, place in zip(tensors, places):
        file.skip_to(tensor.start)
        name, _, shape = program.variables[place]
        yield place, tensor, _array(file, (name, dtypes.KERAS[tensor.dtype], shape))


def small(program: Program) -> bool:
    """Whether all variables are read and written at once: copies of a small state do no harm."""
    return layout(program).size <= SMALL


def _write_all(file: Any, piece: bytes | memoryview) -> None:
    left = memoryview(piece)
    while left:
        left = left[file.write(left) :]


def read_weights(program: Program, path: str) -> Iterator[np.ndarray]:
    """Raw float32 weights, as MADlib stores them, in the shapes and types of the program's; one at a time."""
    wanted = [math.prod(shape) for _, _, shape in program.variables[: program.weights]]
    found = os.path.getsize(path)
    if found != 4 * sum(wanted):
        raise CorruptState(
            f"Number of elements in model weights({found // 4}) doesn't match model({sum(wanted)}): the weights have"
            f" {found} bytes, but the model takes {4 * sum(wanted)}"
        )

    def arrays() -> Iterator[np.ndarray]:
        with open(path, "rb") as file:
            for name, dtype, shape in program.variables[: program.weights]:
                yield _array(file, (name, "float32", shape)).astype(_numpy(dtype), copy=False)

    return arrays()


def _array(file: _Hashed | BinaryIO, variable: tuple[str, str, tuple[int, ...]]) -> np.ndarray:
    """The array in memory of its own: TensorFlow may take the memory over and write into it."""
    dtype = _numpy(variable[1])
    size = math.prod(variable[2]) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array = memory[start : start + size].view(dtype).reshape(variable[2])
    if array.nbytes and file.readinto(_bytes(array)) != array.nbytes:  # type: ignore[union-attr]
        raise CorruptState("the model state ends too early")
    return array


def _pieces(program: Program, values: list[np.ndarray] | None = None) -> Iterator[bytes | memoryview]:
    """The file piece by piece; the variables' values are read one at a time if they are not given."""

    def value(number: int) -> np.ndarray:
        return program.get(number) if values is None else values[number]

    yield layout(program).header
    for number in range(len(program.variables)):
        yield _bytes(value(number))
    if _weights_apart(program):
        for number in range(program.weights):
            yield _bytes(program.evaluated(number, value).astype("<f4"))


def _bytes(array: np.ndarray) -> memoryview:
    """The array's own memory if it is contiguous. Native byte order is little-endian wherever TensorFlow runs."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _fits(tensor: state.Tensor, variable: tuple[str, str, tuple[int, ...]]) -> bool:
    """Whether a tensor can go into a variable. Engines differ in the integer types of counters and seeds only."""
    dtype = dtypes.SAFETENSORS[variable[1]]
    return tensor.shape == variable[2] and (tensor.dtype == dtype or {tensor.dtype, dtype} <= COUNTERS)


def _converted(array: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Counters or seeds that another engine wrote, in this engine's integer type."""
    limits = np.iinfo(dtype)
    if array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
        raise CorruptState(
            f"the model state was written with another engine, and its {name} does not fit into {dtype} here",
            hint="Go on with the engine that trained it.",
        )
    return array.astype(dtype)


def _weights_apart(program: Program) -> bool:
    """Whether MADlib's weights are not the variables themselves: others are evaluated, or they are no float32."""
    return program.averages or any(dtype != "float32" for _, dtype, _ in program.variables[: program.weights])


def _numpy(dtype: str) -> np.dtype:
    import ml_dtypes  # noqa: F401  (comes with the frameworks; adds bfloat16 and the float8 types to NumPy)

    return np.dtype(dtype)


def _difference(tensors: list[state.Tensor], program: Program) -> str:
    if len(tensors) != len(program.variables):
        return f"It has {len(tensors)} tensors, the model {len(program.variables)} variables."
    for tensor, (name, dtype, shape) in zip(tensors, program.variables):
        if not _fits(tensor, (name, dtype, shape)):
            wanted = dtypes.SAFETENSORS[dtype]
            return f"It has {tensor.name} {tensor.dtype} {tensor.shape}, the model {name} {wanted} {shape}."
    return ""
