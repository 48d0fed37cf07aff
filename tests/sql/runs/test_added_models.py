"""Models that are added while a run goes on, with configurations of their own, and runs that have a budget.

The decisions are written into the log of a finished run by hand, and a replay of that run carries them out.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg2
import pytest

from cerebro_db.core.models import state
from tests.sql.lab import CROSS, Lab, eventually, flower_model

EPOCHS, SEGMENTS = 3, 2
OPTIONS = {"deterministic": True, "seed": 5}
ADAM = f"optimizer='Adam(lr=0.01)', {CROSS}"


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=SEGMENTS)
    arch = lab.architecture(flower_model())
    lab.selection("two", [(arch, ADAM, "batch_size=16"), (arch, ADAM.replace("0.01", "0.02"), "batch_size=16")])
    return lab


@pytest.fixture(scope="module")
def first(flowers: Lab) -> int:
    """A run that has added models, as its log says."""
    run = flowers.fit("train", "first", "two", EPOCHS, validation_table="val", options=OPTIONS)

    def decide(decision: str, model: int | None = None, epoch: int | None = None, **more: Any) -> None:
        policy, reason = more.pop("policy", "by hand"), more.pop("reason", None)
        flowers(
            "INSERT INTO decision (run, model, epoch, decision, reason, policy, detail)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            run, model, epoch, decision, reason, policy, json.dumps(more),
        )  # fmt: skip

    def new(model: int, key: int, compile_params: str, fit_params: str = "batch_size=16", **more: Any) -> Any:
        own: dict[str, Any] = {name: more.pop(name) for name in ("model_id", "architecture", "chosen") if name in more}
        own |= {"compile_params": compile_params, "fit_params": fit_params}
        return {"model": model, "key": key, "configuration": own, **more}

    small = json.dumps(flower_model(4))
    decay = "ExponentialDecay(initial_learning_rate=0.02,decay_steps=10,decay_rate=0.5)"
    of_one = {"parent": 1, "parent_hop": 2}
    # About the run as a whole: a new architecture, one with a loop hole, a misspelt optimizer.
    decide("add", added=[new(3, 3, ADAM, architecture=small, chosen={"units": 4})])
    decide("add", added=[new(4, 4, ADAM, architecture=json.dumps({"class_name": "Lambda"}))])
    decide("add", added=[new(5, 5, f"optimizer='Adamm()', {CROSS}", model_id=1)])
    # At the end of an epoch of model 1: copies of its state with parameters of their own.
    decide(
        "add", 1, 1, added=[new(6, 6, ADAM.replace("0.01", "0.003"), "batch_size=8", chosen={"lr": 0.003}, **of_one)]
    )
    decide("add", 1, 1, added=[new(7, 7, f"optimizer='Adam(learning_rate={decay})', {CROSS}", **of_one)])
    decide("add", 1, 1, added=[new(8, 8, f"optimizer='SGD(lr=0.01)', {CROSS}", **of_one)])
    decide("add", 1, 1, added=[new(9, 9, ADAM, architecture=small, **of_one)])
    # While others train: a new architecture, and one whose inputs are not those of the table.
    other, wrong = flower_model(6), flower_model(6)
    wrong["config"]["layers"][0]["config"]["batch_shape"] = [None, 5]
    decide("add", 1, 2, added=[new(10, 10, ADAM, architecture=json.dumps(other))])
    decide("add", 1, 2, added=[new(11, 11, ADAM, architecture=json.dumps(wrong))])
    # Model 2 is stopped within its second epoch, goes on, and is stopped for good.
    decide("stop", 2, 1, hop=3, reason="budget", policy="budget")
    decide("go on", 2, 1, policy="budget")
    decide("stop", 2, 2, reason="enough")
    return run


@pytest.fixture(scope="module")
def again(flowers: Lab, first: int) -> int:
    return flowers.fit("train", "again", "two", EPOCHS, validation_table="val", options={"replay": first})


def board(lab: Lab, run: int) -> dict[int, tuple[str, str | None]]:
    return {
        model: (status, reason)
        for model, status, reason in lab("SELECT model, status, reason FROM leaderboard WHERE run = %s", run)
    }


def tensors(lab: Lab, run: int, model: int) -> dict[str, np.ndarray]:
    """The last state of a model, by the names of the variables."""
    whole = lab.states(run)[model]
    types = {"F32": "<f4", "I32": "<i4", "I64": "<i8", "U32": "<u4"}
    return {
        tensor.name.partition("|")[2]: np.frombuffer(whole[tensor.start : tensor.end], types[tensor.dtype])
        for tensor in state.read_header(whole).tensors
    }


def value(found: dict[str, np.ndarray], ending: str) -> float:
    return float(next(array[0] for name, array in found.items() if name.endswith(ending)))


def test_each_added_model_trains_or_says_why_not(flowers: Lab, again: int) -> None:
    found = board(flowers, again)
    finished = {1, 3, 6, 7, 10}
    assert {model for model, (status, _) in found.items() if status == "finished"} == finished
    assert found[2] == ("stopped", "enough")
    reasons = {model: reason for model, (status, reason) in found.items() if status == "failed"}
    assert set(reasons) == {4, 5, 8, 9, 11}
    assert "Lambda" in reasons[4] and "Adamm" in reasons[5]
    assert "optimizer has another class" in reasons[8] and "another architecture" in reasons[9]
    assert "5" in reasons[11] and "4" in reasons[11], "the inputs have another shape"
    hops = dict(flowers("SELECT model, count(*) FROM hop WHERE run = %s GROUP BY 1", again))
    assert hops == {model: EPOCHS * SEGMENTS for model in finished} | {2: 2 * SEGMENTS}
    assert flowers("SELECT percent, hops_done FROM run_progress WHERE run = %s", again) == [(100, 34)]


def test_a_copy_has_the_state_of_its_parent_and_its_own_learning_rate(flowers: Lab, again: int) -> None:
    parent, copy, decays = (tensors(flowers, again, model) for model in (1, 6, 7))
    assert value(parent, "/learning_rate") == pytest.approx(0.01)
    assert value(copy, "/learning_rate") == pytest.approx(0.003)
    assert not any(name.endswith("/learning_rate") for name in decays), "a schedule is no variable"
    steps = dict(flowers("SELECT model, sum(steps)::integer FROM hop WHERE run = %s GROUP BY 1", again))
    before = flowers.value("SELECT sum(steps)::integer FROM hop WHERE run = %s AND model = 1 AND hop <= 2", again)
    assert value(copy, "/iteration") == before + steps[6] > before + steps[7] == value(decays, "/iteration")
    begins = dict(flowers("SELECT model, initial_sha256 FROM model WHERE run = %s", again))
    sha256 = flowers.value("SELECT state_sha256 FROM hop WHERE run = %s AND model = 1 AND hop = 2", again)
    assert begins[6] == begins[7] == sha256
    # The copies go on where their parent was, and do not begin anew.
    first_loss = "SELECT training_loss FROM learning_curve WHERE run = %s AND model = %s AND epoch = 1"
    assert flowers.value(first_loss, again, 6) < 0.8 * flowers.value(first_loss, again, 1)


def test_added_configurations_are_on_record(flowers: Lab, again: int) -> None:
    rows = flowers(
        "SELECT configuration, model_id, fit_params, chosen, compile <> '{}' FROM configuration WHERE run = %s"
        " AND configuration > 2 ORDER BY 1",
        again,
    )
    assert rows == [
        (3, 2, "batch_size=16", {"units": 4}, True),
        (4, 3, "batch_size=16", {}, False),
        (5, 1, "batch_size=16", {}, False),
        (6, 1, "batch_size=8", {"lr": 0.003}, True),
        (7, 1, "batch_size=16", {}, True),
        (8, 1, "batch_size=16", {}, False),
        (9, 2, "batch_size=16", {}, False),
        (10, 4, "batch_size=16", {}, True),
        (11, 5, "batch_size=16", {}, True),
    ]
    keys = "SELECT array_agg(mst_key ORDER BY mst_key) FROM again"
    assert flowers.value(keys) == [1, 2, 3, 6, 7, 10], "models that have trained are handed out"
    assert flowers.value("SELECT count(*) FROM again_info") == 11


def test_a_replay_of_the_replay_has_the_same_bits(flowers: Lab, again: int) -> None:
    third = flowers.fit("train", "third", "two", EPOCHS, validation_table="val", options={"replay": again})
    assert flowers.states(third) == flowers.states(again)
    decided = "SELECT model, epoch, decision, reason, detail FROM decision WHERE run = %s ORDER BY 1, 2, 3, 5"
    assert flowers(decided, third) == flowers(decided, again)
    assert board(flowers, third) == board(flowers, again)


@pytest.mark.needs_cluster
@pytest.mark.thorough  # tests/core/test_driver.py and test_orchestrator.py crash at decisions that add models
def test_a_run_that_is_killed_and_resumed_has_the_same_bits(flowers: Lab, first: int, again: int) -> None:
    """Killed as soon as some models were added, and again when model 2 has been stopped and has gone on."""
    run = flowers.submit("train", "killed", "two", EPOCHS, validation_table="val", options={"replay": first})
    for moment in ("SELECT count(*) >= 4 FROM decision WHERE run = %s", "SELECT max(hop) >= 4 FROM hop WHERE run = %s"):
        eventually(lambda moment=moment: flowers.value(moment, run), 60, "the run has come so far")
        pid = flowers.value("SELECT driver_pid FROM runs WHERE run = %s", run)
        flowers("SELECT pg_terminate_backend(%s)", pid)
        if flowers.ended(run) != "finished":
            flowers("SELECT resume(%s, wait => false)", run)
    assert flowers.value("SELECT wait(%s)", run) == "finished"
    assert flowers.states(run) == flowers.states(again)
    assert board(flowers, run) == board(flowers, again)
    assert flowers.value("SELECT count(*) FROM model WHERE run = %s", run) == 11


# -- budgets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"hops": 0}, "the limit 'hops' of a budget must be a whole number above 0, not 0"),
        ({"seconds": "60"}, "the limit 'seconds' of a budget must be a number above 0, not \"60\""),
        ({"time": 60}, "a budget has no limit 'time'; it has: seconds, unit_hours, hops, configurations"),
        ({"configurations": 1}, "allows 1 configurations, but 'two' has 2"),
        (60, "option 'budget' cannot be 60"),
    ],
)
def test_a_bad_budget_is_refused(flowers: Lab, budget: Any, said: str) -> None:
    with pytest.raises(psycopg2.Error) as caught:
        flowers.fit("train", "refused", "two", EPOCHS, options={"budget": budget})
    assert said in str(caught.value)
    assert not flowers("SELECT 1 FROM run WHERE model_table LIKE %s", "%refused%")


def test_a_run_ends_with_its_budget_and_its_models_can_be_used(flowers: Lab) -> None:
    run = flowers.fit(
        "train", "spent", "two", EPOCHS, validation_table="val", options={**OPTIONS, "budget": {"hops": 7}}
    )
    assert flowers.status(run) == "finished"
    assert flowers.value("SELECT detail ->> 'reason' FROM event WHERE run = %s AND event = 'finished'", run) == "budget"
    assert flowers.value("SELECT count(*) FROM hop WHERE run = %s", run) == 7
    assert set(board(flowers, run).values()) == {("stopped", "budget")}
    decided = flowers("SELECT policy, decision, epoch, detail ->> 'hop' FROM decision WHERE run = %s ORDER BY 4", run)
    assert len(decided) == 2 and {row[:2] for row in decided} == {("budget", "stop")}
    assert flowers.value("SELECT count(*) FROM spent") == 2
    assert flowers("SELECT percent FROM run_progress WHERE run = %s", run) == [(100,)]
    flowers(
        "SELECT madlib_keras_predict('spent', 'garden', 'id', 'sl, sw, pl, pw', 'guessed', 'response', mst_key => 1)"
    )
    assert flowers.value("SELECT count(*) FROM guessed") == 30
    # What the budget has kept from training has the bits of a run without, as far as it came.
    sums = "SELECT model, hop, state_sha256 FROM hop WHERE run = %s"
    whole = flowers.value("SELECT min(run) FROM run WHERE model_table LIKE %s", "%first")
    assert set(flowers(sums, run)) < set(flowers(sums, whole))


@pytest.mark.parametrize("budget", [{"unit_hours": 0.3 / 3600}, {"seconds": 3}], ids=str)
def test_time_is_counted_over_all_parts_of_a_run(flowers: Lab, budget: Any) -> None:
    """A second part of the run finds the budget spent, and begins nothing."""
    name = next(iter(budget))
    run = flowers.fit("train", name, "two", 20_000, options={**OPTIONS, "budget": budget})
    hops = flowers.value("SELECT count(*) FROM hop WHERE run = %s", run)
    assert 2 <= hops < 80_000
    flowers("SELECT resume(%s, epochs => 20001)", run)
    assert flowers.value("SELECT count(*) FROM hop WHERE run = %s", run) == hops
    assert flowers.value("SELECT count(*) FROM event WHERE run = %s AND event = 'finished'", run) == 2
