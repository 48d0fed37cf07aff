"""A program's state to a file and back, one tensor at a time, so that memory holds one tensor beside the variables.

Training never changes the weights of frozen layers.  The largest stretch of them lies in a file of its own, named after
its checksum, and the state's file has a hole there.  The checksum of the state covers both.  The variables of all
programs, and of all trainers of a host, have the file's memory in common: they are mapped to it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.models import state
from cerebro_db.core.protocol import FrozenPart, OutgoingState
from cerebro_db.nn.engines.base import Program
from cerebro_db.nn.models import dtypes

COUNTERS = {"I32", "U32", "I64"}
LEARNING_RATE = "/learning_rate"  # the end of the name of an optimizer's variable; with a schedule it has none

PART = 256 << 10  # bytes that are copied and hashed at a time: as much as the caches of a processor hold
SMALL = 16 << 20  # bytes of a state
LEAST_FROZEN = 1 << 20  # bytes that get a file of their own
_layouts: WeakKeyDictionary[Program, StateLayout] = WeakKeyDictionary()
ALIGNMENT = 64  # bytes; TensorFlow takes over an array's memory only if the memory is aligned like this
_mapped_files: WeakValueDictionary[tuple[int, int], np.ndarray] = WeakValueDictionary()  # by device and inode


@dataclass(frozen=True)
class StateLayout:
    """What is known of a program's state before any is written."""

    header: bytes
    size: int  # of the whole file
    weights: tuple[int, int]  # offset and bytes of the flat weights
    frozen: range  # the places of the weights in the frozen part; empty: there is none
    frozen_start: int  # of the frozen part in the file
    frozen_bytes: int


class FrozenFile(NamedTuple):
    """The file with the frozen part of a state."""

    part: FrozenPart
    path: str


class KnownFrozen(NamedTuple):
    """What is known of the frozen weights in a program's variables."""

    places: range  # of the weights
    sha256: str
    digest: Any  # of the file up to their end, if nothing but the header is before them; None: not known
    file: tuple[int, int] | None = None  # whose memory the variables have: its device and inode


def layout(program: Program) -> StateLayout:
    if program not in _layouts:
        _layouts[program] = _layout(program)
    return _layouts[program]


def _layout(program: Program) -> StateLayout:
    tensors = [(name, dtypes.SAFETENSORS[dtype], shape) for name, dtype, shape in program.variables]
    if _weights_apart(program):
        values = sum(math.prod(shape) for _, _, shape in program.variables[: program.weights])
        tensors.append((state.FLAT_WEIGHTS, "F32", (values,)))
    header = state.header_bytes(tensors, {"format": "cerebro_db", state.WEIGHTS: str(program.weights)})
    size = len(header) + sum(state.tensor_bytes(dtype, shape) for _, dtype, shape in tensors)
    found = state.read_header(header, size)
    return StateLayout(header, size, state.weights_slice(found), *_frozen_part(program, found.tensors))


def _frozen_part(program: Program, tensors: Sequence[state.Tensor]) -> tuple[range, int, int]:
    """The largest stretch of weights that nothing changes: their places, its start and its bytes."""
    best, size, first = range(0), LEAST_FROZEN - 1, 0
    constants = set(program.constants)
    for place in range(program.weights):
        if place not in constants:
            first = place + 1
        elif tensors[place].end - tensors[first].start > size:
            best, size = range(first, place + 1), tensors[place].end - tensors[first].start
    return (best, tensors[best.start].start, size) if best else (best, 0, 0)


def frozen_bytes(program: Program) -> int:
    """The bytes of the frozen part of a program's state."""
    return layout(program).frozen_bytes


def size(program: Program) -> int:
    """The bytes of the file, known without writing it."""
    return layout(program).size


def write(program: Program, path: str, index: int, token: str | None) -> OutgoingState:
    """Write the state that is in the program's variables to a file, and describe it for an answer.

    The file may be there: the one that the state before was read from.  Its memory is used again.  The frozen part goes
    into a file beside it, if that is not there yet.
    """
    digest, written, frozen = hashlib.sha256(), 0, _frozen_written(program, path)
    pieces = _pieces(program, program.get_all() if small(program) else None, without=layout(program).frozen)
    if small(program) and frozen is None:
        pieces = iter([b"".join(pieces)])
    # The file is removed soon, so it needs neither fsync nor rename.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0) as file:
        for piece in pieces:
            if frozen is not None and written == frozen.part.start:
                written, digest = file.seek(frozen.part.end), _digest_behind(program, frozen, digest)
            for part in _parts(memoryview(piece)):
                _write_all(file, part)
                digest.update(part)
                written += len(part)
        file.truncate(written)
    offset, length = layout(program).weights
    return OutgoingState(
        index=index,
        bytes=written,
        sha256=digest.hexdigest(),
        weights_offset=offset,
        weights_bytes=length,
        token=token,
        frozen=frozen and frozen.part,
    )


def _frozen_written(program: Program, path: str) -> FrozenFile | None:
    """The file with the frozen part beside a state's file; written if it is not there."""
    places, start, size = layout(program).frozen, layout(program).frozen_start, layout(program).frozen_bytes
    if not places:
        return None
    known = program.known_frozen
    if known is None or not _has_size(frozen_path(path, known.sha256), size):
        digest = hashlib.sha256()
        for part in _frozen_bytes(program):
            digest.update(part)
        if not _has_size(frozen_path(path, digest.hexdigest()), size):  # another program may have written it
            new = f"{path}.frozen"
            try:
                with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
                    for part in _frozen_bytes(program):
                        _write_all(file, part)
                os.rename(new, frozen_path(path, digest.hexdigest()))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new)
                raise
        if known is None or known.sha256 != digest.hexdigest():
            known = program.known_frozen = KnownFrozen(places, digest.hexdigest(), None)
    found = FrozenFile(FrozenPart(start, size, known.sha256), frozen_path(path, known.sha256))
    _share(program, found)
    return found


def _frozen_bytes(program: Program) -> Iterator[memoryview]:
    return (part for place in layout(program).frozen for part in _parts(_bytes(program.get(place))))


def _share(program: Program, frozen: FrozenFile) -> None:
    """Have the frozen weights of a program, which are known to be those of a file, in the memory of the file."""
    known = program.known_frozen
    if known is None or small(program) or known.sha256 != frozen.part.sha256 or known.file == _identity(frozen.path):
        return
    mapped, tensors = (
        _mapped(frozen.path, frozen.part),
        state.read_header(layout(program).header, layout(program).size).tensors,
    )
    for place in known.places:
        view = _view(mapped, frozen.part, tensors[place])
        if view is not None:
            program.set(place, view, stays=True)
    program.known_frozen = known._replace(file=_identity(frozen.path))


def _mapped(path: str, part: FrozenPart) -> np.ndarray:
    """The bytes of a file with a frozen part.  Nobody writes them."""
    if not _has_size(path, part.bytes):
        raise CorruptState("the file with the frozen part of the model's state has not the size that it should have")
    identity = _identity(path)
    found = _mapped_files.get(identity)
    if found is None:
        found = _mapped_files[identity] = np.memmap(path, np.uint8, mode="c")
    return found


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _view(mapped: np.ndarray, part: FrozenPart, tensor: state.Tensor) -> np.ndarray | None:
    """A tensor within the memory of a frozen part; None if it does not begin where an engine can use it."""
    start = tensor.start - part.start
    if start % ALIGNMENT or tensor.dtype != "F32":
        return None
    return mapped[start : tensor.end - part.start].view(np.ndarray).view("<f4").reshape(tensor.shape)


def frozen_path(path: str, sha256: str) -> str:
    """The file with a frozen part that lies beside the file of a state."""
    return f"{os.path.splitext(path)[0]}.{sha256}"


def _has_size(path: str, size: int) -> bool:
    try:
        return os.path.getsize(path) == size
    except OSError:
        return False


def _digest_behind(program: Program, frozen: FrozenFile, digest: Any) -> Any:
    """The checksum of a file up to the end of its frozen part, from that of all before."""
    first = frozen.part.start == len(layout(program).header)
    if not first or program.known_frozen.digest is None:
        with open(frozen.path, "rb", buffering=0) as file:
            while part := file.read(PART):
                digest.update(part)
        if not first:
            return digest
        program.known_frozen = program.known_frozen._replace(digest=digest)
    return program.known_frozen.digest.copy()


def read(program: Program, path: str, sha256: str, *, adopted: bool = False, frozen: FrozenFile | None = None) -> None:
    """Put a state that ``write`` wrote, in any process, into the program's variables.

    ``adopted``: all but the learning rate, which the state of another configuration may have or not have.
    ``frozen``: the file for the hole in this one.  It is not read if the variables have these frozen weights already.
    The file itself is read and not mapped: mapped memory would count as memory of this process.  If this raises an
    error, the variables of a large program have undefined values.
    """
    known, part, mine = program.known_frozen, frozen and frozen.part, layout(program)
    is_ours = part is not None and (part.start, part.bytes) == (mine.frozen_start, mine.frozen_bytes)
    begins_alike = is_ours and mine.frozen_start == len(mine.header) and _begins_with(path, mine.header)
    if known is None or not begins_alike or part is None or part.sha256 != known.sha256:
        known = program.known_frozen = None
    with _opened(path, frozen) as file:
        mapped = (
            _mapped(frozen.path, part)
            if part is not None and frozen is not None and is_ours and not small(program)
            else None
        )
        hashed = _Hashed(file, part, known and known.digest, mapped)
        try:
            values = _set_or_kept(program, _arrays(program, hashed, adopted))
        except CorruptState:
            hashed.require(sha256)  # the reason for any other damage
            raise
        hashed.require(sha256)
    _set_kept(program, values)
    if is_ours and part is not None:
        new = KnownFrozen(mine.frozen, part.sha256, hashed.behind if begins_alike else None)
        program.known_frozen = new if known is None else new._replace(file=known.file)
        if frozen is not None:
            _share(program, frozen)


def _begins_with(path: str, header: bytes) -> bool:
    with open(path, "rb", buffering=0) as file:
        return file.read(len(header)) == header


def read_average(
    program: Program, replicas: Sequence[tuple[str, str, int]], frozen: Sequence[FrozenFile | None] | None = None
) -> None:
    """Put the average of several states into the program's variables; of each its path, checksum and weight.

    ``frozen``: as of ``read``, of each.
    Memory holds one tensor of one state at a time, and the sum.  If this raises an error, the variables have undefined
    values.
    """
    program.known_frozen = None
    with contextlib.ExitStack() as opened:
        files = [
            _Hashed(opened.enter_context(_opened(path, its)), its and its.part)
            for (path, _, _), its in zip(replicas, frozen or [None] * len(replicas))
        ]
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


@contextlib.contextmanager
def _opened(path: str, frozen: FrozenFile | None) -> Iterator[Any]:
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open(path, "rb", buffering=0))
        if frozen is None:
            yield file
        else:
            yield _Filled(file, opened.enter_context(open(frozen.path, "rb", buffering=0)), frozen.part)


class _Filled:
    """A file with a hole, and the file for the hole, read as one."""

    def __init__(self, file: Any, frozen: Any, part: FrozenPart) -> None:
        self._file, self._frozen, self._part, self._at = file, frozen, part, 0
        self.fileno = file.fileno

    def tell(self) -> int:
        return self._at

    def seek(self, start: int) -> None:
        self._at = start

    def readinto(self, memory: memoryview) -> int:
        part, end = self._part, self._at + len(memory)
        if part.start <= self._at < part.end:
            file, start, end = self._frozen, self._at - part.start, min(end, part.end)
        else:
            file, start = self._file, self._at
            end = min(end, part.start) if self._at < part.start else end
        file.seek(start)
        count = int(file.readinto(memory[: end - self._at]) or 0)
        self._at += count
        return count

    def read(self, size: int) -> bytes:
        """All of these bytes, as far as there are any: the header may reach to the hole."""
        memory = bytearray(size)
        filled = 0
        while filled < size and (count := self.readinto(memoryview(memory)[filled:])):
            filled += count
        return bytes(memory[:filled])


class _Hashed:
    """A file that is read from its beginning to its end, and hashed meanwhile: each part while the caches have it.

    ``frozen``: its frozen part.  ``known``: the checksum up to its end; then these bytes are passed over.
    ``mapped``: the bytes of the frozen part, if variables can have them as they are.
    """

    def __init__(
        self, file: Any, frozen: FrozenPart | None = None, known: Any = None, mapped: np.ndarray | None = None
    ) -> None:
        self._file, self.size = file, os.fstat(file.fileno()).st_size
        if not self.size:
            raise CorruptState("the model state is empty")
        self._digest = hashlib.sha256()
        self._frozen, self._known, self._mapped = frozen, known, mapped
        self.behind = known  # the checksum up to the end of the frozen part

    def knows(self, tensor: state.Tensor) -> bool:
        """Whether the values of a tensor need not be read."""
        part = self._frozen
        return self._known is not None and part is not None and part.start <= tensor.start and tensor.end <= part.end

    def maps(self, tensor: state.Tensor) -> bool:
        """Whether the values of the next tensor are in mapped memory, so that they need no other.  They are hashed."""
        part = self._frozen
        if self._mapped is None or part is None or not part.start <= tensor.start < tensor.end <= part.end:
            return False
        found = _view(self._mapped, part, tensor)
        if found is None:
            return False
        for piece in _parts(_bytes(found)):
            self._digest.update(piece)
        self._file.seek(tensor.end)
        self._add(b"")
        return True

    def _pass_over(self) -> None:
        """Go to the end of a frozen part that is known."""
        if self._known is not None and self._frozen is not None and self._file.tell() == self._frozen.start:
            self._file.seek(self._frozen.end)
            self._digest = self._known.copy()

    def _add(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        if self._frozen is not None and self._file.tell() == self._frozen.end:
            self.behind = self._digest.copy()

    def seek(self, start: int) -> None:
        if start != self._file.tell():
            raise ValueError(f"byte {start} is not the next one of a file that is read from its beginning to its end")

    def skip_to(self, start: int) -> None:
        self._pass_over()
        while (left := start - self._file.tell()) > 0 and self.read(min(left, PART)):
            pass
        self.seek(start)

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        self._add(data)
        return data

    def readinto(self, memory: memoryview) -> int:
        filled = 0
        for part in _parts(memory):
            while part and (count := self._file.readinto(part)):
                self._add(part[:count])
                part, filled = part[count:], filled + count
        return filled

    def require(self, sha256: str) -> None:
        """Read what is left, and refuse a file that has another checksum."""
        self._pass_over()
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
    tensors = [tensor for tensor in found.tensors if tensor.name != state.FLAT_WEIGHTS]  # they follow from the others
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
        if file.knows(tensor):
            continue
        file.skip_to(tensor.start)
        name, _, shape = program.variables[place]
        if not file.maps(tensor):
            yield place, tensor, _array(file, (name, dtypes.KERAS[tensor.dtype], shape))


def small(program: Program) -> bool:
    """Whether all variables are read and written at once: copies of a small state do no harm."""
    return layout(program).size <= SMALL


def _write_all(file: Any, piece: bytes | memoryview) -> None:
    left = memoryview(piece)
    while left:
        left = left[file.write(left) :]


def read_weights(program: Program, path: str, *, to_start: bool = False) -> Iterator[np.ndarray]:
    """Flat weights, raw float32, in the shapes and types of the program's; one at a time.

    ``to_start``: they may be those of the layers alone, without the program's adapters.
    """
    variables = program.variables[: program.weights]
    wanted = [math.prod(shape) for _, _, shape in variables]
    found = os.path.getsize(path)
    if to_start and found == 4 * sum(wanted[: program.weights_of_layers]):
        variables, wanted = variables[: program.weights_of_layers], wanted[: program.weights_of_layers]
    if found != 4 * sum(wanted):
        raise CorruptState(
            f"Number of elements in model weights({found // 4}) doesn't match model({sum(wanted)}): the weights have"
            f" {found} bytes, but the model takes {4 * sum(wanted)}"
        )

    def arrays() -> Iterator[np.ndarray]:
        with open(path, "rb") as file:
            for name, dtype, shape in variables:
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


def _pieces(
    program: Program, values: list[np.ndarray] | None = None, *, without: range
) -> Iterator[bytes | memoryview]:
    """The file piece by piece; the variables' values are read one at a time if they are not given.

    ``without``: variables that are left out.
    """

    def value(number: int) -> np.ndarray:
        return program.get(number) if values is None else values[number]

    yield layout(program).header
    for number in range(len(program.variables)):
        if number not in without:
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
    """Whether the flat weights are not the variables themselves: others are evaluated, or they are no float32."""
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
