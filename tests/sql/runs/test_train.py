"""cerebro.train: from a table to predictions in two statements, and what is left of a call that ends early."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.packing.windows import wanted
from cerebro_plpy.runs.request.training_rows import validation_share
from tests.sql.lab import Lab, eventually, run
from tests.sql.packing.test_row_weights import weights_of
from tests.sql.packing.test_tables import values
from tests.thorough import TIMES

FLATS = """
CREATE TABLE flats AS SELECT i AS id, (i * 37 % 91)::real AS size,
  CASE WHEN i % 11 > 0 THEN (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] END AS city,
  date '2020-01-01' + i % 700 AS built,
  ((i * 37 % 91) * 40 + CASE i % 3 WHEN 0 THEN 900 ELSE 200 END)::real AS rent,
  CASE WHEN i % 3 = 0 THEN 'high' ELSE 'low' END AS class, (i % 40)::text AS many
FROM generate_series(1, 400) i;
"""
# 24 people; each stands or walks, in stretches. The frequency of the signal says which.
STEPS = """
CREATE TABLE steps AS SELECT who, at, (sin(at * CASE WHEN (at / 20 + who) % 2 = 0 THEN 2.0 ELSE 0.3 END))::real AS x,
  CASE WHEN (at / 20 + who) % 2 = 0 THEN 'walk' ELSE 'stand' END AS posture
FROM generate_series(1, 24) who, generate_series(0, 39) at;
"""
WINDOWS = {"by": "who", "order": "at", "length": 8, "step": 4}
FEW = {"epochs": 4, "max_configurations": 2, "architectures": ["mlp"], "options": {"seed": 1}}
ONE = {**FEW, "epochs": 1, "max_configurations": 1}


def call(model: str, target: str | None = "rent", source: str = "flats", **more: Any) -> tuple[str, list[Any]]:
    given = {"source_table": source, "model_table": model, "target": target, **more}
    values = [json.dumps(one) if isinstance(one, (dict, list)) else one for one in given.values()]
    return f"SELECT cerebro.train({', '.join(f'{name} => %s' for name in given)})", values


def train(lab: Lab, model: str, target: str | None = "rent", **more: Any) -> int:
    statement, values = call(model, target, **more)
    lab.told()
    return lab.value(statement, *values)


def refused(lab: Lab, **more: Any) -> psycopg2.Error:
    before = lab.tables()
    with pytest.raises(psycopg2.Error) as error:
        train(lab, more.pop("model", "refused"), more.pop("target", "rent"), **more)
    assert lab.tables() == before
    return error.value


@pytest.fixture(scope="module")
def flats(lab: Lab) -> Lab:
    lab(FLATS)
    return lab


@pytest.fixture(scope="module")
def rent(flats: Lab) -> int:
    return train(flats, "rent", **FEW)


def test_two_statements_lead_from_a_table_to_predictions(flats: Lab, rent: int) -> None:
    rows = flats("SELECT id, value FROM flats JOIN cerebro.predict('rent', 'SELECT * FROM flats') p"
                 " ON p.key_value = id::text")  # fmt: skip
    assert len(rows) == 400 and flats.status(rent) == "finished"
    assert flats.value("SELECT count(*) FROM leaderboard WHERE run = %s", rent) == 2
    plan = flats("SELECT packed_table, validation_table, options ->> 'objective', options ->> 'keep',"
                 " options -> 'budget' FROM run_plan WHERE run = %s", rent)[0]  # fmt: skip
    packed = f"{flats.schema}.rent_packed"
    assert plan[:4] == (packed, f"{packed}_validation", "val_loss", "best") and 300 < plan[4]["seconds"] <= 600
    assert {"rent_packed", "rent_packed_validation", "rent", "rent_info"} <= flats.tables()


@pytest.mark.parametrize(
    ("target", "says", "objective"),
    [("class", "categorical_crossentropy", "val_accuracy"), ("rent, size", "mse, mse", None)],
)
def test_other_targets(flats: Lab, target: str, says: str, objective: str | None) -> None:
    model = "other_" + target[0]
    train(flats, model, target, objective=objective, **ONE)
    told = flats.told()
    assert any(f"loss {says}" in line for line in told)
    found = flats(
        "SELECT target, count(*) FROM cerebro.predict(%s, 'SELECT * FROM flats') GROUP BY 1 ORDER BY 1", model
    )
    assert found == [(name, 400) for name in sorted(target.split(", "))]
    if objective:
        assert any(
            "about 20 % of the 400 rows are for validation, with the same share of each class" in line for line in told
        )


def test_prediction_takes_the_best_model_by_the_objective(flats: Lab) -> None:
    """Not the one with the lowest loss: here the objective likes large losses."""
    more = {**FEW, "epochs": 1, "max_configurations": 3, "method": "random"}
    train(flats, "worst", objective="val_loss", direction="max", **more)
    values = dict(flats("SELECT configuration, objective_value FROM worst_info"))
    (best,) = [key for key, value in values.items() if value == max(values.values())]
    own, default = (
        flats(f"SELECT * FROM cerebro.predict('worst', 'SELECT * FROM flats'{key}) ORDER BY 1")
        for key in (f", configuration => {best}", "")
    )
    assert own == default and len(set(values.values())) == 3


def test_an_ensemble_predicts_the_mean_of_its_members(flats: Lab, rent: int) -> None:
    flats("SELECT cerebro.ensemble('rent', 'both', 2, all_join => true)")
    rows = "SELECT key_value, value FROM cerebro.predict(%s, 'SELECT * FROM flats', 'id', %s)"
    one, other = (dict(flats(rows, "rent", key)) for key in (1, 2))
    both = dict(flats(rows, "both", None))
    assert both == pytest.approx({key: (one[key] + other[key]) / 2 for key in one}, rel=1e-5)
    assert flats.value("SELECT reason FROM both_info").startswith("the mean of configurations ")
    flats("SELECT madlib.madlib_keras_evaluate('both', 'rent_packed_validation', 'both_judged', NULL, 1)")
    assert flats.value("SELECT loss FROM both_judged") > 0
    before = flats.tables()
    for call, says in (("'rent', 'x', 1", "members cannot be 1"), ("'flats', 'x'", "not the model table of a run"),
                       ("'rent', 'both'", "already exists"), ("'both', 'x'", "has 1 model")):  # fmt: skip
        with pytest.raises(psycopg2.Error) as error:
            flats(f"SELECT cerebro.ensemble({call})")
        assert says in str(error.value) and error.value.diag.message_hint
    assert flats.tables() == before


def test_a_model_joins_an_ensemble_only_if_it_makes_the_objective_better(flats: Lab) -> None:
    """The figures are those of the rows of validation, and the ensemble is never worse than the best model there."""
    more = {**FEW, "max_configurations": 3, "method": "random", "budget": "1 minute"}
    train(flats, "several", objective="val_mae", **more)
    flats("CREATE TABLE spoilt AS TABLE several")
    for ending in ("_info", "_summary"):
        flats(f"CREATE TABLE spoilt{ending} AS TABLE several{ending}")
    ranked = [key for (key,) in flats("SELECT configuration FROM several_info ORDER BY objective_value")]
    # The weights of all but the best two become those of a model that has learnt nothing.
    nothing = "decode(repeat('00', octet_length(weights)), 'hex')"
    flats(f"UPDATE spoilt SET weights = {nothing} WHERE configuration <> ALL (%s)", ranked[:2])

    def judged(table: str) -> float:
        flats("DROP TABLE IF EXISTS judged")
        flats("SELECT madlib.madlib_keras_evaluate(%s, %s, 'judged', NULL, 1)", table, validation)
        return float(flats.value("SELECT metric FROM judged"))

    best = flats.value("SELECT min(objective_value) FROM several_info")
    validation = flats.value("SELECT validation_table FROM several_summary")
    flats("SELECT cerebro.ensemble('spoilt', 'spoilt_together', 4)")
    value, reason = flats("SELECT objective_value, reason FROM spoilt_together_info")[0]
    assert value == pytest.approx(judged("spoilt_together"), rel=1e-5)
    assert value <= best * (1 + 1e-6)
    assert any(reason in line for line in flats.told())
    members = reason.partition(" of lab_")[0]  # without the table's name, whose schema is random
    assert "configuration" in members and not {str(key) for key in ranked[2:]} & set(re.findall(r"\d+", members))
    flats("SELECT cerebro.ensemble('spoilt', 'all_together', 4, all_join => true)")
    assert judged("all_together") > best
    rows = flats("SELECT count(*) FROM cerebro.predict('spoilt_together', 'SELECT * FROM flats')")
    assert rows == [(400,)]


def test_an_ensemble_of_a_run_without_validation_rows_has_all_members(flats: Lab, rent: int) -> None:
    train(flats, "unjudged", validation=0, **{**FEW, "epochs": 1})
    flats("SELECT cerebro.ensemble('unjudged', 'unjudged_together', 2)")
    assert any("no validation rows, so all members join" in line for line in flats.told())
    flats("ALTER TABLE rent_packed_validation RENAME TO hidden")
    try:
        flats("SELECT cerebro.ensemble('rent', 'orphaned_together', 2)")
    finally:
        flats("ALTER TABLE hidden RENAME TO rent_packed_validation")
    assert any("so all members join" in line for line in flats.told())
    assert flats.value("SELECT reason FROM orphaned_together_info").startswith("the mean of configurations ")


def test_windows_in_one_call(flats: Lab) -> None:
    flats(STEPS)
    more = {
        **FEW,
        "epochs": 1,
        "architectures": ["mlp", "conv1d"],
        "sequence": WINDOWS,
        "budget": "30 seconds",
    }
    before = flats.tables()
    assert train(flats, "dry", "posture", source="steps", dry_run=True, **more) is None
    planned = [line for line in flats.told() if "configurations of" in line]
    assert planned
    # No fold of windows is chosen by class, either: that would be refused.
    assert train(flats, "dry", "posture", source="steps", dry_run=True, folds=3, **more) is None
    assert flats.tables() == before

    train(flats, "moved", "posture", source="steps", **more)
    told = flats.told()
    assert any("windows of 8 rows" in line for line in told) and not any(
        "same share of each class" in line for line in told
    )
    sides = [flats.value(f"SELECT layout FROM moved_packed{ending}_summary") for ending in ("", "_validation")]
    assert sides[0]["sequence"] == {"by": ["who"], "order": ["at"], "length": 8, "step": 4, "target": "last"}
    assert sum(side["rows"] for side in sides) == 24 * 9 and all(side["rows"] % 9 == 0 for side in sides)
    kinds = flats("SELECT DISTINCT chosen ->> 'architecture' FROM leaderboard WHERE model_table LIKE '%%.moved'")
    assert {kind for (kind,) in kinds} <= {"mlp", "conv1d"} and kinds
    assert flats.value("SELECT count(*) FROM cerebro.predict('moved', 'SELECT * FROM steps')") == 24 * 9
    # Without architectures, those that read windows step by step are tried beside the default kind.
    for name, source, given in (  # at a landing, the packed rows have to do
        ("moves", "steps", more),
        ("more_moves", "moved_packed", {one: value for one, value in more.items() if one != "sequence"}),
    )[0 if TIMES >= 5 else 1 :]:
        target = "posture" if source == "steps" else None
        run = train(flats, name, target, source=source, **{**given, "architectures": None, "max_configurations": 3})
        kinds = flats("SELECT chosen ->> 'architecture' FROM leaderboard WHERE run = %s AND parent IS NULL", run)
        assert sorted(kind for (kind,) in kinds) == ["conv1d", "lstm", "mlp"]


def test_at_most_200_000_windows_are_for_validation() -> None:
    rows = 5_000_000
    assert validation_share(rows, None) == 0.04
    for step, share in ((1, 0.04), (2, 0.08), (100, 0.2)):
        assert validation_share(rows, wanted({"order": "at", "length": 100, "step": step}, "test")) == share


def test_weights_in_one_call(flats: Lab) -> None:
    flats("CREATE VIEW weighing AS SELECT *, 3 AS weight FROM flats")
    more = {**ONE, "weights": "weight", "class_weight": "balanced"}
    before = flats.tables()
    assert (
        train(flats, "weighed", "class", source="weighing", dry_run=True, **more) is None and flats.tables() == before
    )
    assert not flats("SELECT relname FROM pg_class WHERE relname ~ '^rows_[0-9a-f]{12}$'")  # no copy of its rows
    train(flats, "weighed", "class", source="weighing", **more)
    classes, weights = values(flats, "weighed_packed", "class").argmax(axis=1), weights_of(flats, "weighed_packed")
    sums = [weights[classes == number].sum() for number in (0, 1)]
    assert sums == pytest.approx([3 * len(classes) / 2] * 2, rel=1e-5)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(flats: Lab, rent: int) -> None:
    before, runs = flats.tables(), flats.value("SELECT max(run) FROM runs")
    connection = flats.connect()
    connection.autocommit = False
    statement, values = call("dry", dry_run=True)
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE mine AS SELECT * FROM flats; SET TRANSACTION READ ONLY")
        cursor.execute(statement, ["mine", *values[1:]])
        assert cursor.fetchall() == [(None,)]
    told = "".join(connection.notices)
    connection.close()
    for part in ("'id' is ignored", "loss mse", "configurations of mlp", "paced", "learning_rate from", "10 minutes"):
        assert part in told, told
    assert flats.tables() == before and flats.value("SELECT max(run) FROM runs") == runs
    wrong = {"architectures": {"mlp": {"units": "$width"}}}
    assert "the architecture mlp has this parameter, which has no value" in str(refused(flats, dry_run=True, **wrong))


def test_no_table_is_overwritten(flats: Lab) -> None:
    flats("CREATE TABLE mine_packed AS SELECT 1 AS kept; CREATE TABLE mine_packed_2_validation AS SELECT 2 AS kept")

    train(flats, "mine", **ONE, validation=0.3)
    assert flats("SELECT a.kept, b.kept FROM mine_packed a, mine_packed_2_validation b") == [(1, 2)]
    assert {"mine_packed_3", "mine_packed_3_validation"} <= flats.tables()
    error = refused(flats, model="mine")
    assert "already exists" in str(error)
    long = "m" * 63
    error = refused(flats, model=long)
    assert "the limit for an identifier is 63" in str(error)
    train(flats, long[:55], **ONE, validation=0.4)


def test_a_packed_table_is_not_packed_again(flats: Lab, rent: int) -> None:
    before = flats.tables()
    train(flats, "again", None, source="rent_packed", **ONE)
    assert not {name for name in flats.tables() - before if "packed" in name}
    same = "SELECT source_table, packed_table, validation_table FROM run_plan WHERE model_table = %s"
    assert flats(same, f"{flats.schema}.again") == flats(same, f"{flats.schema}.rent")
    error = refused(flats, source="rent_packed", target="rent")
    assert "target cannot be given: 'rent_packed' is packed already" in str(error)
    for name, value in (("sequence", WINDOWS), ("weights", "size"), ("class_weight", "balanced")):
        error = refused(flats, source="rent_packed", target=None, **{name: value})
        assert f"{name} cannot be given: 'rent_packed' is packed already" in str(error)


def test_a_call_that_is_cancelled_names_what_it_leaves(flats: Lab) -> None:
    connection, said = flats.connect(), []
    statement, values = call("slow", **{**FEW, "epochs": 100_000, "method": "random"}, validation=0.15)

    def wait() -> None:
        with pytest.raises(psycopg2.Error) as error:
            run(connection, statement, *values)
        said.append(error.value)

    thread = threading.Thread(target=wait)
    thread.start()
    number = eventually(lambda: flats("SELECT run FROM hop JOIN run_plan USING (run) WHERE model_table LIKE '%%.slow'"))
    connection.cancel()
    thread.join(120)
    assert said and said[0].pgcode == "57014"
    notices = "".join(connection.notices)
    connection.close()
    assert "These tables remain" in notices and f"{flats.schema}.slow_packed_validation" in notices
    assert f"SELECT cerebro.resume({number[0][0]})" in notices
    assert "slow" not in flats.tables() and "slow_packed" in flats.tables()


def test_a_call_that_is_cancelled_while_it_packs_leaves_nothing(flats: Lab) -> None:
    flats("CREATE VIEW lazy AS SELECT *, pg_sleep(0.05) IS NOT NULL AS yes FROM flats")
    connection, said = flats.connect(), []
    statement, values = call("lazily", source="lazy", validation=0.2)

    def wait() -> None:
        try:
            run(connection, statement, *values)
        except psycopg2.Error as error:
            said.append(error.pgcode)

    thread = threading.Thread(target=wait)
    thread.start()
    packing = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'cerebro_db packing'"
        " AND query LIKE '%%cerebro._packed_rows%%'"
    )
    eventually(lambda: flats(packing))
    connection.cancel()
    thread.join(120)
    connection.close()
    assert said == ["57014"]
    eventually(lambda: not flats(packing), what="the session that packs has ended")
    assert not {name for name in flats.tables() if name.startswith("lazily")}


def test_bad_input_leaves_nothing(flats: Lab) -> None:
    flats("CREATE TEMP TABLE passing AS SELECT * FROM flats")
    for more, says in (
        ({"target": "nobody"}, "invalid target ('nobody')"),
        ({"target": None}, "target must not be NULL"),
        ({"source_table": "passing"}, "'passing' is temporary"),
        ({"source_table": "nowhere"}, "source_table: there is no table 'nowhere'"),
        ({"model_table": "pg_temp.passing_models"}, "model_table cannot be a temporary table"),
        ({"packed_table": "pg_temp.passing_rows"}, "packed_table cannot be a temporary table"),
        ({"objective": "val_mae", "validation": 0.0}, "objective cannot be 'val_mae' without rows for validation"),
        ({"budget": "-1 minute"}, 'budget is "-1 minute"; it must be longer'),
        ({"method": "ash"}, "there is no search method 'ash'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"architectures": ["cnnn"]}, 'there is no architecture "cnnn"'),
        ({"architectures": {"mlp": 3}}, "architectures must be a list of architectures"),
        ({"architectures": {"mlp": {"unit": 3}}}, "architectures: mlp has no parameter 'unit'"),
        ({"space": [1]}, "space must be a JSON object"),
        ({"options": {"sed": 1}}, "there is no option 'sed'"),
        ({"options": {"budget": {"hops": 1}}}, "options has 'budget'"),
        ({"direction": "max"}, "direction needs objective"),
        ({"packed_table": "flats"}, "'flats' already exists"),
        ({"inputs": "rent"}, "the target 'rent' is among the inputs"),
        ({"validation_table": "nowhere"}, "validation_table: there is no table 'nowhere'"),
        ({"sequence": {"length": 8}}, "cerebro.train: sequence lacks the field order"),
        ({"sequence": {"order": "nobody", "length": 8}}, "does not have the column 'nobody' of order"),
        ({"sequence": {"order": "id", "length": 500}}, "does not have 500 consecutive rows"),
        ({"sequence": WINDOWS | {"by": "city", "order": "id"}, "stratify": True}, "stratify and sequence cannot be"),
        ({"weights": "city"}, "weights cannot be city of type text"),
        ({"class_weight": "equal", "target": "class"}, "class_weight cannot be 'equal'"),
        ({"class_weight": "balanced"}, "class_weight needs classes, and the target 'rent' is a number"),
        ({"target": "many", "validation": 0.0, "prepare": {"many": "number"}}, "is not a number"),
    ):
        error = refused(flats, **more)  # type: ignore[arg-type]
        assert says in str(error), (more, str(error))
        assert error.diag.message_hint or "epochs" in says, error


def test_classes_that_are_too_small_to_be_divided_class_by_class(flats: Lab) -> None:
    """The rows are divided without their classes: nobody has asked for those."""
    flats("CREATE TABLE small AS SELECT id, rent, (ARRAY['a', 'b', 'c'])[1 + id % 3] AS kind FROM flats WHERE id <= 12")
    few = {**ONE, "source": "small", "inputs": "rent"}
    train(flats, "small_models", "kind", **few)
    assert any("20 % of the 12 rows are for validation; the others" in line for line in flats.told())
    with pytest.raises(psycopg2.Error, match="stratify: each value of column 'kind' has too few rows"):
        train(flats, "other_models", "kind", stratify=True, validation=0.2, **few)


def test_a_mistake_that_shows_after_packing_leaves_nothing(flats: Lab) -> None:
    before = flats.tables()
    with pytest.raises(psycopg2.Error, match="cnn reads images") as error:
        train(flats, "late", **{**FEW, "architectures": ["cnn"]}, validation=0.35)
    assert error.value.diag.message_hint
    assert not any("These tables remain" in line for line in flats.told())
    # On Greenplum another session drops them, when this transaction has ended.
    eventually(lambda: flats.tables() == before, 60, "the packed rows are removed")


@pytest.mark.thorough  # test_verbs.py trains without waiting
def test_without_waiting(flats: Lab) -> None:
    number = train(flats, "later", wait=False, **FEW)
    assert flats.value("SELECT wait(%s, 60)", number) == "finished"
    assert flats.value("SELECT count(*) FROM cerebro.predict('later', 'SELECT * FROM flats LIMIT 5')") == 5


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"at_once": 0}, "at_once is 0"),
        ({"at_once": 5, "method": "pbt"}, "at_once cannot be given with 'pbt'"),
        ({"space": {"compile": 3}}, "there is no parameter 'compile'"),
        ({"space": {"nobody": 3}}, "there is no parameter 'nobody'"),
        ({"space": {"architecture": "resnet"}}, "the space has 'architecture', and architectures is an argument, too"),
        ({"objective": "val_nope"}, "unknown metric 'nope'"),
        ({"objective": "val_mse", "direction": "up"}, "option 'direction' cannot be"),
        ({"stop_when": "SELECT 1"}, "stop_when lacks $1"),
        ({"stop_when": "SELECT 1 AS nobody, $1 AS one"}, "stop_when has the columns nobody, one"),
    ],
)
def test_what_the_search_refuses_is_refused_before_rows_are_packed(flats: Lab, more: dict[str, Any], says: str) -> None:
    flats.told()
    error = refused(flats, **{**FEW, **more})
    assert says in str(error)
    assert not any("are for validation" in line for line in flats.told())


def test_a_search_that_ends_before_its_budget_says_so(flats: Lab) -> None:
    train(flats, "early", budget="10 minutes", objective="loss", **FEW)
    told = flats.told()
    (line,) = [one for one in told if "the search ended after" in one]
    assert "of 600 s, because all its 2 configurations have been tried" in line and "max_configurations => 4" in line
    (line,) = [one for one in told if "where the" in one]
    assert re.search(r"where the \d+ s went: .*\d+ s training, \d+% of it the best model", line), line
    assert any("'loss' is measured on the rows for training; objective => 'val_loss'" in one for one in told)
    train(flats, "spent", budget="1 second", **ONE)
    assert not any("the search ended after" in one for one in flats.told())
