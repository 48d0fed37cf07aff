"""Geometry is even, and what is encoded is what went in - also for the values that need another dtype."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core.packing import buffer_format


def held(values, shape, kind="f", lower=1, null_map=False):
    """An array as PostgreSQL holds it in memory, after its length; None is a NULL element."""
    bits = sum(1 << place for place, value in enumerate(values) if value is not None)
    header = 12 + 8 * len(shape)
    there, distance = b"", 0
    if null_map or None in values:
        distance = -(-(4 + header + (len(values) + 7) // 8) // 8) * 8  # elements begin at a multiple of eight
        there = bits.to_bytes(distance - 4 - header, "little")
    head = struct.pack("<iii", len(shape), distance, 700 if kind == "f" else 23)
    head += struct.pack(f"<{len(shape)}i", *shape) + struct.pack("<i", lower) * len(shape) + there
    return head + b"".join(struct.pack(f"<{kind}", value) for value in values if value is not None)


@given(st.integers(1, 5000), st.integers(1, 40), st.integers(1, 600))
def test_every_row_has_a_place_and_segments_differ_by_one_row(rows, segments, wanted):
    geometry = buffer_format.geometry(rows, segments, wanted)
    sizes = [geometry.size(buffer) for buffer in range(geometry.buffers)]
    per_segment = [0] * segments
    for buffer, size in enumerate(sizes):
        per_segment[geometry.segment(buffer)] += size
    assert sum(sizes) == rows
    assert max(sizes) == geometry.buffer_size <= wanted
    assert max(per_segment) - min(per_segment) <= 1
    assert rows < segments or min(per_segment) > 0
    assert geometry.buffers % segments == 0


def test_madlibs_own_example():
    geometry = buffer_format.geometry(17, 3, 5)
    assert (geometry.buffers, geometry.buffer_size) == (6, 3)


def test_the_default_fills_a_buffer_but_leaves_no_segment_without():
    assert buffer_format.default_rows_per_buffer(4 * 784, 10_000_000, 4) == buffer_format.TARGET_BYTES // (4 * 784)
    assert buffer_format.default_rows_per_buffer(16, 150, 4) == 38
    assert buffer_format.default_rows_per_buffer(buffer_format.TARGET_BYTES * 2, 150, 4) == 1


def test_a_shape_is_read():
    assert buffer_format.shape_of(held([1.0] * 6, (2, 3))) == (2, 3)
    assert buffer_format.shape_of(struct.pack("<iii", 0, 0, 700)) == ()


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(finite, min_size=6, max_size=6), min_size=1, max_size=20), st.integers(0, 20))
def test_floats_come_back_as_they_were(rows, cut):
    """In chunks of the query's size, whatever the size of the buffers is."""
    encoder, taken, chunks = buffer_format.ArrayEncoder((2, 3), "float32"), b"", [rows[:cut], rows[cut:]]
    for chunk in filter(None, chunks):
        encoder.add(held([value for row in chunk for value in row], (len(chunk), 2, 3)), len(chunk))
    for _ in rows:
        taken += encoder.take(1)
    assert taken == struct.pack(f"<{6 * len(rows)}f", *[value for row in rows for value in row])
    assert encoder.take(1) == b""


@given(
    st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=1, max_size=20),
    st.floats(0.01, 1000.0),
)
def test_a_factor_multiplies_as_float32_does(values, constant):
    numpy = pytest.importorskip("numpy")
    factor = buffer_format.float32(1 / constant)
    encoder = buffer_format.ArrayEncoder((len(values),), "float32", factor)
    encoder.add(held(values, (1, len(values))), 1)
    expected = numpy.asarray(values, "<f4") * numpy.float32(factor)
    assert encoder.take(1) == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "code", "low", "high"),
    [("uint8", "B", 0, 255), ("int16", "h", -(2**15), 2**15 - 1), ("int32", "i", -(2**31), 2**31 - 1)],
)
def test_integers_come_back_up_to_the_ends_of_their_range(dtype, code, low, high):
    values = [low, high, 0, 1] + [random.Random(1).randint(low, high) for _ in range(96)]
    encoder = buffer_format.ArrayEncoder((10,), dtype)
    encoder.add(held(values, (10, 10), "i"), 10)
    assert encoder.take(10) == struct.pack(f"<100{code}", *values)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8))
def test_the_narrowest_type_that_fits_is_found(values):
    packed = struct.pack(f"<{len(values)}i", *values)
    low, high = min(values), max(values)
    fits = "uint8" if low >= 0 and high < 256 else "int16" if low >= -(2**15) and high < 2**15 else "int32"
    assert buffer_format.narrowest(packed) == fits


@pytest.mark.parametrize(
    ("value", "dtype", "needed"),
    [(256, "uint8", "int16"), (-1, "uint8", "int16"), (40000, "uint8", "int32"), (-40000, "int16", "int32")],
)
def test_a_value_that_does_not_fit_says_what_does(value, dtype, needed):
    encoder = buffer_format.ArrayEncoder((2,), dtype)
    encoder.add(held([0, value], (1, 2), "i"), 1)
    with pytest.raises(buffer_format.TooWide) as error:
        encoder.take(1)
    assert error.value.dtype == needed


def test_a_map_of_nulls_without_a_null_is_overlooked():
    encoder = buffer_format.ArrayEncoder((2,), "float32")
    encoder.add(held([1.0, 2.0, 3.0, 4.0], (2, 2), lower=0, null_map=True), 2)
    encoder.add(held([5.0, 6.0], (1, 2), lower=7), 1)
    assert encoder.take(3) == struct.pack("<6f", 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("value", "what", "shape"),
    [
        (held([1.0, None], (1, 2)), "null", ()),
        (held([1.0, 2.0, 3.0], (1, 3)), "shape", (3,)),
        (held([1.0, 2.0], (1, 2, 1)), "shape", (2, 1)),
        (held([1.0, 2.0, 3.0, 4.0], (2, 2)), "shape", (2,)),  # another number of rows
        (struct.pack("<iii", 0, 0, 700), "shape", ()),
    ],
)
def test_what_cannot_be_packed_is_named(value, what, shape, first):
    encoder = buffer_format.ArrayEncoder((2,), "float32")
    if not first:
        encoder.add(held([1.0, 2.0], (1, 2)), 1)
    with pytest.raises(buffer_format.Unusable) as error:
        encoder.add(value, 1)
    assert (error.value.what, error.value.shape) == (what, shape)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_are_refused(value):
    encoder = buffer_format.ArrayEncoder((3,), "float32")
    encoder.add(held([3.4028234663852886e38, -3e38, value], (1, 3)), 1)
    with pytest.raises(buffer_format.Unusable) as error:
        encoder.take(1)
    assert error.value.what == "finite"


def classes(codes):
    """What a query gives of these classes: a smallint[]."""
    known = held(codes, (len(codes),), "i")
    assert not known[4:8].strip(b"\0")
    return known[:20] + struct.pack(f"<{len(codes)}h", *codes)


@pytest.mark.parametrize("number", [2, 4, 256, 257, 700, 10_000])
def test_classes_become_one_hot(number):
    rows = min(1000, 2 * number + 30)
    codes = [random.Random(number).randrange(number) for _ in range(rows - 2)] + [0, number - 1]
    encoder = buffer_format.ClassEncoder(number)
    encoder.add(classes(codes), rows)
    ones = array("h", encoder.take(20) + encoder.take(rows - 20))
    assert len(ones) == rows * number and sum(ones) == rows
    assert [ones[row * number : (row + 1) * number].index(1) for row in range(rows)] == codes


def test_a_label_without_a_class_is_refused():
    with pytest.raises(buffer_format.UnknownLabel):
        buffer_format.ClassEncoder(4).add(held([1, None, 2], (3,), "i"), 3)


@pytest.mark.parametrize("classes", [2, 3, 255, 256, 257, 300])
@pytest.mark.parametrize("rows", [1, 7, 200])
def test_steps_become_one_hot_and_those_without_a_class_zeros(classes: int, rows: int) -> None:
    draws = random.Random(classes * rows)
    codes = [draws.choice([buffer_format.NO_CLASS, 0, classes - 1, draws.randrange(classes)]) for _ in range(3 * rows)]
    encoder = buffer_format.ClassEncoder(classes, 3)
    encoder.add(held(codes, (rows, 3), "h"), rows)
    found = array("h", encoder.take(rows))
    assert list(found) == [int(code == place) for code in codes for place in range(classes)]
    with pytest.raises(buffer_format.Unusable) as error:
        encoder.add(held(codes, (3 * rows, 1), "h"), 3 * rows)
    assert error.value.what == "shape"


def test_a_number_that_is_not_known_is_nan_where_it_may_lack() -> None:
    values = [1.5, float("nan"), -2.0]
    encoder = buffer_format.ArrayEncoder((3, 1), "float32", may_lack=True)
    encoder.add(held(values, (1, 3, 1)), 1)
    assert array("f", encoder.take(1))[::2] == array("f", values)[::2]
    for wrong, may_lack in ((values, False), ([1.0, float("inf"), 2.0], True), ([float("-inf"), 0.0, 0.0], True)):
        encoder = buffer_format.ArrayEncoder((3, 1), "float32", may_lack=may_lack)
        encoder.add(held(wrong, (1, 3, 1)), 1)
        with pytest.raises(buffer_format.Unusable, match="finite"):
            encoder.take(1)
