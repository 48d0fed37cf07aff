"""A program's state to a file and back, tensor by tensor, so that memory holds one tensor more than the variables."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterator
from typing import Any

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

PIECE = 8 << 20


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
    """Put a state that ``write`` wrote, in whatever process, into the program's variables."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise CorruptState("the model state is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            digest = hashlib.sha256()
            for start in range(0, len(whole), PIECE):
                digest.update(whole[start : start + PIECE])
            if digest.hexdigest() != sha256:
                raise CorruptState("the model state does not have the checksum that it was written with")
            found = state.read_header(whole)
            tensors = found.tensors[:-1] if not _plain_weights(program) else found.tensors
            # By position: equal configurations have equal variables in equal order; names only tell people.
            if [tensor[1:3] for tensor in tensors] != [(DTYPES[dtype], shape) for _, dtype, shape in program.variables]:
                raise CorruptState(
                    "the model state belongs to another model: its tensors have other shapes or types",
                    detail=_difference(tensors, program),
                )
            for number, tensor in enumerate(tensors):
                program.set(number, _array(whole[tensor.start : tensor.end], program.variables[number]))


def read_weights(program: Program, path: str) -> list[np.ndarray]:
    """Raw float32 weights, as MADlib stores them, in the shapes and types of the program's."""
    wanted = [math.prod(shape) for _, _, shape in program.variables[: program.weights]]
    found = os.path.getsize(path)
    if found != 4 * sum(wanted):
        raise CorruptState(f"the model weights have {found} bytes, but the model takes {4 * sum(wanted)}")
    values, arrays, start = np.fromfile(path, "<f4"), [], 0
    for size, (_, dtype, shape) in zip(wanted, program.variables):
        arrays.append(values[start : start + size].astype(_numpy(dtype)).reshape(shape))
        start += size
    return arrays


def _array(data: bytes, variable: tuple[str, str, tuple[int, ...]]) -> np.ndarray:
    # a bytearray: TensorFlow may make the array's memory the variable's own and write into it
    return np.frombuffer(bytearray(data), _numpy(variable[1])).reshape(variable[2])


def _pieces(program: Program) -> Iterator[bytes | memoryview]:
    yield header(program)
    for number in range(len(program.variables)):
        yield _bytes(program.get(number))
    if not _plain_weights(program):
        for number in range(program.weights):
            yield _bytes(program.get(number).astype("<f4"))


def _bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()  # native order is little-endian wherever TensorFlow runs


def _plain_weights(program: Program) -> bool:
    return all(dtype == "float32" for _, dtype, _ in program.variables[: program.weights])


def _numpy(dtype: str) -> np.dtype:
    import ml_dtypes  # noqa: F401  (comes with both frameworks; gives NumPy bfloat16 and the float8s)

    return np.dtype(dtype)


def _difference(tensors: list[state.Tensor], program: Program) -> str:
    if len(tensors) != len(program.variables):
        return f"It has {len(tensors)} tensors, the model {len(program.variables)} variables."
    for tensor, (name, dtype, shape) in zip(tensors, program.variables):
        if tensor[1:3] != (DTYPES[dtype], shape):
            return f"It has {tensor.name} {tensor.dtype} {tensor.shape}, the model {name} {DTYPES[dtype]} {shape}."
    return ""
