"""Intervals, calibrated probabilities and thresholds: what is kept of a model, and what predictions make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import psycopg2
import pytest
from sklearn import metrics

from tests.sql.lab import Lab
from tests.sql.users import Town, equip, fit, town

TEST = "SELECT * FROM loans WHERE id > 3000"
KEPT = "SELECT calibration::text FROM {}_info WHERE calibration IS NOT NULL"


@pytest.fixture(scope="module")
def made(lab: Lab) -> Lab:
    """Models of a number whose errors grow with it, of a rare class, and of three classes."""
    lab("SELECT setseed(0.5)")
    lab(
        "CREATE TABLE loans AS SELECT i AS id, a::real AS a, b::real AS b, (ARRAY['x', 'y'])[1 + i % 2] AS c,"
        " (20 * a + a * 8 * (random() + random() + random() - 1.5))::double precision AS amount,"
        " CASE WHEN random() < 0.5 * exp(-6 * b) THEN 'bad' ELSE 'good' END AS state,"
        " CASE WHEN random() < 0.1 * a THEN 'often' WHEN random() < 0.06 THEN 'rare' ELSE 'usual' END AS grade"
        " FROM (SELECT i, 1 + 9 * random() AS a, random() AS b FROM generate_series(1, 4000) i) drawn"
    )
    lab("CREATE VIEW old_loans AS SELECT * FROM loans WHERE id <= 3000")
    one = {"architecture": "mlp", "units": 16, "layers": 1, "dropout": 0.0, "learning_rate": 0.01, "batch_size": 32}
    for model, target, configurations in (
        ("amounts", "amount", [one, {**one, "learning_rate": 0.02}]), ("states", "state", [one]),
        ("grades", "grade", [one]),
    ):  # fmt: skip
        lab(
            "SELECT cerebro.fit('old_loans', %s, %s, target => %s, inputs => 'a, b, c', epochs => 8, segments => 1,"
            " objective => 'val_loss', options => '{\"seed\": 1}', packed_table => %s)",
            model, json.dumps(configurations), target, f"{model}_packed",
        )  # fmt: skip
        lab("SELECT FROM cerebro.calibrate(%s)", model)
    return lab


def found(lab: Lab, *given: object, **named: object) -> dict[str, tuple[float, float]]:
    places = ", ".join(["%s"] * len(given) + [f"{name} => %s" for name in named])
    rows = lab(f"SELECT measure, before, after FROM cerebro.calibrate({places})", *given, *named.values())
    return {measure: (before, after) for measure, before, after in rows}


def figures(lab: Lab, model: str, more: str = "") -> dict[str, float]:
    return dict(lab(f"SELECT metric, value FROM cerebro.evaluate(%s, %s{more})", model, TEST))


def test_intervals_hold_what_they_promise(made: Lab) -> None:
    told = found(made, "amounts")
    assert told["rows"][1] == pytest.approx(300, abs=60)  # half of the rows for validation say the scale
    for coverage in (0.5, 0.8, 0.95):
        judged = figures(made, "amounts", f", coverage => {coverage}")
        # 1000 new rows, and about 300 that the quantile comes from
        assert judged["coverage"] == pytest.approx(
            coverage, abs=4 * (coverage * (1 - coverage) * (1 / 300 + 1 / 1000)) ** 0.5
        )
        assert judged["interval_width"] == pytest.approx(told[f"interval_width {coverage:g}"][1], rel=0.1)
    rows = made(
        "SELECT value, lower, upper FROM cerebro.predict('amounts', %s, 'id', coverage => 0.9) ORDER BY value", TEST
    )
    value, lower, upper = np.array(rows).T
    np.testing.assert_allclose(upper - value, value - lower)
    width = upper - lower
    assert width[-100:].mean() > 2 * width[:100].mean(), "the errors of large amounts are larger"


@pytest.mark.parametrize(("model", "target"), [("amounts", "amount"), ("states", "state")])
def test_with_little_time_fewer_rows_are_enough(made: Lab, model: str, target: str) -> None:
    """The first packed rows are predicted, and 1,000 of their rows count if there are so many."""
    (kept,) = made(KEPT.format(model))[0]
    part = 0.5 if target == "amount" else 1.0  # the other half of the rows tell the scale
    pack = f"SELECT cerebro.pack_like('loans', 'more_rows', '{target}', NULL, '{model}_packed'"
    try:
        made(f"{pack}, buffer_size => 100)")
        of_buffers = found(made, model, "more_rows", seconds=0)["rows"][1]
        assert 0 < of_buffers <= 100  # of fewer than 400 rows, none tell the scale
        assert found(made, model, "more_rows", seconds=600)["rows"][1] == 4000 * part
        made("DROP TABLE more_rows, more_rows_summary")
        made(f"{pack})")
        made.told()
        assert found(made, model, "more_rows", seconds=0)["rows"][1] == 1000 * part
        told = made.told()
        assert any(f"'{target}' is calibrated with 1,000 of" in line for line in told), told
    finally:
        made("DROP TABLE IF EXISTS more_rows, more_rows_summary")
        made(f"UPDATE {model}_info SET calibration = %s WHERE calibration IS NOT NULL", kept)


def test_the_interval_is_that_of_the_documents_quantiles(made: Lab) -> None:
    from cerebro_db.core.models import calibration

    document = json.loads(made.value(KEPT.format("amounts")))
    kept = calibration.read(document, {"amount": None}, "it")["amount"]
    assert isinstance(kept, calibration.Errors)
    for value, lower, upper in made(
        "SELECT value, lower, upper FROM cerebro.predict('amounts', %s, coverage => 0.7)", TEST
    )[:200]:
        half = kept.half_width(value, 0.7)
        assert (lower, upper) == pytest.approx((value - half, value + half), rel=1e-12)


def test_the_rows_of_a_query_and_of_a_packed_table_give_the_same(made: Lab) -> None:
    own = found(made, "states")
    packed = made.value("SELECT validation_table FROM states_summary")
    assert found(made, "states", packed) == own
    ids = "SELECT * FROM old_loans"
    chosen = made.value("SELECT rows FROM states_packed_validation_summary")
    assert own["rows"][1] == chosen < 700
    everything = found(made, "states", ids)
    assert everything["rows"][1] == 3000 and everything["log_loss"] != own["log_loss"]


def test_probabilities_are_calibrated_and_keep_their_order(made: Lab) -> None:
    told = found(made, "grades", TEST)
    assert told["log_loss"][1] <= told["log_loss"][0] and told["temperature"][1] != 1
    plain, after = (figures(made, "grades", f", calibrated => {one}") for one in ("false", "true"))
    # the same rows that calibrated it: the figures of evaluate are those that calibrate told
    assert (plain["log_loss"], after["log_loss"]) == pytest.approx(told["log_loss"], rel=1e-5)
    assert (plain["ece"], after["ece"]) == pytest.approx(told["ece"], abs=1e-5)
    assert plain["accuracy"] == after["accuracy"] and plain["auc"] == pytest.approx(after["auc"], abs=0.05)
    ranked = [
        made(f"SELECT key_value, class, rank, probability FROM cerebro.predict('grades', %s, 'id', top => 3{more})"
             " ORDER BY 1, 3", TEST)
        for more in (", calibrated => false", ", calibrated => true")
    ]  # fmt: skip
    assert [row[:3] for row in ranked[0]] == [row[:3] for row in ranked[1]]
    before, with_temperature = (np.array([row[3] for row in rows]).reshape(-1, 3) for rows in ranked)
    np.testing.assert_allclose(with_temperature.sum(1), 1, atol=1e-5)
    powers = before ** (1 / told["temperature"][1])
    np.testing.assert_allclose(with_temperature, powers / powers.sum(1, keepdims=True), atol=1e-5)
    bins = made("SELECT predicted FROM cerebro.calibration('grades', %s, 'rare', calibrated => true)", TEST)
    assert bins != made("SELECT predicted FROM cerebro.calibration('grades', %s, 'rare', calibrated => false)", TEST)


def sharpened(place: Lab, model: str, times: float) -> None:
    """Make the probabilities of a model more extreme, as those of one that has trained for too long."""
    place(f"SELECT cerebro.materialize((SELECT run FROM states_summary), '{model}')")
    ((key, architecture, payload),) = place(f"SELECT configuration, architecture::text, weights FROM {model}")
    weights = np.frombuffer(bytes(payload), "f4").copy()
    last = json.loads(architecture)["config"]["layers"][-1]
    units = last["config"]["units"]
    weights[-16 * units - units :] *= times  # of the last layer
    place(f"UPDATE {model} SET weights = %s WHERE configuration = %s", weights.tobytes(), key)


def test_probabilities_are_calibrated_by_default_where_that_helps(made: Lab) -> None:
    sharpened(made, "sharp", 3)
    assert figures(made, "sharp") == figures(made, "sharp", ", calibrated => false"), "nothing is kept yet"
    told = found(made, "sharp")
    before, elsewhere = told["log_loss cross-validated"]
    assert before == told["log_loss"][0] and told["log_loss"][1] <= elsewhere < 0.9 * before
    gain = made.value("SELECT (calibration -> 'targets' -> 0 ->> 'gain')::float8 FROM sharp_info")
    assert gain == pytest.approx(1 - elsewhere / before)
    plain, after, usual = (
        figures(made, "sharp", more) for more in (", calibrated => false", ", calibrated => true", "")
    )
    assert usual == after and after["log_loss"] < 0.9 * plain["log_loss"]
    # A table, a function, the functions that judge, and explanations say the same.
    rows = "SELECT key_value, class, probability FROM cerebro.predict('sharp', 'TABLE loans', 'id'{}) ORDER BY 1"
    usual_rows = made(rows.format(""))
    assert usual_rows == made(rows.format(", calibrated => true")) != made(rows.format(", calibrated => false"))
    made("SELECT cerebro.predict_into('sharp', 'loans', 'sharp_table', 'id')")
    assert made("SELECT id::text, predicted_state, probability FROM sharp_table ORDER BY 1") == usual_rows
    made("SELECT cerebro.predict_into('sharp', 'loans', 'plain_table', 'id', calibrated => false)")
    assert made("SELECT id::text, predicted_state, probability FROM plain_table ORDER BY 1") == made(
        rows.format(", calibrated => false")
    )
    packed = dict(made("SELECT metric, value FROM cerebro.evaluate('sharp')"))
    assert packed["log_loss"] == pytest.approx(told["log_loss"][1], rel=1e-5)
    bins = "SELECT predicted FROM cerebro.calibration('sharp', %s, 'bad'{})"
    assert made(bins.format(""), TEST) == made(bins.format(", calibrated => true"), TEST)
    chosen = "SELECT * FROM loans WHERE id <= 20"
    likely = dict(made("SELECT key_value, probability FROM cerebro.predict('sharp', %s, 'id')", chosen))
    explained = made(
        "SELECT key_value, max(prediction), max(base) + sum(contribution) FROM cerebro.explain('sharp', %s, 'id')"
        " GROUP BY 1", chosen
    )  # fmt: skip
    assert {key: value for key, value, _ in explained} == pytest.approx(likely, abs=1e-5)
    assert all(value == pytest.approx(added, abs=1e-5) for _, value, added in explained)


def test_probabilities_stay_where_it_is_not_sure_that_a_temperature_helps(made: Lab) -> None:
    told = found(made, "states", "SELECT * FROM loans WHERE id > 3000 AND id <= 3090")
    assert told["rows"][1] == 90 and told["log_loss"][1] <= told["log_loss"][0]
    (kept,) = json.loads(made.value(KEPT.format("states")))["targets"]
    assert "gain" not in kept and kept["temperature"] != 1
    assert figures(made, "states") == figures(made, "states", ", calibrated => false")
    assert figures(made, "states") != figures(made, "states", ", calibrated => true")
    found(made, "states")


def test_a_rare_class_is_found_with_thresholds(made: Lab) -> None:
    told = found(made, "states")
    share = made.value("SELECT avg((state = 'bad')::int) FROM loans")
    assert share < 0.12, "it is rare"
    assert told["mean f1"][1] > told["mean f1"][0] + 0.02 and told["threshold of bad"][1] < 0.45
    plain, after = (
        {row[0]: row[1:] for row in made(f"SELECT * FROM cerebro.class_metrics('states', %s{more})", TEST)}
        for more in ("", ", thresholds => true")
    )
    assert after["bad"][1] > plain["bad"][1] and after["bad"][2] > plain["bad"][2], "recall and F1 of the rare class"
    pairs = made(
        "SELECT l.state, p.class, p.probability FROM loans l"
        " JOIN cerebro.predict('states', %s, 'id', thresholds => true) p ON p.key_value = l.id::text", TEST,
    )  # fmt: skip
    precision, recall, f1, rows = metrics.precision_recall_fscore_support(
        [actual for actual, *_ in pairs], [label for _, label, _ in pairs], labels=["bad", "good"]
    )
    for place, label in enumerate(("bad", "good")):
        assert after[label][:4] == pytest.approx((precision[place], recall[place], f1[place], rows[place]))
    assert all((label == "bad") == ((probability if label == "bad" else 1 - probability) >= told["threshold of bad"][1])
               for _, label, probability in pairs)  # fmt: skip
    matrix = made("SELECT * FROM cerebro.confusion_matrix('states', %s, thresholds => true)", TEST)
    assert {row[1] for row in matrix} == {"bad", "good"}
    assert sum(row[2] for row in matrix if row[1] == "bad") == after["bad"][4]
    assert figures(made, "states", ", thresholds => true")["balanced_accuracy"] == pytest.approx(np.mean(recall))


@pytest.mark.parametrize("measure", ["f1", "balanced_accuracy"])
def test_thresholds_raise_what_is_asked_for(made: Lab, measure: str) -> None:
    told = found(made, "grades", TEST, decide_by=measure)
    name = {"f1": "mean f1"}.get(measure, measure)
    assert told[name][1] > told[name][0] + 0.005  # PostgreSQL 13 and 14 draw other rows than later servers
    after = figures(made, "grades", ", thresholds => true")
    assert after["f1" if measure == "f1" else measure] == pytest.approx(told[name][1], abs=1e-3)


def test_costs_say_what_is_decided(made: Lab) -> None:
    told = found(made, "states", decide_by='{"bad": 9}')
    assert told["threshold of bad"][1] == pytest.approx(0.1)
    assert found(made, "states", decide_by='{"bad": 9, "good": 9}')["threshold of bad"][1] == pytest.approx(0.5)
    without = found(made, "states", decide_by=None)
    assert "threshold of bad" not in without
    with pytest.raises(psycopg2.Error, match="no thresholds of 'state' are kept"):
        made("SELECT * FROM cerebro.predict('states', %s, thresholds => true)", TEST)


def test_a_table_and_a_function_predict_in_the_same_way(made: Lab) -> None:
    found(made, "states")
    made("CREATE VIEW newer AS SELECT * FROM loans WHERE id > 3900")
    made("SELECT cerebro.predict_into('amounts', 'newer', 'amounts_of_newer', 'id', coverage => 0.9)")
    made("SELECT cerebro.predict_into('states', 'newer', 'states_of_newer', 'id', thresholds => true)")
    for model, more, asked, written in (
        ("amounts", "coverage => 0.9", "value, lower, upper", "predicted_amount, lower, upper"),
        ("states", "thresholds => true", "class, probability", "predicted_state, probability"),
    ):
        rows = made(
            f"SELECT key_value, {asked} FROM cerebro.predict('{model}', 'TABLE newer', 'id', {more}) ORDER BY 1"
        )
        assert rows == made(f"SELECT id::text, {written} FROM {model}_of_newer ORDER BY 1")
    made("SELECT cerebro.create_predictor('states', 'state_of', thresholds => true)")
    made("SELECT cerebro.create_predictor('states', 'plain_state_of')")
    decided = dict(made("SELECT id::text, predicted_state FROM states_of_newer"))
    likely = dict(made("SELECT key_value, class FROM cerebro.predict('states', 'TABLE newer', 'id')"))
    (turned,) = made(
        "SELECT id, a, b, c FROM newer WHERE id::text = %s", next(key for key in decided if decided[key] != likely[key])
    )
    for function, labels in (("state_of", decided), ("plain_state_of", likely)):
        assert made.value(f"SELECT {function}(a => %s, b => %s, c => %s)", *turned[1:]) == labels[str(turned[0])]


def test_each_configuration_has_its_own(made: Lab) -> None:
    best = made.value("SELECT configuration FROM amounts_info ORDER BY objective_value LIMIT 1")
    other = 3 - best
    with pytest.raises(psycopg2.Error, match=f"no calibration of 'amount' is kept with configuration {other}"):
        made("SELECT * FROM cerebro.predict('amounts', %s, coverage => 0.9, configuration => %s)", TEST, other)
    with pytest.raises(psycopg2.Error) as refused:
        made("SELECT * FROM cerebro.predict('amounts', %s, coverage => 0.9, configuration => %s)", TEST, other)
    hint = refused.value.diag.message_hint
    assert f"configuration => {other}" in hint
    made(hint.split(";")[0])
    assert figures(made, "amounts", f", configuration => {other}, coverage => 0.8")["coverage"] > 0.7


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("predict('amounts', 'TABLE loans', coverage => 90)", "coverage cannot be 90"),
        ("predict('amounts', 'TABLE loans', coverage => 0)", "coverage cannot be 0"),
        ("predict('amounts', 'TABLE loans', coverage => 'NaN')", "coverage cannot be nan"),
        (
            "predict('amounts', 'TABLE loans', coverage => 0.9999)",
            "intervals with coverage 0.9999 need the errors of at",
        ),
        ("predict('amounts', 'TABLE loans', calibrated => true)", "calibrated: the model predicts numbers"),
        ("evaluate('amounts', 'TABLE loans', thresholds => true)", "thresholds: the model predicts numbers"),
        ("predict('states', 'TABLE loans', coverage => 0.9)", "coverage: the model predicts classes"),
        ("class_metrics('amounts', 'TABLE loans')", "the target 'amount' is a number"),
        ("calibrate('states', 'SELECT a, b, c FROM loans')", "the query does not have the target 'state'"),
        ("calibrate('states', 'SELECT * FROM loans WHERE state = ''bad''')", "rows have the same class of 'state'"),
        ("calibrate('states', 'SELECT * FROM loans LIMIT 0')", "there are 0 rows to calibrate 'state' with"),
        ("calibrate('states', 'amounts_packed_validation')", "'amounts_packed_validation' were prepared differently"),
        ("calibrate('states', 'nothing')", "nothing"),
        ("calibrate('states', target => 'amount')", "target must be one of the targets"),
        ("calibrate('states', decide_by => 'best')", "decide_by must be f1 or balanced_accuracy"),
        ("calibrate('states', decide_by => '{\"ugly\": 2}')", "decide_by: there is no class 'ugly'"),
        ("calibrate('states', decide_by => '{\"bad\": -1}')", "the cost of 'bad' must be a number"),
        ("calibrate('loans')", "'loans' is not a table of trained models"),
    ],
)
def test_errors(made: Lab, call: str, says: str) -> None:
    with pytest.raises(psycopg2.Error, match=says):
        made(f"SELECT * FROM cerebro.{call}")


def test_a_replaced_table_has_no_calibration(made: Lab) -> None:
    run = made.value("SELECT run FROM states_summary")
    made("SELECT cerebro.materialize(%s, 'other_states')", run)
    found(made, "other_states")
    assert figures(made, "other_states", ", calibrated => true")
    made("SELECT cerebro.drop_model('other_states')")
    made("SELECT cerebro.materialize(%s, 'other_states')", run)
    with pytest.raises(psycopg2.Error, match="no calibration of 'state' is kept"):
        figures(made, "other_states", ", calibrated => true")
    made("ALTER TABLE other_states_info DROP COLUMN calibration")  # as tables of version 0.1 are
    with pytest.raises(psycopg2.Error, match="no calibration of 'state' is kept"):
        figures(made, "other_states", ", calibrated => true")
    found(made, "other_states")
    assert figures(made, "other_states", ", calibrated => true")
    made("BEGIN")
    before = made.value(KEPT.format("other_states"))
    found(made, "other_states", TEST)
    made("ROLLBACK")
    assert made.value(KEPT.format("other_states")) == before


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            '{"targets": [{"name": "state", "kind": "class", "rows": 9, "temperature": 0, "weights": null}]}',
            "temperature",
        ),
        ('{"targets": [{"name": "state", "kind": "class", "rows": 9, "temperature": 1, "weights": [1]}]}', "weights"),
        ('{"targets": [{"name": "state", "kind": "number", "rows": 9, "temperature": 1, "weights": null}]}', "kind"),
        ('{"targets": [{"name": "other", "kind": "class", "rows": 9, "temperature": 1, "weights": null}]}', "name"),
        ('{"targets": "all"}', "targets"),
        ("[]", "has to be a JSON object"),
    ],
)
def test_a_document_written_by_hand_is_checked(made: Lab, document: str, says: str) -> None:
    before = made.value(KEPT.format("states"))
    made("UPDATE states_info SET calibration = %s", document)
    with pytest.raises(psycopg2.Error, match=rf"the calibration of configuration \d of 'states'.*{says}"):
        made("SELECT * FROM cerebro.predict('states', %s, calibrated => true)", TEST)
    made("UPDATE states_info SET calibration = %s", before)


# -- who may ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "numbers = substr(numbers, 5)",
        "state = substr(state, 2)",
        "categories = NULL",
        "state = NULL",
        "numbers = NULL, categories = NULL, state = NULL",
    ],
)
def test_packed_rows_that_do_not_belong_together(made: Lab, change: str) -> None:
    made("DROP TABLE IF EXISTS damaged, damaged_summary")
    made("CREATE TABLE damaged AS TABLE states_packed_validation")
    made("CREATE TABLE damaged_summary AS TABLE states_packed_validation_summary")
    made(f"UPDATE damaged SET {change} WHERE buffer_id = (SELECT min(buffer_id) FROM damaged)")
    with pytest.raises(psycopg2.Error, match="do not have the same number of rows"):
        found(made, "states", "damaged")


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("states", "state = overlay(state placing '\\x00000000' from 1)"),
        ("amounts", "amount = overlay(amount placing '\\x0000c07f0000c07f' from 1)"),
    ],
)
def test_rows_without_a_usable_target_are_left_out(made: Lab, model: str, change: str) -> None:
    made("DROP TABLE IF EXISTS damaged, damaged_summary")
    made(f"CREATE TABLE damaged AS TABLE {model}_packed_validation")
    made(f"CREATE TABLE damaged_summary AS TABLE {model}_packed_validation_summary")
    rows = found(made, model, "damaged")["rows"][1]
    made(f"UPDATE damaged SET {change} WHERE buffer_id = (SELECT min(buffer_id) FROM damaged)")
    assert found(made, model, "damaged")["rows"][1] in (rows - 1, rows - 2)


@pytest.fixture
def people(server: str) -> Iterator[Town]:
    with town(server) as made:
        yield made


def test_only_the_owner_calibrates_and_readers_predict(people: Town) -> None:
    alice, bob = people.user("alice", "cerebro_user"), people.user("bob", "cerebro_user")
    equip(alice)
    alice(
        'SELECT cerebro.fit(\'packed\', \'ups\', \'[{"architecture": "mlp", "units": 4, "layers": 1}]\', epochs => 2)'
    )
    told = f"SELECT * FROM cerebro.calibrate('{alice.name}.ups', 'SELECT * FROM {alice.name}.points')"
    wanted = (
        f"SELECT count(*) FROM cerebro.predict('{alice.name}.ups', 'SELECT ARRAY[1, 0]::real[] AS x'"
        ", calibrated => true)"
    )
    alice(f"GRANT USAGE ON SCHEMA {alice.name} TO {bob.name}")
    alice(f"GRANT SELECT ON ups, ups_summary, points TO {bob.name}")
    alice(f"GRANT SELECT (configuration, parameters, loss_name, metric_names, functions, objective_value,"
          f" validation_loss, training_loss) ON ups_info TO {bob.name}")  # fmt: skip
    assert "belongs to alice" in str(bob.refused(told))
    alice(told)
    # By default, who may not read the calibration predicts without.
    bob(f"SELECT count(*) FROM cerebro.predict('{alice.name}.ups', 'SELECT ARRAY[1, 0]::real[] AS x')")
    assert "calibration" in str(bob.refused(wanted))
    alice(f"GRANT SELECT ON ups_info TO {bob.name}")
    assert bob(wanted) == [1]
    alice(f"GRANT ALL ON ups_info TO {bob.name}")
    assert "belongs to alice" in str(bob.refused(told))
    alice(f"GRANT ALL ON ups TO {bob.name}")
    assert "belongs to alice" in str(bob.refused(f"SELECT cerebro.ensemble('{alice.name}.ups', NULL)"))
    # A policy of the table hides the row from others, and from what they predict.
    alice("ALTER TABLE ups_info ENABLE ROW LEVEL SECURITY")
    alice("CREATE POLICY mine ON ups_info USING (current_user = 'nobody')")
    bob.refused(wanted, why=psycopg2.Error)
    assert alice(wanted) == [1]


def test_a_superuser_runs_no_trigger_of_others(people: Town) -> None:
    alice = people.user("alice", "cerebro_user")
    equip(alice)
    alice(
        'SELECT cerebro.fit(\'packed\', \'ups\', \'[{"architecture": "mlp", "units": 4, "layers": 1}]\', epochs => 2)'
    )
    alice(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'run by %', current_user; END $$"
    )
    alice("CREATE TRIGGER note BEFORE UPDATE ON ups_info FOR EACH ROW EXECUTE FUNCTION note()")
    told = f"SELECT * FROM cerebro.calibrate('{alice.name}.ups', 'SELECT * FROM {alice.name}.points')"
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="belongs to alice"):
        people(told)
    assert f"run by {alice.name}" in str(alice.refused(told, why=psycopg2.Error))


def test_tables_in_madlibs_form_keep_none(people: Town) -> None:
    alice = people.user("alice", "cerebro_user")
    equip(alice)
    fit(alice)
    error = alice.refused("SELECT * FROM cerebro.calibrate('models', 'SELECT * FROM points')", why=psycopg2.Error)
    assert "is a table of MADlib's form" in str(error)
