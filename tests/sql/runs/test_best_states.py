"""The objective of a run and its best states: ranks, the weights of the best epoch, and what becomes of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import psycopg2
import pytest

from tests.conftest import ENGINE
from tests.sql.lab import Lab, eventually, layer, sequential, verb
from tests.sql.runs.test_metrics import broken
from tests.thorough import TIMES, landing

EPOCHS, SEGMENTS, ROWS = 4, 2, 60
METRICS = "metrics=['accuracy', AUC(name='area')]"
AVERAGING = ("Adam(lr=0.03, use_ema=True, ema_momentum=0.9)", "ScheduleFreeAdamW(lr=0.03)")
BEST = {"deterministic": True, "seed": 3, "keep": "best", "objective": "val_area"}


def model(units: int = 64) -> dict[str, Any]:
    return sequential(
        [6],
        layer("Dense", "hidden", units=units, activation="relu"),
        layer("Dense", "out", units=2, activation="softmax"),
    )


@pytest.fixture(scope="module")
def noise(lab: Lab) -> Lab:
    """Few rows with labels that are mostly noise: models learn them by heart, which is of no use for other rows."""
    random = np.random.default_rng(1)
    facts = random.normal(size=(2 * ROWS, 6))
    labels = np.where(facts[:, 0] + 2 * random.normal(size=2 * ROWS) > 0, "yes", "no")
    columns = {"id": "int", **{f"x{n}": "real" for n in range(6)}, "label": "text"}
    rows = [(n, *map(float, facts[n]), str(labels[n])) for n in range(2 * ROWS)]
    lab.table("seen", columns, rows[:ROWS])
    lab.table("unseen", columns, rows[ROWS:])
    named = ", ".join(f"x{n}" for n in range(6))
    lab.pack("seen", "train", "label", named, segments=SEGMENTS, seed=1)
    lab.pack("unseen", "val", "label", named, packed_table="train")
    arch = lab.architecture(model())
    cross = "loss='categorical_crossentropy'"
    lab.selection("mst", [(arch, f"optimizer='Adam(lr={rate})', {cross}, {METRICS}", "batch_size=8, epochs=3")
                          for rate in (0.03, 0.01, 0.1)])  # fmt: skip
    lab.selection("mixed", [(arch, f"optimizer='SGD', {cross}, {METRICS}", "batch_size=8"),
                            (arch, f"optimizer='SGD', {cross}, metrics=['mae']", "batch_size=8")])  # fmt: skip
    lab.selection("averaging", [(arch, f"optimizer='{optimizer}', {cross}, {METRICS}", "batch_size=8, epochs=3")
                                for optimizer in AVERAGING])  # fmt: skip
    return lab


@pytest.fixture(scope="module")
def fitted(noise: Lab) -> int:
    return noise.fit("train", "kept", "mst", EPOCHS, validation_table="val", options=BEST)


def values(lab: Lab, run: int, metric: str, dataset: str = "validation") -> dict[int, dict[int, float]]:
    """configuration -> epoch -> value"""
    found: dict[int, dict[int, float]] = {}
    for key, epoch, value in lab(
        "SELECT configuration, epoch, value FROM metrics WHERE run = %s AND metric = %s AND dataset = %s",
        run,
        metric,
        dataset,
    ):
        found.setdefault(key, {})[epoch] = value
    return found


def best_of(curve: dict[int, float], sign: int) -> tuple[int, float]:
    """The epoch with the best value, of equal values the earliest."""
    epoch = min(curve, key=lambda epoch: (sign * curve[epoch], epoch))
    return epoch, curve[epoch]


def measured(lab: Lab, table: str, key: int) -> dict[str, float]:
    """What Keras says of the weights in a model table, on the unseen rows."""
    text, weights = lab.models(table)[key]
    found = keras.models.model_from_json(text)
    flat, arrays, start = np.frombuffer(weights, "float32"), [], 0
    for one in found.weights:
        size = int(np.prod(one.shape))
        arrays.append(flat[start : start + size].reshape(one.shape))
        start += size
    assert start == flat.size
    found.set_weights(arrays)
    found.compile(loss="categorical_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="area")])
    rows = lab("SELECT x0, x1, x2, x3, x4, x5, label FROM unseen ORDER BY id")
    facts = np.array([row[:6] for row in rows], "float32")
    y = np.array([[row[6] == "no", row[6] == "yes"] for row in rows], "float32")
    shown = found.evaluate(facts, y, verbose=0, return_dict=True)
    # On JAX, Keras' loss bounds the probabilities; on TensorFlow it finds the numbers before the softmax.
    likely = np.clip(found.predict(facts, verbose=0), 1e-7, 1 - 1e-7)
    return {**shown, "loss on jax": float(-(y * np.log(likely)).sum(axis=1).mean())}


def test_the_models_overfit(noise: Lab, fitted: int) -> None:
    """Else the tests of this file would show nothing."""
    curves = values(noise, fitted, "area")
    assert all(set(curve) == set(range(1, EPOCHS + 1)) for curve in curves.values()), "all epochs are evaluated"
    assert any(best_of(curve, -1)[0] < EPOCHS for curve in curves.values())


def test_the_leaderboard_ranks_by_the_best_epochs(noise: Lab, fitted: int) -> None:
    best = {key: best_of(curve, -1) for key, curve in values(noise, fitted, "area").items()}
    shown = noise(
        "SELECT configuration, objective, best_epoch, best_value, objective_value, rank FROM leaderboard WHERE run ="
        " %s",
        fitted,
    )
    expected = sorted(best, key=lambda key: -best[key][1])
    for key, objective, epoch, value, shown_value, rank in shown:
        assert (objective, epoch, value, shown_value) == ("val_area", best[key][0], value, value)
        assert value == pytest.approx(best[key][1], rel=1e-12)
        assert rank == 1 + expected.index(key)
    kept = noise("SELECT model, max(epoch) FROM cerebro.objective WHERE run = %s AND kept GROUP BY 1", fitted)
    assert dict(kept) == {key: epoch for key, (epoch, _) in best.items()}


def test_the_model_table_has_the_weights_of_the_best_epochs(noise: Lab, fitted: int) -> None:
    losses = values(noise, fitted, "loss")
    for key, curve in values(noise, fitted, "area").items():
        epoch, value = best_of(curve, -1)
        found = measured(noise, "kept", key)
        assert found["area"] == pytest.approx(value, abs=1e-6)
        assert found["loss"] == pytest.approx(losses[key][epoch], rel=1e-5)
        info = noise("SELECT which, epoch, validation_loss_final FROM kept_info WHERE mst_key = %s", key)
        assert info == [("best", epoch, losses[key][epoch])]
        noise("DROP TABLE IF EXISTS measured")
        noise("SELECT madlib_keras_evaluate('kept', 'val', 'measured', NULL, %s)", key)
        assert noise.value("SELECT loss FROM measured") == pytest.approx(losses[key][epoch], rel=1e-6)
    assert noise("SELECT objective, direction, which, metrics_compute_frequency FROM kept_summary") == [
        ("val_area", "max", "best", 1)
    ]


def test_either_state_can_be_materialized(noise: Lab, fitted: int) -> None:
    noise("SELECT materialize(%s, 'lasts', which => 'last')", fitted)
    noise("SELECT materialize(%s, 'bests')", fitted)
    losses = values(noise, fitted, "loss")
    assert noise("SELECT which, epoch FROM lasts_info") == [("last", EPOCHS)] * 3
    for key in losses:
        assert measured(noise, "lasts", key)["loss"] == pytest.approx(losses[key][EPOCHS], rel=1e-5)
    assert noise.weights("bests") == noise.weights("kept")
    best = {key: best_of(curve, -1)[0] for key, curve in values(noise, fitted, "area").items()}
    same = {key for key, weights in noise.weights("lasts").items() if noise.weights("bests")[key] == weights}
    assert same == {key for key, epoch in best.items() if epoch == EPOCHS}
    noise("DROP TABLE lasts, lasts_info, lasts_summary, bests, bests_info, bests_summary")


def test_keeping_changes_nothing_else(noise: Lab, fitted: int) -> None:
    """The same run without best states has the same last states, and ranks by what its model tables get."""
    options = {**BEST, "keep": "last"}
    run = noise.fit("train", "plain", "mst", EPOCHS, validation_table="val", options=options)
    assert noise.states(run) == noise.states(fitted)
    curves = values(noise, run, "area")
    shown = noise(
        "SELECT configuration, objective_value, best_epoch FROM leaderboard WHERE run = %s ORDER BY rank,"
        " configuration",
        run,
    )
    assert [key for key, _, _ in shown] == sorted(curves, key=lambda key: (-curves[key][EPOCHS], key))
    for key, value, epoch in shown:
        assert value == pytest.approx(curves[key][EPOCHS], rel=1e-12)
        assert epoch == best_of(curves[key], -1)[0]
    with pytest.raises(psycopg2.Error, match="has not kept its best states"):
        noise("SELECT materialize(%s, 'other', which => 'best')", run)
    with pytest.raises(psycopg2.Error, match="which is 'worst'; it must be 'best' or 'last'"):
        noise("SELECT materialize(%s, 'other', which => 'worst')", run)


@pytest.mark.parametrize(
    ("selection", "options", "validation", "message"),
    [
        ("mixed", {"objective": "val_area"}, "val", "configuration 2 does not compile 'area'"),
        ("mst", {"objective": "val_area"}, None, "the run has no validation table"),
        ("mst", {"direction": "max"}, "val", "option 'direction' needs option 'objective'"),
        ("mst", {"keep": "all"}, "val", "option 'keep' cannot be \"all\""),
    ],
)
def test_bad_input(noise: Lab, selection: str, options: Any, validation: str | None, message: str) -> None:
    before = noise.value("SELECT count(*) FROM run")
    with pytest.raises(psycopg2.Error, match=message) as caught:
        noise.fit("train", "refused", selection, 2, validation_table=validation, options=options)
    if "objective" in options:
        assert "All configurations have: " in str(caught.value.diag.message_hint)
    assert noise.value("SELECT count(*) FROM run") == before and "refused" not in noise.tables()


def test_a_run_that_ends_while_a_state_is_kept(noise: Lab, fitted: int) -> None:
    """The evaluation and the state are one transaction: the resumed run has the best states of the undisturbed one.

    Here all sessions of the run are killed while an evaluation is stored and its state is not.
    """
    noise(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN new; END $$"
    )
    noise("CREATE TRIGGER dawdle BEFORE INSERT ON cerebro.objective FOR EACH ROW WHEN (new.epoch = 2)"
          " EXECUTE FUNCTION dawdle()")  # fmt: skip
    try:
        run = noise.submit("train", "resumed", "mst", EPOCHS, validation_table="val", options=BEST)
        sleeping = f"SELECT 1 FROM {noise.everywhere} WHERE wait_event = 'PgSleep'"
        eventually(lambda: noise(sleeping), 60, "it is stored")
        noise.end_driver(run)
        noise("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
              " WHERE application_name LIKE 'cerebro_db segment%'")  # fmt: skip
        eventually(lambda: noise.status(run) == "interrupted", 30, "the run has lost its driver")
        noise.require_no_orphans()
    finally:
        noise("DROP TRIGGER dawdle ON cerebro.objective; DROP FUNCTION dawdle()")
    last_parts = "SELECT count(*) FROM evaluation WHERE run = %s AND epoch = 2 AND metrics <> '{}'"
    assert noise.value(last_parts, run) == 0
    noise("SELECT resume(%s)", run)
    assert noise.weights("resumed") == noise.weights("kept")
    rows = "SELECT model, epoch, value, kept FROM cerebro.objective WHERE run = %s ORDER BY 1, 2"
    assert noise(rows, run) == noise(rows, fitted)


def test_a_run_that_has_not_finished(noise: Lab, fitted: int) -> None:
    """Models whose objective has no value yet have their last state; the others their best one so far."""
    with broken(noise, "objective", "new.model = 1"), pytest.raises(psycopg2.Error, match="not now"):
        noise.fit("train", "early", "mst", EPOCHS, validation_table="val", options=BEST)
    run = noise.value("SELECT max(run) FROM runs")
    noise.told()
    noise("SELECT materialize(%s, 'early')", run)
    found = dict(noise("SELECT mst_key, which FROM early_info WHERE which IS NOT NULL"))
    with_value = {key for (key,) in noise("SELECT model FROM cerebro.objective WHERE run = %s", run)}
    assert found == {key: "best" if key in with_value else "last" for key in found} and found[1] == "last"
    assert any("val_area was measured after no epoch of configuration" in said for said in noise.told())


@pytest.mark.thorough  # tests/core/test_driver.py keeps the best states of runs that read ahead, and of fused visits
@pytest.mark.parametrize(
    ("objective", "options"),
    [("val_area", {"read_ahead": True}), ("accuracy", {"engine": "jax", "fuse": True})],
    ids=["ahead", "fused"],
)
def test_however_models_are_trained(noise: Lab, objective: str, options: dict[str, Any]) -> None:
    more = {"keep": "best", "objective": objective, "seed": 3, **options}
    run = noise.fit("train", "other", "mst", 3, validation_table="val", options=more)
    noise.told()
    try:
        losses = values(noise, run, "loss")
        dataset, metric = ("validation", "area") if objective == "val_area" else ("training", "accuracy")
        for key, curve in values(noise, run, metric, dataset).items():
            epoch, _ = best_of(curve, -1)
            assert noise("SELECT which, epoch FROM other_info WHERE mst_key = %s", key) == [("best", epoch)]
            if epoch in losses[key]:  # of an objective without validation only the last epoch is evaluated
                loss = "loss on jax" if options.get("engine") == "jax" else "loss"
                assert measured(noise, "other", key)[loss] == pytest.approx(losses[key][epoch], rel=1e-4)
    finally:
        noise("DROP TABLE other, other_info, other_summary")


def test_a_replay_with_another_objective(noise: Lab, fitted: int) -> None:
    """The direction is that of the new objective; the models are the same."""
    noise.told()
    run = noise.fit("train", "again", "mst", EPOCHS, validation_table="val",
                    options={"replay": fitted, "objective": "val_loss"})  # fmt: skip
    assert any(
        "best is configuration" in said and "with val_loss" in said and "after epoch" in said for said in noise.told()
    )
    assert noise.states(run) == noise.states(fitted)
    curves = values(noise, run, "loss")
    shown = dict(noise("SELECT mst_key, epoch FROM again_info"))
    assert shown == {key: best_of(curve, 1)[0] for key, curve in curves.items()}


def test_an_extended_run(noise: Lab, fitted: int) -> None:
    """The best state of the first epochs stays the best, unless a later epoch is better."""
    run = noise.fit("train", "longer", "mst", 2, validation_table="val", options=BEST)
    noise("SELECT resume(%s, epochs => %s)", run, EPOCHS)
    assert noise.weights("longer") == noise.weights("kept")


def test_a_changed_byte_is_noticed(noise: Lab, fitted: int) -> None:
    storage = noise.value("SELECT storage FROM run WHERE run = %s", fitted)
    noise("DROP TABLE IF EXISTS before")
    epoch = noise.value("SELECT max(epoch) FROM objective WHERE run = %s AND model = 1 AND kept", fitted)
    table, which = noise.stored(storage, 1, epoch * SEGMENTS)
    noise(f"CREATE TABLE before AS SELECT * FROM {table}")
    noise(f"UPDATE {table} SET payload = set_byte(payload, 100, get_byte(payload, 100) # 1) WHERE {which}")
    noise.told()
    noise("SELECT materialize(%s, 'changed')", fitted)
    assert [key for (key,) in noise("SELECT mst_key FROM changed ORDER BY 1")] == [2, 3]
    assert any("configuration 1 is left out" in said and f"{storage}_shared_1" in said for said in noise.told())
    noise(f"TRUNCATE {table}; INSERT INTO {table} SELECT * FROM before")
    noise("DROP TABLE changed, changed_info, changed_summary")


def test_the_training_loss_as_the_objective(noise: Lab) -> None:
    """It needs no validation table; the visit that ends the epoch keeps the state. Every model is its own table."""
    options = {"deterministic": True, "seed": 3, "keep": "best"}
    run = noise.fit("train", "by_loss", "mst", 3, options=options)
    curves = values(noise, run, "loss", "training")
    shown = noise("SELECT configuration, objective, best_epoch, best_value FROM leaderboard WHERE run = %s", run)
    for key, objective, epoch, value in shown:
        assert (objective, epoch) == ("loss", best_of(curves[key], 1)[0])
        assert value == pytest.approx(curves[key][epoch], rel=1e-12)
    best = dict(noise("SELECT mst_key, epoch FROM by_loss_info"))
    assert best == {key: epoch for key, _, epoch, _ in shown}
    last = noise.states(run)
    for key, epoch in best.items():
        assert (noise.weights("by_loss")[key] in last[key]) == (epoch == 3)
    noise("DROP TABLE by_loss, by_loss_info, by_loss_summary")


def test_a_warm_start_goes_on_from_the_best_states(noise: Lab, fitted: int) -> None:
    """With the optimizer's state, which belongs to these weights."""
    kept = noise("SELECT DISTINCT ON (model) model, hop FROM cerebro.objective WHERE run = %s AND kept"
                 " ORDER BY model, hop DESC", fitted)  # fmt: skip
    noise("SELECT materialize(%s, 'warm')", fitted)
    noise("UPDATE run SET model_table = %s WHERE run = %s", f"{noise.schema}.warm", fitted)
    noise.told()
    try:
        run = noise.fit("train", "warm", "mst", 1, validation_table="val", warm_start=True, options=BEST)
        assert not any("from the weights alone" in said for said in noise.told())
    finally:
        noise("UPDATE run SET model_table = %s WHERE run = %s", f"{noise.schema}.kept", fitted)
    begins = dict(noise("SELECT model, initial_sha256 FROM model WHERE run = %s", run))
    for key, hop in kept:
        assert begins[key] == noise.value(
            "SELECT state_sha256 FROM hop WHERE run = %s AND model = %s AND hop = %s", fitted, key, hop
        )


def test_no_rank_occurs_twice(noise: Lab) -> None:
    """Also of models that are equal."""
    noise("CREATE TABLE twins AS SELECT n AS mst_key, m.model_id, m.compile_params, m.fit_params FROM mst m,"
          " generate_series(1, 3) n WHERE m.mst_key = 1")  # fmt: skip
    noise("CREATE TABLE twins_summary AS SELECT * FROM mst_summary")
    run = noise.fit("train", "twin_models", "twins", 1, options={"deterministic": True, "seed": 3})
    noise("UPDATE hop SET loss = 0.5 WHERE run = %s", run)
    assert noise("SELECT rank, configuration FROM leaderboard WHERE run = %s ORDER BY 1", run) == [
        (1, 1), (2, 2), (3, 3)
    ]  # fmt: skip


# tests/nn/other_engine.py and test_trainer.py average with each.
@pytest.mark.parametrize("engine", landing(["tensorflow", "jax"], ENGINE))
def test_averaged_weights_are_ranked_and_are_in_the_tables(noise: Lab, engine: str) -> None:
    """What the leaderboard says is what an evaluation of the model table gives; a warm start has the whole state."""
    options = {**BEST, "engine": engine, "objective": "val_loss"}
    run = noise.fit("train", "averaged", "averaging", 2, validation_table="val", options=options)
    noise("SELECT materialize(%s, 'averaged_last', which => 'last')", run)
    losses = values(noise, run, "loss")
    try:
        for key, shown in noise("SELECT configuration, best_value FROM leaderboard WHERE run = %s", run):
            tables = [("averaged", shown), ("averaged_last", losses[key][2])]
            for table, loss in tables if key == 1 or TIMES >= 5 else tables[:1]:
                noise("DROP TABLE IF EXISTS measured")
                noise("SELECT madlib_keras_evaluate(%s, 'val', 'measured', NULL, %s)", table, key)
                assert noise.value("SELECT loss FROM measured") == pytest.approx(loss, rel=1e-6)
                by_keras = measured(noise, table, key)["loss" if engine == "tensorflow" else "loss on jax"]
                assert by_keras == pytest.approx(loss, rel=1e-4)
        noise.told()
        noise.fit("train", "averaged", "averaging", 1, validation_table="val", warm_start=True, options=options)
        assert not any("from the weights alone" in said for said in noise.told())
    finally:
        noise("DROP TABLE averaged, averaged_info, averaged_summary")
        noise("DROP TABLE averaged_last, averaged_last_info, averaged_last_summary")


def test_a_search_keeps_the_best_states_of_the_models_that_it_adds(noise: Lab) -> None:
    """Also of models that wait at a rung, or go on from it."""
    given = noise.value("SELECT model_arch FROM arch WHERE model_id = 1")
    space = {"architecture": given, "loss": "categorical_crossentropy", "metrics": ["accuracy"], "optimizer": "Adam",
             "learning_rate": {"log_uniform": [0.01, 0.1]}, "batch_size": 8, "passes": 2}  # fmt: skip
    run = noise.value(
        *verb("search", "train", "searched", space, epochs=4, method={"name": "asha", "reduction": 2},
              max_configurations=4, validation_table="val", objective="val_accuracy",
              options={"keep": "best", "seed": 3, "deterministic": True})
    )  # fmt: skip
    curves = values(noise, run, "accuracy")
    shown = noise("SELECT configuration, status, best_epoch, best_value, rung FROM leaderboard WHERE run = %s", run)
    assert {status for _, status, *_ in shown} == {"finished", "stopped"}
    info = dict(noise("SELECT configuration, (which, epoch)::text FROM searched_info"))
    for key, status, epoch, value, rung in shown:
        assert (epoch, value) == best_of(curves[key], -1)
        assert info[key] == f"(best,{epoch})" and rung in ((2,) if status == "finished" else (1, 2))
        assert measured(noise, "searched", key)["accuracy"] == pytest.approx(value, abs=1e-6)


def test_what_forget_leaves(noise: Lab, fitted: int) -> None:
    """Nothing. Runs last, since other tests need the run."""
    storage = noise.value("SELECT storage FROM run WHERE run = %s", fitted)
    tables = "SELECT relname FROM pg_class WHERE relname ~ %s AND relkind = 'r'"
    assert len(noise(tables, f"^{storage}_")) == 2
    noise("SELECT forget(%s)", fitted)
    assert noise(tables, f"^{storage}_") == []
    assert noise.value("SELECT count(*) FROM cerebro.objective WHERE run = %s", fitted) == 0
    assert "kept" in noise.tables()
