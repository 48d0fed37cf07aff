"""``cerebro.fit`` is ``madlib_fit_multiple_model`` with its arguments in a natural order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.users import User, equip, town

# Arguments of cerebro.fit, and what MADlib calls them.
NAMES = {
    "source_table": "source_table",
    "model_table": "model_output_table",
    "selection_table": "model_selection_table",
    "epochs": "num_iterations",
    "validation_table": "validation_table",
    "evaluate_every": "metrics_compute_frequency",
    "use_gpus": "use_gpus",
    "warm_start": "warm_start",
    "name": "name",
    "description": "description",
    "options": "options",
}
GOOD = {"source_table": "packed", "model_table": "models", "selection_table": "mst", "epochs": 2}
WRONG: list[dict[str, Any]] = [
    {"source_table": "nowhere"},
    {"model_table": "points"},
    {"selection_table": "nowhere"},
    {"epochs": 0},
    {"validation_table": "nowhere"},
    {"evaluate_every": 99},
    {"warm_start": True},
    {"options": '{"sede": 1}'},
]


@pytest.fixture(scope="module")
def ann(server: str) -> Iterator[User]:
    with town(server) as made:
        user = made.user("ann", "cerebro_user")
        equip(user)
        yield user


def call(user: User, function: str, arguments: dict[str, Any]) -> list[Any]:
    casts = {"options": "::jsonb"}
    named = ", ".join(f"{name} => %s{casts.get(name, '')}" for name in arguments)
    return user(f"SELECT cerebro.{function}({named})", *arguments.values())


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_an_argument_goes_where_madlibs_goes(ann: User, wrong: dict[str, Any]) -> None:
    given = {**GOOD, **wrong}
    errors = []
    for function, arguments in (
        ("fit", given),
        ("madlib_fit_multiple_model", {NAMES[name]: value for name, value in given.items()}),
    ):
        with pytest.raises(psycopg2.Error) as caught:
            call(ann, function, arguments)
        errors.append((caught.value.pgcode, caught.value.diag.message_primary))
    assert errors[0] == errors[1]


def test_the_others_and_the_defaults(ann: User) -> None:
    found = dict(
        ann(
            "SELECT proname::text, array_to_json(array_agg(ROW(proargnames[number],"
            " regexp_replace(pg_get_function_arg_default(p.oid, number::int), '::.*', '')) ORDER BY number))"
            " FROM pg_proc p, generate_series(1, pronargs) number"
            " WHERE pronamespace = 'cerebro'::regnamespace AND proname IN ('fit', 'madlib_fit_multiple_model')"
            " GROUP BY 1"
        )
    )
    fit, madlib = ({entry["f1"]: entry["f2"] for entry in found[name]} for name in ("fit", "madlib_fit_multiple_model"))
    assert list(fit) == [*NAMES, "stop_when"]  # which MADlib does not have
    assert {NAMES[name]: default for name, default in fit.items() if name in NAMES} == {
        name: default for name, default in madlib.items() if name != "use_caching"
    }


def test_a_run(ann: User) -> None:
    (run,) = call(ann, "fit", {**GOOD, "name": "named", "description": "described", "options": '{"seed": 3}'})
    assert ann("SELECT status, name, description, epochs FROM cerebro.runs WHERE run = %s", run) == [
        ("finished", "named", "described", 2)
    ]
    assert ann("SELECT options ->> 'seed' FROM cerebro.run_plan WHERE run = %s", run) == ["3"]
    assert ann("SELECT count(*) FROM models") == [1]
