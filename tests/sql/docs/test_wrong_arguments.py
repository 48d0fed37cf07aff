"""Each argument of each public function gets wrong values: the error names the function that was called."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psycopg2
import pytest

from cerebro_madlib.functions import FUNCTIONS
from tests.sql.runs.test_ending import Function, Trial, cast, equip, functions
from tests.sql.users import Town, User, town

WRONG = {
    "text": ["NULL", "''", "'nowhere'", "'{'"],
    "integer": ["NULL", "-1", "0"],
    "bigint": ["NULL", "-1"],
    "double precision": ["NULL", "-1", "'NaN'"],
    "boolean": ["NULL"],
    "json": ["NULL", "'3'", """'{"nonsense": 1}'"""],
    "jsonb": ["NULL", "'3'", "'[]'", """'{"nonsense": 1}'"""],
    "interval": ["NULL", "'-1 second'"],
    "bytea": ["'\\x00'"],
    "text[]": ["NULL", "'{}'", "'{NULL}'", "'{nowhere}'"],
    "integer[]": ["NULL", "'{}'", "'{NULL}'", "'{-1}'"],
    "name": ["NULL", "''", "'nowhere'"],
}


WORDS = re.compile(
    r"\b(num_iterations|dependent_varname|independent_varname|model_selection_table|fit_params)\b|not None"
)


@pytest.fixture(scope="module")
def place(server: str) -> Iterator[tuple[Town, User]]:
    with town(server) as root:
        user = root.user("wronged", "cerebro_user")
        equip(root, user)
        yield root, user


def public(one: Function) -> bool:
    schema, _, name = one.name.partition(".")
    return schema == "cerebro" and not name.startswith("_") and name not in MADLIB


MADLIB = {function.name for function in FUNCTIONS} | {"madlib_fit_multiple_model"}  # their errors have MADlib's form


def test_an_error_names_the_function_that_was_called(place: tuple[Town, User]) -> None:
    root, user = place
    found = []
    with contextlib.closing(Trial(root, user)) as trial:
        for one in filter(public, functions(user)):
            for name, kind in one.arguments:
                for value in WRONG.get(kind, ["NULL"]):
                    session = trial.ready()
                    try:
                        with session.cursor() as cursor:
                            cursor.execute(one.call(name, value + cast(kind)))
                        said = hint = state = ""
                    except psycopg2.Error as error:
                        said, hint, state = str(error.diag.message_primary), str(error.diag.message_hint), error.pgcode
                    session.rollback()
                    found.append((one.name, name, value, state, said, hint))
    errors = [one for one in found if one[4]]
    assert len(errors) > 200
    assert [one for one in errors if not one[4].startswith(f"{one[0]}: ")] == []
    # None of them is a defect, and none speaks of MADlib's arguments or of Python.
    assert [one for one in errors if one[3].startswith(("XX", "38")) or WORDS.search(f"{one[4]} {one[5]}")] == []
