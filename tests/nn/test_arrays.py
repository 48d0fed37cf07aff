"""Arrays in PostgreSQL's own form, and classes in the order of SQL."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from cerebro_db.core.errors import BadData
from cerebro_db.core.protocol import PredictedOutput
from cerebro_db.nn.orders import predictions
from cerebro_db.nn.rows import arrays

VALUES = np.random.default_rng(1).normal(size=(7, 2, 3)).astype("f4")


def array(values: Any, *, kind: int = 700, lower: int = 1, nulls: tuple[int, ...] | None = None) -> bytes:
    """The form of array.h; with ``nulls`` (numbers of elements, or an empty tuple) there is a bitmap of NULLs."""
    values = np.asarray(values)
    shape, elements = values.shape, values.tobytes()
    if not values.size:
        return struct.pack("=3i", 0, 0, kind)
    head = 16 + 8 * len(shape)
    distance, bitmap = 0, b""
    if nulls is not None:
        present = [place not in nulls for place in range(values.size)]
        bitmap = np.packbits(present, bitorder="little").tobytes()
        distance = -(-(head + len(bitmap)) // 8) * 8
        bitmap = bitmap.ljust(distance - head, b"\0")
        elements = values.ravel()[present].tobytes()
    bounds = struct.pack(f"={2 * len(shape)}i", *shape, *[lower] * len(shape))
    return struct.pack("=3i", len(shape), distance, kind) + bounds + bitmap + elements


def read(folder: Path, sent: list[bytes], rows: int | None = None, **variable: Any) -> np.ndarray:
    (folder / "rows").write_bytes(b"".join(sent))
    known = {"name": "x", "dtype": "float32", "shape": [2, 3], **variable}
    return arrays.opened(str(folder / "rows"), rows or len(sent), known)


def test_arrays_that_are_all_alike_are_not_copied(tmp_path: Path) -> None:
    found = read(tmp_path, [array(one) for one in VALUES])
    assert np.array_equal(found, VALUES) and not found.flags.owndata
    assert np.array_equal(found[3:5], VALUES[3:5])
    assert np.array_equal(read(tmp_path, [array(VALUES[0])]), VALUES[:1])


def test_integers_and_a_factor(tmp_path: Path) -> None:
    whole = (100 * VALUES).astype("i4")
    assert np.array_equal(read(tmp_path, [array(one, kind=23) for one in whole], dtype="int32"), whole)
    scaled = read(tmp_path, [array(one) for one in VALUES], factor=1 / 255)
    assert scaled.dtype == "f4" and np.array_equal(scaled, VALUES * np.float32(1 / 255))


def pixels(*values: bytes) -> list[bytes]:
    return [struct.pack(">i", len(one)) + one for one in values]


def test_pixels_are_not_copied(tmp_path: Path) -> None:
    sent = [bytes(range(n, n + 6)) for n in range(5)]
    found = read(tmp_path, pixels(*sent), dtype="uint8")
    assert found.dtype == "u1" and found.shape == (5, 2, 3) and found.tobytes() == b"".join(sent)
    within = read(tmp_path, pixels(sent[0]), dtype="uint8")
    assert within.shape == (1, 2, 3) and within.tobytes() == sent[0]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (pixels(b"123456", b"12345"), "a value of 5 bytes where the model was trained on 6 bytes, of shape"),
        (pixels(b"12345", b"1234567"), "a value of 5 bytes"),
        (pixels(b"123456", b""), "a value of 0 bytes"),
        (pixels(b"123456", bytes(1000)), "a value of 1000 bytes"),
        (pixels(b"123456", b"\x89PNG\r\n\x1a\n rest"), "a PNG file"),
        (pixels(b"123456"), "has a NULL"),
        ([], "has a NULL"),
    ],
    ids=str,
)
def test_pixels_that_cannot_be_used(tmp_path: Path, sent: list[bytes], says: str) -> None:
    with pytest.raises(BadData, match=re.escape(says)) as error:
        read(tmp_path, sent, rows=2, dtype="uint8")
    if "a value" in says:
        assert error.value.hint == "Give the pixels of 2 x 3 elements, one byte each, as in training."


@pytest.mark.parametrize("odd", [{"lower": 0}, {"lower": -5}, {"nulls": ()}])
def test_what_makes_no_difference(tmp_path: Path, odd: dict[str, Any]) -> None:
    """Other lower bounds, and a bitmap of NULLs without a NULL."""
    for place in (0, 3, 6):
        sent = [array(one, **(odd if number == place else {})) for number, one in enumerate(VALUES)]
        assert np.array_equal(read(tmp_path, sent), VALUES)
    assert np.array_equal(read(tmp_path, [array(one, **odd) for one in VALUES]), VALUES)


BAD: dict[str, tuple[bytes, str]] = {
    "longer": (array(np.ones((3, 3), "f4")), "shape [3, 3] where"),
    "turned": (array(np.ones((3, 2), "f4")), "shape [3, 2] where"),
    "flat": (array(np.ones(6, "f4")), "shape [6] where"),
    "empty": (array(np.ones(0, "f4")), "shape [] where"),
    "null": (array(VALUES[0], nulls=(4,)), "NULL elements"),
    "all null": (array(VALUES[0], nulls=tuple(range(6))), "NULL elements"),
    "missing": (b"", "has a NULL"),
    "NaN": (array(VALUES[0] * np.nan), "NaN or infinite"),
    "infinite": (array(VALUES[0] + np.float32("inf")), "NaN or infinite"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", [0, 3, 7])
def test_what_cannot_be_used(tmp_path: Path, what: str, place: int) -> None:
    payload, says = BAD[what]
    sent = [array(one) for one in VALUES]
    sent.insert(place, payload)
    with pytest.raises(BadData) as error:
        read(tmp_path, sent)
    assert "column 'x'" in error.value.message and says in error.value.message
    if "shape" in says:
        assert error.value.hint == "Give arrays of 2 x 3 elements, as in training."


def test_nothing_but_a_null(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="'x' has a NULL"):
        read(tmp_path, [b""])


def test_two_wrongs_of_the_right_length(tmp_path: Path) -> None:
    """One array is too long, another too short by as much."""
    sent = [array(VALUES[0]), array(np.ones((1, 3), "f4")), array(np.ones((3, 3), "f4"))]
    with pytest.raises(BadData, match=r"shape \[1, 3\]"):
        read(tmp_path, sent)


def sql_order(row: list[float]) -> list[int]:
    """ORDER BY value DESC, place: PostgreSQL takes NaN for the largest, and 0 and -0 for equal."""
    return sorted(
        range(len(row)), key=lambda place: (0, 0, place) if row[place] != row[place] else (1, -row[place], place)
    )


@given(
    st_numpy.arrays(
        "f4",
        st.tuples(st.integers(0, 5), st.integers(1, 6)),
        elements=st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, -3.0, float("inf"), float("-inf"), float("nan")]),
    ),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_classes_are_ranked_as_sql_would(values: np.ndarray, most: int | None) -> None:
    found = predictions.ranked(values, most)
    assert found.tolist() == [sql_order(row)[:most] for row in values.tolist()]


def test_answers_lie_rank_by_rank() -> None:
    values = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], "f4")
    output, numbers = predictions.best_classes(values, 3, 2)
    written = np.frombuffer(numbers.tobytes(), "<f4").reshape(2, 2, 2)
    assert output == PredictedOutput(ranks=2)
    assert written[0].tolist() == [[1, 0], [2, 2]]
    assert written[1].tolist() == values[[0, 1], [[1, 0], [2, 2]]].tolist()


def test_one_unit_for_two_classes_is_the_second() -> None:
    values = np.array([[0.25], [0.75]], "f4")
    for labels, expected in ((2, [[0, 1], [0.75, 0.75]]), (1, [[0, 0], [0.25, 0.75]])):
        output, numbers = predictions.best_classes(values, labels, 1)
        assert output == PredictedOutput(ranks=1)
        assert numbers.reshape(2, 2).tolist() == expected
