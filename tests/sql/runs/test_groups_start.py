"""Models of groups that start with the weights of the model on all rows, when that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab, eventually, layer, sequential
from tests.sql.packing.test_tables import packed
from tests.sql.runs.test_faithful import same, variables
from tests.sql.runs.test_groups import EPOCHS, OPTIONS, SEGMENTS, digests, fit, plain_keras, with_sales
from tests.thorough import landing

START = {"groups_start": "all rows"}


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    return with_sales(lab)


@pytest.fixture(scope="module")
def run(sales: Lab) -> int:
    return fit(sales, "by_shop", "started", evaluate_every=1, options=START)


def whole(place: Lab, run: int) -> dict[int, int]:
    """Configuration -> the model on all rows."""
    return dict(place("SELECT configuration, model FROM model WHERE run = %s AND group_number IS NULL", run))


@pytest.mark.tensorflow  # with which oracle.py trains
def test_each_group_equals_plain_keras_from_the_weights_of_the_model_on_all_rows(
    sales: Lab, run: int, tmp_path: Path
) -> None:
    found = {model: variables(state) for model, state in sales.states(run).items()}
    of_all = whole(sales, run)
    parents = dict(sales("SELECT model, parent FROM model WHERE run = %s AND group_number > 0", run))
    assert len(parents) == 8 and set(parents.values()) == set(of_all.values())
    expected = plain_keras(
        sales, run, tmp_path, {model: found[parent] for model, parent in parents.items()},
        order_of=lambda model, key, group: (model - 1,) if group is None else ("group", key, group),
        skip=[of_all[2]],  # tests/sql/runs/test_groups.py compares it
    )  # fmt: skip
    assert len(expected) >= 5
    for model, its in expected.items():
        assert all(same(found[model], its)), model


def test_no_copies_of_the_weights_are_stored(sales: Lab, run: int) -> None:
    (storage,) = sales("SELECT storage FROM cerebro.run WHERE run = %s", run)[0]
    for number in (0, 1):
        assert sales.value(f"SELECT count(*) FROM cerebro_state.{storage}_shared_{number} WHERE hop = 0") == 0
    assert sales("SELECT count(*) FROM decision WHERE run = %s", run) == [(2,)]


def test_the_groups_begin_after_the_model_on_all_rows(sales: Lab, run: int) -> None:
    late = sales(
        "SELECT count(*) FROM hop h JOIN model m USING (run, model) JOIN hop w ON w.run = h.run AND w.model = m.parent"
        " WHERE h.run = %s AND m.parent IS NOT NULL AND h.started_at < w.finished_at", run
    )  # fmt: skip
    assert late == [(0,)]
    board = sales("SELECT group_number, status, epochs_done FROM leaderboard WHERE run = %s", run)
    assert len(board) == 10 and {row[1:] for row in board} == {("finished", EPOCHS)}
    assert sales("SELECT percent FROM run_progress WHERE run = %s", run) == [(100.0,)]


@pytest.mark.thorough  # tests/core/test_group_policies.py goes on from a log, test_groups.py from states
def test_a_cancelled_run_that_is_resumed_has_the_same_bits(sales: Lab, run: int) -> None:
    other = sales.value(
        "SELECT fit('by_shop', 'resumed', 'mst', epochs => %s, evaluate_every => 1, options => %s, wait => false)",
        EPOCHS, json.dumps({**OPTIONS, **START}),
    )  # fmt: skip
    begun = "SELECT count(*) FROM model WHERE run = %s AND group_number > 0"
    eventually(lambda: sales.value(begun, other) > 0, 60, "some groups")
    sales("SELECT cancel(%s)", other)
    if sales.ended(other) != "finished":
        sales("SELECT resume(%s)", other)
    assert sales.status(other) == "finished" and digests(sales, other) == digests(sales, run)


def test_what_a_group_learns_does_not_follow_from_when_it_began(sales: Lab) -> None:
    slow, quick = ({"architecture": "mlp", "units": 4, "passes": passes} for passes in (4, 1))
    alone = fit(sales, "by_shop", "alone", json.dumps([slow]), epochs=1, options=START)
    beside = fit(sales, "by_shop", "beside", json.dumps([slow, quick]), epochs=1, options=START)
    numbers = "SELECT array_agg(model ORDER BY model) FROM model WHERE run = %s AND configuration = 1 AND parent > 0"
    assert sales.value(numbers, alone) != sales.value(numbers, beside)  # they follow from which model ended first
    assert digests(sales, alone) == [row for row in digests(sales, beside) if row[0] == 1]


@pytest.mark.thorough  # the replay of the extended run has them, below
def test_a_replay_has_the_same_bits(sales: Lab, run: int) -> None:
    again = sales.value(
        "SELECT fit('by_shop', 'replayed', 'mst', epochs => %s, evaluate_every => 1, options => %s)",
        EPOCHS, json.dumps({"replay": run}),
    )  # fmt: skip
    assert digests(sales, again) == digests(sales, run)


def test_a_replay_with_another_start_is_refused(sales: Lab, run: int) -> None:
    with pytest.raises(psycopg2.Error, match="groups_start was all rows, not random") as error:
        fit(sales, "by_shop", "no", evaluate_every=1, options={"replay": run, "groups_start": "random"})
    assert error.value.diag.message_hint


def test_an_extended_run_trains_all_models_on_and_its_replay_has_the_same_bits(sales: Lab) -> None:
    run = fit(sales, "by_shop", "extended", epochs=1, options=START)
    sales("SELECT resume(%s, epochs => 2)", run)
    assert set(sales("SELECT status, epochs_done FROM leaderboard WHERE run = %s", run)) == {("finished", 2)}
    starts = sales("SELECT DISTINCT parent_hop FROM model WHERE run = %s AND parent IS NOT NULL", run)
    assert starts == [(3,)]  # the weights after the first epoch, on three segments
    replayed = sales.value(
        "SELECT fit('by_shop', 'again', 'mst', epochs => 2, options => %s)", json.dumps({"replay": run})
    )
    assert digests(sales, replayed) == digests(sales, run)


def test_with_the_best_epoch_kept_the_groups_start_with_it(sales: Lab, tmp_path: Path) -> None:
    rising = {"objective": "val_loss", "direction": "max"}  # then an early epoch is the best
    run = fit(sales, "by_shop", "kept", epochs=2, options={**START, **rising, "keep": "best"})
    best = dict(sales("SELECT model, best_epoch FROM leaderboard WHERE run = %s AND group_number IS NULL", run))
    assert min(best.values()) < 2
    found = sales("SELECT DISTINCT parent, parent_hop FROM model WHERE run = %s AND parent IS NOT NULL", run)
    assert dict(found) == {model: 3 * epoch for model, epoch in best.items()}
    kept = {
        sales.value("SELECT model FROM kept_info WHERE configuration = %s", key): weights
        for key, weights in sales.weights("kept").items()
    }
    first = sales(
        "SELECT h.model, m.parent FROM hop h JOIN model m USING (run, model) WHERE run = %s AND parent IS NOT NULL"
        " GROUP BY 1, 2", run
    )  # fmt: skip
    assert len(first) == 8 and set(kept) == set(best)


def test_groups_of_a_configuration_that_fails_on_all_rows_do_not_begin(sales: Lab) -> None:
    rates = [{"architecture": "mlp", "units": 4}, {"architecture": "mlp", "units": 4, "learning_rate": 1e30}]
    run = fit(sales, "by_shop", "failing", json.dumps(rates), options=START)
    groups = sales("SELECT DISTINCT configuration FROM model WHERE run = %s AND group_number > 0", run)
    assert groups == [(1,)]
    reasons = sales("SELECT DISTINCT reason FROM failing_groups WHERE configuration = 2")
    assert reasons == [("the configuration has no model of this group",)]


@pytest.mark.parametrize("keep", landing(["last", "best"], "best"))
def test_large_states_are_read_where_they_lie(sales: Lab, keep: str) -> None:
    wide = sales.architecture(
        sequential(
            [4],
            layer("Dense", "hidden", units=40_000, activation="relu"),
            layer("Dense", "out", units=3, activation="softmax"),
        )
    )
    compiled = "optimizer='SGD(learning_rate=0.01)', loss='categorical_crossentropy'"
    sales.selection(f"wide_{keep}", [(wide, compiled, "batch_size=64")])
    more: dict[str, Any] = {"objective": "val_loss", "direction": "max"} if keep == "best" else {}
    options = {**START, **more, "keep": keep} if more else START
    run = fit(sales, "by_shop", f"wide_{keep}_models", f"wide_{keep}", epochs=2, options=options)
    assert set(sales("SELECT status FROM leaderboard WHERE run = %s", run)) == {("finished",)}
    found = sales(f"SELECT count(*), count(weights) FROM wide_{keep}_models_groups")
    assert found == [(4, 4)]


@pytest.mark.thorough  # tests/core/test_group_policies.py adds one, test_groups.py clones
def test_a_clone_of_a_waiting_model_and_a_new_configuration(sales: Lab) -> None:
    run = fit(sales, "by_shop", "steered", '[{"architecture": "mlp", "units": 4}]', epochs=1, options=START)
    sales("SELECT add_configuration(%s, %s)", run, json.dumps({"architecture": "mlp", "units": 4, "batch_size": 8}))
    sales("SELECT resume(%s, epochs => 2)", run)
    found = sales("SELECT configuration, count(*)::int, count(parent)::int FROM model WHERE run = %s GROUP BY 1", run)
    assert sorted(found) == [(1, 5, 4), (2, 5, 4)]
    assert set(sales("SELECT status, epochs_done FROM leaderboard WHERE run = %s", run)) == {("finished", 2)}


def test_weights_that_are_gone_are_missed(sales: Lab) -> None:
    """Somebody has emptied the tables of states of a cancelled run."""
    other = sales.value(
        "SELECT fit('by_shop', 'emptied', 'mst', epochs => 1, options => %s)",
        json.dumps({**OPTIONS, **START, "budget": {"hops": 6}}),
    )  # fmt: skip
    assert set(sales("SELECT group_number FROM leaderboard WHERE run = %s", other)) == {(None,)}
    storage = sales.value("SELECT storage FROM cerebro.run WHERE run = %s", other)
    sales("SELECT set_budget(%s, '{}')", other)
    sales(f"TRUNCATE cerebro_state.{storage}_shared_0, cerebro_state.{storage}_shared_1")
    with pytest.raises(psycopg2.Error, match="the model's state is not there"):
        sales("SELECT resume(%s)", other)
    assert sales.status(other) == "failed"
    assert sales("SELECT count(*) FROM hop JOIN model USING (run, model) WHERE run = %s AND parent > 0", other) == [
        (0,)
    ]


@pytest.mark.thorough  # tests/sql/runs/test_groups.py packs in one call
def test_groups_fit_in_one_call_with_a_start(sales: Lab) -> None:
    run = sales.value(
        "SELECT fit('sales', 'in_one_call', %s, target => 'price', inputs => 'facts', group_by => 'shop', epochs => 1,"
        " segments => 2, options => %s)",
        json.dumps([{"architecture": "mlp", "units": 4}]), json.dumps(START),
    )  # fmt: skip
    assert sales.value("SELECT count(DISTINCT group_number)::int FROM leaderboard WHERE run = %s", run) == 4


# -- a warm start ------------------------------------------------------------------------------------------------


@pytest.mark.tensorflow  # with which oracle.py trains
def test_a_warm_start_goes_on_with_the_weights_of_each_group(sales: Lab, tmp_path: Path) -> None:
    before = fit(sales, "by_shop", "warm", epochs=1)
    found = {model: variables(state) for model, state in sales.states(before).items()}
    key = "SELECT configuration, group_number, model FROM model WHERE run = %s AND group_number > 0"
    left = {(configuration, group): found[model] for configuration, group, model in sales(key, before)}
    run = fit(sales, "by_shop", "warm", epochs=2, warm_start=True)
    assert any("8 models of groups start from the weights in" in line for line in sales.told())
    starts = {model: left[configuration, group] for configuration, group, model in sales(key, run)}
    expected = plain_keras(sales, run, tmp_path, starts, skip=[whole(sales, run)[2]])
    states = sales.states(run)
    assert len(starts) == 8 and len(expected.keys() & starts) >= 4
    for model, its in expected.items():
        if model in starts:
            assert all(same(variables(states[model]), its)), model
    assert sales.value("SELECT count(*)::int FROM warm_groups WHERE weights IS NOT NULL") == 8


def test_groups_are_found_again_by_their_values(sales: Lab) -> None:
    """With another group before the others, all have other numbers."""
    fit(sales, "by_shop", "moved", epochs=1)
    left = dict(sales("SELECT group_value, sha256(weights) FROM moved_groups WHERE configuration = 1"))
    sales("CREATE TABLE more_sales AS SELECT * FROM sales UNION ALL SELECT id + 1000, facts, price, 'a new shop'"
          " FROM sales WHERE id <= 20")  # fmt: skip
    packed(sales, "more_shops", "price", "more_sales", inputs="facts", group_by="shop", segments=SEGMENTS, seed=1)
    run = fit(sales, "more_shops", "moved", epochs=1, warm_start=True, options={"least_group_rows": 1})
    initial = dict(
        sales("SELECT group_value, initial FROM model WHERE run = %s AND group_number > 0 AND configuration = 1", run)
    )
    assert initial == {**dict.fromkeys(left, "weights"), "a new shop": "random"}
    storage = sales.value("SELECT storage FROM cerebro.run WHERE run = %s", run)
    stored = " UNION ALL ".join(f"SELECT * FROM cerebro_state.{storage}_shared_{number}" for number in (0, 1))
    given = dict(
        sales(
            f"SELECT group_value, sha256(string_agg(payload, '' ORDER BY start)) FROM ({stored}) s JOIN model m"
            " USING (model) WHERE m.run = %s AND hop = 0 AND m.group_number > 0 AND configuration = 1 GROUP BY 1", run
        )
    )  # fmt: skip
    assert not given or given == left


def test_a_warm_start_trains_all_rows_first_if_groups_start_with_them(sales: Lab) -> None:
    packed(sales, "whole", "price", "sales", inputs="facts", segments=SEGMENTS, seed=1)
    fit(sales, "whole", "pooled", epochs=1)
    run = fit(sales, "by_shop", "pooled", epochs=1, warm_start=True, options=START)
    found = sales("SELECT DISTINCT group_number IS NULL, initial FROM model WHERE run = %s ORDER BY 1", run)
    assert found == [(False, "weights"), (True, "full")]


def test_a_warm_start_from_other_groups_is_refused(sales: Lab) -> None:
    fit(sales, "by_shop", "of_shops", epochs=1)
    sales("CREATE TABLE days AS SELECT *, id % 7 AS day FROM sales")
    packed(sales, "by_day", "price", "days", inputs="facts", group_by="day", segments=SEGMENTS, seed=1)
    with pytest.raises(psycopg2.Error, match="models of the groups of shop, and the rows are packed by day") as error:
        fit(sales, "by_day", "of_shops", epochs=1, warm_start=True)
    assert "groups_start" in str(error.value.diag.message_hint)
