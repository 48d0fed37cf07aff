"""MADlib's interface as a table: it can be read, its help texts are whole, and Hyperband's schedule is MADlib's."""

from __future__ import annotations

import pytest

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.madlib import usage
from cerebro_db.core.madlib.functions import FUNCTIONS
from cerebro_db.core.madlib.hyperband import schedule
from cerebro_db.core.madlib.tables import TABLES

WITH_HELP = {one.name for one in FUNCTIONS if one.result == "VARCHAR"}


def test_signatures_can_be_read() -> None:
    for one in FUNCTIONS:
        assert [argument.type.rstrip("[]").isupper() for argument in one.arguments].count(False) == 0, one
        required = [argument.default is None for argument in one.arguments]
        assert required == sorted(required, reverse=True), f"{one.name}: an argument with a default comes first"
    assert len({(one.name, *(a.type for a in one.arguments)) for one in FUNCTIONS}) == len(FUNCTIONS)
    (split,) = [one for one in FUNCTIONS if one.name == "train_test_split"]
    last = split.arguments[-1]
    assert (last.name, last.type, last.default) == ("separate_output_tables", "BOOLEAN", "FALSE")


def test_tables_belong_to_functions() -> None:
    assert {table.made_by for table in TABLES} <= {one.name for one in FUNCTIONS if one.installed}
    assert all(name and kind for table in TABLES for name, kind in table.types)


@pytest.mark.parametrize("name", sorted(WITH_HELP))
def test_help(name: str) -> None:
    summary, shown, example = (usage.text(name, message) for message in (None, " Usage ", "example"))
    assert summary.startswith(f"{name}: ") and usage.text(name, "") == summary
    overloads = [one for one in FUNCTIONS if one.name == name and one.result == "VOID" and one.installed]
    explained = usage.HELP[name].arguments
    assert {argument.name for one in overloads for argument in one.arguments} == set(explained)
    assert all(f"  {argument} " in shown for argument in explained) and "RETURNS VOID" in shown
    assert f".{name}(" in example
    assert usage.text(name, "perhaps").startswith("No such option")


def test_every_help_text_belongs_to_a_function() -> None:
    assert set(usage.HELP) == WITH_HELP


def test_the_schedule_of_madlibs_documentation() -> None:
    found = schedule(81, 3, 0, "hyperband_schedule")
    assert found == [
        (4, 0, 81, 1), (4, 1, 27, 3), (4, 2, 9, 9), (4, 3, 3, 27), (4, 4, 1, 81),
        (3, 0, 27, 3), (3, 1, 9, 9), (3, 2, 3, 27), (3, 3, 1, 81),
        (2, 0, 9, 9), (2, 1, 3, 27), (2, 2, 1, 81),
        (1, 0, 6, 27), (1, 1, 2, 81),
        (0, 0, 5, 81),
    ]  # fmt: skip


def test_last_rounds_are_skipped() -> None:
    assert schedule(9, 3, 1, "m") == [(2, 0, 9, 1), (2, 1, 3, 3), (1, 0, 3, 3)]
    assert schedule(10, 3, 2, "m") == [(2, 0, 9, 1)]  # 10 is no power of 3: a ninth of it is 1


@pytest.mark.parametrize(
    ("r", "eta", "skip_last", "wrong"),
    [(9, 1, 0, "eta is 1"), (9, None, 0, "eta is NULL"), (2, 3, 0, "R is 2"), (None, 3, 0, "R is NULL"),
     (9, 3, 3, "skip_last is 3"), (9, 3, -1, "skip_last is -1"), (9, 3, None, "skip_last is NULL")],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense(r: int, eta: int, skip_last: int, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        schedule(r, eta, skip_last, "hyperband_schedule")
