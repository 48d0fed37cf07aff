"""How good a model is, as plain rows: the same numbers as scikit-learn finds in the predictions."""

from __future__ import annotations

import json

import numpy as np
import psycopg2
import pytest
from psycopg2 import errors
from sklearn import metrics

from tests.sql.lab import Lab

ROWS = "SELECT * FROM flats WHERE id > 100"


@pytest.fixture(scope="module")
def judged(lab: Lab) -> Lab:
    """Two models that learn something: ``kinds`` a class, ``rents`` a number."""
    lab(
        "CREATE TABLE flats AS SELECT i AS id, (i * 37 % 91)::real AS size, (i * 17 % 53)::real AS noise,"
        " (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] AS city,"
        " (i * 37 % 91) * 40 + CASE i % 3 WHEN 0 THEN 900 ELSE 200 END + (i * 7 % 10)::double precision AS rent,"
        " i * 37 % 91 + i * 7 % 40 > 60 AS kind,"
        " CASE WHEN i % 3 = 0 THEN 'a' WHEN i % 2 = 0 THEN 'b' ELSE 'c' END AS more"
        " FROM generate_series(1, 500) i"
    )
    few = {"epochs": 12, "configurations": 1, "method": "random", "options": '{"seed": 1}'}
    few["architectures"] = json.dumps({"mlp": {"units": 16, "layers": 1, "dropout": 0.0}})
    few["space"] = '{"compile": {"learning_rate": 0.01}, "fit": {"batch_size": {"choice": [8]}}}'
    for model, target, inputs in (
        ("kinds", "kind", "size, noise, city"),
        ("rents", "rent", "size, noise, city"),
        ("many", "more", "size, noise, city"),
    ):
        named = ", ".join(f"{name} => %s" for name in few)
        lab(f"SELECT cerebro.train('flats', %s, %s, inputs => %s, {named})", model, target, inputs, *few.values())
    return lab


def probabilities(lab: Lab, model: str, label: str, actual: str) -> np.ndarray:
    return np.array(
        lab(
            f"SELECT (f.{actual}::text = %s)::int, p.probability FROM flats f"
            " JOIN cerebro.predict(%s, %s, 'id', top => 9) p ON p.key_value = f.id::text WHERE p.class = %s",
            label, model, ROWS, label,
        )
    )  # fmt: skip


def test_the_confusion_matrix_counts_every_row(judged: Lab) -> None:
    found = judged("SELECT actual, predicted, count, share FROM cerebro.confusion_matrix('many', %s)", ROWS)
    pairs = judged(
        "SELECT f.more, p.class FROM flats f JOIN cerebro.predict('many', %s, 'id') p ON p.key_value = f.id::text", ROWS
    )
    labels = ["a", "b", "c"]
    wanted = metrics.confusion_matrix(*zip(*pairs), labels=labels)
    got = np.zeros((3, 3), int)
    for actual, predicted, count, share in found:
        got[labels.index(actual), labels.index(predicted)] = count
        assert share == pytest.approx(count / wanted[labels.index(actual)].sum())
    assert got.tolist() == wanted.tolist() and got.sum() == 400


@pytest.mark.parametrize(("model", "label", "actual"), [("kinds", "true", "kind"), ("many", "b", "more")])
def test_curves_are_those_of_scikit_learn(judged: Lab, model: str, label: str, actual: str) -> None:
    pairs = probabilities(judged, model, label, actual)
    curve = judged(
        "SELECT threshold, true_positive_rate, false_positive_rate FROM cerebro.roc_curve(%s, %s, %s)",
        model, ROWS, label,
    )  # fmt: skip
    wanted = metrics.roc_curve(*pairs.T, drop_intermediate=False)
    np.testing.assert_allclose(np.array(curve)[:, [2, 1, 0]].T, [one[1:] for one in wanted], atol=1e-9)
    found = judged(
        "SELECT threshold, precision, recall, f1 FROM cerebro.precision_recall(%s, %s, %s)", model, ROWS, label
    )
    precision, recall, thresholds = metrics.precision_recall_curve(*pairs.T)
    for threshold, *mine, f1 in found:
        place = thresholds.tolist().index(threshold)
        assert mine == pytest.approx([precision[place], recall[place]])
        assert f1 == pytest.approx(metrics.f1_score(pairs[:, 0], pairs[:, 1] >= threshold))
    bins = judged("SELECT bin, predicted, actual, count FROM cerebro.calibration(%s, %s, %s, 4)", model, ROWS, label)
    assert sum(count for *_, count in bins) == 400
    for place, predicted, share, count in bins:
        chosen = pairs[np.minimum((pairs[:, 1] * 4).astype(int), 3) == place - 1]
        assert len(chosen) == count and [predicted, share] == pytest.approx(chosen.mean(0)[::-1].tolist())


def test_the_second_of_two_classes_is_the_default(judged: Lab) -> None:
    own, default = (judged(f"SELECT * FROM cerebro.roc_curve('kinds', %s{more})", ROWS) for more in (", 'true'", ""))
    assert own == default and len(own) > 100


def test_residuals(judged: Lab) -> None:
    found = judged("SELECT key_value::int, actual, predicted, residual FROM cerebro.residuals('rents', %s, 'id')", ROWS)
    wanted = judged(
        "SELECT f.id, f.rent, p.value, f.rent - p.value FROM flats f JOIN cerebro.predict('rents', %s, 'id') p"
        " ON p.key_value = f.id::text", ROWS,
    )  # fmt: skip
    assert sorted(found) == sorted(wanted) and len(found) == 400
    assert judged.value("SELECT count(DISTINCT key_value) FROM cerebro.residuals('rents', %s)", ROWS) == 400


@pytest.mark.parametrize(("model", "first"), [("rents", "size"), ("kinds", "size"), ("many", "city")])
def test_what_the_target_is_made_of_is_important(judged: Lab, model: str, first: str) -> None:
    found = judged("SELECT column_name, importance, loss, loss_before FROM cerebro.importance(%s, %s)", model, ROWS)
    assert [name for name, *_ in found][0] == first and {name for name, *_ in found} == {"size", "noise", "city"}
    (before,) = {row[3] for row in found}
    assert all(loss - before == pytest.approx(growth, rel=1e-9) for _, growth, loss, _ in found)
    assert found[0][1] > 0.1 * before
    if model == "rents":
        squares = judged.value("SELECT avg(residual ^ 2) FROM cerebro.residuals('rents', %s)", ROWS)
    else:
        label = "f.kind::text" if model == "kinds" else "f.more"
        squares = judged.value(
            "SELECT avg(-ln(greatest(p.probability, 1e-7))) FROM flats f"
            " JOIN cerebro.predict(%s, %s, 'id', top => 9) p ON p.key_value = f.id::text"
            f" AND p.class = {label}", model, ROWS,
        )  # fmt: skip
    assert before == pytest.approx(squares, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("confusion_matrix('rents', 'TABLE flats')", "the target 'rent' is a number"),
        ("residuals('kinds', 'TABLE flats')", "the target 'kind' is a class"),
        ("roc_curve('many', 'TABLE flats')", "class must be given: 'more' has 3 classes"),
        ("roc_curve('many', 'TABLE flats', 'd')", "'more' has no class 'd'"),
        (
            "calibration('kinds', 'SELECT id, size, noise, city FROM flats')",
            "the query does not have the target 'kind'",
        ),
        ("calibration('kinds', 'TABLE flats', bins => 0)", "bins must be at least 1"),
        ("precision_recall('kinds', '')", "query must not be empty"),
        ("residuals('rents', 'TABLE flats', 'nobody')", "key must be one column of the query"),
        ("residuals('rents', 'TABLE flats', target => 'size')", "target must be one of the targets"),
        ("importance('rents', 'TABLE flats', repeats => 0)", "repeats cannot be 0"),
    ],
)
def test_what_cannot_be_judged_is_refused(judged: Lab, call: str, says: str) -> None:
    with pytest.raises(psycopg2.Error) as error:
        judged(f"SELECT * FROM cerebro.{call}".replace("%", "%%"))
    assert says in str(error.value) and error.value.diag.message_hint


def test_auc_f1_and_r2_are_metrics_by_name(judged: Lab) -> None:
    few = "epochs => 1, configurations => 1, architectures => '[\"mlp\"]'"
    for target, objective in (("kind", "val_auc"), ("kind", "val_f1_score"), ("rent", "val_r2_score")):
        model = objective.removeprefix("val_") + "_found"
        run = judged.value(f"SELECT cerebro.train('flats', %s, %s, objective => %s, {few})", model, target, objective)
        found = judged("SELECT objective, objective_value FROM leaderboard WHERE run = %s", run)
        assert found[0][0] == objective and found[0][1] is not None


def test_rows_without_a_known_target(judged: Lab) -> None:
    """They are left out of curves, have no residual, and importance says what is wrong with them."""
    unknown = "SELECT id, size, noise, city, CASE WHEN id > 110 THEN {0} END AS {0} FROM flats WHERE id > 100"
    known = "SELECT * FROM flats WHERE id > 110"
    for function in ("roc_curve", "precision_recall", "calibration"):
        own, other = (
            judged(f"SELECT * FROM cerebro.{function}('kinds', %s)", query) for query in (unknown.format("kind"), known)
        )
        assert own == other
    counted = judged(
        "SELECT actual, sum(count) FROM cerebro.confusion_matrix('kinds', %s) GROUP BY 1", unknown.format("kind")
    )
    assert dict(counted)[None] == 10
    found = judged("SELECT count(*), count(residual) FROM cerebro.residuals('rents', %s)", unknown.format("rent"))
    assert found == [(400, 390)]
    for model, query, says in (
        ("rents", unknown.format("rent"), "the target 'rent' is NULL, NaN or infinite in 10 of 400 rows"),
        ("rents", "SELECT id, size, noise, city, 'NaN'::float8 AS rent FROM flats", "NaN or infinite in 500 of 500"),
        ("kinds", unknown.format("kind"), "the target 'kind' is NULL in 10 of 400 rows"),
        ("kinds", "SELECT * FROM flats WHERE false", "no row with a value of the target 'kind'"),
        ("rents", "SELECT * FROM flats WHERE false", "no row with a value of the target 'rent'"),
        ("many", "SELECT id, size, noise, city, 'new' AS more FROM flats", "no row with a value of the target 'more'"),
    ):
        with pytest.raises(errors.DataException) as error:
            judged("SELECT * FROM cerebro.importance(%s, %s)", model, query)
        assert says in str(error.value) and error.value.diag.message_hint


def test_a_key_that_is_null_is_named(judged: Lab) -> None:
    """Though another column of the row has a value that cannot be, too."""
    rows = "SELECT NULLIF(id, 1) AS id, CASE WHEN id = 1 THEN 'NaN' ELSE size END AS size, noise, city FROM flats"
    with pytest.raises(errors.DataException, match="1 rows have a NULL in the key"):
        judged("SELECT * FROM cerebro.predict('rents', %s, 'id')", rows)
