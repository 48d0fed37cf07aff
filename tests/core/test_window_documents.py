"""What a user may ask of windows, and the document of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cerebro_db.core import codec
from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.packing.layout import Layout, Variable
from cerebro_db.core.packing.preparation import AsIs, Real
from cerebro_db.core.packing.windows import Windows, wanted


def test_a_column_or_a_list_of_columns() -> None:
    assert wanted({"order": "ts", "length": 10}, "x") == Windows((), ("ts",), 10, 10, "last")
    given = {"by": ["site", "who"], "order": ["day", "ts"], "length": 100, "step": 50, "target": "majority"}
    found = wanted(given, "x")
    assert found == Windows(("site", "who"), ("day", "ts"), 100, 50, "majority")
    assert found.columns == ("site", "who", "day", "ts")
    assert codec.read(Windows, json.loads(json.dumps(codec.encode(found))), "x") == found


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([1], "has to be a JSON object"),
        ({"order": "ts", "length": 10, "size": 3}, 'has no field "size"'),
        ({"length": 10}, "lacks the field order"),
        ({"order": [], "length": 10}, "order has to have 1 to 1600 items"),
        ({"order": ["a", "a"], "length": 10}, "order has the same item twice"),
        ({"order": 3, "length": 10}, "order has to be a list"),
        ({"by": "", "order": "ts", "length": 10}, "by[0] cannot be used"),
        ({"order": "ts"}, "lacks the field length"),
        ({"order": "ts", "length": 1}, "length has to be from 2 to 1000000, not 1"),
        ({"order": "ts", "length": True}, "length has to be a whole number, not true"),
        ({"order": "ts", "length": 10, "step": 0}, "step has to be from 1 to"),
        ({"order": "ts", "length": 10, "step": 2.5}, "step has to be a whole number"),
        ({"order": "ts", "length": 10, "target": "mean"}, "target has to be one of last, majority, each"),
        ({"order": "ts", "length": 10, "horizon": -1}, "horizon has to be from 0 to"),
        ({"order": "ts", "length": 10, "horizon": "7 days"}, "horizon has to be a whole number"),
        ({"order": "ts", "length": 10, "season": 7}, "season needs a horizon"),
        ({"order": "ts", "length": 10, "horizon": 3, "season": 12}, "season needs a horizon, and a length of as many"),
        (
            {"order": "ts", "length": 10, "horizon": 7, "target": "majority"},
            'target cannot be "majority" with a horizon',
        ),
    ],
)
def test_what_makes_no_sense_is_refused(document: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        wanted(document, "sequence")
    assert says in error.value.message and error.value.hint
    with pytest.raises(BadData):
        codec.read(Windows, document, "sequence")


def test_windows_with_a_horizon_begin_at_each_row() -> None:
    found = wanted({"order": "ts", "length": 10, "horizon": 7}, "sequence")
    assert (found.step, found.horizon) == (1, 7) and codec.read(Windows, codec.encode(found), "x") == found
    assert wanted({"order": "ts", "length": 10, "horizon": 7, "step": 3}, "sequence").step == 3
    without = wanted({"order": "ts", "length": 10, "horizon": 0}, "sequence")
    assert without.step == 10 and "horizon" not in codec.encode(without), "documents of version 0.1 have no horizon"


def test_the_layout_of_a_packed_table_has_them() -> None:
    inputs = Variable("x", "float32", (10, 2), ("x", "z"), AsIs())
    outputs = Variable("y", "float32", (1,), ("y",), Real())
    found = Layout((inputs,), (outputs,), 0, (), wanted({"order": "ts", "length": 10}, "x"))
    document = json.loads(json.dumps(found.to_json()))
    assert Layout.from_json(document) == found
    assert "sequence" not in Layout((), (), 0, ()).to_json()
    document["inputs"][0]["shape"] = [9, 2]
    with pytest.raises(BadData, match="shape cannot be"):
        Layout.from_json(document)


def test_windows_with_steps_breaks_and_a_rest() -> None:
    given = {"order": "ts", "length": 12, "target": "each", "every": 4, "gap": 15, "breaks": "day", "rest": "wrap"}
    found = wanted({**given, "mean": 3}, "sequence")
    assert (found.steps, found.step, found.gap, found.breaks, found.rows) == (3, 12, "15", ("day",), 36)
    assert found.read == ("ts", "day") and found.may_break
    assert codec.read(Windows, json.loads(json.dumps(codec.encode(found))), "x") == found
    assert wanted({"order": "ts", "length": 12, "target": "each"}, "sequence").steps == 12
    plain = wanted({"order": "ts", "length": 12}, "sequence")
    assert (plain.steps, plain.rows, plain.may_break) == (0, 12, False)
    assert set(codec.encode(plain)) == {"by", "order", "length", "step", "target"}
