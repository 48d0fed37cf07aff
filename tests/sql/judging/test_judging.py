"""How good a model is, as plain rows: the same numbers as scikit-learn finds in the predictions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import numpy as np
import psycopg2
import pytest
from psycopg2 import errors
from sklearn import metrics

from tests.sql.lab import CROSS, Lab, Row, layer, sequential

ROWS = "SELECT * FROM flats WHERE id > 100"
MODELS = {
    "kinds": ("train", "kind", "auc"),
    "rents": ("fit", "rent", "r2_score"),
    "many": ("fit", "more", "f1_score"),
}


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
    few = {"epochs": 12, "segments": 1, "options": '{"seed": 1}', "inputs": "size, noise, city"}
    network = {"units": 16, "layers": 1, "dropout": 0.0}
    searched = {"max_configurations": 1, "method": "random", "architectures": json.dumps({"mlp": network}),
                "space": '{"learning_rate": 0.01, "batch_size": {"choice": [8]}}'}  # fmt: skip
    for model, (verb, target, metric) in MODELS.items():
        given = {**few, "target": target, "objective": f"val_{metric}"}
        if verb == "train":  # adds the metric
            given.update(searched)
        else:
            one = {"architecture": "mlp", **network, "learning_rate": 0.01, "batch_size": 8, "metrics": [metric]}
            given["configurations"] = json.dumps([one])
        named = ", ".join(f"{name} => %s" for name in given)
        lab(f"SELECT cerebro.{verb}('flats', %s, {named})", model, *given.values())
    return lab


@pytest.mark.parametrize(
    ("model", "call"),
    [
        ("many", "confusion_matrix('{}', %s)"),
        ("many", "class_metrics('{}', %s)"),
        ("many", "roc_curve('{}', %s, 'a')"),
        ("kinds", "precision_recall('{}', %s)"),
        ("many", "calibration('{}', %s, 'b')"),
        ("rents", "residuals('{}', %s)"),
        ("many", "mistakes('{}', %s)"),
        ("rents", "importance('{}', %s)"),
        ("many", "evaluate('{}', %s)"),
    ],
)
def test_a_registered_model_is_judged_as_its_table(judged: Lab, model: str, call: str) -> None:
    name = f"judged_{secrets.token_hex(3)}"
    version = judged.value(f"SELECT cerebro.register('{name}', '{model}', alias => 'production')")
    try:
        of_table, of_alias = (
            judged(f"SELECT * FROM cerebro.{call.format(one)}", ROWS) for one in (model, f"{name}@production")
        )
        # On Greenplum, the order of the rows changes the last digits of a mean.
        assert [list(map(rounded, row)) for row in of_alias] == [list(map(rounded, row)) for row in of_table]
        assert of_alias
    finally:
        judged(f"SELECT cerebro.set_alias('{name}', 'production', NULL)")
        judged(f"SELECT cerebro.unregister('{name}', {version})")


def rounded(value: object) -> object:
    return float(f"{value:.12g}") if isinstance(value, float) else value


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


def test_mistakes(judged: Lab) -> None:
    """The rows off the diagonal of the confusion matrix."""
    found = judged("SELECT key_value, actual, predicted, probability FROM cerebro.mistakes('many', %s, 'id')", ROWS)
    wanted = judged(
        "SELECT f.id::text, f.more, p.class, p.probability FROM flats f JOIN cerebro.predict('many', %s, 'id') p"
        " ON p.key_value = f.id::text WHERE p.class <> f.more ORDER BY p.probability DESC, f.id::text", ROWS,
    )  # fmt: skip
    assert found == wanted and len(found) > 10
    (off,) = judged("SELECT sum(count) FROM cerebro.confusion_matrix('many', %s) WHERE actual <> predicted", ROWS)
    assert off == (len(found),)
    numbers = judged("SELECT key_value::int FROM cerebro.mistakes('many', %s)", ROWS)
    assert len(numbers) == len(found) and max(numbers) <= (400,)


def test_mistakes_among_rows_without_a_target_and_with_new_classes(judged: Lab) -> None:
    rows = (
        "SELECT id, size, noise, city, CASE WHEN id < 200 THEN NULL WHEN id < 300 THEN 'new' ELSE more END AS more"
        " FROM flats WHERE id > 100"
    )
    found = judged("SELECT key_value::int, actual FROM cerebro.mistakes('many', %s, 'id')", rows)
    assert sorted(key for key, actual in found if actual == "new") == list(range(200, 300))
    assert min(key for key, _ in found) == 200


def test_mistakes_by_thresholds(judged: Lab) -> None:
    judged("SELECT FROM cerebro.calibrate('kinds', %s)", ROWS)
    asked = "SELECT key_value FROM cerebro.mistakes('kinds', %s, 'id', thresholds => true)"
    wrong = judged(
        "SELECT f.id::text FROM flats f JOIN cerebro.predict('kinds', %s, 'id', thresholds => true) p"
        " ON p.key_value = f.id::text WHERE p.class <> f.kind::text", ROWS,
    )  # fmt: skip
    assert sorted(judged(asked, ROWS)) == sorted(wrong) and wrong


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
    asked = "SELECT column_name, importance, loss, loss_before FROM cerebro.importance(%s, %s)"
    found = judged(asked, model, ROWS)
    for again in (
        ROWS,
        f"{ROWS} ORDER BY md5(id::text)",
    ):  # the values that a row gets do not depend on the order of rows
        other = judged(asked, model, again)
        assert [name for name, *_ in other] == [name for name, *_ in found]
        np.testing.assert_allclose([numbers for _, *numbers in other], [numbers for _, *numbers in found], rtol=1e-9)
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
    for model, (*_, metric) in MODELS.items():
        run = judged.value(f"SELECT run FROM {model}_summary")
        found = judged("SELECT objective, objective_value FROM leaderboard WHERE run = %s", run)
        assert found[0][0] == f"val_{metric}" and found[0][1] is not None


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


@pytest.fixture(scope="module")
def spelled(judged: Lab) -> Iterator[Lab]:
    """Models of targets whose values have several spellings, or an empty one: ``spellings``, and ``numerics``.

    cerebro.train would predict numeric as a number; as MADlib packs it, its values are classes.
    """
    judged("CREATE SCHEMA apart")  # not in the search_path, where = would compare two values of citext as texts
    folded = "text"
    # Greenplum 7.0.0 cannot group values of citext that come from an array.
    if not judged.greenplum and judged("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"):
        judged("CREATE EXTENSION citext SCHEMA apart")
        folded = "apart.citext"
    judged(
        "CREATE TABLE spelled AS SELECT id, size, noise, ARRAY[size, noise] AS pair, kind::int AS whole,"
        " kind::int::numeric(3,1) AS k,"
        f" (CASE WHEN kind THEN 'A' ELSE 'B' END)::{folded} AS folded, CASE WHEN kind THEN 'x' ELSE '' END AS blank"
        " FROM flats"
    )
    judged(
        "SELECT cerebro.train('spelled', 'spellings', 'whole, folded, blank', inputs => 'size, noise', epochs => 3,"
        " segments => 1, max_configurations => 1, method => 'random', architectures => '[\"mlp\"]')"
    )
    judged(
        "SELECT cerebro._madlib_training_preprocessor_dl('spelled', 'spelled_packed', 'k', 'pair', 100, 50, NULL, NULL)"
    )
    dense = layer("Dense", "out", units=2, activation="softmax")
    fit = "batch_size=16, epochs=3"
    chosen = (judged.architecture(sequential([2], dense)), f"{CROSS}, optimizer='Adam(0.05)'", fit)
    judged.fit("spelled_packed", "numerics", judged.selection("spelled_models", [chosen]), 1)
    yield judged
    judged("DROP SCHEMA apart CASCADE")


CALLS = (
    "roc_curve(%s, %s, target => %s)",
    "precision_recall(%s, %s, target => %s)",
    "calibration(%s, %s, target => %s)",
    "confusion_matrix(%s, %s, %s)",
    "importance(%s, %s, %s)",
)


def model_of(target: str) -> str:
    return "numerics" if target == "k" else "spellings"


def test_values_are_those_of_training_however_they_are_spelled(spelled: Lab) -> None:
    own = "SELECT * FROM spelled"
    as_trained: dict[tuple[str, str], list[Row]] = {}
    for target, other in (
        ("k", "k::numeric(9,4)"),
        ("k", "k::double precision"),
        ("k", "' ' || k"),
        ("whole", "whole::numeric(3,1)"),
        ("whole", "whole::text"),
        ("whole", "whole = 1"),
    ):
        query, model = f"SELECT id, size, noise, pair, {other} AS {target} FROM spelled", model_of(target)
        for call in CALLS:
            select = "column_name, loss_before" if call.startswith("importance") else "*"
            asked = f"SELECT {select} FROM cerebro.{call}"
            if (call, target) not in as_trained:
                as_trained[call, target] = spelled(asked, model, own, target)
            wanted, found = as_trained[call, target], spelled(asked, model, query, target)
            if select != "*":  # which column is important depends on the shuffle
                assert wanted[0][1] == pytest.approx(found[0][1])
            else:
                assert wanted == found and len(found) > 1
            assert all(value is not None for row in found for value in row)


def test_letters_of_citext_in_another_case_are_the_same_class(spelled: Lab) -> None:
    if spelled.value("SELECT pg_typeof(folded)::text FROM spelled LIMIT 1") == "text":
        pytest.skip("this server has no citext")
    for kind in ("text", "apart.citext"):
        query = f"SELECT id, size, noise, lower(folded::text)::{kind} AS folded FROM spelled"
        counts = "SELECT * FROM cerebro.confusion_matrix('spellings', %s, 'folded')"
        assert spelled(counts, query) == spelled(counts, "SELECT * FROM spelled")
        assert spelled.value("SELECT max(loss_before) FROM cerebro.importance('spellings', %s, 'folded')", query) > 0


def test_a_value_that_no_class_has_is_shown_as_it_is(spelled: Lab) -> None:
    for target, other, wanted in (
        ("k", "CASE id WHEN 1 THEN 7.50 WHEN 2 THEN NULL ELSE k END", {"0.0", "1.0", "7.50", None}),
        ("whole", "CASE id WHEN 1 THEN 0.6 ELSE whole END", {"0", "1", "0.6"}),  # it is not rounded to 1
    ):
        query = f"SELECT id, size, noise, pair, {other} AS {target} FROM spelled"
        actual = "SELECT DISTINCT actual FROM cerebro.confusion_matrix(%s, %s, %s)"
        found = spelled(actual, model_of(target), query, target)
        assert {actual for (actual,) in found} == wanted


def test_an_empty_text_is_a_class(spelled: Lab) -> None:
    calls = ("roc_curve('spellings', %s, {}, 'blank')", "calibration('spellings', %s, {}, 3, 'blank')")
    rows = "TABLE spelled"
    for call in calls:
        empty, other, default = (
            spelled(f"SELECT * FROM cerebro.{call.format(one)}", rows) for one in ("''", "'x'", "NULL")
        )
        assert other == default != empty
    positives = "SELECT round(sum(actual * count)) FROM cerebro.calibration('spellings', %s, '', 3, 'blank')"
    assert spelled.value(positives, rows) == spelled.value("SELECT count(*) FROM spelled WHERE blank = ''")
    with pytest.raises(psycopg2.Error, match="'whole' has no class ''"):
        spelled("SELECT * FROM cerebro.roc_curve('spellings', %s, '', 'whole')", rows)


@pytest.mark.parametrize(
    ("model", "target", "other", "says"),
    [
        ("numerics", "k", "'new'", "'k' of the query, of type text, cannot be read as numeric"),
        ("spellings", "whole", "DATE '2020-01-01'", "'whole' of the query, of type date, cannot be read as integer"),
        ("rents", "rent", "'much'", "'rent' of the query, of type text, cannot be read as double precision"),
    ],
)
def test_a_target_of_a_type_that_does_not_fit_is_named(
    spelled: Lab, model: str, target: str, other: str, says: str
) -> None:
    query = f"SELECT id, size, noise, pair, 'Rome' AS city, {other} AS {target} FROM spelled"
    for function in ("residuals" if model == "rents" else "confusion_matrix", "importance"):
        with pytest.raises(errors.InvalidParameterValue, match=says) as error:
            spelled(f"SELECT * FROM cerebro.{function}(%s, %s, target => %s)", model, query, target)
        assert "Convert it in the query" in error.value.diag.message_hint


def test_an_actual_value_of_true_is_the_number_1(judged: Lab) -> None:
    query = "SELECT id, size, noise, city, id = 7 AS rent FROM flats"
    found = judged("SELECT actual, count(*) FROM cerebro.residuals('rents', %s) GROUP BY 1 ORDER BY 1", query)
    assert found == [(0, 499), (1, 1)]
