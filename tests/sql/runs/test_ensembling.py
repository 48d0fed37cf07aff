"""cerebro.train adds an ensemble to its model table, and functions that take the best model of the table take it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab, verb
from tests.thorough import landing

NOISY = """
CREATE TABLE noisy AS SELECT i AS id, (i * 37 % 91)::real AS a, (i * 53 % 97)::real AS b, (i * 29 % 89)::real AS c,
  (sin((i * 37 % 91) / 9.0) * 40 + (i * 7919 % 131))::real AS price,
  CASE WHEN sin((i * 37 % 91) / 9.0) * 40 + (i * 7919 % 131) > 65 THEN 'dear' ELSE 'cheap' END AS class
FROM generate_series(1, 900) i;
"""
# The models differ by their random weights alone, so that the mean of several is better than each of them.
ALIKE = {
    "units": 64,
    "learning_rate": 0.003,
    "dropout": 0.1,
    "batch_size": 32,
    "weight_decay": {"uniform": [0.01, 0.02]},
}
FEW = {
    "inputs": "a, b, c", "epochs": 6, "max_configurations": 4, "method": "random", "space": ALIKE,
    "architectures": ["mlp"], "options": {"seed": 1},
}  # fmt: skip
ADDED = re.compile(
    r"NOTICE:  configuration (\d+) is the mean of configurations .*, and .* of configuration \d+ alone"
    r"(?:; the standard error of the difference is ([\d.e-]*\d))?"
)


@pytest.fixture(scope="module")
def noisy(lab: Lab) -> Lab:
    if lab.greenplum:
        pytest.skip("on Greenplum, an error would end the call")
    lab(NOISY)
    return lab


def train(lab: Lab, model: str, target: str, **more: Any) -> int:
    given = {"target": target, **FEW, **more}
    values = [json.dumps(one) if isinstance(one, (dict, list)) else one for one in given.values()]
    lab.told()
    named = ", ".join(f"{name} => %s" for name in given)
    return int(lab.value(f"SELECT cerebro.train('noisy', %s, {named})", model, *values))


@pytest.mark.parametrize("target", landing(["price", "class"], "price"))  # test_following.py has classes
def test_the_best_of_the_table_is_the_ensemble(noisy: Lab, target: str) -> None:
    model = f"of_{target}"
    number = train(noisy, model, target)
    told = noisy.told()
    found = next((match for line in told if (match := ADDED.match(line))), None)
    assert found is not None, "\n".join(told)
    key, error = int(found[1]), float(found[2] or 0)
    rows = noisy(f"SELECT configuration, model IS NULL, objective_value FROM {model}_info ORDER BY configuration")
    assert rows[-1][:2] == (key, True) and len(rows) == 5 and not any(row[1] for row in rows[:-1])
    value, best = rows[-1][2], min(row[2] for row in rows[:-1])
    assert value <= best + error * 1.05 and (error > 0) == (value > best)
    assert noisy.value("SELECT count(*) FROM leaderboard WHERE run = %s", number) == 4
    # The value is that of the whole table of validation rows, as a trainer computes it.
    rows = noisy.packed_rows(model, "_validation")
    noisy(f"SELECT madlib.madlib_keras_evaluate('{model}', %s, 'judged', NULL, {key})", rows)
    assert noisy.value("SELECT loss FROM judged") == pytest.approx(value, rel=1e-5)
    noisy("DROP TABLE judged")
    predictions = f"SELECT key_value, {'value' if target == 'price' else 'probability'}"
    of = predictions + f" FROM cerebro.predict('{model}', 'SELECT * FROM noisy', 'id'"
    assert noisy(f"{of}) ORDER BY 1") == noisy(f"{of}, {key}) ORDER BY 1")
    # The ensemble is calibrated, because it is the best.
    assert noisy(f"SELECT configuration FROM {model}_info WHERE calibration IS NOT NULL") == [(key,)]
    # It stays the best if a member predicts the rows for validation better, by which both were chosen.
    noisy(f"UPDATE {model}_info SET objective_value = %s WHERE configuration = %s", best * 1.001, key)
    assert noisy(f"{of}) ORDER BY 1") == noisy(f"{of}, {key}) ORDER BY 1")
    noisy(f"UPDATE {model}_info SET objective_value = NULL WHERE configuration = %s", key)
    assert noisy(f"{of}) ORDER BY 1") != noisy(f"{of}, {key}) ORDER BY 1")


def test_the_loss_to_expect_of_the_best_model_is_above_its_own(noisy: Lab) -> None:
    """Few rows choose among models that differ by little more than chance."""
    noisy("CREATE TABLE little AS SELECT * FROM noisy WHERE id <= 150")
    noisy.told()
    given = {"target": "class", **FEW, "space": {**ALIKE, "learning_rate": {"log_uniform": [0.001, 0.03]}}}
    number = noisy.value(*verb("train", "little", "flattered", **given))
    told = "\n".join(noisy.told())
    found = re.search(r"; expect about (\S+) of configuration (\d+) on new rows: (\d+) rows chose it among 4", told)
    assert found is not None, told
    board = "SELECT configuration, objective_value FROM leaderboard WHERE run = %s ORDER BY rank LIMIT 1"
    ((best, loss),) = noisy(board, number)
    assert int(found[2]) == best and loss < float(found[1]) < 1.5 * loss
    rows = noisy.packed_rows("flattered", "_validation")
    assert noisy.value(f"SELECT rows FROM {rows}_summary") == int(found[3])


def test_of_a_model_and_its_copies_the_best_one_joins(noisy: Lab) -> None:
    number = train(noisy, "copied", "price", epochs=None, method="paced", max_configurations=2, budget="15 seconds")
    parents = dict(noisy("SELECT model, parent FROM leaderboard WHERE run = %s", number))
    assert len(parents) > sum(parent is None for parent in parents.values()) == 2

    def line(model: int) -> int:
        return model if parents[model] is None else line(parents[model])

    ranked = noisy("SELECT configuration, model FROM copied_info WHERE model IS NOT NULL ORDER BY objective_value")
    best = {line(model): key for key, model in reversed(ranked)}
    noisy("SELECT cerebro.ensemble('copied', 'copied_together', all_join => true)")
    reason = noisy.value("SELECT reason FROM copied_together_info").partition(" of lab_")[0]
    assert set(map(int, re.findall(r"\d+", reason))) == set(best.values())


def test_an_ensemble_is_added_to_the_table_of_its_members(noisy: Lab) -> None:
    train(noisy, "added", "price")
    before = noisy.value("SELECT max(configuration) FROM added_info")
    noisy.told()
    noisy("SELECT cerebro.ensemble('added', NULL, 2, all_join => true)")
    (line,) = [one for one in noisy.told() if "is the mean of configurations" in one and str(before + 1) in one]
    members = [int(one) for one in re.findall(r"\d+", line.partition("of lab_")[0].partition("configurations")[2])]
    assert len(members) == 2
    values = "SELECT key_value, value FROM cerebro.predict('added', 'SELECT * FROM noisy', 'id', %s)"
    one, other, mean = (dict(noisy(values, key)) for key in (*members, before + 1))
    assert mean == pytest.approx({key: (one[key] + other[key]) / 2 for key in one}, rel=1e-5)
    # Ensembles that were added are no members of the next one.
    noisy("SELECT cerebro.ensemble('added', 'apart', 10, all_join => true)")
    reason = noisy.value("SELECT reason FROM apart_info")
    assert sorted(map(int, re.findall(r"\d+", reason.partition(" of lab_")[0]))) == [1, 2, 3, 4]
    # Without time, the best two are compared.
    noisy("SELECT cerebro.ensemble('added', 'quick', 4, seconds => 0)")
    best = [
        key for (key,) in noisy("SELECT configuration FROM added_info WHERE model IS NOT NULL ORDER BY objective_value")
    ]
    reason = noisy.value("SELECT reason FROM quick_info")
    assert {int(one) for one in re.findall(r"\d+", reason.partition(" of lab_")[0])} <= set(best[:2])
    with pytest.raises(psycopg2.Error, match="members cannot be 1"):
        noisy("SELECT cerebro.ensemble('added', NULL, 1)")
    # Models that predict no numbers make no ensemble.
    for ending in ("", "_info", "_summary"):
        noisy(f"CREATE TABLE broken{ending} AS TABLE added{ending}")
    noisy("UPDATE broken SET weights = decode(repeat('0000c07f', octet_length(weights) / 4), 'hex')")
    for objective in ("val_loss", "val_mean_absolute_error"):
        noisy("UPDATE broken_summary SET objective = %s", objective)
        noisy("SELECT cerebro.ensemble('broken', NULL, 3)")
        assert any("no ensemble is added" in line and "no number" in line for line in noisy.told())


def test_an_ensemble_in_tables_as_madlib_has_them_is_no_member_of_the_next(noisy: Lab) -> None:
    noisy("SELECT cerebro.pack('noisy', 'packed', 'price', inputs => 'a, b, c', segments => 1)")
    noisy("SELECT madlib.load_keras_model('archs', cerebro.architecture('mlp', 'packed', '{\"units\": 4}')::json)")
    compiled = [f"loss='mse',optimizer='Adam(lr={rate})',metrics=['mae']" for rate in (0.01, 0.003)]
    noisy("SELECT madlib.load_model_selection_table('archs', 'msts', ARRAY[1], %s, ARRAY['batch_size=64,epochs=1'])",
          compiled)  # fmt: skip
    noisy("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'theirs', 'msts', 1, FALSE, 'packed_validation')")
    noisy.told()
    for already in (False, True):  # an ensemble of 1, 2 and 3 would be another one
        noisy("SELECT cerebro.ensemble('theirs', NULL, 5, all_join => true)")
        (line,) = [one for one in noisy.told() if "configuration 3 is the mean of configurations" in one]
        assert set(re.findall(r"\d+", line.partition("of lab_")[0].partition("configurations")[2])) == {"1", "2"}
        assert line.rstrip().endswith("already") == already
    assert noisy.value("SELECT count(*) FROM theirs") == 3


OUTCOME = re.compile("alone is better|is the mean of configurations")


def test_a_budget_that_is_used_when_the_run_has_ended(noisy: Lab) -> None:
    """The call does by default the same with fewer models, and says what the budget was too small for."""
    noisy(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.event = 'finished' THEN"
        " PERFORM pg_sleep(6); END IF; RETURN new; END $$;"
        "CREATE TRIGGER dawdle BEFORE INSERT ON cerebro.event FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    try:
        train(noisy, "late", "price", budget="4 seconds", segments=2)
    finally:
        noisy("DROP TRIGGER dawdle ON cerebro.event; DROP FUNCTION dawdle()")
    told = noisy.told()
    assert any(OUTCOME.search(line) for line in told), "\n".join(told)
    assert noisy.value("SELECT count(*) FROM late_info WHERE calibration IS NOT NULL") == 1
    said = next((line for line in told if "a budget of 4 s is too small for these rows" in line), None)
    assert said is not None and "the ensemble and the calibration" in said, "\n".join(told)


def test_a_budget_that_is_used_before_the_first_epoch(noisy: Lab) -> None:
    """The call says that it goes on, and trains two models side by side: one alone is no ensemble."""
    noisy(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_sleep(2); RETURN new; END $$;"
        "CREATE TRIGGER dawdle BEFORE INSERT ON cerebro.hop FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    try:
        train(noisy, "at_once", "price", budget="1 millisecond", segments=2)
    finally:
        noisy("DROP TRIGGER dawdle ON cerebro.hop; DROP FUNCTION dawdle()")
    told = noisy.told()
    assert any("the budget is used, and no model has completed an epoch" in line for line in told), "\n".join(told)
    assert any(OUTCOME.search(line) for line in told), "\n".join(told)
    assert noisy.value("SELECT count(*) FROM at_once_info WHERE calibration IS NOT NULL") == 1
    trained = noisy("SELECT epoch FROM at_once_info WHERE objective_value IS NOT NULL AND model IS NOT NULL")
    assert trained == [(1,), (1,)]


def test_a_call_that_has_no_rows_for_it_adds_none_and_calibrates_none(noisy: Lab) -> None:
    """tests/sql/runs/test_folds.py has a call with folds."""
    train(noisy, "none", "price", validation=0, epochs=1)
    assert not any(re.search("ensemble|the mean of|calibrated", line) for line in noisy.told())
    assert noisy.value("SELECT count(*) FROM none_info WHERE model IS NULL OR calibration IS NOT NULL") == 0


def test_a_model_whose_loss_is_no_number_is_not_taken_for_an_ensemble(noisy: Lab) -> None:
    """Ensembles are known by their lack of a training loss."""
    noisy("SELECT cerebro.pack('noisy', 'diverging', 'price', inputs => 'a, b, c')")
    rates = json.dumps([{"architecture": "mlp", "units": 8, "learning_rate": rate} for rate in (0.001, 1e30)])
    options = json.dumps({"nan": "keep", "objective": "val_loss"})
    noisy("SELECT cerebro.fit('diverging', 'diverged', %s, epochs => 2, options => %s)", rates, options)
    losses = dict(noisy("SELECT configuration, training_loss FROM diverged_info"))
    assert None not in losses.values() and not math.isfinite(losses[2])
    # Even if the rows for validation had a loss.
    noisy("UPDATE diverged_info SET objective_value = 1e9, validation_loss = 1e9 WHERE configuration = 2")
    of = "SELECT key_value, value FROM cerebro.predict('diverged', 'SELECT * FROM noisy', 'id'"
    assert noisy(f"{of}) ORDER BY 1") == noisy(f"{of}, 1) ORDER BY 1")


def test_an_ensemble_is_the_best_of_a_run_without_objective_too(noisy: Lab) -> None:
    noisy("SELECT cerebro.pack('noisy', 'rows_of_plain', 'price', inputs => 'a, b, c', validation => 0.2, seed => 1)")
    alike = [{"architecture": "mlp", "units": 32, "learning_rate": rate} for rate in (0.003, 0.0031, 0.0032)]
    noisy(
        "SELECT cerebro.fit('rows_of_plain', 'plain', %s, epochs => 3, options => '{\"seed\": 1}')", json.dumps(alike)
    )
    noisy("UPDATE plain_summary SET objective = NULL, direction = NULL")
    noisy("UPDATE plain_info SET objective_value = NULL")
    noisy("SELECT cerebro.ensemble('plain', NULL)")
    rows = noisy("SELECT configuration, validation_loss FROM plain_info ORDER BY configuration")
    assert len(rows) == 4 and all(loss is not None for _, loss in rows)
    noisy("UPDATE plain_info SET validation_loss = %s WHERE configuration = 4", max(loss for _, loss in rows) * 2)
    of = "SELECT key_value, value FROM cerebro.predict('plain', 'SELECT * FROM noisy', 'id'"
    assert noisy(f"{of}) ORDER BY 1") == noisy(f"{of}, 4) ORDER BY 1")


def test_tables_that_say_nothing_of_copies_or_nonsense(noisy: Lab) -> None:
    train(noisy, "told", "price", epochs=1, max_configurations=2)
    for ending in ("", "_info", "_summary"):
        noisy(f"CREATE TABLE odd{ending} AS TABLE told{ending}")
    noisy("ALTER TABLE odd_summary DROP COLUMN run")
    noisy("SELECT cerebro.ensemble('odd', 'odd_together', all_join => true)")
    assert len(noisy("SELECT * FROM odd_together")) == 1
    noisy("ALTER TABLE odd_info ALTER model TYPE text[] USING ARRAY[model::text]")
    with pytest.raises(psycopg2.Error, match="column 'model' of '.*odd_info' is of type text") as error:
        noisy("SELECT cerebro.ensemble('odd', 'odd_twice', all_join => true)")
    assert "It must be of one of the types" in (error.value.diag.message_hint or "")
    assert noisy.value("SELECT to_regclass('odd_twice')") is None
