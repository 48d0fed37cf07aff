"""``refit => true``: the best model is trained again on all rows, and predictions take the mean of both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.lab import Lab, eventually, run, verb
from tests.sql.runs.test_cancels import Call, transaction
from tests.sql.runs.test_ensembling import FEW as MANY
from tests.sql.runs.test_ensembling import NOISY

FEW = {**MANY, "epochs": 3, "max_configurations": 2}
STEPS = ["ensemble", "calibrate", "refit"]
AGAIN = ", and the same trained again on all rows"
PACKED = "SELECT packed_table FROM cerebro.run_plan WHERE run = %s"


@pytest.fixture(scope="module")
def noisy(lab: Lab) -> Lab:
    if lab.greenplum:
        pytest.skip("on Greenplum, an error of such a step would end the call")
    lab(NOISY)
    return lab


def train(model: str, **more: Any) -> list[Any]:
    return verb("train", "noisy", model, **{"target": "class", **FEW, "refit": True, **more})


def rows_of(lab: Lab, model: str) -> list[dict[str, Any]]:
    found = lab(f"SELECT to_jsonb(i) FROM {model}_info i ORDER BY configuration")
    return [row for (row,) in found]


def predicted(lab: Lab, model: str, more: str = "") -> list[Any]:
    rows = f"cerebro.predict('{model}', 'SELECT * FROM noisy', 'id'{more})"
    return lab(f"SELECT key_value, class, probability FROM {rows} ORDER BY 1")


def require_no_packed_rows_of_all(lab: Lab, model: str) -> None:
    """Those of the training are there, unless an earlier call has packed the same rows."""
    name = f"{lab.schema}_{model}_packed%"
    there = lab("SELECT tablename FROM pg_tables WHERE schemaname = 'cerebro_data' AND tablename LIKE"
                " %s AND tablename !~ '_(seg[0-9]+|summary)$' ORDER BY 1", name)  # fmt: skip
    own = f"{lab.schema}_{model}_packed"
    assert there in ([], [(own,), (f"{own}_validation",)])


def require_refitted(lab: Lab, number: int, model: str) -> None:
    *members, mean, again = rows_of(lab, model)
    assert len(members) == FEW["max_configurations"] and again["reason"] == mean["reason"] + AGAIN
    same = ("objective_value", "validation_loss", "validation_metric", "calibration", "quality")
    assert {name: again[name] for name in same} == {name: mean[name] for name in same} and mean["quality"]
    assert again["members"] == 2 * mean["members"] and again["bytes"] == 2 * mean["bytes"]
    assert again["training_loss"] is again["model"] is None
    best = "SELECT chosen_configuration, made_of FROM cerebro"
    assert lab(f"{best}.models WHERE model_table = %s", f"{lab.schema}.{model}") == [(4, again["reason"])]
    assert lab(f"{best}.runs WHERE run = %s", number) == [(4, again["reason"])]
    assert predicted(lab, model) == predicted(lab, model, ", configuration => 4")
    assert predicted(lab, model) != predicted(lab, model, ", configuration => 3")
    assert {name for name in lab.tables() if name.startswith(f"{model}_refit")} == set()
    require_no_packed_rows_of_all(lab, model)


def test_the_members_of_an_ensemble(noisy: Lab) -> None:
    noisy.told()
    number = noisy.value(*train("refitted"))
    told = noisy.told()
    require_refitted(noisy, number, "refitted")
    assert any("(900 rows, epochs: " in one and "The figures are those of configuration 3" in one for one in told), told

    # By hand: all rows prepared as the training rows were, and the same configurations.
    members = rows_of(noisy, "refitted")[-2]["members"]
    packed = noisy.value(PACKED, number)
    noisy("SELECT cerebro.pack_like('noisy', 'by_hand_packed', 'class', NULL, %s)", packed)
    parts = []
    for epochs in sorted({one["epoch"] for one in members}):
        some = [one for one in members if one["epoch"] == epochs]
        listed = json.dumps([{"architecture": one["architecture"], **one["parameters"]} for one in some])
        noisy(
            "SELECT cerebro.fit('by_hand_packed', 'by_hand', %s, epochs => %s, options => '{\"seed\": 1}')",
            listed,
            epochs,
        )
        weights = noisy("SELECT weights FROM by_hand ORDER BY configuration")
        parts += [(members.index(one), bytes(found)) for one, (found,) in zip(some, weights)]
        noisy("DROP TABLE by_hand, by_hand_info, by_hand_summary")
    before, again = (bytes(one) for (one,) in noisy("SELECT weights FROM refitted WHERE configuration > 2 ORDER BY"
                                                    " configuration"))  # fmt: skip
    assert again == before + b"".join(part for _, part in sorted(parts))
    with_both, alone = (
        {key: probability if label == "dear" else 1 - probability for key, label, probability in rows}
        for rows in (predicted(noisy, "refitted"), predicted(noisy, "refitted", ", configuration => 3"))
    )
    assert 0.001 < max(abs(with_both[key] - alone[key]) for key in alone) < 0.5

    # A version of it predicts the same.
    noisy("SELECT cerebro.register(%s, 'refitted')", model := f"refitted_{noisy.schema}")
    assert predicted(noisy, f"{model}@1") == predicted(noisy, "refitted")


def test_no_row_of_the_run_judges_it(noisy: Lab) -> None:
    noisy(*train("unjudged"))
    for call in ("SELECT * FROM cerebro.evaluate('unjudged')", "SELECT * FROM cerebro.calibrate('unjudged')"):
        with pytest.raises(Exception, match="configuration 4 of 'unjudged' was trained on all rows, so none of them"):
            noisy(call)
    assert noisy("SELECT value FROM cerebro.evaluate('unjudged', configuration => 3) WHERE metric = 'rows'") == [
        (179.0,)
    ]
    assert noisy("SELECT value FROM cerebro.evaluate('unjudged', 'SELECT * FROM noisy') WHERE metric = 'rows'") == [
        (900,)
    ]


def test_one_model(noisy: Lab) -> None:
    noisy(*train("alone", max_configurations=1, target="price"))
    first, again = rows_of(noisy, "alone")
    assert (
        again["reason"] == f"the mean of configuration 1{AGAIN}"
        and again["objective_value"] == first["objective_value"]
    )
    assert [one["epoch"] for one in again["members"]] == 2 * [first["epoch"]]
    values = "SELECT value FROM cerebro.predict('alone', 'SELECT * FROM noisy', 'id'{}) ORDER BY key_value"
    assert noisy(values.format("")) == noisy(values.format(", configuration => 2"))
    assert noisy(values.format("")) != noisy(values.format(", configuration => 1"))


def test_a_run_that_nobody_waits_for_and_one_that_is_resumed(noisy: Lab) -> None:
    number = noisy.value(*train("submitted", wait=False))
    assert noisy.value("SELECT cerebro.wait(%s, 120)", number) == "finished"
    require_refitted(noisy, number, "submitted")

    with transaction(noisy) as blocker:
        noisy(
            "CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF new.event = 'followed' AND new.detail ->> 'task' = 'refit' THEN"
            " PERFORM pg_advisory_xact_lock(4711); END IF; RETURN new; END $$"
        )
        noisy("CREATE TRIGGER wait_here BEFORE INSERT ON cerebro.event FOR EACH ROW EXECUTE FUNCTION wait_here()")
        run(blocker, "SELECT pg_advisory_xact_lock(4711)")
        try:
            call = Call(noisy, *train("undone"))
            waits = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 4711"
            ((pid,),) = eventually(lambda: noisy(waits), 120, "the step waits")
            noisy("SELECT pg_cancel_backend(%s)", pid)
            assert "cancel" in str(call.end())
        finally:
            blocker.rollback()
            noisy("DROP TRIGGER wait_here ON cerebro.event; DROP FUNCTION wait_here()")
    assert "undone" not in noisy.tables()
    number = noisy.value("SELECT run FROM cerebro.runs WHERE model_table = %s", f"{noisy.schema}.undone")
    noisy("SELECT cerebro.resume(%s)", number)
    again = rows_of(noisy, "undone")[-1]
    assert again["reason"].endswith(AGAIN) and noisy.status(number) == "finished"


def test_an_error_leaves_the_best_model_as_it_was(noisy: Lab) -> None:
    noisy("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no more'; END $$")
    noisy("CREATE TRIGGER refuse BEFORE INSERT ON cerebro.run FOR EACH ROW WHEN (new.description LIKE '%again on all%')"
          " EXECUTE FUNCTION refuse()")  # fmt: skip
    noisy.told()
    try:
        number = noisy.value(*train("kept"))
    finally:
        noisy("DROP TRIGGER refuse ON cerebro.run; DROP FUNCTION refuse()")
    told = noisy.told()
    assert any("the best model is not trained again on all rows: the run's record: no more" in one for one in told), (
        told
    )
    assert [row["configuration"] for row in rows_of(noisy, "kept")] == [1, 2, 3] and noisy.status(number) == "finished"
    assert predicted(noisy, "kept") == predicted(noisy, "kept", ", configuration => 3")
    require_no_packed_rows_of_all(noisy, "kept")


@pytest.mark.parametrize("more", [{"folds": 3}, {"group_by": "a"}, {"validation": 0}, {"weights": "b"}])
def test_what_it_cannot_be_combined_with(noisy: Lab, more: dict[str, Any]) -> None:
    runs = noisy.value("SELECT count(*) FROM cerebro.runs")
    with pytest.raises(Exception, match=f"refit cannot be true together with {next(iter(more))}"):
        noisy(*train("refused", **more))
    assert noisy.value("SELECT count(*) FROM cerebro.runs") == runs


def test_packed_rows_do_not_say_where_all_rows_are(noisy: Lab) -> None:
    noisy("SELECT cerebro.pack('noisy', 'packed_before', 'class', inputs => 'a, b, c', seed => 1, validation => 0.2)")
    given = {name: value for name, value in FEW.items() if name != "inputs"}
    with pytest.raises(Exception, match="refit needs the table with the rows, and 'packed_before' is packed already"):
        noisy(*verb("train", "packed_before", "refused", refit=True, **given))


def test_a_member_that_is_a_copy_has_the_epochs_of_all_its_models(noisy: Lab) -> None:
    given = {**FEW, "epochs": 20, "method": "paced", "options": {"seed": 1}}
    number = noisy.value(*verb("train", "noisy", "copies", target="class", **given))
    noisy("SELECT cerebro.ensemble('copies', 'all_of_them', 2, all_join => true)")
    models = {model: (parent, epoch) for model, parent, epoch in noisy(
        "SELECT model, parent, best_epoch FROM cerebro.leaderboard WHERE run = %s", number)}  # fmt: skip
    joined = noisy.value("SELECT reason FROM all_of_them_info")
    keys = [int(one) for one in joined.removeprefix("the mean of configurations ").split(" of ")[0].split(", ")]
    chosen = dict(noisy("SELECT configuration, model FROM copies_info"))

    def whole(model: int) -> int:
        parent, epochs = models[model]
        return epochs + (whole(parent) if parent is not None else 0)

    members = noisy.value("SELECT members FROM all_of_them_info")
    assert [one["epoch"] for one in members] == [whole(chosen[key]) for key in keys]
    assert any(models[chosen[key]][0] is not None for key in keys), "no member is a copy"
