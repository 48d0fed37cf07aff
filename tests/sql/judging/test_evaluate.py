"""cerebro.evaluate: the figures that scikit-learn computes from the same predictions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg2
import pytest
from sklearn import metrics
from sklearn.dummy import DummyClassifier

from tests.sql.lab import CROSS, Lab, flower_model, rounded

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
    return dict(lab(f"SELECT metric, value FROM cerebro.evaluate({values})", model, query, *more))


def baselines(lab: Lab, model: str, query: str) -> dict[str, float | None]:
    return dict(lab("SELECT metric, baseline FROM cerebro.evaluate(%s, %s)", model, query))


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
    flats(
        "SELECT cerebro_internal._madlib_training_preprocessor_dl('half', 'half_packed', 'species', 'x', 8, 1,"
        " NULL, NULL)"
    )
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
    of_query = evaluated(flats, "is_sunny", "SELECT * FROM flats")
    assert rounded(evaluated(flats, "is_sunny", "flats")) == rounded(of_query)
    flats('CREATE TABLE "of flats; --" AS SELECT * FROM flats WHERE id < 50')
    name = f'{flats.schema}."of flats; --"'
    of_query = evaluated(flats, "is_sunny", "SELECT * FROM flats WHERE id < 50")
    assert rounded(evaluated(flats, "is_sunny", name)) == rounded(of_query)
    by_name = flats("SELECT * FROM cerebro.predict('grades', 'flats', 'id') ORDER BY 1")
    assert by_name == flats("SELECT * FROM cerebro.predict('grades', 'TABLE flats', 'id') ORDER BY 1")


@pytest.mark.parametrize(("model", "target"), [("is_sunny", "sunny"), ("grades", "grade")])
def test_beside_a_class_is_the_most_frequent_one(flats: Lab, model: str, target: str) -> None:
    query = "SELECT * FROM flats WHERE id BETWEEN 100 AND 170"
    actual = [row[0] for row in flats(f"SELECT {target}::text FROM ({query}) q")]
    names = sorted(set(actual))
    frequent = DummyClassifier(strategy="prior").fit(actual, actual)
    said, prior = frequent.predict(actual), frequent.predict_proba(actual)
    two = {"pos_label": names[1]} if len(names) == 2 else {"average": "macro"}
    assert baselines(flats, model, query) == {
        "accuracy": pytest.approx(metrics.accuracy_score(actual, said)),
        "log_loss": pytest.approx(metrics.log_loss(actual, prior, labels=names)),
        "f1": pytest.approx(metrics.f1_score(actual, said, **two, zero_division=0)),
        "auc": 0.5,
        "balanced_accuracy": pytest.approx(metrics.balanced_accuracy_score(actual, said)),
        "ece": None,
        "rows": None,
    }


@pytest.mark.parametrize("sunny", [True, False])
def test_the_f1_of_two_classes_is_that_of_the_second_one(flats: Lab, sunny: bool) -> None:
    """Nobody finds a row of it who always says the other one."""
    query = f"SELECT * FROM flats WHERE sunny = {sunny} OR id < 40"
    actual = [row[0] for row in flats(f"SELECT sunny FROM ({query}) q")]
    assert 0 < sum(actual) < len(actual) and (sum(actual) > len(actual) / 2) is sunny
    found = baselines(flats, "is_sunny", query)["f1"]
    assert found == (pytest.approx(metrics.f1_score(actual, [True] * len(actual))) if sunny else 0)


def test_beside_a_number_is_the_mean(flats: Lab) -> None:
    actual = np.array([row[0] for row in flats(f"SELECT rent FROM ({ROWS}) q")])
    said = np.full(len(actual), actual.mean())
    assert baselines(flats, "rents", ROWS) == {
        "rmse": pytest.approx(np.sqrt(metrics.mean_squared_error(actual, said))),
        "mse": pytest.approx(metrics.mean_squared_error(actual, said)),
        "mae": pytest.approx(metrics.mean_absolute_error(actual, said)),
        "mape": pytest.approx(metrics.mean_absolute_percentage_error(actual, said)),
        "r2": 0,
        "rows": None,
    }


def test_rows_without_a_target_have_no_baseline(flats: Lab) -> None:
    none = "SELECT id, size, city, NULL AS {} FROM flats"
    for model, target in (("is_sunny", "sunny"), ("rents", "rent")):
        assert set(baselines(flats, model, none.format(target)).values()) == {None}


@pytest.fixture(scope="module")
def validated(flats: Lab) -> Lab:
    """Models whose rows for validation are a table, so that a query can return them, too."""
    flats("CREATE TABLE others AS SELECT * FROM flats WHERE id % 3 = 0")
    given = {**FEW, "validation_table": "others"}
    named = ", ".join(f"{name} => %s" for name in given)
    for target in ("sunny", "grade", "rent", "grade, rent"):
        model = f"{target.replace(', ', '_')}_valid"
        flats(f"SELECT cerebro.fit('flats', %s, target => %s, {named})", model, target, *given.values())
        flats("SELECT FROM cerebro.calibrate(%s)", model)
    return flats


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("sunny_valid", ""),
        ("grade_valid", ""),
        ("rent_valid", ""),
        ("grade_rent_valid", ", target => 'grade'"),
        ("grade_rent_valid", ", target => 'rent', coverage => 0.7"),
        ("sunny_valid", ", calibrated => true"),
        ("grade_valid", ", thresholds => true"),
        ("rent_valid", ", coverage => 0.9"),
    ],
)
def test_without_rows_those_for_validation_are_taken(validated: Lab, model: str, more: str) -> None:
    asked = "SELECT metric, value, baseline FROM cerebro.evaluate('{}'{}{})"
    without, by_query = (validated(asked.format(model, rows, more)) for rows in ("", ", 'others'"))
    assert [row[0] for row in without] == [row[0] for row in by_query] and dict(
        (metric, value) for metric, value, _ in without
    )["rows"] == 133
    for (_, *mine), (_, *wanted) in zip(without, by_query):
        assert mine == [None if one is None else pytest.approx(one, rel=1e-5, abs=1e-6) for one in wanted]


def test_importance_takes_the_same_rows(validated: Lab) -> None:
    table = validated.value("SELECT validation_table FROM rent_valid_summary")
    of_table = validated("SELECT * FROM cerebro.importance('rent_valid', %s, repeats => 2)", table)
    assert validated("SELECT * FROM cerebro.importance('rent_valid', repeats => 2)") == of_table
    found = {name: value for name, value, *_ in of_table}
    assert len(found) == 2 and max(found.values()) > 0
    ((mse,),) = validated("SELECT value FROM cerebro.evaluate('rent_valid') WHERE metric = 'mse'")
    assert of_table[0][3] == pytest.approx(mse, rel=1e-4)


def test_it_says_which_rows_it_takes_if_asked(validated: Lab) -> None:
    validated("SET cerebro.details = on")
    try:
        validated("SELECT FROM cerebro.evaluate('rent_valid')")
        assert any("evaluated on the 133 rows for validation in" in line for line in validated.told())
    finally:
        validated("RESET cerebro.details")


def test_of_many_rows_a_sample_is_taken(validated: Lab) -> None:
    validated("CREATE TABLE many AS SELECT f.* FROM flats f, generate_series(1, 130)")
    given = {**FEW, "validation_table": "many", "epochs": 1}
    named = ", ".join(f"{name} => %s" for name in given)
    validated(f"SELECT cerebro.fit('flats', 'of_many', target => 'rent', {named})", *given.values())
    found = dict(validated("SELECT metric, value FROM cerebro.evaluate('of_many')"))
    assert found["rows"] == 50_000
    assert found["rmse"] == pytest.approx(evaluated(validated, "of_many", "many")["rmse"], rel=0.05)
    assert validated("SELECT * FROM cerebro.evaluate('of_many')") == validated(
        "SELECT * FROM cerebro.evaluate('of_many')"
    )


def test_the_last_notice_of_a_training_says_the_same(validated: Lab) -> None:
    if validated.greenplum:
        pytest.skip("on Greenplum, nothing is judged at the end")
    validated.told()
    validated("SELECT cerebro.train('flats', 'told', target => 'sunny', inputs => 'size, city', epochs => 3,"
              " max_configurations => 2, options => '{\"seed\": 1}')")  # fmt: skip
    (line,) = [line for line in validated.told() if "told predicts sunny: " in line]
    found = {name: (value, beside) for name, value, beside in validated("SELECT * FROM cerebro.evaluate('told')")}
    value, beside = found["accuracy"]
    assert f"accuracy {value:.3f} (always '" in line and f"': {beside:.3f}), AUC {found['auc'][0]:.3f} on" in line


def test_a_registered_model_takes_the_rows_of_its_run(validated: Lab) -> None:
    name = f"validated_{secrets.token_hex(3)}"
    validated(f"SELECT cerebro.register('{name}', 'rent_valid')")
    try:
        asked = "SELECT * FROM cerebro.evaluate('{}')"
        assert validated(asked.format(f"{name}@1")) == validated(asked.format("rent_valid"))
    finally:
        validated(f"SELECT cerebro.unregister('{name}', 1)")


def test_a_model_without_rows_for_validation_asks_for_a_query(validated: Lab) -> None:
    named = ", ".join(f"{name} => %s" for name in FEW)
    models = {"unvalidated": "validation => 0", "cities": "group_by => 'city'", "folded": "folds => 2"}
    for model, more in models.items():
        inputs = dict(FEW, inputs="size", epochs=1)
        validated(f"SELECT cerebro.fit('flats', %s, target => 'rent', {named}, {more})", model, *inputs.values())
    for model in ("unvalidated", "folded"):
        with pytest.raises(psycopg2.Error, match="had no rows for validation alone"):
            validated("SELECT * FROM cerebro.calibrate(%s)", model)
    why = {**dict.fromkeys(models, "had no rows for validation alone"), "cities": "has models of groups"}
    for model, says in why.items():
        with pytest.raises(psycopg2.Error) as error:
            validated("SELECT * FROM cerebro.evaluate(%s)", model)
        assert says in str(error.value)
        assert f"cerebro.evaluate('{model}', 'SELECT * FROM …')" in error.value.diag.message_hint
        with pytest.raises(psycopg2.Error, match=says) as error:
            validated("SELECT * FROM cerebro.importance(%s)", model)
        assert f"cerebro.importance('{model}', 'SELECT * FROM …')" in error.value.diag.message_hint


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
