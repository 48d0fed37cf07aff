"""A DataFrame instead of a query: its values arrive as they are, and nothing of it stays."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
from small_run import SCHEMA, Trained

from cerebro_db.client import errors

NOON = datetime.datetime(2026, 1, 2, 12, 0, 1, 500, tzinfo=datetime.timezone.utc)
ODD = 'a\tb\\c\nd"e\r\\N'
EVERYTHING: dict[str, tuple[str, list[Any]]] = {
    "whole": ("bigint", [1, -(2**62), 0]),
    "part": ("double precision", [0.1, None, -1e300]),
    "flag": ("boolean", [True, False, True]),
    "maybe": ("boolean", [True, None, False]),
    "word": ("text", [ODD, "", None]),
    'a "b", C': ("text", ["x", "\\N", "{}"]),
    "nothing": ("text", [None, None, None]),
    "moment": ("timestamp with time zone", [NOON, None, NOON]),
    "day": ("date", [NOON.date(), None, NOON.date()]),
    "exact": ("numeric", [decimal.Decimal("1.10"), None, decimal.Decimal("2")]),
    "took": ("interval", [datetime.timedelta(days=1, seconds=3), None, datetime.timedelta(0)]),
    "raw": ("bytea", [b"\x00\\\n", b"", None]),
    "key": ("uuid", [uuid.UUID(int=5), None, uuid.UUID(int=6)]),
    "numbers": ("double precision[]", [[1, 2.5], [None, 3.0], None]),
    "grid": ("bigint[]", [[[1, 2], [3, 4]], [[5, 6], [7, 8]], None]),
    "words": ("text[]", [['a"b', "c,d"], ["\\", "{}"], ["", "NULL"]]),
    "document": ("jsonb", [{"a": [1, "x\ty"]}, None, {}]),
}


def test_all_types_arrive_as_they_are(trained: Trained, fresh_output: Callable[[], str]) -> None:
    client, table = trained.cerebro, f"{SCHEMA}.{fresh_output()}"
    made = {name: pandas.Series(values, dtype=None if name in ("whole", "part", "flag") else object)
            for name, (_, values) in EVERYTHING.items()}  # fmt: skip
    assert client.add_frame(pandas.DataFrame(made).set_axis([7, 8, 9]), table) == 3
    kinds = client.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum", (table,)
    )  # fmt: skip
    assert kinds == [(name, kind) for name, (kind, _) in EVERYTHING.items()]
    found = [
        [bytes(one) if isinstance(one, memoryview) else one for one in row] for row in client.rows(f"TABLE {table}")
    ]
    assert [list(column) for column in zip(*found)] == [values for _, values in EVERYTHING.values()]
    with pytest.raises(errors.ServerError, match="already exists"):
        client.add_frame(pandas.DataFrame({"a": [1]}), table)


def test_types_of_pandas_and_numpy(trained: Trained, fresh_output: Callable[[], str]) -> None:
    client, table = trained.cerebro, f"{SCHEMA}.{fresh_output()}"
    frame = pandas.DataFrame({
        "small": np.array([1, 2], np.uint8), "half": np.array([0.5, np.nan], np.float32),
        "maybe": pandas.array([1, None], "Int64"), "yes": pandas.array([True, None], "boolean"),
        "kind": pandas.Categorical(["a", None]), "text": pandas.array(["x", None], "string"),
        "at": pandas.to_datetime(["2026-01-02", None]), "vector": [np.array([1, 2], np.float32), None],
        "scalar": pandas.Series([np.int32(4), np.int64(5)], dtype=object),
    })  # fmt: skip
    client.add_frame(frame, table)
    assert client.rows(f"TABLE {table}") == [
        (1, 0.5, 1, True, "a", "x", datetime.datetime(2026, 1, 2), [1.0, 2.0], 4),
        (2, None, None, None, None, None, None, None, 5),
    ]


def test_many_rows(trained: Trained, fresh_output: Callable[[], str]) -> None:
    client, table = trained.cerebro, f"{SCHEMA}.{fresh_output()}"
    assert client.add_frame(pandas.DataFrame({"n": range(25_001), "t": "x"}), table) == 25_001
    assert client.rows(f"SELECT count(*), sum(n)::bigint FROM {table}") == [(25_001, 25_000 * 25_001 // 2)]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({}, "has no columns"),
        ({"a": [1, "x"]}, "The column 'a' of the DataFrame has values of several types: bigint, text"),
        ({"a": [object()]}, "The column 'a' of the DataFrame has values of the type object, which has no place"),
        ({"a": [[object()]]}, "values of the type object"),
    ],
)
def test_frames_that_are_no_table(trained: Trained, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.ClientError, match=says):
        trained.cerebro.predict("models", pandas.DataFrame(columns))


def test_a_frame_is_as_good_as_a_query(trained: Trained) -> None:
    client = trained.cerebro
    frame = pandas.DataFrame(
        client.rows("SELECT id, attributes, kind FROM iris ORDER BY id"), columns=["id", "attributes", "kind"]
    )
    query = "SELECT * FROM iris"
    assert sorted(client.predict("models", frame, "id", 1)) == sorted(client.predict("models", query, "id", 1))
    assert client.evaluate("models", frame, configuration=1) == pytest.approx(
        client.evaluate("models", query, configuration=1), rel=1e-6
    )
    assert client.confusion_matrix("models", frame, configuration=1) == client.confusion_matrix(
        "models", query, configuration=1
    )
    assert client.rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'cerebro_frame%'") == [(0,)]
    with pytest.raises(errors.ServerError, match="attributes"):
        client.predict("models", frame[["id"]])
    assert client.rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'cerebro_frame%'") == [(0,)]


def test_what_is_no_frame(trained: Trained) -> None:
    frame = pandas.DataFrame({"a": [1, 2]})
    for given in (frame["a"], frame.iloc[0]):
        with pytest.raises(errors.ClientError, match="A Series is no DataFrame"):
            trained.cerebro.predict("models", given)
    with pytest.raises(errors.ClientError, match="A NoneType is no DataFrame"):
        trained.cerebro.add_frame(None, "nothing")  # type: ignore[arg-type]


def test_odd_values(trained: Trained, fresh_output: Callable[[], str]) -> None:
    client, table = trained.cerebro, f"{SCHEMA}.{fresh_output()}"
    frame = pandas.DataFrame({
        "took": [pandas.Timedelta(microseconds=1)], "half": ["a\ud800"],
        "document": [{"n": np.int64(4), "day": NOON.date()}],
    })  # fmt: skip
    client.add_frame(frame, table)
    assert client.rows(f"SELECT took, half, document FROM {table}") == [
        (datetime.timedelta(microseconds=1), "a?", {"n": 4, "day": "2026-01-02"})
    ]


def test_training_needs_a_table(trained: Trained) -> None:
    with pytest.raises(errors.ClientError, match="source_table is a DataFrame.*\n.*cerebro.add_frame"):
        trained.cerebro.train(pandas.DataFrame({"a": [1]}), "none", target="a")  # type: ignore[arg-type]
    with pytest.raises(errors.ClientError, match="validation_table is a DataFrame"):
        frame: Any = pandas.DataFrame({"a": [1]})
        trained.cerebro.train("iris", "none", target="kind", validation_table=frame)
