"""A program's state to a file and back, tensor by tensor, so that memory holds one tensor more than the variables."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from cerebro_db.core import state
from cerebro_db.core.errors import CorruptState
from cerebro_db.nn.engine import Program

# Keras' names of types → those of safetensors
DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
KERAS_DTYPES = {theirs: keras for keras, theirs in DTYPES.items()}
COUNTERS = {"I32", "U32", "I64"}

PIECE = 8 << 20
ALIGNMENT = 64  # bytes; what TensorFlow wants before it takes an array's memory for its own


def header(program: Program) -> bytes:
    tensors = [(name, DTYPES[dtype], shape) for name, dtype, shape in program.variables]
    if not _plain_weights(program):
        values = sum(math.prod(shape) for _, _, shape in program.variables[: program.weights])
        tensors.append((state.MADLIB_WEIGHTS, "F32", (values,)))
    return state.header_bytes(tensors, {"format": "cerebro_db", state.WEIGHTS: str(program.weights)})


def size(program: Program) -> int:
    """The bytes of the file, known without writing it."""
    start = header(program)
    data = sum(state.tensor_bytes(DTYPES[dtype], shape) for _, dtype, shape in program.variables)
    if not _plain_weights(program):
        data += 4 * sum(math.prod(shape) for _, _, shape in program.variables[: program.weights])
    return len(start) + data


def write(program: Program, path: str) -> dict[str, Any]:
    """Write the state that is in the program's variables; what an order's answer says about it."""
    digest, written = hashlib.sha256(), 0
    # a scratch file, read once and removed: no fsync, no rename
    with open(path, "wb") as file:
        for piece in _pieces(program):
            file.write(piece)
            digest.update(piece)
            written += len(piece)
    with open(path, "rb") as file:
        offset, length = state.weights_slice(state.read_header(file, written))
    return {
        "path": path,
        "bytes": written,
        "sha256": digest.hexdigest(),
        "weights_offset": offset,
        "weights_bytes": length,
    }


def read(program: Program, path: str, sha256: str) -> None:
    """Put a state that ``write`` wrote, in whatever process, into the program's variables.

    Read, not mapped: what is mapped counts as memory of the process, and a state may be most of it.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise CorruptState("the model state is empty")
        digest = hashlib.sha256()
        while piece := file.read(PIECE):
            digest.update(piece)
        if digest.hexdigest() != sha256:
            raise CorruptState("the model state does not have the checksum that it was written with")
        found = state.read_header(file, size)
        tensors = found.tensors[:-1] if not _plain_weights(program) else found.tensors
        # By position: equal configurations have equal variables in equal order; names only tell people.
        if len(tensors) != len(program.variables) or not all(map(_fits, tensors, program.variables)):
            raise CorruptState(
                "the model state belongs to another model: its tensors have other shapes or types",
                detail=_difference(tensors, program),
            )
        for number, (tensor, (name, dtype, shape)) in enumerate(zip(tensors, program.variables)):
            file.seek(tensor.start)
            array = _array(file, (name, KERAS_DTYPES[tensor.dtype], shape))
            program.set(number, array if tensor.dtype == DTYPES[dtype] else _converted(array, dtype, name))


def read_weights(program: Program, path: str) -> Iterator[np.ndarray]:
    """Raw float32 weights, as MADlib stores them, in the shapes and types of the program's; one at a time."""
    wanted = [math.prod(shape) for _, _, shape in program.variables[: program.weights]]
    found = os.path.getsize(path)
    if found != 4 * sum(wanted):
        raise CorruptState(f"the model weights have {found} bytes, but the model takes {4 * sum(wanted)}")

    def arrays() -> Iterator[np.ndarray]:
        with open(path, "rb") as file:
            for name, dtype, shape in program.variables[: program.weights]:
                yield _array(file, (name, "float32", shape)).astype(_numpy(dtype), copy=False)

    return arrays()


def _array(file: BinaryIO, variable: tuple[str, str, tuple[int, ...]]) -> np.ndarray:
    # memory of its own: TensorFlow may make the array's memory the variable's and write into it
    dtype = _numpy(variable[1])
    size = math.prod(variable[2]) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array = memory[start : start + size].view(dtype).reshape(variable[2])
    if array.nbytes and file.readinto(_bytes(array)) != array.nbytes:  # type: ignore[attr-defined]
        raise CorruptState("the model state ends too early")
    return array


def _pieces(program: Program) -> Iterator[bytes | memoryview]:
    yield header(program)
    for number in range(len(program.variables)):
        yield _bytes(program.get(number))
    if not _plain_weights(program):
        for number in range(program.weights):
            yield _bytes(program.get(number).astype("<f4"))


def _bytes(array: np.ndarray) -> memoryview:
    """The array's own memory, if it lies in one piece; native order is little-endian wherever TensorFlow runs."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _fits(tensor: state.Tensor, variable: tuple[str, str, tuple[int, ...]]) -> bool:
    """The engines differ in the integers of counters and seeds, and in nothing else."""
    dtype = DTYPES[variable[1]]
    return tensor.shape == variable[2] and (tensor.dtype == dtype or {tensor.dtype, dtype} <= COUNTERS)


def _converted(array: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """The same integers as another engine has them."""
    limits = np.iinfo(dtype)
    if array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
        raise CorruptState(
            f"the model state was written with another engine, and its {name} does not fit into {dtype} here",
            hint="Go on with the engine that it was trained with.",
        )
    return array.astype(dtype)


def _plain_weights(program: Program) -> bool:
    return all(dtype == "float32" for _, dtype, _ in program.variables[: program.weights])


def _numpy(dtype: str) -> np.dtype:
    import ml_dtypes  # noqa: F401  (comes with both frameworks; gives NumPy bfloat16 and the float8s)

    return np.dtype(dtype)


def _difference(tensors: list[state.Tensor], program: Program) -> str:
    if len(tensors) != len(program.variables):
        return f"It has {len(tensors)} tensors, the model {len(program.variables)} variables."
    for tensor, (name, dtype, shape) in zip(tensors, program.variables):
        if not _fits(tensor, (name, dtype, shape)):
            return f"It has {tensor.name} {tensor.dtype} {tensor.shape}, the model {name} {DTYPES[dtype]} {shape}."
    return ""
