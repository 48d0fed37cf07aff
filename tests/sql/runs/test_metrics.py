"""Metrics over several segments and parts: in all places that show them, those of Keras on all rows at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import psycopg2
import pytest

from tests.nn import configurations as c
from tests.sql.lab import Lab, layer, sequential
from tests.thorough import landing

ROWS, SEGMENTS = 400, 4
METRICS = ["Recall(class_id=1)", "AUC", "f1_score", "accuracy"]
NAMES = ["recall", "auc", "f1_score", "accuracy"]
# With a rate of 0 a model stays as it is: what it does while training is what it does afterwards.
COMPILED = f"optimizer='SGD(lr=0.0)', loss='categorical_crossentropy', metrics={METRICS}"


@pytest.fixture(scope="module")
def rare(lab: Lab) -> Lab:
    """400 rows, 3 of them positive; the validation table has the positives in one part."""
    random = np.random.default_rng(1)
    facts = random.normal(size=(ROWS, 2))
    rows = [(n, *map(float, facts[n]), "rare" if n in (5, 9, 11) else "usual") for n in range(ROWS)]
    lab.table("seen", {"id": "int", "a": "real", "b": "real", "label": "text"}, rows)
    lab.pack("seen", "packed", "label", "a, b", segments=SEGMENTS, seed=1)
    lab.pack("seen", "checked", "label", "a, b", packed_table="packed")
    out = layer("Dense", "out", units=2, activation="softmax")
    models = [lab.architecture(sequential([2], out)) for _ in range(2)]
    lab.selection("mst", [(model, COMPILED, "batch_size=16, epochs=1") for model in models])
    return lab


@pytest.fixture(scope="module")
def fitted(rare: Lab) -> int:
    return rare.fit("packed", "models", "mst", 2, validation_table="checked", metrics_compute_frequency=1)


def by_keras(lab: Lab, key: int, models: str = "models") -> dict[str, Any]:
    """Keras' metrics of a model's predictions for all rows."""
    lab("DROP TABLE IF EXISTS predicted")
    lab(f"SELECT madlib_keras_predict('{models}', 'seen', 'id', 'a, b', 'predicted', 'prob', mst_key => %s)", key)
    found = lab(
        "SELECT s.label, max(prob) FILTER (WHERE class_value = 'rare'), max(prob) FILTER (WHERE class_value = 'usual')"
        " FROM predicted JOIN seen s USING (id) GROUP BY s.id, s.label"
    )
    labels = lab.value("SELECT label_labels FROM packed_summary")
    assert labels == ["rare", "usual"]
    y = np.array([[label == "rare", label == "usual"] for label, _, _ in found], "float32")
    p = np.array([[rare, usual] for _, rare, usual in found], "float32")
    values = {}
    for name, metric in zip(
        NAMES,
        (
            keras.metrics.Recall(class_id=1),
            keras.metrics.AUC(),
            keras.metrics.F1Score(),
            keras.metrics.CategoricalAccuracy(),
        ),
    ):
        metric.update_state(y, p)
        values[name] = np.asarray(metric.result()).tolist()
    return values


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-6)


def test_the_views_and_tables_show_the_metrics_of_the_whole(rare: Lab, fitted: int) -> None:
    wrong = 0
    for key in (1, 2):
        expected = by_keras(rare, key)
        first = expected["recall"]
        for view in ("leaderboard", "learning_curve"):
            for shown in rare(
                f"SELECT metric_name, training_metric, validation_metric FROM {view} WHERE run = %s AND configuration"
                " = %s",
                fitted, key,
            ):  # fmt: skip
                assert shown == ("recall", close(first), close(first))
        assert rare(
            f"SELECT training_metrics, validation_metrics, metrics_type FROM models_info WHERE mst_key = {key}"
        ) == [([close(first)] * 2, [close(first)] * 2, ["Recall(class_id=1)", "auc", "f1_score", "accuracy"])]
        rare("DROP TABLE IF EXISTS measured")
        rare("SELECT madlib_keras_evaluate('models', 'checked', 'measured', NULL, %s)", key)
        assert rare("SELECT metric, metrics_type FROM measured") == [
            (close(first), ["Recall(class_id=1)", "auc", "f1_score", "accuracy"])
        ]
        # What policies see.
        for table in ("hop", "evaluation"):
            told = rare(f"SELECT metrics FROM {table} WHERE run = %s AND model = %s AND epoch = 2", fitted, key)
            assert (
                sum(metrics == {name: close(expected[name]) for name in NAMES} for (metrics,) in told if metrics) >= 1
            )
        parts = rare("SELECT metrics FROM evaluation WHERE run = %s AND model = %s AND epoch = 2", fitted, key)
        assert sum(metrics != {} for (metrics,) in parts) == 1 and len(parts) > 1
        wrong += first not in (0.0, 0.5)
    assert wrong


def test_the_view_of_all_metrics(rare: Lab, fitted: int) -> None:
    shown = rare(
        "SELECT dataset, metric, value FROM metrics WHERE run = %s AND configuration = 1 AND epoch = 2 ORDER BY 1, 2",
        fitted,
    )
    expected = by_keras(rare, 1)
    mean, (of_rare, of_usual) = sum(expected["f1_score"]) / 2, expected["f1_score"]
    loss = dict(rare("SELECT 'training', training_loss FROM learning_curve"
                      " WHERE run = %s AND configuration = 1 AND epoch = 2"
                     " UNION SELECT 'validation', validation_loss FROM leaderboard WHERE run = %s AND configuration ="
                     " 1",
                     fitted, fitted))  # fmt: skip
    assert shown == [
        (dataset, name, close(value))
        for dataset in ("training", "validation")
        for name, value in sorted({
            "accuracy": expected["accuracy"], "auc": expected["auc"], "f1_score": mean, "f1_score[rare]": of_rare,
            "f1_score[usual]": of_usual, "loss": loss[dataset], "recall": expected["recall"],
        }.items())
    ]  # fmt: skip
    assert rare.value("SELECT count(DISTINCT (model, epoch)) FROM metrics WHERE run = %s", fitted) == 4


@contextlib.contextmanager
def broken(lab: Lab, table: str, when: str) -> Iterator[None]:
    """Within it, the log takes no row of this table that fulfils a condition: the run fails there."""
    lab("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$")
    lab(f"CREATE TRIGGER refuse BEFORE INSERT ON cerebro.{table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        lab(f"DROP TRIGGER refuse ON cerebro.{table}; DROP FUNCTION refuse()")


def test_a_run_that_is_resumed_in_mid_epoch(rare: Lab) -> None:
    """What the metrics had counted is in the log: as if the run had not been interrupted."""
    with broken(rare, "hop", "new.hop = 3"), pytest.raises(psycopg2.Error, match="not now"):
        rare.fit("packed", "resumed", "mst", 1, validation_table="checked")
    run = rare.value("SELECT max(run) FROM runs")
    assert {hop for (hop,) in rare("SELECT max(hop) FROM hop WHERE run = %s GROUP BY model", run)} & {1, 2}
    with broken(rare, "evaluation", "new.part = 1"), pytest.raises(psycopg2.Error, match="not now"):
        rare("SELECT resume(%s)", run)
    rare("SELECT resume(%s)", run)
    for key in (1, 2):
        expected = by_keras(rare, key, "resumed")
        shown = rare(
            "SELECT dataset, metric, value FROM metrics WHERE run = %s AND configuration = %s"
            " AND metric <> 'loss' AND metric !~ 'f1' ORDER BY 1, 2", run, key,
        )  # fmt: skip
        assert shown == [
            (dataset, name, close(expected[name]))
            for dataset in ("training", "validation")
            for name in ("accuracy", "auc", "recall")
        ]


# tests/nn/test_metric_states.py has states that do not suit a model.
@pytest.mark.parametrize(
    "text", landing(["x", '{"means": {}}', '{"means": {"loss": [1]}, "others": "QUJD"}'], "x", '{"means": {}}')
)
def test_states_that_were_changed_by_hand(rare: Lab, text: str) -> None:
    """The error says so, and names no innocent."""
    with broken(rare, "hop", "new.hop = 3"), pytest.raises(psycopg2.Error, match="not now"):
        rare.fit("packed", "changed", "mst", 1)
    run = rare.value("SELECT max(run) FROM runs")
    rare("UPDATE hop SET metric_states = %s WHERE run = %s", text, run)
    with pytest.raises(psycopg2.Error, match="metric states"):
        rare("SELECT resume(%s)", run)


def test_several_outputs(rare: Lab) -> None:
    columns = c.made_up(120, 1)
    rows = [
        (n, columns["facts"][n].tolist(), columns["words"][n].tolist(), float(columns["price"][n]),
         int(columns["mood"][n].argmax())) for n in range(120)
    ]  # fmt: skip
    kinds = {"id": "int", "facts": "real[]", "words": "int[]", "price": "real", "mood": "int"}
    rare.table("pairs", kinds, rows)
    rare.pack("pairs", "pairs_packed", "price, mood", "facts, words", segments=2, seed=1)
    model = rare.architecture(c.two_by_two())
    rare.selection("pairs_mst", [(
        model, "optimizer='SGD(lr=0.0)', loss=['mse', 'categorical_crossentropy'],"
        " metrics=[['R2Score'], ['f1_score', \"AUC(curve='PR')\"]]", "batch_size=16, epochs=1",
    )])  # fmt: skip
    run = rare.fit("pairs_packed", "pairs_models", "pairs_mst", 1)
    assert rare("SELECT metrics_type, loss_type FROM pairs_models_info") == [
        (["price: r2_score", "mood: f1_score", "mood: AUC(curve='PR')"], "price: mse, mood: categorical_crossentropy")
    ]
    names = [name for (name,) in rare("SELECT metric FROM metrics WHERE run = %s ORDER BY 1", run)]
    assert names == [
        "loss", "mood_auc", "mood_f1_score", "mood_f1_score[0]", "mood_f1_score[1]", "mood_f1_score[2]", "mood_loss",
        "price_loss", "price_r2_score",
    ]  # fmt: skip
    assert rare("SELECT metric_name FROM leaderboard WHERE run = %s", run) == [("price_r2_score",)]
    of_price, of_mood, whole = (
        rare.value("SELECT value FROM metrics WHERE run = %s AND metric = %s", run, name)
        for name in ("price_loss", "mood_loss", "loss")
    )
    assert of_price + of_mood == pytest.approx(whole, rel=1e-5)
    rare("SELECT madlib_keras_evaluate('pairs_models', 'pairs_packed', 'pairs_measured', NULL, 1)")
    (measured,) = rare("SELECT metric, metrics_type, loss_type FROM pairs_measured")
    r2 = rare.value("SELECT value FROM metrics WHERE run = %s AND metric = 'price_r2_score'", run)
    assert measured == (
        close(r2), ["price: r2_score", "mood: f1_score", "mood: AUC(curve='PR')"],
        "price: mse, mood: categorical_crossentropy",
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",  # tests/nn/test_metric_states.py has fused models
    landing([{"read_ahead": True}, {"engine": "jax", "fuse": True}], {"read_ahead": True}),
    ids=["ahead", "fused"],
)
def test_however_models_are_trained(rare: Lab, options: dict[str, Any]) -> None:
    run = rare.fit("packed", "other_models", "mst", 1, validation_table="checked", options=options)
    for key in (1, 2):
        expected = by_keras(rare, key, "other_models")
        shown = rare(
            "SELECT dataset, metric, value FROM metrics WHERE run = %s AND configuration = %s"
            " AND metric IN ('recall', 'auc') ORDER BY 1, 2", run, key,
        )  # fmt: skip
        assert shown == [
            (dataset, name, close(expected[name]))
            for dataset in ("training", "validation")
            for name in ("auc", "recall")
        ]
    rare("DROP TABLE other_models, other_models_info, other_models_summary")
