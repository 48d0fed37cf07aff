"""cerebro.evaluate: the figures that scikit-learn computes from the same predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg2
import pytest
from sklearn import metrics

from tests.sql.lab import CROSS, Lab, flower_model

FLATS = """
CREATE TABLE flats AS SELECT i AS id, (i * 37 % 91)::real AS size, (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] AS city,
  (i * 37 % 91) * 40 + CASE i % 3 WHEN 0 THEN 900 ELSE 200 END + (i * 7 % 10)::double precision AS rent,
  i * 37 % 91 + i * 7 % 40 > 60 AS sunny, (ARRAY['a', 'b', 'c'])[1 + (i * 37 % 91 + i % 30) / 45] AS grade
FROM generate_series(1, 400) i;
"""
FEW = {
    "configurations": json.dumps([{"architecture": "mlp", "units": 16, "layers": 1, "dropout": 0.0,
                                   "learning_rate": 0.01, "batch_size": 8}]),
    "epochs": 10, "segments": 1, "options": '{"seed": 1}', "inputs": "size, city",
}  # fmt: skip
ROWS = "SELECT * FROM flats WHERE id > 100"


@pytest.fixture(scope="module")
def flats(lab: Lab) -> Lab:
    lab(FLATS)
    for model, target in (("is_sunny", "sunny"), ("grades", "grade"), ("rents", "rent"), ("several", "grade, rent")):
        named = ", ".join(f"{name} => %s" for name in FEW)
        lab(f"SELECT cerebro.fit('flats', %s, target => %s, {named})", model, target, *FEW.values())
    lab.iris(segments=1)
    chosen = [(lab.architecture(flower_model()), f"optimizer='Adam(lr=0.05)', {CROSS}", "batch_size=8")]
    lab.fit("train", "irises", lab.selection("mst", chosen), 6, options={"seed": 1})
    return lab


def evaluated(lab: Lab, model: str, query: str = ROWS, *more: Any) -> dict[str, float]:
    values = ", ".join(["%s"] * (2 + len(more)))
    return dict(lab(f"SELECT * FROM cerebro.evaluate({values})", model, query, *more))


def probabilities(lab: Lab, model: str, query: str, target: str) -> tuple[list[str], list[str], np.ndarray]:
    """The actual classes, the names of all classes, and for each row their probabilities."""
    rows = lab(
        f"SELECT q.id, q.{target}::text, p.class, p.probability FROM ({query}) q"
        " JOIN cerebro.predict(%s, %s, 'id', top => 99) p ON p.key_value = q.id::text"
        f" WHERE p.target = '{target}' ORDER BY q.id, p.class",
        model, query,
    )  # fmt: skip
    names = sorted({row[2] for row in rows})
    actual = [row[1] for row in rows[:: len(names)]]
    return actual, names, np.array([row[3] for row in rows]).reshape(-1, len(names))


def expected(actual: Sequence[str], names: list[str], found: np.ndarray) -> dict[str, float]:
    said = [names[place] for place in found.argmax(axis=1)]
    two = len(names) == 2
    truth = np.array([[one == name for name in names] for one in actual])
    areas = [metrics.roc_auc_score(truth[:, place], found[:, place]) for place in range(len(names))]
    own = np.clip((truth * found).sum(axis=1), 1e-7, None)
    return {
        "accuracy": metrics.accuracy_score(actual, said),
        "log_loss": float(-np.log(own).mean()),
        "f1": metrics.f1_score(actual, said, **({"pos_label": names[1]} if two else {"average": "macro"})),
        "auc": areas[1] if two else float(np.mean(areas)),
        "balanced_accuracy": metrics.balanced_accuracy_score(actual, said),
        "ece": calibration_error(found.max(axis=1), np.array(said) == np.array(actual)),
        "rows": len(actual),
    }


def calibration_error(sure: np.ndarray, right: np.ndarray) -> float:
    """Ten bins of the probability of the predicted class."""
    places = np.minimum((sure * 10).astype(int), 9)
    bins = [places == place for place in set(places.tolist())]
    gaps = (abs(sure[one].mean() - right[one].mean()) * one.mean() for one in bins)
    return float(sum(gaps))


@pytest.mark.parametrize(
    ("model", "query", "target"),
    [("irises", "SELECT * FROM garden", "species"), ("is_sunny", ROWS, "sunny"), ("grades", ROWS, "grade")],
)
def test_classes(flats: Lab, model: str, query: str, target: str) -> None:
    actual, names, found = probabilities(flats, model, query, target)
    mine = evaluated(flats, model, query)
    assert list(mine) == ["accuracy", "log_loss", "f1", "auc", "balanced_accuracy", "ece", "rows"]
    assert mine == pytest.approx(expected(actual, names, found), rel=1e-9)
    assert mine["accuracy"] > 0.5 and mine["rows"] == len(actual)
    whole = found / found.sum(axis=1, keepdims=True)
    assert mine["log_loss"] == pytest.approx(metrics.log_loss(actual, whole, labels=names), rel=1e-4)
    if len(names) > 2:
        assert mine["auc"] == pytest.approx(
            metrics.roc_auc_score(actual, whole, multi_class="ovr", labels=names), rel=1e-4
        )


def test_numbers(flats: Lab) -> None:
    rows = flats("SELECT actual, predicted FROM cerebro.residuals('rents', %s)", ROWS)
    actual, said = np.array(rows).T
    assert evaluated(flats, "rents") == pytest.approx(
        {
            "rmse": np.sqrt(metrics.mean_squared_error(actual, said)),
            "mse": metrics.mean_squared_error(actual, said),
            "mae": metrics.mean_absolute_error(actual, said),
            "mape": metrics.mean_absolute_percentage_error(actual, said),
            "r2": metrics.r2_score(actual, said),
            "rows": 300,
        },
        rel=1e-9,
    )


def test_one_of_several_targets(flats: Lab) -> None:
    actual, names, found = probabilities(flats, "several", ROWS, "grade")
    assert evaluated(flats, "several", ROWS, "grade") == pytest.approx(expected(actual, names, found), rel=1e-9)
    numbers = evaluated(flats, "several", ROWS, "rent")
    squares = flats.value("SELECT avg(residual ^ 2) FROM cerebro.residuals('several', %s, target => 'rent')", ROWS)
    assert numbers["mse"] == pytest.approx(squares) and numbers["rows"] == 300


def test_rows_without_a_target_are_left_out(flats: Lab) -> None:
    """With NULL for some rows, the figures are those of the other rows."""
    for model, target in (("is_sunny", "sunny"), ("rents", "rent")):
        some = f"SELECT id, size, city, CASE WHEN id % 3 > 0 THEN {target} END AS {target} FROM flats"
        others = f"SELECT id, size, city, {target} FROM flats WHERE id % 3 > 0"
        assert evaluated(flats, model, some) == pytest.approx(evaluated(flats, model, others))
        none = f"SELECT id, size, city, NULL AS {target} FROM flats"
        assert {name: value for name, value in evaluated(flats, model, none).items() if value is not None} == {
            "rows": 0
        }


def test_null_is_a_class_if_training_had_it(flats: Lab) -> None:
    flats("CREATE TABLE half AS SELECT id, ARRAY[sl, sw, pl, pw] AS x, CASE WHEN species <> 'setosa' THEN species END"
          " AS species FROM flowers")  # fmt: skip
    flats("SELECT cerebro._madlib_training_preprocessor_dl('half', 'half_packed', 'species', 'x', 8, 1, NULL, NULL)")
    chosen = [(flats.architecture(flower_model()), f"optimizer='Adam(lr=0.05)', {CROSS}", "batch_size=8")]
    flats.fit("half_packed", "halves", flats.selection("mst_half", chosen), 4)
    found = evaluated(flats, "halves", "SELECT * FROM half")
    hits = flats.value("SELECT sum(count) FROM cerebro.confusion_matrix('halves', 'SELECT * FROM half')"
                       " WHERE actual IS NOT DISTINCT FROM predicted")  # fmt: skip
    assert found["rows"] == 120 and found["accuracy"] == pytest.approx(float(hits) / 120)


def test_classes_that_training_did_not_have(flats: Lab) -> None:
    """They are predicted wrongly, with the probability 0."""
    half = "SELECT id, size, city, CASE WHEN id % 2 = 0 THEN 'new' ELSE grade END AS grade FROM flats"
    rest = "SELECT id, size, city, grade FROM flats WHERE id % 2 = 1"
    found, known = evaluated(flats, "grades", half), evaluated(flats, "grades", rest)
    assert found["rows"] == 400 and found["accuracy"] == pytest.approx(known["accuracy"] / 2)
    assert found["log_loss"] == pytest.approx((known["log_loss"] - np.log(1e-7)) / 2)
    said = dict(flats("SELECT key_value::int, class FROM cerebro.predict('grades', %s)", half))
    actual = dict(flats(f"SELECT id, grade FROM ({half}) h"))
    keys = sorted(said)
    wanted = metrics.f1_score([actual[key] for key in keys], [said[key] for key in keys], average="macro")
    assert found["f1"] == pytest.approx(wanted)


def test_one_class_has_no_auc(flats: Lab) -> None:
    found = evaluated(flats, "is_sunny", "SELECT * FROM flats WHERE sunny")
    assert found["auc"] is None and found["log_loss"] > 0 and 0 < found["accuracy"] < 1.0 + 1e-9


def test_a_constant_target_has_no_r2(flats: Lab) -> None:
    found = evaluated(flats, "rents", "SELECT id, size, city, 0 AS rent FROM flats")
    assert found["r2"] is None and found["mape"] is None and found["mae"] > 0


def test_the_configuration_is_chosen_as_in_predict(flats: Lab) -> None:
    found, expected = (evaluated(flats, "irises", "SELECT * FROM garden", *given) for given in ((None, 1), ()))
    # On Greenplum the segments add in no order.
    assert found == (pytest.approx(expected) if flats.greenplum else expected)


def test_a_table_is_as_good_as_a_query(flats: Lab) -> None:
    assert evaluated(flats, "is_sunny", "flats") == evaluated(flats, "is_sunny", "SELECT * FROM flats")
    flats('CREATE TABLE "of flats; --" AS SELECT * FROM flats WHERE id < 50')
    name = f'{flats.schema}."of flats; --"'
    assert evaluated(flats, "is_sunny", name) == evaluated(flats, "is_sunny", "SELECT * FROM flats WHERE id < 50")
    by_name = flats("SELECT * FROM cerebro.predict('grades', 'flats', 'id') ORDER BY 1")
    assert by_name == flats("SELECT * FROM cerebro.predict('grades', 'TABLE flats', 'id') ORDER BY 1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'several', 'TABLE flats'", "target must be one of the targets of the model"),
        ("'rents', ''", "query must not be empty"),
        ("'rents', 'nowhere'", "there is no table 'nowhere'"),
        ("'rents', 'SELECT id, size, city FROM flats'", "the query does not have the target 'rent'"),
        ("'flats', 'TABLE flats'", "is not a table of trained models"),
        ("'rents', 'TABLE flats', configuration => 9", "'rents' has no configuration 9"),
        ("NULL, 'TABLE flats'", "model_table must not be NULL or empty"),
    ],
)
def test_errors_say_what_is_wrong(flats: Lab, arguments: str, says: str) -> None:
    with pytest.raises(psycopg2.Error) as error:
        flats(f"SELECT * FROM cerebro.evaluate({arguments})")
    assert says in str(error.value) and error.value.diag.message_hint


def test_windows_have_the_target_of_their_last_row(flats: Lab) -> None:
    flats(
        "CREATE TABLE steps AS SELECT who, at, (sin(at * CASE WHEN (at / 20 + who) % 2 = 0 THEN 2.0 ELSE 0.3 END))"
        "::real AS x, CASE WHEN (at / 20 + who) % 2 = 0 THEN 'walk' ELSE 'stand' END AS posture"
        " FROM generate_series(1, 24) who, generate_series(0, 39) at"
    )
    given = {**FEW, "inputs": "x", "sequence": '{"by": "who", "order": "at", "length": 8, "step": 4}', "epochs": 2}
    named = ", ".join(f"{name} => %s" for name in given)
    flats(f"SELECT cerebro.fit('steps', 'postures', target => 'posture', {named})", *given.values())
    found = evaluated(flats, "postures", "SELECT * FROM steps")
    hits, rows = flats(
        "SELECT count(*) FILTER (WHERE p.class = s.posture), count(*) FROM steps s"
        " JOIN cerebro.predict('postures', 'SELECT * FROM steps') p ON p.key_value = concat_ws(', ', s.who, s.at)"
    )[0]
    assert found["rows"] == rows == 24 * 9 and found["accuracy"] == pytest.approx(hits / rows)
