"""The state codec: round trips, agreement with the safetensors library, and CorruptState for any damage."""

from __future__ import annotations

import io
import json
import mmap
import os

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_db.core.errors import CorruptState
from cerebro_db.core.models import state
from tests.core.fuzz_state import fuzz
from tests.thorough import tries

NUMPY = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U32": "<u4", "U8": "u1", "BOOL": "?", "F16": "<f2"}

tensors_strategy = st.lists(
    st.tuples(
        st.text(max_size=20).filter(lambda name: name != state.METADATA),
        st.sampled_from(sorted(NUMPY)),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda tensor: tensor[0],
)


def filled(tensors, metadata=None):
    header = state.header_bytes(tensors, metadata or {})
    size = sum(state.tensor_bytes(dtype, shape) for _, dtype, shape in tensors)
    return header + bytes(i % 2 for i in range(size))


@given(tensors_strategy, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
def test_round_trip(tensors, metadata):
    whole = filled(tensors, metadata)
    for source in (whole, memoryview(whole), io.BytesIO(whole)):
        header = state.read_header(source, len(whole))
        # The reader may change the order of tensors without bytes, but not the order of the others.
        kept = [(t.name, t.dtype, t.shape) for t in header.tensors]
        assert sorted(kept) == sorted(tensors)
        assert [t for t in kept if 0 not in t[2]] == [t for t in tensors if 0 not in t[2]]
        assert header.metadata == metadata
        assert header.data_start % state.ALIGNMENT == 0


@given(tensors_strategy)
def test_the_library_reads_our_states(tensors):
    whole = filled(tensors)
    theirs = safetensors.numpy.load(whole)
    for tensor in state.read_header(whole).tensors:
        ours = np.frombuffer(whole, NUMPY[tensor.dtype], int(np.prod(tensor.shape)), tensor.start)
        assert theirs[tensor.name].shape == tensor.shape
        assert theirs[tensor.name].tobytes() == ours.tobytes()


def test_we_read_the_librarys_files():
    arrays = {"000|dense/kernel": np.arange(6, dtype="f4").reshape(2, 3), "001|adam/iteration": np.array(7)}
    whole = safetensors.numpy.save(arrays, {"weights": "1"})
    for tensor in state.read_header(whole).tensors:
        found = np.frombuffer(whole[tensor.start : tensor.end], NUMPY[tensor.dtype]).reshape(tensor.shape)
        assert np.array_equal(found, arrays[tensor.name])


def test_a_mapped_file(tmp_path):
    whole = filled([("a", "F32", (2, 2)), ("b", "I64", ())], {"weights": "1"})
    (tmp_path / "state").write_bytes(whole)
    with open(tmp_path / "state", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert state.read_header(mapped) == state.read_header(whole)
        assert state.read_header(file, os.path.getsize(file.name)) == state.read_header(whole)


def test_the_weights_are_a_slice_of_the_state():
    tensors = [("000|k", "F32", (2, 3)), ("001|b", "F32", (3,)), ("002|seed", "I64", (2,)), ("003|m", "F32", (2, 3))]
    header = state.read_header(filled(tensors, {"weights": "2"}))
    assert state.weights_slice(header) == (header.data_start, 36)
    assert state.weights_slice(state.read_header(filled(tensors[2:], {"weights": "0"})))[1] == 0
    mixed = [("000|k", "F16", (2,)), (state.FLAT_WEIGHTS, "F32", (2,))]
    header = state.read_header(filled(mixed, {"weights": "1"}))
    assert state.weights_slice(header) == (header.data_start + 4, 8)


@pytest.mark.parametrize("metadata", [{}, {"weights": "-1"}, {"weights": "3"}, {"weights": "x"}, {"weights": "²"}])
def test_a_wrong_count_of_weights(metadata):
    header = state.read_header(filled([("a", "F32", ()), ("b", "F32", ())], metadata))
    with pytest.raises(CorruptState):
        state.weights_slice(header)


def test_weights_that_are_not_float32():
    with pytest.raises(CorruptState):
        state.weights_slice(state.read_header(filled([("a", "F16", ())], {"weights": "1"})))


def made(entries, size, text=None):
    text = json.dumps(entries).encode() if text is None else text
    return state.LENGTH.pack(len(text)) + text + bytes(size)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DAMAGED = {
    "empty": b"",
    "short": b"\x01\x00",
    "header longer than the file": state.LENGTH.pack(1 << 40) + b"{}",
    "header over the limit": state.LENGTH.pack(state.LARGEST_HEADER + 1) + bytes(16),
    "not JSON": made(None, 0, b"{nope"),
    "not UTF-8": made(None, 0, b'{"\xff":1}'),
    "an array": made(None, 0, b"[]"),
    "deep": made(None, 0, b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "a huge number": made(None, 0, b'{"a":' + b"9" * 10_000 + b"}"),
    "duplicate": made(None, 4, b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2)),
    "hole at the start": made({"a": entry(offsets=(4, 8))}, 8),
    "hole": made({"a": entry(), "b": entry(offsets=(8, 12))}, 12),
    "overlap": made({"a": entry(), "b": entry(offsets=(2, 6))}, 6),
    "outside": made({"a": entry(offsets=(0, 4))}, 3),
    "bytes left over": made({"a": entry()}, 5),
    "backwards": made({"a": entry(offsets=(4, 0))}, 4),
    "negative offset": made({"a": entry(offsets=(-4, 0))}, 4),
    "negative shape": made({"a": entry(shape=(-1,))}, 4),
    "huge shape": made({"a": entry(shape=(1 << 62, 1 << 62))}, 4),
    "huge rank": made({"a": entry(shape=(1,) * 65)}, 4),
    "true as a number": made({"a": entry(shape=(True,))}, 4),
    "float shape": made({"a": entry(shape=(1.0,))}, 4),
    "unknown type": made({"a": entry(dtype="F33")}, 4),
    "type is a list": made({"a": {**entry(), "dtype": ["F32"]}}, 4),
    "wrong size": made({"a": entry(shape=(2,))}, 4),
    "no shape": made({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, 4),
    "three offsets": made({"a": entry(offsets=(0, 4, 4))}, 4),
    "a tensor is a number": made({"a": 4}, 4),
    "metadata is a list": made({state.METADATA: []}, 0),
    "metadata of numbers": made({state.METADATA: {"weights": 1}}, 0),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage(name):
    with pytest.raises(CorruptState):
        state.read_header(DAMAGED[name])
    with pytest.raises(CorruptState):
        state.read_header(io.BytesIO(DAMAGED[name]), len(DAMAGED[name]))


@settings(max_examples=tries(60))
@given(tensors_strategy, st.data())
def test_a_mutated_state_is_read_or_corrupt(tensors, data):
    whole = bytearray(filled(tensors, {"weights": "0"}))
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(whole) - 1))
        whole[where] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for piece in (bytes(whole), bytes(whole[:cut])):
        try:
            header = state.read_header(piece)
            state.weights_slice(header)
        except CorruptState:
            continue
        assert all(t.end <= len(piece) for t in header.tensors)


def test_the_writer_refuses_two_tensors_of_one_name():
    with pytest.raises(ValueError, match="two tensors"):
        state.header_bytes([("a", "F32", ()), ("a", "F32", ())], {})
    with pytest.raises(ValueError, match="two tensors"):
        state.header_bytes([(state.METADATA, "F32", ())], {})


def test_many_damaged_states():
    """A sample; python -m tests.core.fuzz_state reads a million."""
    found = fuzz(20_000, seed=1)
    assert found["corrupt"] > 10_000 and found["read"] > 100
    assert found["grown_mb"] < 64 and found["slowest_ms"] < 1000
