"""The three verbs have one shape, and each does from a plain table what it does on a packed one."""

from __future__ import annotations

import re
from typing import Any

import psycopg2
import pytest

from cerebro_db.embedded.heads import SIGNATURES
from cerebro_plpy.runs.request.given import FIT, SEARCH, TRAIN
from tests.sql.lab import Lab, verb
from tests.sql.runs.test_train import FLATS
from tests.thorough import TIMES, landing

VERBS = {TRAIN: "train", SEARCH: "search", FIT: "fit"}
SPACE = {"learning_rate": {"log_uniform": [0.001, 0.01]}, "units": 8, "batch_size": 64}
FEW: dict[str, dict[str, Any]] = {
    "train": {"epochs": 1, "max_configurations": 1, "space": SPACE},
    "search": {"epochs": 1, "max_configurations": 1, "method": "random"},
    "fit": {"epochs": 1},
}
OWN = {"train": (), "search": (SPACE,), "fit": ([{"units": 8}],)}


def call(lab: Lab, which: str, source: str, output: str, **more: Any) -> Any:
    lab.told()
    return lab.value(*verb(which, source, output, *OWN[which], **{**FEW[which], **more}))


@pytest.fixture(scope="module")
def flats(lab: Lab) -> Lab:
    lab(FLATS)
    return lab


def test_the_arguments_in_the_catalog_are_those_of_the_code(lab: Lab) -> None:
    """In order, with their types, and with one default for each name, but for train's budget."""
    found = dict(
        lab(
            "SELECT proname::text, json_agg(json_build_array(proargnames[number],"
            " format_type(proargtypes[number - 1], NULL), "
            " regexp_replace(pg_get_function_arg_default(p.oid, number::int), '::.*', ''))"
            " ORDER BY number)"
            " FROM pg_proc p, generate_series(1, pronargs) number"
            " WHERE pronamespace = 'cerebro'::regnamespace AND proname IN ('train', 'search', 'fit') GROUP BY 1"
        )
    )
    told: dict[str, Any] = {}
    for which, short in VERBS.items():
        assert [(name, kind) for name, kind, _ in found[short]] == list(SIGNATURES[which].types.items())
        for name, _, default in found[short]:
            if (which, name) not in ((TRAIN, "budget"), (SEARCH, "space")):
                assert told.setdefault(name, default) == default, (which, name)
    assert told["budget"] == "NULL"


@pytest.mark.parametrize("which", ["train", "search", "fit"])
def test_from_a_table_to_predictions(flats: Lab, which: str) -> None:
    output = f"by_{which}"
    run = call(flats, which, "flats", output, target="rent", run_name="named", description="told", budget="1 hour")
    assert flats.status(run) == "finished"
    plan = flats("SELECT run_name, description, packed_table, validation_table, source_table,"
                 " (options -> 'budget' ->> 'seconds')::float8 FROM run_plan WHERE run = %s", run)[0]  # fmt: skip
    assert plan[4] == f"{flats.schema}.flats"
    packed = plan[2]  # the verb that is called first packs the rows
    assert packed.startswith(f"cerebro_data.{flats.schema}_by_") and packed.endswith("_packed")
    assert plan[:4] == ("named", "told", packed, f"{packed}_validation") and 3000 < plan[5] <= 3600
    assert flats.value("SELECT count(*) FROM cerebro.predict(%s, 'SELECT * FROM flats')", output) == 400
    if which == "search" and TIMES < 5:  # the others are also called on packed rows
        return
    # On the packed rows, and without waiting.
    later = call(flats, which, packed, f"{output}_later", wait=False)
    assert flats.value("SELECT wait(%s, 60)", later) == "finished"
    same = "SELECT source_table, packed_table, validation_table FROM run_plan WHERE run = %s"
    assert flats(same, later) == flats(same, run)


@pytest.mark.parametrize("which", ["train", "search", "fit"])
def test_a_dry_run_makes_nothing(flats: Lab, which: str) -> None:
    before, runs = flats.tables(), flats.value("SELECT count(*) FROM run")
    assert call(flats, which, "flats", "dry", target="rent", dry_run=True) is None
    told = "\n".join(flats.told())
    assert "1 configuration" in told and "batch_size" in told, told
    if which == "fit":
        assert re.search(r'1: {"architecture": "mlp", "units": 8, "loss": "mse", .*"passes": \d+}', told), told
    assert flats.tables() == before and flats.value("SELECT count(*) FROM run") == runs


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"source_table": "nowhere"}, "source_table: there is no table 'nowhere'"),
    ({"source_table": None}, "source_table must not be NULL or empty"),
    ({"model_table": "flats"}, "'flats' already exists"),
    ({"target": None}, "target must not be NULL or empty: 'flats' is not packed"),
    ({"target": "nobody"}, "invalid target ('nobody')"),
    ({"epochs": 0}, "epochs is 0; it must be at least 1"),
    ({"budget": "soon"}, 'budget is "soon"; it must be an interval or a JSON object'),
    ({"budget": "-1 minute"}, 'budget is "-1 minute"; it must be longer'),
    ({"budget": {"hours": 1}}, "a budget has no limit 'hours'"),
    ({"budget": "1 hour", "options": {"budget": {"hops": 1}}}, "options has 'budget', and budget is an argument"),
    ({"objective": "loss", "options": {"objective": "loss"}}, "objective is given as an argument and as an option"),
    ({"direction": "max"}, "direction needs objective"),
    ({"run_name": "x" * 10_001}, "run_name has 10,001 bytes"),
    ({"evaluate_every": 9}, "evaluate_every is 9; it must be between 1 and epochs (1)"),
    ({"options": {"sede": 1}}, "there is no option 'sede'"),
    ({"stop_when": "SELECT 1"}, "stop_when lacks $1"),
]


@pytest.mark.parametrize("which", ["train", "search", "fit"])
@pytest.mark.parametrize(("more", "says"), WRONG, ids=[next(iter(more)) for more, _ in WRONG])
def test_each_refuses_the_same(flats: Lab, which: str, more: dict[str, Any], says: str) -> None:
    before, runs = flats.tables(), flats.value("SELECT count(*) FROM run")
    given = {"source_table": "flats", "model_table": "refused", "target": "rent", **more}
    with pytest.raises(psycopg2.Error) as caught:
        call(flats, which, given.pop("source_table"), given.pop("model_table"), **given)
    assert says in str(caught.value)
    made = {name for name in flats.tables() - before if "_packed" not in name}
    assert not made and flats.value("SELECT count(*) FROM run") == runs


# tests/core/test_searches.py has budgets of searches.
@pytest.mark.parametrize("which", landing(["train", "search", "fit"], "fit"))
def test_a_limit_of_hops(flats: Lab, which: str) -> None:
    run = call(flats, which, "flats", f"limited_{which}", target="rent", epochs=50, budget={"hops": 4})
    assert flats.value("SELECT count(*) FROM hop WHERE run = %s", run) <= 5
