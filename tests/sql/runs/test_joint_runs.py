"""Runs whose models are trained by all their segments at the same time: the option parallel => gradients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest

from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.nn.rows.data import row_order
from tests.nn import configurations as c
from tests.nn.test_joint import ends_of_batches
from tests.sql.lab import Lab, eventually, layer, sequential
from tests.sql.lab import run as statement
from tests.sql.packing.test_tables import packed
from tests.sql.runs.test_faithful import partitions, same, trained_by_keras, variables
from tests.sql.runs.test_groups import (
    SALES,
    digests,
    fit,
    require_same_when_extended_and_replayed,
    require_same_when_resumed,
    select,
    spans,
)
from tests.thorough import TIMES

EPOCHS, SEGMENTS = 2, 3
QUIET = sequential(
    [4], layer("Dense", "hidden", units=8, activation="tanh"), layer("Dense", "out", units=3, activation="softmax")
)
CONFIGURATIONS = {
    1: c.configuration(QUIET, "categorical_crossentropy", "Adam", learning_rate=0.01, batch_size=16),
    2: c.configuration(QUIET, "categorical_crossentropy", "SGD", learning_rate=0.1, momentum=0.9, batch_size=10),
}
JOINT = {"parallel": "gradients"}
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def sales(lab: Lab) -> Lab:
    lab(SALES)
    more = {"inputs": "facts", "segments": SEGMENTS, "seed": 1, "validation": 0.2}
    packed(lab, "by_shop", "price", "sales", group_by="shop", **more)
    packed(lab, "folded", "price", "sales", folds=2, **{**more, "validation": None})
    select(lab, "mst", *CONFIGURATIONS.values())
    return lab


@pytest.fixture(scope="module")
def run(sales: Lab) -> int:
    return fit(sales, "by_shop", "models", epochs=EPOCHS, evaluate_every=1, options=JOINT)


def plain_keras(place: Lab, run: int, folder: Path) -> dict[int, list[np.ndarray]]:
    """The variables of plain Keras after it has trained each model in one process, on all rows of its segments."""
    rows, lie, asked = partitions(place, "by_shop"), spans(place, "by_shop"), []
    seed = place.value("SELECT seed FROM run WHERE run = %s", run)
    for model, key, group, initial in place(
        "SELECT model, configuration, group_number, seed FROM model WHERE run = %s ORDER BY model", run
    ):
        if TIMES < 5 and key > 1 and group:  # of the other configurations, the models on all rows have to do
            continue
        segments = [segment for segment, number in lie if number == group and lie[segment, number] != slice(0, 0)]
        sizes = [len(rows[segment][0][lie[segment, group]]) for segment in segments]
        batch_size, arrays = CONFIGURATIONS[key]["fit"]["batch_size"], {}
        cut = ends_of_batches(sizes, batch_size)
        for epoch in range(EPOCHS):
            parts = []
            for segment, size in zip(segments, sizes):
                joint = (segment,) if len(segments) > 1 else ()
                order = row_order(size, derived_seed(seed, "rows", model - 1, epoch + 1, *joint), 0)
                parts.append([side[lie[segment, group]][order] for side in rows[segment]])
            for place_of, name in enumerate("xy"):
                arrays[f"{name}{epoch}"] = np.concatenate(
                    [
                        part[place_of][start:end]
                        for first, last in zip(cut, cut[1:])
                        for part, start, end in zip(parts, first, last)
                    ]
                )
        np.savez(folder / f"{model}.npz", **arrays)
        asked.append({
            **CONFIGURATIONS[key], "visits": str(folder / f"{model}.npz"), "count": EPOCHS, "seed": initial,
            "name": str(model), "batch_size": batch_size, "forgetful": False, "out": str(folder / f"{model}.out.npz"),
        })  # fmt: skip
    return {int(case["name"]): arrays for case, arrays in zip(asked, trained_by_keras(asked, folder))}


@pytest.mark.tensorflow  # with which oracle.py trains
def test_each_model_has_the_numbers_of_one_process_with_all_its_rows(sales: Lab, run: int, tmp_path: Path) -> None:
    """Those of groups on one segment have its bits; for one batch after another, the others are as close as floats."""
    expected, states = plain_keras(sales, run, tmp_path), sales.states(run)
    joint = dict(
        sales("SELECT model, COALESCE(group_value = 'giant', group_number IS NULL) FROM model WHERE run = %s", run)
    )
    assert sorted(joint) == sorted(states) and sum(joint.values()) == 4 and len(expected) >= 6
    for model, its in expected.items():
        mine = variables(states[model])
        if not joint[model]:
            assert all(same(mine, its)), model
            continue
        for one, other in zip(mine, its, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE, err_msg=str(model))


def test_an_epoch_of_several_segments_is_one_hop(sales: Lab, run: int) -> None:
    found = sales(
        "SELECT group_value, count(*)::int, min(rows)::int, max(rows)::int, min(m.group_rows)::int,"
        " bool_and(h.segment = visits[1]) FROM hop h JOIN model m USING (run, model) WHERE run = %s"
        " AND configuration = 1 GROUP BY m.model, group_value ORDER BY m.model", run
    )  # fmt: skip
    assert [(count, all_there) for _, count, *_, all_there in found] == [(EPOCHS, True)] * 5
    assert all(least == most and of in (None, most) for _, _, least, most, of, _ in found)
    rows = sales.value("SELECT rows_per_epoch FROM run WHERE run = %s", run)
    assert found[0][2] == rows
    progress = sales("SELECT status, percent, hops_done, hops_total FROM run_progress WHERE run = %s", run)
    assert progress == [("finished", 100.0, 10 * EPOCHS, 10 * EPOCHS)]
    assert not sales("SELECT 1 FROM event WHERE run = %s AND event = 'unit failed'", run)


def test_the_figures_are_those_of_all_rows(sales: Lab, run: int) -> None:
    """The training loss of an epoch is the mean over the rows of all segments, while they train."""
    curve = sales(
        "SELECT epoch, rows, training_loss, validation_loss FROM learning_curve WHERE run = %s AND configuration = 1"
        " AND group_number IS NULL ORDER BY 1", run
    )  # fmt: skip
    rows = sales.value("SELECT rows_per_epoch FROM run WHERE run = %s", run)
    assert [(epoch, its) for epoch, its, *_ in curve] == [(epoch, rows) for epoch in range(1, EPOCHS + 1)]
    losses = [loss for *_, loss, _ in curve]
    assert losses == sorted(losses, reverse=True) and all(validation for *_, validation in curve)
    predicted = sales("SELECT count(*)::int FROM cerebro.predict('models', 'SELECT * FROM sales')")
    assert predicted == [(200,)]


def test_a_run_is_extended_and_replayed_bit_by_bit(sales: Lab, run: int) -> None:
    require_same_when_extended_and_replayed(sales, run, EPOCHS, **JOINT)


@pytest.mark.needs_cluster
@pytest.mark.thorough  # tests/core/test_joint_visits.py loses them, and tests/nn/test_joint.py breaks off a visit
def test_whoever_is_killed_no_bit_changes(sales: Lab) -> None:
    """A trainer or a session of any segment, in the middle of a joint visit: it is repeated as a whole."""
    calm = fit(sales, "by_shop", "calm", epochs=80, options=JOINT)
    killed = sales.value(
        "SELECT fit('by_shop', 'killed', 'mst', epochs => 80, options => %s, wait => false)",
        json.dumps({"deterministic": True, "seed": 3, **JOINT}),
    )
    done = "SELECT count(*)::int FROM hop JOIN model USING (run, model) WHERE run = %s AND group_number IS NULL"
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment %%' ORDER BY pid"
    for kill_trainers, which in ((True, 0), (False, 1), (True, 2), (False, 2)):
        before = sales.value(done, killed)
        eventually(lambda before=before: sales.value(done, killed) > before + 2, 60, "it trains")
        if kill_trainers:
            os.kill(sales.trainers()[which][0], signal.SIGKILL)
        else:
            sales("SELECT pg_terminate_backend(%s)", sales(sessions)[which][0])
    assert sales.value("SELECT wait(%s, 180)", killed) == "finished"
    assert digests(sales, killed) == digests(sales, calm)
    assert sales("SELECT 1 FROM event WHERE run = %s AND event = 'unit failed'", killed), "one died at work"


def test_a_cancelled_run_goes_on_with_the_same_bits(sales: Lab, run: int) -> None:
    require_same_when_resumed(sales, run, EPOCHS, 2, **JOINT)


@pytest.mark.thorough  # tests/nn/test_joint.py breaks off a visit
def test_a_call_is_cancelled_within_a_moment(sales: Lab) -> None:
    seconds: list[float] = []

    def cancel() -> None:
        eventually(lambda: sales.value("SELECT count(*)::int FROM hop h JOIN run USING (run)"
                                       " WHERE model_table LIKE '%long'") > 0, 60, "it trains")  # fmt: skip
        seconds.append(time.monotonic())
        sales("SELECT cancel((SELECT max(run) FROM run))")

    other = threading.Thread(target=cancel)
    other.start()
    begin = "SELECT fit('by_shop', 'long', 'mst', epochs => 100000, options => %s)"
    with contextlib.closing(sales.connect()) as mine, pytest.raises(psycopg2.Error, match="cancel"):
        statement(mine, begin, json.dumps(JOINT))
    assert time.monotonic() - seconds[0] < 10
    other.join()


def test_folds_and_models_on_one_segment_can_be_trained_so(sales: Lab) -> None:
    run = fit(sales, "folded", "by_fold", epochs=2, options=JOINT)
    hops = sales("SELECT m.fold, h.rows::int FROM hop h JOIN model m USING (run, model) WHERE run = %s"
                 " AND configuration = 1 AND epoch = 2 ORDER BY fold NULLS FIRST", run)  # fmt: skip
    assert [fold for fold, _ in hops] == [None, 1, 2] and hops[0][1] == 200 == sum(rows for _, rows in hops[1:])
    packed(sales, "whole", "price", "sales", inputs="facts", segments=1, seed=1)
    alone = [fit(sales, "whole", f"alone_{n}", epochs=2, options=one) for n, one in enumerate((JOINT, {}))]
    assert digests(sales, alone[0]) == digests(sales, alone[1])


def test_a_model_that_cannot_be_added_up_fails_alone(sales: Lab) -> None:
    masks = sequential(
        [2, 2],
        layer("Masking", "mask"),
        layer("Flatten", "flat"),
        layer("Dense", "out", units=3, activation="softmax"),
    )
    one = c.configuration(masks, "categorical_crossentropy", batch_size=16)
    linear = sequential([4], layer("Dense", "out", units=3))
    huge = c.configuration(linear, "mse", "SGD", learning_rate=1e30, batch_size=16)
    select(sales, "mixed", one, CONFIGURATIONS[1], huge)
    run = fit(sales, "folded", "mixed_models", "mixed", epochs=2, options=JOINT)
    found = dict(sales("SELECT configuration, reason FROM leaderboard WHERE run = %s", run))
    assert "the layer mask masks steps" in found[1] and found[2] is None
    assert "the loss became" in found[3]


def test_an_own_session_cannot_train_so(sales: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="all segments train at the same time, but this run trains in your own"):
        fit(sales, "by_shop", "never", epochs=1, options={**JOINT, "execution": "session"})
    with pytest.raises(psycopg2.Error, match="It is one of hopping, gradients"):
        fit(sales, "by_shop", "never", epochs=1, options={"parallel": "tasks"})


@pytest.mark.thorough  # tests/core/test_joint_visits.py ends models, and clones are added to a joint run below
def test_a_search_stops_models_that_train_so(sales: Lab) -> None:
    run = sales.value(
        "SELECT cerebro.search('sales', 'found', %s, target => 'price', inputs => 'facts', max_configurations => 4,"
        " method => %s, epochs => 2, segments => 2, validation => 0.2, options => %s)",
        '{"architecture": "mlp", "units": {"choice": [2, 4, 8]}, "learning_rate": {"log_uniform": [0.001, 0.1]}}',
        json.dumps({"name": "asha", "reduction": 2}),
        json.dumps({"seed": 5, **JOINT}),
    )
    epochs = [done for (done,) in sales("SELECT epochs_done FROM leaderboard WHERE run = %s", run)]
    assert len(epochs) == 4 and max(epochs) == 2 and min(epochs) < 2
    hops = sales.value("SELECT count(*)::int FROM hop WHERE run = %s", run)
    assert hops == sum(epochs)


def test_a_replay_keeps_the_way_of_training(sales: Lab, run: int) -> None:
    with pytest.raises(
        psycopg2.Error, match="its option parallel was gradients, not hopping, so its visits were others"
    ):
        fit(sales, "by_shop", "never", epochs=EPOCHS, options={"replay": run, "parallel": "hopping"})


def test_clones_and_added_configurations_train_so_too(sales: Lab) -> None:
    run = fit(sales, "by_shop", "steered", '[{"architecture": "mlp", "units": 4}]', epochs=1, options=JOINT)
    number = sales.value("SELECT model FROM model WHERE run = %s AND group_value = 'giant'", run)
    sales("SELECT clone_model(%s, model => %s, changes => %s)", run, number, json.dumps({"learning_rate": 0.5}))
    sales("SELECT add_configuration(%s, %s)", run, json.dumps({"architecture": "mlp", "units": 4, "batch_size": 8}))
    sales("SELECT resume(%s, epochs => 2)", run)
    found = sales(
        "SELECT model, epochs_done, count(*)::int, cardinality(visits) FROM leaderboard JOIN model USING (run, model)"
        " JOIN hop USING (run, model) WHERE run = %s GROUP BY 1, 2, 4", run
    )  # fmt: skip
    assert len(found) == 11 and all(epochs == hops and visits == 1 for _, epochs, hops, visits in found)
    assert {status for (status,) in sales("SELECT status FROM leaderboard WHERE run = %s", run)} == {"finished"}


def test_models_of_groups_that_wait_and_best_states(sales: Lab) -> None:
    """The best epoch of a model that several segments train is that of as many hops."""
    options = {"objective": "val_loss", "direction": "max", "keep": "best", "groups_start": "all rows", **JOINT}
    run = fit(sales, "by_shop", "waited", epochs=3, evaluate_every=1, options=options)
    best = dict(sales("SELECT model, best_epoch FROM leaderboard WHERE run = %s AND group_number IS NULL", run))
    found = sales("SELECT DISTINCT parent, parent_hop FROM model WHERE run = %s AND parent IS NOT NULL", run)
    assert dict(found) == best and min(best.values()) < 3
    assert sales.value("SELECT count(*)::int FROM waited_groups WHERE weights IS NOT NULL") == 8


def test_a_warm_start_goes_on_from_models_that_hopped(sales: Lab) -> None:
    first = "SELECT training_loss FROM learning_curve WHERE run = %s AND epoch = 1 ORDER BY model"
    packed(sales, "plain", "price", "sales", inputs="facts", segments=SEGMENTS, seed=1)
    hopped = fit(sales, "plain", "warm", epochs=1)
    warm = fit(sales, "plain", "warm", epochs=1, options=JOINT, warm_start=True)
    losses = [[loss for (loss,) in sales(first, one)] for one in (warm, hopped)]
    assert len(losses[0]) == 2
    assert all(after < before for after, before in zip(*losses, strict=True))
