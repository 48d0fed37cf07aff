"""MADlib's scripts in one transaction, and with temporary tables: nothing is committed before they are."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.sql.lab import Lab
from tests.sql.madlib.madlib_lab import SCRIPTS, iris_data, psql

SETS = {
    "models": ("iris_fit_multiple.sql", "iris_fit.sql"),
    "a search": ("iris_automl.sql",),
}


@pytest.fixture
def schema(madlib: Lab) -> Iterator[str]:
    """A schema with the table that the scripts begin with."""
    name = "t_" + secrets.token_hex(5)
    madlib(f"CREATE SCHEMA {name}")
    madlib(f"SET search_path = {name}, public, cerebro, madlib")
    iris_data(madlib)
    try:
        yield name
    finally:
        madlib(f"SET search_path = {madlib.schema}, public, cerebro, madlib")
        madlib(f"SET client_min_messages = warning; DROP SCHEMA {name} CASCADE; RESET client_min_messages")


def play(lab: Lab, scripts: tuple[str, ...], *options: str, path: str) -> str:
    first = [argument for script in scripts[:-1] for argument in ("-f", str(SCRIPTS / script))]
    return psql(lab, scripts[-1], *options, *first, path=path)


# tests/sql/runs/test_own_session.py has a search in one transaction.
@pytest.mark.parametrize(
    "scripts", [SETS["models"], pytest.param(SETS["a search"], marks=pytest.mark.thorough)], ids=SETS
)
def test_in_one_transaction(madlib: Lab, schema: str, scripts: tuple[str, ...]) -> None:
    before = madlib.value("SELECT count(*) FROM cerebro.run")
    play(madlib, scripts, "-1", path=schema)
    assert madlib.value("SELECT count(*) FROM cerebro.run") > before
    in_session = "SELECT DISTINCT options ->> 'in_session' FROM cerebro.run WHERE starts_with(model_table, %s)"
    assert madlib(in_session, f"{schema}.") == [("true",)]
    assert madlib("SELECT DISTINCT status FROM cerebro.runs WHERE starts_with(model_table, %s)", f"{schema}.") == [
        ("finished",)
    ]


@pytest.mark.thorough  # tests/sql/runs/test_own_session.py: a rollback leaves nothing
def test_a_script_that_fails_leaves_nothing(madlib: Lab, schema: str) -> None:
    counts = "SELECT (SELECT count(*) FROM cerebro.run), (SELECT count(*) FROM pg_class)"
    before = madlib(counts)
    multiple = str(SCRIPTS / "iris_fit_multiple.sql")
    with pytest.raises(AssertionError, match="division by zero"):
        psql(madlib, "iris_fit.sql", "-1", "-f", multiple, "-c", "SELECT 1 / 0", path=schema)
    assert madlib(counts) == before


@pytest.mark.parametrize(
    "scripts", [SETS["models"], pytest.param(SETS["a search"], marks=pytest.mark.thorough)], ids=SETS
)
def test_with_temporary_tables(madlib: Lab, schema: str, scripts: tuple[str, ...]) -> None:
    play(madlib, scripts, path=f"pg_temp,{schema}")
    assert madlib("SELECT count(*) FROM pg_class WHERE relnamespace = %s::regnamespace", schema) == [(1,)]
