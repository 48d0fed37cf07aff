"""Keras' names of dtypes, their names in safetensors, and their sizes."""

from __future__ import annotations

from cerebro_db.core.models.state import ITEM_BYTES

SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
KERAS = {theirs: keras for keras, theirs in SAFETENSORS.items()}


def item_bytes(dtype: str) -> int:
    """The bytes of one element of a Keras dtype; 4 of a dtype that no state can hold."""
    return ITEM_BYTES.get(SAFETENSORS.get(dtype, ""), 4)
