"""Searches in SQL: architectures with parameters, and runs that propose their configurations."""

from __future__ import annotations

import json
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.search import named_methods
from cerebro_plpy.runs.search import models_at_once
from tests.sql.lab import Lab, eventually, layer, sequential, verb
from tests.thorough import landing

TEMPLATE = sequential(
    [4],
    {"repeat": "$depth", "layers": [layer("Dense", "hidden", units="$width", activation="relu")]},
    layer("Dense", "out", units=3, activation="softmax"),
)


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    """With an architecture with parameters."""
    lab.iris(segments=2)
    lab("SELECT add_architecture('tower', %s)", json.dumps(TEMPLATE))
    return lab


FLAT = sequential([4], layer("Dense", "out", units=3, activation="softmax"))


def refused(lab: Lab, statement: str, *values: Any) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as raised:
        lab(statement, *values)
    return raised.value


# -- architectures with parameters -----------------------------------------------------------------------


def test_an_architecture_with_parameters_is_not_trained_without_their_values(flowers: Lab) -> None:
    error = refused(flowers, "SELECT fit('train', 'm', '[{\"architecture\": \"tower\"}]', epochs => 1)")
    assert 'the architecture "tower" has the parameter depth, which has no value here' in str(error)


# -- runs that propose their configurations ----------------------------------------------------------------

SPACE = {
    "architecture": "tower",
    "width": {"integer": [4, 12], "step": 4},
    "depth": {"integer": [0, 2]},
    "optimizer": {"choice": ["Adam", "SGD"]},
    "learning_rate": {"log_uniform": [0.001, 0.5]},
    "momentum": {"uniform": [0, 0.9], "when": {"optimizer": "SGD"}},
    "batch_size": {"choice": [16, 32]},
    "passes": 1,
}


def search(lab: Lab, output: str, space: Any = SPACE, epochs: int = 4, source_table: str = "train", **more: Any) -> int:
    return lab.value(*verb("search", source_table, output, space, epochs=epochs, **more))


@pytest.fixture(scope="module")
def halved(flowers: Lab) -> int:
    """A search by ASHA over architectures with parameters."""
    method = {"name": "asha", "reduction": 2}
    return search(
        flowers, "halved", method=method, max_configurations=8, validation_table="val", objective="val_accuracy",
        options={"deterministic": True, "seed": 4},
    )  # fmt: skip


def test_a_search_tries_points_and_stops_most_of_them(flowers: Lab, halved: int) -> None:
    found = flowers(
        "SELECT configuration, status, reason, epochs_done, stopped_by, chosen, parameters FROM"
        " leaderboard"
        " WHERE run = %s ORDER BY rank", halved,
    )  # fmt: skip
    assert len(found) == 8
    finished = [row for row in found if row[1] == "finished"]
    # Half of a rung goes on, and whoever comes first is ahead of the others until they have come.
    assert 1 <= len(finished) < 8 and all(row[3] == 4 for row in finished)
    for key, status, reason, epochs, by, chosen, parameters in found:
        assert chosen["optimizer"] in ("Adam", "SGD") and ("momentum" in chosen) == (chosen["optimizer"] == "SGD")
        assert parameters["passes"] == 1 and parameters == {
            **parameters,
            **{key: one for key, one in chosen.items() if key != "architecture"},
        }
        if status == "stopped":
            assert reason.startswith("waits at rung ") and by == "asha (random)" and epochs in (1, 2), (key, reason)
    assert flowers("SELECT count(*) FROM halved") == [(8,)]
    for view in ("runs", "run_progress", "models"):
        told = f"SELECT configurations FROM cerebro.{view} WHERE run = %s"
        assert flowers(told, halved) == [(8,)], view
    architectures = flowers(
        "SELECT json_array_length(architecture #> '{config,layers}') FROM halved ORDER BY configuration"
    )
    chosen = dict(flowers("SELECT configuration, chosen FROM leaderboard WHERE run = %s", halved))
    assert [count for (count,) in architectures] == [chosen[key]["depth"] + 2 for key in sorted(chosen)]


def test_the_decisions_of_a_search_are_on_record(flowers: Lab, halved: int) -> None:
    found = flowers("SELECT decision, count(*) FROM decision WHERE run = %s GROUP BY 1", halved)
    counts = dict(found)
    finished = flowers.value("SELECT count(*) FROM leaderboard WHERE run = %s AND status = 'finished'", halved)
    assert counts["add"] == 8 and counts["stop"] >= 8 - finished > 0


def test_a_search_is_replayed(flowers: Lab, halved: int) -> None:
    again = search(flowers, "again", validation_table="val", max_configurations=1, options={"replay": halved})
    assert flowers.weights("again") == flowers.weights("halved")
    told = "SELECT configuration, chosen, epochs_done, objective_value FROM leaderboard WHERE run = %s ORDER BY 1"
    assert flowers(told, again) == flowers(told, halved)


def test_the_option_search_stops_models_of_a_fit(flowers: Lab) -> None:
    tried = [{"architecture": "tower", "width": 4, "depth": 1, "optimizer": "SGD", "learning_rate": 0.5 * 10**-n}
             for n in range(6)]  # fmt: skip
    options = {"method": {"name": "halving", "reduction": 2}, "seed": 1}
    run = flowers.value(*verb("fit", "train", "kept", tried, epochs=4, options=options))
    found = dict(flowers("SELECT epochs_done, count(*) FROM leaderboard WHERE run = %s GROUP BY 1", run))
    assert found == {1: 3, 2: 2, 4: 1}


def test_population_based_training_copies_and_changes_models(flowers: Lab) -> None:
    space = {
        "architecture": FLAT,
        "optimizer": "Adam",
        "learning_rate": {"log_uniform": [0.0001, 0.1]},
        "batch_size": {"choice": [16, 32]},
        "passes": 1,
    }
    run = search(flowers, "bred", space, epochs=4, method="pbt", max_configurations=12, options={"seed": 2})
    found = flowers("SELECT model, parent, chosen, status, reason, epochs_done FROM leaderboard WHERE run = %s", run)
    points = {row[0]: row[2] for row in found}
    children = [row for row in found if row[1] is not None]
    assert children
    for _, parent, chosen, *_ in children:
        factor = chosen["learning_rate"] / points[parent]["learning_rate"]
        assert factor == pytest.approx(1.2, rel=0.01) or factor == pytest.approx(1 / 1.2, rel=0.01) or chosen[
            "learning_rate"] in (0.0001, 0.1)  # fmt: skip
    assert sum(row[5] for row in found) == 12 * 4, "each place trains four epochs"


def test_tpe_suggests_points_and_starts_from_the_past(flowers: Lab, halved: int) -> None:
    flowers.told()
    method = {"name": "tpe", "startup": 6}
    run = search(
        flowers, "suggested", method=method, max_configurations=4, at_once=2, start_from="past", epochs=1,
        validation_table="val", objective="val_accuracy", options={"seed": 3},
    )  # fmt: skip
    said = [text for text in flowers.told() if "start_from" in text]
    assert any(f"run {halved} on the same table: 8 configurations with val_accuracy" in text for text in said), said
    found = flowers("SELECT chosen FROM leaderboard WHERE run = %s", run)
    assert len(found) == 4
    assert flowers("SELECT DISTINCT policy FROM decision WHERE run = %s", run) == [("tpe",)]


def test_tpe_starts_from_runs_on_tables_of_the_same_shape(flowers: Lab, halved: int) -> None:
    """And not from those on tables of another shape."""
    flowers("CREATE TABLE copse AS SELECT id, sl + 1 AS a, sw AS b, pl AS c, pw AS d, species FROM flowers")
    flowers.pack("copse", "copse_packed", "species", "a, b, c, d", segments=2)
    flowers.pack("copse", "hedge_packed", "species", "a, b, c", segments=2)
    given = {"method": "tpe", "max_configurations": 2, "epochs": 1, "start_from": "past", "options": {"seed": 3}}
    flowers.told()
    search(flowers, "copse_found", source_table="copse_packed", **given)
    said = [text for text in flowers.told() if "start_from" in text]
    found = f"run {halved} on {flowers.schema}.train, which has the same shape: 8 configurations with loss"
    assert any(found in text for text in said), said
    hedge = sequential([3], layer("Dense", "out", units=3, activation="softmax"))
    space = {name: one for name, one in SPACE.items() if name not in ("width", "depth")} | {"architecture": hedge}
    search(flowers, "hedge_found", space, source_table="hedge_packed", **given)
    said = [text for text in flowers.told() if "start_from" in text]
    assert len(said) == 1 and "no earlier run of yours" in said[0], said


def test_evolution_changes_architectures(flowers: Lab) -> None:
    method = {"name": "evolution", "population": 3, "tournament": 2}
    run = search(flowers, "evolved", method=method, max_configurations=10, at_once=2, epochs=1, options={"seed": 5})
    points = [chosen for (chosen,) in flowers("SELECT chosen FROM leaderboard WHERE run = %s ORDER BY model", run)]
    assert len(points) == 10
    changed: set[str] = set()
    for place, point in enumerate(points[5:], 5):
        nearest = min(
            ({name for name in {*point, *other} if point.get(name) != other.get(name)} for other in points[:place]),
            key=len,
        )
        # A change of the optimizer brings the momentum in or takes it away.
        assert nearest and (len(nearest) == 1 or nearest == {"optimizer", "momentum"}), (point, nearest)
        changed |= nearest
    assert changed & {"width", "depth"}


@pytest.mark.parametrize(
    "method",
    [
        {"name": "asha", "reduction": 2, "sampler": {"name": "tpe", "startup": 3}},
        # tests/core/test_searches.py interrupts, resumes and replays searches by every method.
        *landing(
            [
                {"name": "pbt"},
                {"name": "hyperband", "reduction": 2},
                {"name": "median", "min_models": 2},
                {"name": "evolution", "population": 3},
                {"name": "paced", "min_epochs": 1},
            ]
        ),
    ],
    ids=lambda method: method["name"],
)
def test_a_search_is_cancelled_resumed_and_replayed_by_any_method(flowers: Lab, method: dict[str, Any]) -> None:
    """The resumed search ends as it should, and its replay has the same models."""
    name = method["name"]
    given: dict[str, Any] = {"method": method, "max_configurations": 6, "options": {"deterministic": True, "seed": 9}}
    if name != "pbt":
        given["at_once"] = 2
    run = search(flowers, f"{name}_run", epochs=8, wait=False, **given)
    eventually(lambda: flowers.value("SELECT count(*) FROM hop WHERE run = %s", run) > 12, 60)
    flowers("SELECT cancel(%s)", run)
    if flowers.ended(run) == "cancelled":
        flowers("SELECT resume(%s)", run)
    told = "SELECT model, parent, status, chosen, epochs_done, rung FROM leaderboard WHERE run = %s ORDER BY 1"
    board = flowers(told, run)
    assert sum(row[1] is None for row in board) == 6 and {row[2] for row in board} <= {"finished", "stopped"}
    again = search(flowers, f"{name}_again", epochs=8, options={"replay": run}, max_configurations=1)
    assert flowers(told, again) == board
    assert flowers.states(again) == flowers.states(run)


@pytest.mark.parametrize("keep", landing(["last", "best"], "best"))
def test_a_plan_by_the_measured_speed_is_on_record_and_is_replayed(flowers: Lab, keep: str) -> None:
    """The clock has a part in the decisions, but the replay repeats them from the record.

    With the best states kept, copies start from these: at a hop that is not the last one of their parents.
    """
    flowers.told()
    same = {"keep": keep, "objective": "loss"}
    options = {"deterministic": True, "seed": 4, "threads": 1, **same}
    given = {"method": {"name": "paced", "min_epochs": 1}, "options": options}
    space = {"units": 16, "learning_rate": {"log_uniform": [0.001, 0.1]}, "passes": 1}  # one program
    budget = {"seconds": 9, "least_epochs": 1}
    run = search(flowers, f"timed_{keep}", space, epochs=729, max_configurations=None, budget=budget, **given)
    told = flowers.told()
    assert any("an epoch takes" in line and "configurations" in line for line in told), told
    assert any("goes on as a copy with" in line for line in told), told
    reasons = flowers(
        "SELECT reason FROM cerebro.decision WHERE run = %s AND decision = 'add' AND model IS NULL ORDER BY at", run
    )
    assert any(reason.startswith("an epoch takes") for (reason,) in reasons), reasons
    board = "SELECT model, parent, chosen, epochs_done FROM leaderboard WHERE run = %s ORDER BY 1"
    found = flowers(board, run)
    assert any(parent is not None for _, parent, *_ in found), "the best models are finished"
    rates = {model: chosen["learning_rate"] for model, _, chosen, _ in found}
    for model, parent, *_ in found:
        assert parent is None or rates[model] == pytest.approx(rates[parent] / 3, rel=0.01)
    assert flowers.value("SELECT seconds_elapsed FROM run_progress WHERE run = %s", run) < 60
    hops = flowers(
        "SELECT c.parent_hop, max(h.hop), min(h.hop) FILTER (WHERE h.hop = c.parent_hop) FROM cerebro.model c"
        " JOIN cerebro.hop h ON h.run = c.run AND h.model = c.parent WHERE c.run = %s GROUP BY c.model, c.parent_hop",
        run,
    )
    assert all(start == there for start, _, there in hops)
    assert any(start < last for start, last, _ in hops) == (keep == "best")
    again = search(
        flowers, f"timed_{keep}_again", space, epochs=729, max_configurations=1, options={"replay": run, **same}
    )
    assert flowers(board, again) == found and flowers.states(again) == flowers.states(run)


@pytest.mark.thorough  # tests/core/test_searches.py resumes searches, and a search is resumed above
def test_a_search_that_was_cancelled_goes_on_where_it_was(flowers: Lab) -> None:
    """What is proposed after the resume is what would have been proposed without the cancel."""
    given = {"method": "random", "max_configurations": 6, "at_once": 2, "options": {"deterministic": True, "seed": 9}}
    whole = search(flowers, "whole", epochs=20, **given)
    run = search(flowers, "parts", epochs=20, wait=False, **given)
    eventually(lambda: flowers.value("SELECT count(*) FROM hop WHERE run = %s", run) > 5, 60)
    flowers("SELECT cancel(%s)", run)
    eventually(lambda: flowers.status(run) == "cancelled", 30)
    assert flowers.value("SELECT count(*) FROM configuration WHERE run = %s", run) < 6
    flowers("SELECT resume(%s)", run)
    assert flowers.weights("parts") == flowers.weights("whole")
    told = "SELECT configuration, chosen FROM leaderboard WHERE run = %s ORDER BY 1"
    assert flowers(told, run) == flowers(told, whole)


def test_more_models_train_at_once_where_visits_are_short_and_all_models_will_train(flowers: Lab) -> None:
    def at_once(name: str, **given: Any) -> int:
        run = search(flowers, name, epochs=1, max_configurations=1, **given)
        found: int = flowers.value(
            "SELECT (options -> 'space' ->> 'at_once')::int FROM cerebro.run WHERE run = %s", run
        )
        return found

    assert at_once("at_once_random", method="random") == 32
    assert at_once("at_once_limited", method="random", budget={"seconds": 600}) == 4
    flowers("CREATE TABLE meadow AS SELECT f.* FROM flowers f, generate_series(1, 90)")
    flowers.pack("meadow", "meadow_packed", "species", "sl, sw, pl, pw", segments=2)
    assert at_once("at_once_larger", method="random", source_table="meadow_packed") == 8
    for method, of_few, of_many in (("asha", 32, 8), ("evolution", 4, 4), ("tpe", 4, 4)):
        spec = named_methods.checked(method, proposes=True)
        assert [models_at_once(spec, None, 2, rows) for rows in (120, 10_800)] == [of_few, of_many], method


@pytest.mark.tensorflow  # JAX's loss stays finite
def test_one_bad_point_fails_alone(flowers: Lab) -> None:
    """A point that nobody can know to be bad before it trains: the loss of its rate is not finite."""
    space = {"architecture": FLAT, "loss": "mse", "optimizer": "sgd", "learning_rate": {"choice": [0.01, 1e38]}}
    run = search(flowers, "partly", space, epochs=2, method="grid", options={"seed": 1})
    found = dict(flowers("SELECT (chosen ->> 'learning_rate')::float8, status FROM leaderboard WHERE run = %s", run))
    assert found == {0.01: "finished", 1e38: "failed"}


RATE = {"learning_rate": {"log_uniform": [0.01, 0.1]}}
PARTLY = {**RATE, "metrics": {"choice": [["auc"], []]}, "architecture": FLAT}
ACCURATE = {**RATE, "metrics": ["accuracy"], "architecture": FLAT}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"space": None}, "space must be a JSON object"),
        ({"space": {}}, "a space is a JSON object that is not empty"),
        ({"space": {"architecture": FLAT}}, "there is nothing to search"),
        ({"space": {**RATE, "architecture": "tower"}}, "at depth: the architecture tower has this parameter"),
        ({"space": {**RATE, "architecture": "castle"}}, 'there is no architecture "castle"'),
        ({"space": {**RATE, "architecture": ["mlp", "mlp"]}}, "an architecture is given twice"),
        ({"space": {"lr": {"log_uniform": [0, 1]}}}, "search space, at lr.log_uniform"),
        ({"space": {**RATE, "beta_9": 1}}, "there is no parameter 'beta_9'. The nearest are: beta_"),
        ({"space": {**RATE, "epochs": 3}}, "'epochs' is no parameter of a configuration. The argument epochs says"),
        ({"space": {**RATE, "compile": {}}}, "there is no parameter 'compile'"),
        ({"method": "ashes"}, "there is no search method 'ashes'"),
        ({"method": "{asha}"}, "method is not valid JSON"),
        ({"method": {"name": "asha", "reduction": 0}}, "it must be at least 1.1"),
        ({"method": "grid"}, "at learning_rate: a grid needs a list of values"),
        ({"max_configurations": None}, "max_configurations is NULL; 'asha' needs to know how many"),
        ({"max_configurations": None, "budget": {"least_epochs": 2}}, "max_configurations is NULL; 'asha' needs"),
        ({"budget": {"seconds": 0}}, "cerebro.search: option 'budget': the limit 'seconds' of a budget must be"),
        ({"max_configurations": 0}, "max_configurations is 0"),
        ({"at_once": 0}, "at_once is 0"),
        ({"method": "pbt", "at_once": 2}, "at_once cannot be given with 'pbt'"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"evaluate_every": 9}, "evaluate_every is 9; it must be between 1 and epochs (4)"),
        ({"evaluate_every": 2, "validation_table": "val"}, "'asha' compares models from epoch 1 on"),
        ({"objective": "val_accuracy"}, "objective 'val_accuracy' cannot be used: the run has no validation table"),
        ({"objective": "auc", "space": ACCURATE}, "'auc' cannot be used: the configurations of the space do not"),
        ({"objective": "auc", "space": PARTLY}, "some configurations of the space do not compile 'auc'"),
        ({"options": {"engine": "abacus"}}, "cerebro.search: there is no engine 'abacus'"),
        ({"start_from": "future"}, "start_from is 'future'; it can only be 'past'"),
        ({"start_from": "past"}, "'asha' cannot start from the past"),
        ({"options": {"method": "asha"}}, "has no option 'method'"),
        ({"options": {"objective": "loss"}, "objective": "loss"}, "objective is given as an argument and as an option"),
        ({"options": {"replay": 987654321}}, "there is no run 987654321"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_on_record(flowers: Lab, more: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"space": SPACE, "max_configurations": 2, "epochs": 4, **more}
    space, epochs = given.pop("space"), given.pop("epochs")
    before = flowers("SELECT count(*) FROM run")
    with pytest.raises(psycopg2.Error) as raised:
        search(flowers, "refused", space, epochs, **given)
    assert said in f"{raised.value.diag.message_primary} {raised.value.diag.message_hint}", raised.value
    assert flowers("SELECT count(*) FROM run") == before and "refused" not in flowers.tables()


@pytest.mark.parametrize(
    ("option", "more", "said"),
    [
        ("tpe", {}, "proposes configurations, which cerebro.search() does"),
        ({"name": "threshold"}, {}, "needs 'value'"),
        ("asha", {"validation_table": "val", "evaluate_every": 2}, "compares models from epoch 1 on"),
    ],
)
def test_a_fit_refuses_what_only_a_search_can_do(flowers: Lab, option: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(psycopg2.Error) as raised:
        flowers(*verb("fit", "train", "refused", [{}], epochs=2, options={"method": option}, **more))
    assert said in str(raised.value)


@pytest.mark.parametrize("engine", [pytest.param("tensorflow", marks=pytest.mark.tensorflow), "auto"])
def test_a_budget_that_is_spent_before_the_first_proposal(flowers: Lab, engine: str) -> None:
    spent = {"budget": {"seconds": 0.000001}, "engine": engine}
    with pytest.raises(psycopg2.Error, match="the search proposed no configuration"):
        search(flowers, "none_made", method="random", max_configurations=2, options=spent)
