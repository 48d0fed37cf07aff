"""Every argument of a SQL function has its name and its type in the Python function, or in a record."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from cerebro_db.core import arguments
from cerebro_db.core.arguments import PackArguments
from cerebro_db.embedded import extension, heads
from cerebro_plpy import api
from cerebro_plpy.packing.kept_rows import arguments_of
from cerebro_plpy.predicting.streaming import predict_rows
from cerebro_plpy.runs.request.given import Given
from cerebro_plpy.verbs.following import SETTINGS

CALL = re.compile(r"^[ \t]*return (api\..*\))$", re.MULTILINE)
RECORD = re.compile(r"\b(\w*Arguments|of_call|_run)\([^()]*\*\*\w+[,\s]*\)")
PYTHON_TYPES = {
    "text": "str", "name": "str", "json": "str", "jsonb": "str", "bytea": "bytes", "boolean": "bool", "real": "float",
    "double precision": "float", "integer": "int", "bigint": "int",
}  # fmt: skip


def calls() -> Iterator[tuple[str, str, dict[str, str]]]:
    """The SQL function, the Python function, and the arguments of the call with their SQL types."""
    script = extension.install_script(extension.Sources.find())
    found = list(heads.FUNCTION.finditer(script))
    for one, end in zip(found, [*(one.start() for one in found[1:]), len(script)]):
        for text in CALL.findall(script[one.end() : end]):
            statement = ast.parse(text).body[0]
            assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call), text
            call = statement.value
            types = dict(heads.parted(one[2]))
            assert [ast.unparse(given) for given in call.args] == ["plpy"], one[1]
            assert [(given.arg, ast.unparse(given.value)) for given in call.keywords] == [
                (name, name) for name in types
            ]
            assert isinstance(call.func, ast.Attribute)
            yield one[1], call.func.attr, types


CALLS = list(calls())


def taken(function: Any) -> dict[str, str]:
    """The arguments that a function takes, with their annotations; also those of the record that it makes of others."""
    body = inspect.unwrap(function)
    found = list(inspect.signature(body).parameters.values())[1:]
    known = {one.name: one.annotation for one in found if one.kind is not one.VAR_KEYWORD}
    if len(known) < len(found):
        made = RECORD.search(inspect.getsource(body))
        assert made is not None
        record = Given if made[1] in ("of_call", "_run") else body.__globals__[made[1]]
        known = {**{one.name: one.type for one in fields(record)}, **known}
    return known


@pytest.mark.parametrize(("sql", "function", "types"), CALLS, ids=[f"{sql}:{len(types)}" for sql, _, types in CALLS])
def test_each_value_reaches_its_name(sql: str, function: str, types: dict[str, str]) -> None:
    found = taken(predict_rows if function == "predict_rows" else getattr(api, function))
    assert set(types) <= set(found)
    for name, kind in types.items():
        if found[name] in arguments.SQL_TYPES:
            assert arguments.SQL_TYPES[found[name]] == kind, name
        elif name != "options":  # the record has what the text says
            assert ("list" if kind.endswith("[]") else PYTHON_TYPES[kind]) in re.findall(r"\w+", found[name]), name


def test_no_function_takes_values_in_their_places() -> None:
    for _, function, _ in CALLS:
        parameters = inspect.signature(inspect.unwrap(getattr(api, function))).parameters.values()
        assert all(one.kind is not one.VAR_POSITIONAL or one.name == "of_old_sql" for one in parameters), function


@pytest.mark.parametrize("head", ["a numeric(10,2)", "OUT a integer", '"My name" text', "a text default 'x,y'"])
def test_a_head_that_is_not_understood_is_refused(head: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        heads.parted(head)


def test_a_default_becomes_sql() -> None:
    values = (None, True, False, 0, 1, 0.5, "it's")
    assert [*map(heads._literal, values)] == ["NULL", "true", "false", "0", "1", "0.5", "'it''s'"]


def test_an_order_names_arguments_that_there_are() -> None:
    known = {name for one in heads.SIGNATURES.values() for name in one.types}
    assert {name for one in heads.SIGNATURES.values() for name in one.first.split()} <= known


def test_an_argument_that_is_not_given_has_no_part_in_the_fingerprint() -> None:
    given = PackArguments(source_table="a", output_table="b", target="c", seed=3, folds=2, prepare='{"x": "ignore"}')
    assert list(arguments_of(given).items()) == [("folds", 2), ("prepare", {"x": "ignore"}), ("seed", 3)]


def test_what_follows_a_run_has_the_settings_of_a_retrain() -> None:
    """Which does the same in a call of its own."""
    script = (extension.Sources.find().root / "sql" / "api" / "57_retraining.sql").read_text(encoding="utf-8")
    head = script[script.index("FUNCTION cerebro.retrain(") : script.index("$py$")]
    assert {name: value.strip("'") for name, value in re.findall(r"SET (\w+) = ('[^']*'|\w+)", head)} == SETTINGS
