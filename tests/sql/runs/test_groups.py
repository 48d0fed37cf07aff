"""Models of groups: each equals plain Keras on the rows of its group, and stands for itself in views and failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.nn.rows.data import row_order
from tests.nn import configurations as c
from tests.sql.lab import Lab, eventually, layer, sequential
from tests.sql.packing.test_tables import packed
from tests.sql.runs.test_faithful import partitions, same, trained_by_keras, variables
from tests.thorough import TIMES

EPOCHS, SEGMENTS = 3, 3  # of all tables: trainers go on from one fit to the next, with what they have compiled
LONG = 40  # epochs of runs whose orders have several
OPTIONS = {"deterministic": True, "seed": 3}
NOISY = sequential(
    [4],
    layer("Dense", "hidden", units=8, activation="relu"),
    layer("BatchNormalization", "norm"),
    layer("Dropout", "drop", rate=0.3, seed=5),
    layer("Dense", "out", units=3, activation="softmax"),
)
CONFIGURATIONS = {
    1: c.configuration(NOISY, "categorical_crossentropy", "Adam", learning_rate=0.01, batch_size=16),
    2: c.configuration(NOISY, "categorical_crossentropy", "SGD", learning_rate=0.1, momentum=0.9, batch_size=10),
}
SALES = """
CREATE TABLE sales AS SELECT i AS id, ARRAY[sin(i), cos(i * 2), sin(i * i), i / 200.0]::real[] AS facts,
  (ARRAY['low', 'mid', 'high'])[1 + (i * 7 % 11) % 3] AS price,
  CASE WHEN i <= 120 THEN 'giant' WHEN i <= 160 THEN 'small' WHEN i <= 195 THEN NULL ELSE 'tiny' END AS shop
 FROM generate_series(1, 200) i;
ALTER TABLE sales ADD PRIMARY KEY (id);
"""


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    return with_sales(lab)


def with_sales(lab: Lab) -> Lab:
    """The rows of four groups, packed, and the configurations to fit."""
    lab(SALES)
    packed(lab, "by_shop", "price", "sales", inputs="facts", group_by="shop", segments=SEGMENTS, seed=1, validation=0.2)
    select(lab, "mst", *CONFIGURATIONS.values())
    return lab


def select(place: Lab, name: str, *configurations: Any) -> None:
    """A table of configurations to fit."""
    rows = [
        (place.architecture(one["architecture"]), json.dumps(one["compile"]), json.dumps(one["fit"]))
        for one in configurations
    ]
    place.selection(name, rows)


def fit(place: Lab, source: str, output: str, configurations: str = "mst", epochs: int = EPOCHS, **more: Any) -> int:
    options = {**OPTIONS, **more.pop("options", {})}
    named = "".join(f", {name} => %s" for name in more)
    return place.value(
        f"SELECT fit(%s, %s, %s, epochs => %s, options => %s{named})",
        source, output, configurations, epochs, json.dumps(options), *more.values(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(sales: Lab) -> int:
    return fit(sales, "by_shop", "models", evaluate_every=1)


def spans(place: Lab, table: str) -> dict[tuple[int, int | None], slice]:
    """(Segment, group) -> the rows there, by the layout; group None: all rows of the segment."""
    found: dict[tuple[int, int | None], slice] = {}
    for segment, partition in enumerate(place.value(f"SELECT layout FROM {table}_summary")["partitions"]):
        start = 0
        found[segment, None] = slice(0, partition["rows"])
        for number, rows in partition["groups"]:
            found[segment, number] = slice(start, start + rows)
            start += rows
    return found


def plain_keras(
    place: Lab,
    run: int,
    folder: Path,
    starts: dict[int, list[np.ndarray]] | None = None,
    order_of: Callable[[int, int, int | None], tuple[Any, ...]] = lambda model, key, group: (model - 1,),
    skip: Iterable[int] = (),
) -> dict[int, list[np.ndarray]]:
    """The variables of plain Keras after the visits of each model, on the rows of its group in their order.

    ``starts``: the variables that some models start with.  ``order_of``: what the order of a model's rows follows from.
    ``skip``: models that another test compares.
    """
    rows, lie, asked = partitions(place, "by_shop"), spans(place, "by_shop"), []
    seed = place.value("SELECT seed FROM run WHERE run = %s", run)
    for model, key, group, initial in place(
        "SELECT model, configuration, group_number, seed FROM model WHERE run = %s ORDER BY model", run
    ):
        if TIMES < 5 and (model in skip or key > 1 and group):
            continue  # of the other configurations, the models on all rows have to do
        visits = place("SELECT hop, segment FROM hop WHERE run = %s AND model = %s ORDER BY hop", run, model)
        arrays = {}
        for number, (hop, segment) in enumerate(visits):
            x, y = (side[lie[segment, group]] for side in rows[segment])
            order = row_order(len(x), derived_seed(seed, "rows", *order_of(model, key, group), hop), 0)
            arrays[f"x{number}"], arrays[f"y{number}"] = x[order], y[order]
        np.savez(folder / f"{model}.npz", **arrays)
        one, given = CONFIGURATIONS[key], {}
        if starts and model in starts:
            given = {"weights": str(folder / f"{model}.start.npz")}
            np.savez(given["weights"], *starts[model])
        asked.append({
            **one, "visits": str(folder / f"{model}.npz"), "count": len(visits), "seed": initial, "name": str(model),
            "batch_size": one["fit"]["batch_size"], "forgetful": False, "out": str(folder / f"{model}.out.npz"),
            **given,
        })  # fmt: skip
    return {int(case["name"]): arrays for case, arrays in zip(asked, trained_by_keras(asked, folder))}


# -- bits --------------------------------------------------------------------------------------------------------


@pytest.mark.tensorflow  # with which oracle.py trains
def test_each_model_equals_plain_keras_on_the_rows_of_its_group(sales: Lab, run: int, tmp_path: Path) -> None:
    expected, states = plain_keras(sales, run, tmp_path), sales.states(run)
    assert sorted(states) == list(range(1, 11))  # 2 configurations of 4 groups and all rows
    assert len(expected) >= 6
    for model, its in expected.items():
        assert all(same(variables(states[model]), its)), model
    assert len(set(states.values())) == 10


def test_only_the_group_that_is_split_hops(sales: Lab, run: int) -> None:
    visits = dict(
        sales(
            "SELECT COALESCE(group_value, 'none'), count(DISTINCT segment)::int FROM hop JOIN model USING (run, model)"
            " WHERE run = %s AND group_number IS NOT NULL GROUP BY 1", run
        )
    )  # fmt: skip
    assert visits == {"giant": 2, "none": 1, "small": 1, "tiny": 1}
    hops = sales(
        "SELECT count(*)::int FROM hop JOIN model USING (run, model) WHERE run = %s GROUP BY model, group_number"
        " ORDER BY group_number NULLS FIRST, model", run
    )  # fmt: skip
    assert [count for (count,) in hops] == [9, 9, 6, 6, *[3] * 6]


@pytest.fixture(scope="module")
def long(sales: Lab) -> int:
    """A run whose orders have several epochs: the mean of all visits, also of slow first ones, says how many."""
    return fit(sales, "by_shop", "many_epochs", epochs=LONG)


def test_an_order_has_several_epochs_of_a_group_on_one_segment(sales: Lab, long: int) -> None:
    """Of these the last state is stored; models on several segments store each."""
    stored = sales(
        "SELECT COALESCE(group_value, 'none'), bool_and(state_sha256 IS NOT NULL),"
        " bool_and(state_sha256 IS NOT NULL) FILTER (WHERE hop = hops)"
        " FROM (SELECT *, max(hop) OVER (PARTITION BY model) AS hops FROM hop WHERE run = %s) h"
        " JOIN model USING (run, model) GROUP BY group_number, 1", long
    )  # fmt: skip
    assert all(last for *_, last in stored) and len(stored) == 5
    assert {group: each for group, each, _ in stored if group in ("giant", "tiny")} == {"giant": True, "tiny": False}
    orders = "SELECT count(*)::int FROM attempt JOIN model USING (run, model) WHERE run = %s AND group_value = 'tiny'"
    assert sales.value(orders, long) < 2 * LONG


@pytest.mark.needs_cluster
@pytest.mark.thorough  # tests/core/test_driver.py loses trainers and sessions in chains
def test_trainers_and_sessions_that_are_killed_in_a_chain_change_no_bit(sales: Lab, long: int) -> None:
    run = sales.value(
        "SELECT fit('by_shop', 'killed', 'mst', epochs => %s, evaluate_every => 1, options => %s, wait => false)",
        LONG, json.dumps(OPTIONS),
    )  # fmt: skip
    chained = "SELECT count(*)::int FROM hop WHERE run = %s AND state_sha256 IS NULL"
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s ORDER BY application_name"
    for kill_trainers in (True, False, True):
        before = sales.value(chained, run)
        eventually(lambda before=before: sales.value(chained, run) > before, 60, "orders have several epochs")
        if kill_trainers:
            for pid, _ in sales.trainers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            pid = sales(sessions, "cerebro_db segment %")[0][0]
            sales("SELECT pg_terminate_backend(%s)", pid)
    assert sales.value("SELECT wait(%s, 120)", run) == "finished"
    assert digests(sales, run) == digests(sales, long)
    assert sales("SELECT 1 FROM event WHERE run = %s AND event = 'unit failed'", run), "one died at work"
    assert not sales("SELECT detail FROM event WHERE run = %s AND event = 'model failed'", run)


def test_the_log_has_the_rows_of_each_group(sales: Lab, run: int) -> None:
    found = sales(
        "SELECT group_number, group_value, group_rows, validation_rows, visits FROM model WHERE run = %s"
        " AND configuration = 1 ORDER BY 1 NULLS FIRST", run
    )  # fmt: skip
    whole, *groups = found
    assert whole == (None, None, None, None, None)
    assert [value for _, value, *_ in groups] == ["giant", "small", "tiny", None]
    assert [number for number, *_ in groups] == [1, 2, 3, 4]
    counts = dict(sales("SELECT COALESCE(shop, 'none'), count(*)::int FROM sales GROUP BY 1"))
    for _, value, training, validation, _ in groups:
        assert training + validation == counts[value or "none"]


# -- views -------------------------------------------------------------------------------------------------------


def test_ranks_are_within_a_group_and_figures_are_of_its_rows(sales: Lab, run: int) -> None:
    board = sales(
        "SELECT group_number, group_value, rank, configuration, validation_loss, training_loss, epochs_done, status"
        " FROM leaderboard WHERE run = %s ORDER BY 1 NULLS FIRST, 3", run
    )  # fmt: skip
    assert [(number, rank) for number, _, rank, *_ in board] == [
        (number, rank) for number in (None, 1, 2, 3, 4) for rank in (1, 2)
    ]
    for one, other in zip(board[::2], board[1::2]):
        assert one[4] is None or one[4] <= other[4]
    assert {(epochs, status) for *_, epochs, status in board} == {(EPOCHS, "finished")}
    sizes = dict(sales("SELECT model, validation_rows FROM model WHERE run = %s AND group_number > 0", run))
    for model, rows in sizes.items():
        evaluated = sales(
            "SELECT epoch, sum(rows)::int FROM evaluation WHERE run = %s AND model = %s GROUP BY 1", run, model
        )
        assert dict(evaluated) == (dict.fromkeys(range(1, EPOCHS + 1), rows) if rows else {})
    curve = sales(
        "SELECT model, count(*), count(validation_loss), count(training_loss) FROM learning_curve"
        " WHERE run = %s AND group_number > 0 GROUP BY 1", run
    )  # fmt: skip
    assert {model: figures for model, *figures in curve} == {
        model: [EPOCHS, EPOCHS if rows else 0, EPOCHS] for model, rows in sizes.items()
    }
    metrics = sales("SELECT DISTINCT group_number, group_value FROM metrics WHERE run = %s ORDER BY 1", run)
    assert metrics == [(1, "giant"), (2, "small"), (3, "tiny"), (4, None), (None, None)]
    (progress,) = sales("SELECT best_configuration, percent FROM run_progress WHERE run = %s", run)
    assert progress == (board[0][3], 100.0)


def test_the_view_of_groups_has_the_best_model_of_each(sales: Lab, run: int) -> None:
    found = sales(
        "SELECT group_number, group_value, rows, validation_rows, segments, model, configuration, status,"
        " objective_value FROM groups WHERE run = %s ORDER BY 1", run
    )  # fmt: skip
    best = sales(
        "SELECT group_number, b.group_value, group_rows, validation_rows, cardinality(visits), model, b.configuration,"
        " status, objective_value FROM leaderboard b JOIN model m USING (run, model, group_number)"
        " WHERE run = %s AND rank = 1 ORDER BY 1", run
    )  # fmt: skip
    assert found == best and [one[0] for one in found] == [1, 2, 3, 4]


def test_the_model_on_all_rows_is_compared_on_the_rows_of_each_group(sales: Lab, run: int) -> None:
    found = sales(
        "SELECT group_value, all_rows_configuration, all_rows_validation_loss, validation_loss,"
        " all_rows_objective_value, worse_than_all_rows FROM groups WHERE run = %s ORDER BY group_number", run
    )  # fmt: skip
    best = sales.value(
        "SELECT configuration FROM leaderboard WHERE run = %s AND group_number IS NULL AND rank = 1", run
    )
    assert len(found) == 4 and {row[1] for row in found} == {best}
    for _, _, whole, own, objective, worse in found:
        assert whole is not None and whole == objective and worse == (own > whole)
    # Together, the groups have the rows that the model on all rows was evaluated on.
    sizes = [size for (size,) in sales(
        "SELECT validation_rows::int FROM groups WHERE run = %s ORDER BY group_number", run
    )]  # fmt: skip
    total = sum(size * row[2] for size, row in zip(sizes, found)) / sum(sizes)
    loss = sales.value(
        "SELECT validation_loss FROM leaderboard WHERE run = %s AND group_number IS NULL AND rank = 1", run
    )
    assert total == pytest.approx(loss, rel=1e-5)


def test_best_states_are_kept_for_each_group_and_the_comparison_is_by_their_epochs(sales: Lab) -> None:
    run = fit(
        sales, "by_shop", "by_accuracy", json.dumps([{"architecture": "mlp", "units": 4, "metrics": ["accuracy"]}]),
        epochs=2, objective="val_accuracy", options={"keep": "best"},
    )  # fmt: skip
    found = sales(
        "SELECT all_rows_objective_value, objective_value, worse_than_all_rows, validation_rows FROM groups"
        " WHERE run = %s ORDER BY group_number", run
    )  # fmt: skip
    whole, epoch = sales(
        "SELECT objective_value, best_epoch FROM leaderboard WHERE run = %s AND group_number IS NULL", run
    )[0]
    assert all(worse == (own < value) for value, own, worse, _ in found)
    total = sum(value * rows for value, _, _, rows in found) / sum(rows for *_, rows in found)
    assert total == pytest.approx(whole, rel=1e-6)
    assert 1 <= epoch <= 2
    board = sales("SELECT best_value, objective_value FROM leaderboard WHERE run = %s", run)
    assert len(board) == 5 and all(value == best for best, value in board)
    stored = sales(
        "SELECT g.which, g.epoch = b.best_epoch, g.objective_value = b.best_value, g.weights IS NOT NULL"
        " FROM by_accuracy_groups g JOIN leaderboard b USING (model) WHERE run = %s AND b.best_epoch IS NOT NULL", run
    )  # fmt: skip
    assert set(stored) == {("best", True, True, True)}


def test_a_metric_that_is_no_mean_is_unknown_for_a_group_on_several_segments(sales: Lab) -> None:
    run = fit(
        sales, "by_shop", "by_auc", json.dumps([{"architecture": "mlp", "units": 4, "metrics": ["auc"]}]),
        epochs=1, objective="val_auc",
    )  # fmt: skip
    found = sales(
        "SELECT group_value, all_rows_objective_value IS NULL, worse_than_all_rows IS NULL FROM groups"
        " WHERE run = %s ORDER BY group_number", run
    )  # fmt: skip
    assert found == [("giant", True, True), ("small", False, False), ("tiny", False, False), (None, False, False)]


def test_the_model_table_has_the_models_of_all_rows(sales: Lab, run: int) -> None:
    whole = dict(sales("SELECT configuration, model FROM model WHERE run = %s AND group_number IS NULL", run))
    assert dict(sales("SELECT configuration, model FROM models_info")) == whole
    states = sales.states(run)
    for key, weights in sales.weights("models").items():
        assert b"".join(array.tobytes() for array in variables(states[whole[key]])).startswith(weights)


# -- whatever happens meanwhile ----------------------------------------------------------------------------------


def digests(place: Lab, run: int) -> list[Any]:
    """All hops, with the checksum of each model's last state: which states before it were stored depends on timing."""
    return place(
        "SELECT configuration, group_number, fold, hop, segment, h.rows, h.loss, CASE WHEN lead(hop) OVER"
        " (PARTITION BY model ORDER BY hop) IS NULL THEN state_sha256 END"
        " FROM hop h JOIN model USING (run, model) WHERE run = %s ORDER BY 1, 2 NULLS FIRST, 3 NULLS FIRST, 4", run
    )  # fmt: skip


def require_same_when_resumed(place: Lab, run: int, epochs: int, hops: int, **options: Any) -> None:
    """A run like this one is cancelled after some hops, and then resumed."""
    other = place.value(
        "SELECT fit('by_shop', 'resumed', 'mst', epochs => %s, evaluate_every => 1, options => %s, wait => false)",
        epochs, json.dumps({**OPTIONS, **options}),
    )  # fmt: skip
    eventually(lambda: place.value("SELECT count(*) FROM hop WHERE run = %s", other) > hops, 60, "some hops")
    place("SELECT cancel(%s)", other)
    if place.ended(other) != "finished":
        place("SELECT resume(%s)", other)
    assert place.status(other) == "finished" and digests(place, other) == digests(place, run)


def require_same_when_extended_and_replayed(place: Lab, run: int, epochs: int, **options: Any) -> None:
    short = fit(place, "by_shop", "extended", epochs=1, evaluate_every=1, options=options)
    place("SELECT resume(%s, epochs => %s)", short, epochs)
    assert digests(place, short) == digests(place, run)
    again = place.value(
        "SELECT fit('by_shop', 'replayed', 'mst', epochs => %s, evaluate_every => 1, options => %s)",
        epochs, json.dumps({"replay": run}),
    )  # fmt: skip
    assert digests(place, again) == digests(place, run)


@pytest.mark.thorough  # tests/sql/runs/test_groups_folds.py resumes groups with folds
def test_a_cancelled_run_that_is_resumed_has_the_same_bits(sales: Lab, run: int) -> None:
    require_same_when_resumed(sales, run, EPOCHS, 5)


@pytest.mark.thorough  # tests/sql/runs/test_groups_start.py extends and replays groups
def test_an_extension_and_a_replay_have_the_same_bits(sales: Lab, run: int) -> None:
    require_same_when_extended_and_replayed(sales, run, EPOCHS)


def test_a_replay_has_the_groups_of_the_earlier_run(sales: Lab, run: int) -> None:
    options = json.dumps({"replay": run, "least_group_rows": 10})
    with pytest.raises(psycopg2.Error, match="least_group_rows was 1, not 10") as error:
        sales("SELECT fit('by_shop', 'no', 'mst', epochs => %s, evaluate_every => 1, options => %s)", EPOCHS, options)
    assert error.value.diag.message_hint


def fit_line(place: Lab, name: str, part: str, tens: str, rate: float) -> int:
    """A line through rows at 1, and at 10 where the condition ``tens`` holds; a step multiplies the error of a group by
    1 - 2 * rate * the mean square of where its rows are."""
    place(f"CREATE TABLE {name} AS SELECT i AS id, {part} AS part, ARRAY[CASE WHEN {tens} THEN 10 ELSE 1 END]::real[]"
          " AS x, 0.5::real + i % 3 AS y FROM generate_series(1, 640) i")  # fmt: skip
    place(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    packed(place, f"by_{name}", "y", name, inputs="x", group_by="part", segments=SEGMENTS, seed=1, validation=0)
    line = place.architecture(sequential([1], layer("Dense", "out", units=1, use_bias=False)))
    place.selection(f"{name}_line", [(line, f"optimizer='SGD(learning_rate={rate})', loss='mse'", "batch_size=8")])
    return fit(place, f"by_{name}", f"{name}_models", f"{name}_line", epochs=12)


def test_a_group_whose_loss_is_not_finite_fails_alone(sales: Lab) -> None:
    run = fit_line(sales, "steps", "i % 10", "i % 10 = 3", 0.015)  # -2 for the rows at 10, 0.67 for all rows
    status = dict(sales("SELECT group_number, status FROM leaderboard WHERE run = %s", run))
    assert status == {**dict.fromkeys([None, *range(1, 11)], "finished"), 4: "failed"}
    assert sales.status(run) == "finished"


def test_a_run_whose_models_on_all_rows_failed_says_why_there_are_no_tables(sales: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="run [0-9]+ has no trained model on all rows") as error:
        fit_line(sales, "halves", "i % 2", "i % 2 = 0", 0.03)  # -5 for the rows at 10, -2 for all rows
    run = sales.value("SELECT max(run) FROM runs")
    hint = str(error.value.diag.message_hint)
    assert f"FROM cerebro.leaderboard WHERE run = {run}" in hint and f"cerebro.resume({run})" in hint
    status = dict(sales("SELECT group_value, status FROM leaderboard WHERE run = %s", run))
    assert status == {None: "failed", "0": "failed", "1": "finished"}


@pytest.mark.thorough  # tests/sql/runs/test_groups_start.py has large states of groups
def test_large_states_are_stored_for_each_group(sales: Lab) -> None:
    wide = sales.architecture(
        sequential(
            [4],
            layer("Dense", "hidden", units=40_000, activation="relu"),
            layer("Dense", "out", units=3, activation="softmax"),
        )
    )
    compiled = "optimizer='SGD(learning_rate=0.01)', loss='categorical_crossentropy'"
    sales.selection("wide", [(wide, compiled, "batch_size=64")])
    run = fit(sales, "by_shop", "wide_models", "wide", epochs=1)
    states = sales.states(run)
    found = sales("SELECT model, weights FROM wide_models_groups ORDER BY 1")
    assert len(found) == 4 and all(
        len(weights) > 1 << 20 and bytes(weights) in states[model] for model, weights in found
    )


def test_a_clone_keeps_the_group_and_an_added_configuration_gets_all_groups(sales: Lab) -> None:
    run = fit(sales, "by_shop", "steered", '[{"architecture": "mlp", "units": 4}]', epochs=1)
    number = sales.value("SELECT model FROM model WHERE run = %s AND group_value = 'giant'", run)
    sales("SELECT clone_model(%s, model => %s, changes => %s)", run, number, json.dumps({"learning_rate": 0.5}))
    sales("SELECT add_configuration(%s, %s)", run, json.dumps({"architecture": "mlp", "units": 4, "batch_size": 8}))
    sales("SELECT resume(%s, epochs => 2)", run)
    found = sales(
        "SELECT configuration, group_number, visits, group_rows, parent IS NOT NULL FROM model WHERE run = %s"
        " ORDER BY model", run
    )  # fmt: skip
    first = found[:5]
    assert [one[1:] for one in found if one[4]] == [(*first[1][1:4], True)]
    reason = (
        "SELECT DISTINCT reason FROM steered_groups WHERE configuration = 3 AND group_value IS DISTINCT FROM 'giant'"
    )
    assert sales(reason) == [("the configuration has no model of this group",)]
    predicted = sales("SELECT count(*), count(DISTINCT key_value) FROM predict('steered', 'SELECT * FROM sales')")
    assert predicted == [(200, 200)]
    added = [one for one in found[5:] if not one[4]]
    assert sorted(one[1:4] for one in added if one[1]) == sorted(one[1:4] for one in first[1:])
    assert {status for (status,) in sales("SELECT status FROM leaderboard WHERE run = %s", run)} == {"finished"}


def test_a_segment_without_rows_for_validation(sales: Lab) -> None:
    sales("CREATE TABLE later AS SELECT * FROM sales WHERE shop = 'giant' AND id < 40")
    packed(
        sales, "one_sided", "price", "sales", inputs="facts", group_by="shop", validation_table="later",
        segments=SEGMENTS, seed=1,
    )  # fmt: skip
    parts = sales.value("SELECT layout -> 'partitions' FROM one_sided_validation_summary")
    assert len(parts) == SEGMENTS and min(part["rows"] for part in parts) == 0
    run = fit(sales, "one_sided", "one_sided_models", epochs=1, objective="val_loss", options={"keep": "best"})
    valued = "SELECT DISTINCT COALESCE(group_value, 'none') FROM leaderboard WHERE run = %s AND objective_value > 0"
    whole = " AND group_number > 0"
    assert sales(valued + whole, run) == [("giant",)]
    assert sales.value("SELECT count(*)::int FROM leaderboard WHERE run = %s AND status = 'finished'", run) == 10
    assert sales.value("SELECT count(*)::int FROM one_sided_models_info WHERE validation_loss > 0") == 2


@pytest.mark.thorough  # tests/core/test_driver.py and tests/nn/test_groups.py have both in one order
def test_models_of_groups_train_beside_fused_models_of_all_rows(sales: Lab) -> None:
    rates = [{"architecture": "mlp", "units": 4, "learning_rate": rate / 100} for rate in range(1, 5)]
    options = {"deterministic": False, "engine": "jax", "fuse": True, "threads": 1}
    run = fit(sales, "by_shop", "fused", json.dumps(rates), evaluate_every=1, options=options)
    fused = sales(
        "SELECT DISTINCT group_number FROM hop JOIN model USING (run, model) WHERE run = %s AND seconds ? 'fused'", run
    )  # fmt: skip
    assert fused == [(None,)]
    assert {status for (status,) in sales("SELECT status FROM leaderboard WHERE run = %s", run)} == {"finished"}


def test_each_group_with_two_rows_has_rows_for_training_and_for_validation(sales: Lab) -> None:
    sales("CREATE TABLE pairs AS SELECT i AS id, i / 2 AS pair, i::real AS x, (i % 3)::real AS y"
          " FROM generate_series(2, 41) i UNION ALL SELECT 1000, 1000, 1, 1")  # fmt: skip
    sales("ALTER TABLE pairs ADD PRIMARY KEY (id)")
    packed(sales, "paired", "y", "pairs", inputs="x", group_by="pair", segments=SEGMENTS, seed=1, validation=0.2)
    run = fit(sales, "paired", "pairs_models", '[{"architecture": "mlp", "units": 2}]', epochs=1)
    found = sales("SELECT group_rows::int, validation_rows::int, group_value FROM model WHERE run = %s"
                  " AND group_number > 0", run)  # fmt: skip
    assert len(found) >= 20 and {row[:2] for row in found if row[2] != "1000"} == {(1, 1)}


# -- fewer models ------------------------------------------------------------------------------------------------


def test_small_groups_have_no_models(sales: Lab) -> None:
    run = fit(sales, "by_shop", "large_only", epochs=1, options={"least_group_rows": 10})
    found = sales("SELECT DISTINCT group_value, group_rows >= 10 FROM model WHERE run = %s AND group_number > 0", run)
    assert sorted(found, key=str) == [("giant", True), ("small", True), (None, True)]


@pytest.mark.thorough  # tests/sql/runs/test_group_statistics.py packs by group in one call
def test_fit_packs_by_group(sales: Lab) -> None:
    run = sales.value(
        "SELECT fit('sales', 'in_one_call', %s, target => 'price', inputs => 'facts', group_by => 'shop', epochs => 1,"
        " segments => 2)",
        json.dumps([{"architecture": "mlp", "units": 4}]),
    )  # fmt: skip
    assert sales.value("SELECT count(DISTINCT group_number)::int FROM leaderboard WHERE run = %s", run) == 4
    assert any("4 groups" in line for line in sales.told())


def test_a_dry_run_says_how_many_groups_there_are(sales: Lab) -> None:
    before = sales.tables()
    sales("SELECT fit('by_shop', 'nothing', 'mst', epochs => 1, dry_run => true)")
    told = sales.told()
    assert any("2 configurations, each for all rows and for 4 groups, would train" in line for line in told)
    assert any("is packed already, with 4 groups" in line for line in told)
    assert sales.tables() == before


@pytest.fixture(scope="module")
def plain(sales: Lab) -> int:
    """A run on the same rows, packed without groups."""
    packed(sales, "plain", "price", "sales", inputs="facts", segments=SEGMENTS, seed=1)
    return fit(sales, "plain", "whole_models", epochs=1)


def test_a_table_of_the_users_that_has_the_name_of_the_table_of_groups_stays(sales: Lab, plain: int) -> None:
    sales("CREATE TABLE whole_models_groups AS SELECT 'precious' AS mine")
    sales("SELECT resume(%s, epochs => 2)", plain)
    sales("SELECT fit('plain', 'whole_models', 'mst', epochs => 1, warm_start => true)")
    assert sales("SELECT mine FROM whole_models_groups") == [("precious",)]
    sales("DROP TABLE whole_models_groups")


def test_another_table_in_place_of_that_of_the_groups_is_not_replaced(sales: Lab) -> None:
    run = fit(sales, "by_shop", "lost", epochs=1)
    sales("DROP TABLE lost_groups; CREATE TABLE lost_groups AS SELECT 'precious' AS mine")
    with pytest.raises(psycopg2.Error, match="lost_groups' is not part of a model") as error:
        sales("SELECT resume(%s, epochs => 2)", run)
    assert error.value.diag.message_hint
    assert sales("SELECT mine FROM lost_groups") == [("precious",)]


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("fit('by_shop', 'no', 'mst', epochs => 1, validation_table => 'alike')", "is not packed with the groups"),
        ("fit('by_shop', 'whole_models', 'mst', epochs => 1, warm_start => true)", "has no models of groups"),
        ("""fit('by_shop', 'no', 'mst', epochs => 2, options => '{"method": "paced"}')""", "method 'paced' cannot be"),
        ("""fit('plain', 'no', 'mst', epochs => 1, options => '{"groups_start": "all rows"}')""", "needs groups"),
        ("""fit('plain', 'no', 'mst', epochs => 1, options => '{"least_group_rows": 5}')""", "needs groups"),
        ("""fit('plain', 'no', 'mst', epochs => 1, options => '{"new_groups": "all rows"}')""", "needs groups"),
        ("""fit('by_shop', 'no', 'mst', epochs => 1, options => '{"new_groups": "some"}')""", "new_groups"),
        ("fit('by_shop', 'no', 'mst', epochs => 1, group_by => 'shop')", "group_by cannot be given"),
        ("madlib_fit_multiple_model('by_shop', 'no', 'mst', 1)", "group_by"),
        ("madlib.madlib_keras_fit('by_shop', 'no', 'arch', 1, $$loss='mse'$$, $$batch_size=8$$, 1)", "group_by"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_with_groups_is_refused(sales: Lab, run: int, plain: int, call: str, text: str) -> None:
    if "alike" not in sales.tables():
        sales.pack("sales", "alike", "price", "facts", packed_table="by_shop")
    before = sales.tables()
    with pytest.raises(psycopg2.Error) as error:
        sales(f"SELECT {call}")
    assert text in str(error.value) and error.value.diag.message_hint
    assert sales.tables() == before


def test_too_many_models_are_refused(sales: Lab) -> None:
    sales("CREATE TABLE crowd AS SELECT i AS id, i::real AS x, (i % 9)::real AS y FROM generate_series(1, 5000) i")
    with pytest.raises(psycopg2.Error) as error:
        sales(
            "SELECT cerebro.fit('crowd', 'no', %s, target => 'y', inputs => 'x', group_by => 'id', validation => 0,"
            " epochs => 1)",
            json.dumps([{"units": units} for units in range(2, 13)]),
        )
    assert "55,011 models" in str(error.value) and error.value.diag.message_hint
    assert "no" not in sales.tables()
