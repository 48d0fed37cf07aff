"""Methods that stop models, searches and trains on rows with groups: what is decided is decided within a group."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import psycopg2
import pytest

from cerebro_db.core.search import outlook
from cerebro_db.core.search.objective import Objective
from tests.sql.lab import Lab
from tests.sql.runs.test_groups import OPTIONS, fit, with_sales
from tests.thorough import landing

UNITS = [{"architecture": "mlp", "units": units, "learning_rate": rate} for units in (2, 16) for rate in (0.1, 0.001)]


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    return with_sales(lab)


def epochs_of_groups(place: Lab, run: int) -> dict[int | None, list[int]]:
    """Group -> the epochs that its models have trained."""
    found: dict[int | None, list[int]] = defaultdict(list)
    for group, epochs in place("SELECT group_number, epochs_done FROM leaderboard WHERE run = %s", run):
        found[group].append(epochs)
    return {group: sorted(epochs) for group, epochs in found.items()}


# tests/core/test_group_policies.py has the decisions of the others.
@pytest.mark.parametrize("name", landing(["asha", "halving", "hyperband", "median", "patience", "threshold"], "asha"))
def test_each_method_stops_models_within_their_group(sales: Lab, name: str) -> None:
    method: dict[str, Any] = {"name": name}
    if name in ("asha", "halving", "hyperband"):
        method["reduction"] = 2
    elif name == "median":
        method["min_models"] = 2
    elif name == "threshold":
        method |= {"value": 0.0}
    run = fit(sales, "by_shop", f"by_{name}", json.dumps(UNITS), epochs=4, evaluate_every=1, options={"method": method})
    assert sales.status(run) == "finished"
    found = epochs_of_groups(sales, run)
    assert len(found) == 5 and {len(epochs) for epochs in found.values()} == {4}
    if name in ("asha", "halving", "hyperband"):  # one model of each group, at least, trains to the end
        assert all(epochs[-1] == 4 and epochs[0] < 4 for epochs in found.values())
    about = sales(
        "SELECT count(*)::int FROM decisions d JOIN model m USING (run, model)"
        " WHERE run = %s AND decision = 'go on' AND m.group_number IS NOT NULL", run
    )  # fmt: skip
    assert about[0][0] >= 0


@pytest.fixture(scope="module")
def halved(sales: Lab) -> int:
    method = {"method": {"name": "halving", "reduction": 2}}
    return fit(sales, "by_shop", "halved", json.dumps(UNITS), epochs=2, evaluate_every=1, options=method)


def test_a_stopped_model_is_worse_than_the_others_of_its_group(sales: Lab, halved: int) -> None:
    first = sales(
        "SELECT b.group_number, l.validation_loss, b.epochs_done FROM leaderboard b JOIN learning_curve l"
        " USING (run, model) WHERE run = %s AND l.epoch = 1 AND l.validation_loss IS NOT NULL", halved
    )  # fmt: skip
    by_group = defaultdict(list)
    for group, loss, epochs in first:
        by_group[group].append((loss, epochs))
    assert len(by_group) == 5  # each group has a row for validation
    for figures in by_group.values():
        stopped = [loss for loss, epochs in figures if epochs == 1]
        assert len(stopped) == 2 and min(stopped) >= max(loss for loss, epochs in figures if epochs > 1)


def test_a_replay_repeats_what_each_group_has_decided(sales: Lab, halved: int) -> None:
    again = sales.value(
        "SELECT fit('by_shop', 'decided_again', %s, epochs => 2, evaluate_every => 1, options => %s)",
        json.dumps(UNITS), json.dumps({"replay": halved}),
    )  # fmt: skip
    states = (
        "SELECT group_number, configuration, hop, state_sha256 FROM hop JOIN model USING (run, model) WHERE run = %s"
    )
    assert set(sales(states, again)) == set(sales(states, halved))


SPACE = {"architecture": "mlp", "units": {"choice": [2, 4, 8]}, "learning_rate": {"log_uniform": [0.001, 0.1]}}


@pytest.mark.parametrize(
    ("start", "method"),  # tests/sql/runs/test_search.py has the methods
    landing(itertools.product(["random", "all rows"], ["asha", "random", "tpe"]), ("all rows", "tpe")),
)
def test_a_search_finds_the_best_configuration_of_each_group(sales: Lab, method: str, start: str) -> None:
    name = f"{method}_{start}".replace(" ", "_")
    run = sales.value(
        "SELECT search('by_shop', %s, %s, method => %s, max_configurations => 3, epochs => 2, at_once => 10,"
        " options => %s)",
        name, json.dumps(SPACE), method, json.dumps({**OPTIONS, "groups_start": start}),
    )  # fmt: skip
    assert sales.status(run) == "finished"
    found = epochs_of_groups(sales, run)
    assert len(found) == 5 and {len(epochs) for epochs in found.values()} == {3}
    best = sales("SELECT group_number, configuration FROM groups WHERE run = %s ORDER BY 1", run)
    assert [group for group, _ in best] == [1, 2, 3, 4]
    assert sales(f"SELECT count(DISTINCT group_number)::int FROM {name}_groups WHERE weights IS NOT NULL") == [(4,)]
    assert sales.value(f"SELECT count(*)::int FROM predict('{name}', 'SELECT * FROM sales')") == 200


def test_train_finds_models_of_groups_within_its_budget(sales: Lab) -> None:
    # A model of a group soon knows its only class, which the facts do not tell the models on all rows.
    sales("CREATE VIEW told_apart AS SELECT *, COALESCE(shop, 'none') AS kind FROM sales")
    run = sales.value(
        "SELECT train('told_apart', 'trained', 'kind', inputs => 'facts', group_by => 'shop', segments => 2,"
        " budget => '15 s', options => %s)",
        json.dumps({"seed": 3}),
    )  # fmt: skip
    assert sales.status(run) == "finished"
    assert sales.value("SELECT count(DISTINCT group_number)::int FROM groups WHERE run = %s", run) == 4
    told = sales.told()
    assert any("in each of 4 groups" in line for line in told)
    assert not any("calibrated" in line for line in told)
    # What is expected of twice the budget follows from the models on all rows: other rows have other losses.
    curve = sales(
        "SELECT extract(epoch FROM o.at - (SELECT min(at) FROM event WHERE run = %s AND event = 'started'))::float8,"
        " o.value FROM cerebro.objective o JOIN model USING (run, model) WHERE run = %s AND group_number IS NULL"
        " ORDER BY o.at", run, run
    )  # fmt: skip
    rows = sales.value("SELECT (validation_layout ->> 'rows')::int FROM run_plan WHERE run = %s", run)
    expected = outlook.outlook(curve, curve[-1][0], Objective("val_loss", "min"), rows)
    (line,) = [line for line in told if line.partition("NOTICE:")[2].strip().startswith("where the")]
    assert expected and expected in line


@pytest.mark.parametrize("method", ["paced", "pbt"])
def test_methods_that_plan_for_the_whole_run_are_refused(sales: Lab, method: str) -> None:
    with pytest.raises(psycopg2.Error, match=f"method '{method}' cannot be used with groups") as error:
        sales("SELECT search('by_shop', 'no', %s, method => %s, max_configurations => 4)", json.dumps(SPACE), method)
    assert error.value.diag.message_hint


def test_a_search_of_too_many_models_is_refused(sales: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="a run can have 51,000"):
        sales("SELECT search('by_shop', 'no', %s, method => 'random', max_configurations => 10201)", json.dumps(SPACE))
