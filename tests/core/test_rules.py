"""Rules in SQL: what is read of their text and of their rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cerebro_db.core.errors import BadData, InvalidArgument
from cerebro_db.core.search import rules

QUERY = "SELECT configuration, 'why' FROM t WHERE run = $1"


@pytest.mark.parametrize("text", [QUERY, f"  {QUERY} ;\n", f"{QUERY};;"])
def test_a_rule_can_stand_in_brackets(text: str) -> None:
    assert rules.plain(text) == QUERY
    assert rules.without_run(QUERY) == "SELECT configuration, 'why' FROM t WHERE run = 0::bigint"


@pytest.mark.parametrize(
    ("text", "said"), [("", "empty"), (" ; ", "empty"), ("SELECT 1, 'x'", "lacks"), ("$12", "lacks")]
)
def test_a_rule_says_which_run_it_means(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as raised:
        rules.plain(text)
    assert "$1 is the number of the run" in str(raised.value.hint)


@pytest.mark.parametrize("columns", [[("configuration", 23), ("?column?", 25)], [("why", 1043), ("model", 20)]])
def test_columns(columns: Any) -> None:
    rules.require_columns(columns)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("configuration", 23)], "has the columns configuration"),
        ([], r"\(none\)"),
        ([("a", 23), ("b", 25)], "a, b"),
        ([("configuration", 23), ("model", 23)], "configuration, model"),
        ([("configuration", 23), ("b", 25), ("c", 25)], "configuration, b, c"),
        ([("configuration", 25), ("b", 25)], "must be a whole number"),
    ],
)
def test_wrong_columns(columns: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as raised:
        rules.require_columns(columns)
    assert raised.value.hint


def test_objections() -> None:
    rows = ['{"configuration":3,"?column?":" far off "}', '{"configuration":3,"?column?":"again"}',
            '{"why":null,"model":5}',
            '{"model":6,"n":1.5}', '{"configuration":null,"x":"y"}',
            '{"configuration":8,"x":"' + "x" * 20_000 + '"}']  # fmt: skip
    found = rules.objections(rows)
    assert rules.reason_for(found, model=1, key=3) == "far off"
    assert rules.reason_for(found, model=5, key=1) == "the rule gave no reason"
    assert rules.reason_for(found, model=6, key=3) == "1.5", "the model's own reason comes first"
    assert rules.reason_for(found, model=3, key=5) is None
    assert len(rules.reason_for(found, 1, 8) or "") == rules.LONGEST_REASON


@pytest.mark.parametrize(
    "row", [{"configuration": "x", "y": "z"}, {"configuration": 1.5, "y": "z"}, {"configuration": True, "y": 1},
            {"a": 1, "b": 2},
            {"configuration": 1}, {"configuration": 1, "model": 2}, {"configuration": 1, "a": 1, "b": 2}]
)  # fmt: skip
def test_rows_of_another_form(row: Any) -> None:
    with pytest.raises(BadData, match="rule"):
        rules.objections([json.dumps(row)])
