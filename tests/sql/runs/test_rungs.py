"""The option visit_rows: epochs that are shorter than a pass over the rows, and evaluations on a sample."""

from __future__ import annotations

from typing import Any

import psycopg2
import pytest

from cerebro_db.core.search.methods import rungs
from tests.sql.lab import Lab, eventually, verb
from tests.sql.runs.test_recovery import hops, stopped_after

SEGMENTS, ROWS, VALIDATION = 2, 60_000, 20_000
VISIT = 10_000  # three epochs are a pass
PASS, EPOCHS = 3, 10
GROWS = 9  # epochs
# The least sample is half of the rows for validation; the share of an epoch would be a third.
NETWORKS = [{"architecture": "mlp", "units": 8, "layers": 1, "learning_rate": rate} for rate in (0.01, 0.001)]
SPACE = {"architecture": "mlp", "units": 8, "layers": 1, "learning_rate": {"log_uniform": [0.0001, 0.1]}}
SAME = {"deterministic": True, "seed": 7, "visit_rows": VISIT}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab(
        "CREATE TABLE points AS SELECT i AS id, sin(i * 1.7) AS a, cos(i * 2.3) AS b, i % 5 AS shop,"
        " CASE WHEN sin(i * 1.7) * cos(i * 2.3) > 0.1 * sin(i * 3.1) THEN 'in' ELSE 'out' END AS kind"
        f" FROM generate_series(1, {ROWS + VALIDATION}) i"
    )
    split = f"validation => {VALIDATION / (ROWS + VALIDATION)}"
    lab(f"SELECT pack('points', 'packed', 'kind', inputs => 'a, b', {split}, segments => {SEGMENTS})")
    return lab


def fit(place: Lab, model: str, configurations: Any = NETWORKS, epochs: int = EPOCHS, **options: Any) -> int:
    given = {name: value for name, value in {**SAME, **options}.items() if value is not None}
    return place.value(*verb("fit", "packed", model, configurations, epochs=epochs, evaluate_every=1, options=given))


@pytest.fixture(scope="module")
def fitted(place: Lab) -> int:
    return fit(place, "fitted")


def bits(place: Lab, run: int) -> list[Any]:
    return place("SELECT model, hop, rows, loss, state_sha256 FROM hop WHERE run = %s ORDER BY 1, 2", run)


def evaluations(place: Lab, run: int) -> list[Any]:
    return place("SELECT model, epoch, part, rows, sampled, loss FROM evaluation WHERE run = %s ORDER BY 1, 2, 3", run)


# -- what a visit takes, and what an evaluation ----------------------------------------------------------------


def test_a_visit_takes_a_portion(place: Lab, fitted: int) -> None:
    found = place("SELECT model, epoch, count(*), min(rows), max(rows) FROM hop WHERE run = %s GROUP BY 1, 2", fitted)
    largest = place.value(
        "SELECT max((p ->> 'rows')::integer) FROM packed_summary, jsonb_array_elements(layout::jsonb -> 'partitions') p"
    )
    assert len(found) == 2 * EPOCHS and all(visits == SEGMENTS for _, _, visits, _, _ in found)
    size = -(-largest // -(-largest // VISIT))
    assert {most for *_, most in found} == {size} and all(0.9 * size < least <= size for *_, least, _ in found)
    whole = place.value("SELECT max(rows_total) FROM heartbeat WHERE run = %s", fitted)
    assert whole == place.value("SELECT sum(rows) FROM hop WHERE run = %s", fitted)


def test_models_are_evaluated_on_the_same_sample_that_grows(place: Lab, fitted: int) -> None:
    shares: dict[int, set[Any]] = {}
    for _, epoch, part, rows, sampled, _ in evaluations(place, fitted):
        shares.setdefault(epoch, set()).add((part, None if sampled is None else round(sampled / rows, 1)))
    assert shares == {
        epoch: {(part, 0.5 if epoch < GROWS else None) for part in range(SEGMENTS)} for epoch in range(1, EPOCHS + 1)
    }
    curve = place("SELECT epoch, validation_loss, rows FROM learning_curve WHERE run = %s", fitted)
    assert len(curve) == 2 * EPOCHS and all(loss is not None for _, loss, _ in curve), "a sampled epoch is whole"
    assert all(
        value is not None for (value,) in place("SELECT objective_value FROM leaderboard WHERE run = %s", fitted)
    )
    timeline = place("SELECT DISTINCT rows FROM hop_timeline WHERE run = %s AND activity = 'evaluate'", fitted)
    assert min(rows for (rows,) in timeline) == min(one[4] for one in evaluations(place, fitted) if one[4])


def test_the_bits_are_the_same_again(place: Lab, fitted: int) -> None:
    again = fit(place, "again")
    assert bits(place, again) == bits(place, fitted) and evaluations(place, again) == evaluations(place, fitted)
    other = fit(place, "other_rows", visit_rows=20_000, epochs=2)
    assert bits(place, other)[0] != bits(place, fitted)[0]


def test_a_visit_of_all_rows_is_one_without_the_option(place: Lab) -> None:
    whole, without = fit(place, "whole", epochs=1, visit_rows=ROWS), fit(place, "without", epochs=1, visit_rows=None)
    assert bits(place, whole) == bits(place, without) and evaluations(place, whole) == evaluations(place, without)
    assert all(sampled is None for *_, sampled, _ in evaluations(place, whole))


def test_a_run_that_is_stopped_within_a_pass_resumes_to_the_same_bits(place: Lab, fitted: int) -> None:
    again = place.value(
        *verb("fit", "packed", "resumed", NETWORKS, epochs=EPOCHS, evaluate_every=1, options=SAME, wait=False)
    )
    stopped_after(place, again, 3)
    assert 3 <= hops(place, again) < 2 * EPOCHS * SEGMENTS
    place("SELECT resume(%s)", again)
    assert bits(place, again) == bits(place, fitted) and evaluations(place, again) == evaluations(place, fitted)


def test_a_crash_within_a_pass_costs_nothing(place: Lab, fitted: int) -> None:
    again = place.value(
        *verb("fit", "packed", "crashed", NETWORKS, epochs=EPOCHS, evaluate_every=1, options=SAME, wait=False)
    )
    eventually(lambda: hops(place, again) >= 5, 120, "5 hops")
    place.end_driver(again)
    eventually(lambda: place.status(again) in ("interrupted", "failed", "cancelled", "finished"), 60, "it has ended")
    if place.status(again) != "finished":
        place("SELECT resume(%s)", again)
    assert bits(place, again) == bits(place, fitted)


def test_the_best_state_is_one_of_those_that_are_known_best(place: Lab) -> None:
    run = fit(place, "best", keep="best")
    kept = place("SELECT model, max(epoch) FROM objective WHERE run = %s AND kept GROUP BY 1", run)
    assert len(kept) == 2 and all(epoch >= GROWS for _, epoch in kept), "of all rows, not of half of them"


# -- searches --------------------------------------------------------------------------------------------------

METHODS = ("asha", "halving", "hyperband", "median", "patience", "pbt", "paced", "tpe")


def search(place: Lab, model: str, method: Any, **options: Any) -> int:
    return place.value(
        *verb(
            "search", "packed", model, SPACE, epochs=6, max_configurations=4, method=method, objective="val_loss",
            options={**SAME, **options},
        )
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_every_method_counts_rows(place: Lab, method: str) -> None:
    run = search(place, f"by_{method}", {"name": method, "min_models": 2} if method == "median" else method)
    board = place("SELECT epochs_done, status, reason, rung FROM leaderboard WHERE run = %s", run)
    assert len(board) >= 4 and all(status in ("finished", "stopped") for _, status, _, _ in board), board
    if method in ("asha", "halving", "hyperband"):
        early = [epochs for epochs, status, _, _ in board if status == "stopped" and epochs < PASS]
        assert early, "a model is stopped before it has seen all rows"
    rows = place("SELECT DISTINCT epoch, sum(rows) FROM hop WHERE run = %s GROUP BY model, epoch", run)
    assert len({rows for _, rows in rows}) == 1, "models are compared after the same number of rows"


def test_a_replay_repeats_the_decisions_and_the_bits(place: Lab) -> None:
    run = search(place, "first", "asha")
    again = place.value(
        *verb(
            "search", "packed", "second", SPACE, epochs=6, max_configurations=4, method="asha", objective="val_loss",
            options={"replay": run},
        )
    )  # fmt: skip
    decided = "SELECT model, epoch, decision, reason FROM decision WHERE run = %s ORDER BY 1, 2, 3"
    assert place(decided, again) == place(decided, run) and bits(place, again) == bits(place, run)
    assert any((reason or "").startswith(rungs.WAITS) for *_, reason in place(decided, run))
    with pytest.raises(psycopg2.Error, match="its option visit_rows was 10000, not 20000"):
        place(
            *verb(
                "search", "packed", "third", SPACE, epochs=6, max_configurations=4, method="asha",
                objective="val_loss", options={"replay": run, "visit_rows": 20_000},
            )
        )  # fmt: skip


def test_trees_grow_beside_networks_from_as_many_rows(place: Lab) -> None:
    grown = {"architecture": "trees", "rounds": 40, "depth": 3}
    run = fit(place, "with_trees", [grown, NETWORKS[0]], epochs=4)
    rows = dict(place("SELECT model, sum(rows) FROM hop WHERE run = %s AND epoch = 1 GROUP BY 1", run))
    assert rows[1] == rows[2]
    losses = [loss for (loss,) in place(
        "SELECT validation_loss FROM learning_curve WHERE run = %s AND model = 1 ORDER BY epoch", run)]  # fmt: skip
    assert losses[1] < losses[0] and losses[2] == pytest.approx(losses[3], abs=0.02), "it has all its trees after two"
    again = fit(place, "with_trees_again", [grown, NETWORKS[0]], epochs=4)
    assert bits(place, again) == bits(place, run)


def test_models_of_folds_train_on_portions_and_are_evaluated_on_a_sample_of_their_fold(place: Lab) -> None:
    place("SELECT pack('points', 'folded', 'kind', inputs => 'a, b', folds => 2, segments => 2)")
    run = place.value(*verb("fit", "folded", "of_folds", NETWORKS[:1], epochs=2, evaluate_every=1, options=SAME))
    rows = dict(
        place("SELECT fold, max(h.rows) FROM hop h JOIN model m USING (run, model) WHERE run = %s GROUP BY 1", run)
    )
    assert rows[1] == pytest.approx(rows[None] / 2, rel=0.05) and rows[None] <= VISIT
    sampled = place("SELECT sampled, rows FROM evaluation WHERE run = %s", run)
    assert sampled and all(few is not None and few / rows == pytest.approx(0.25, abs=0.03) for few, rows in sampled)


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -5, 1.5, "10000", True])
def test_what_is_no_number_of_rows_is_refused(place: Lab, value: Any) -> None:
    with pytest.raises(psycopg2.Error, match="option 'visit_rows' cannot be"):
        fit(place, "refused", visit_rows=value)
    assert "refused" not in place.tables()


def test_what_has_no_short_epochs_is_refused(place: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="options 'visit_rows' and 'parallel' exclude each other"):
        fit(place, "refused", parallel="gradients")
    place("SELECT pack('points', 'shops', 'kind', inputs => 'a, b', group_by => 'shop', segments => 2)")
    with pytest.raises(psycopg2.Error, match="option 'visit_rows' cannot be used with groups"):
        place(*verb("fit", "shops", "refused", NETWORKS, epochs=1, options=SAME))
