"""One contract for all search policies, those of cerebro_db.core.search and those that only tests use; and the history.

The methods that users can name are here because they are in METHOD_CLASSES of named_methods.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import random
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import Clock, models
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import Branching, CopyTheBest, StopAfter, StopWorseHalf

from cerebro_db.core import search
from cerebro_db.core.errors import BadData
from cerebro_db.core.events import Verdict
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.orchestrator import Outcome
from cerebro_db.core.scheduling.schedule import ModelPlan, Plan, Schedule, Status
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.history import Figures
from cerebro_db.core.search.methods.never_stop import NeverStop
from cerebro_db.core.search.policy import Decision, History, NewConfiguration, NewModel, Objective, Policy
from cerebro_db.core.search.proposing import Sampler
from cerebro_db.core.search.variants import Varied, of_folds, of_groups
from cerebro_db.testing.search_methods import (
    EPOCHS,
    SEGMENTS,
    asked_of,
    changes_nothing,
    decides_about_the_model,
    gives_the_same_answer,
    proposing,
    random_history,
    stopping,
)
from tests.thorough import tries

NEEDED = {  # parameters that a method cannot do without
    name: {one.name: one.low or 0.5 for one in method.parameters if one.needed}
    for name, method in named_methods.METHODS.items()
}
POLICIES = [
    NeverStop(),
    StopAfter(2),
    Branching(),
    Branching("val_loss"),
    StopWorseHalf(),
    CopyTheBest(),
    Varied(NeverStop(), of_folds(3)),
    Varied(stopping("asha"), of_groups([1, 2]), True, EPOCHS, 6),
    *(stopping(name, **NEEDED[name]) for name in named_methods.STOPPING),
    *(proposing(name, **NEEDED[name]) for name in named_methods.METHODS if name != "grid"),  # SPACE has no grid
    proposing("tpe", startup=3),
    proposing("evolution", population=3),
    proposing("asha", sampler="tpe", reduction=2),
    proposing("halving", bracket=4, reduction=2),
    proposing("hyperband", reduction=2),
    proposing("median", min_models=2),
    proposing("pbt", 6),
    named_methods.policy_of(
        {"name": named_methods.PLANNED, "brackets": [[3, [1, EPOCHS]], [3, [2]]], "reduction": 3}, EPOCHS, 6
    ),
]
MOST_MODELS = 200  # that a policy may make of 6

every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
seeds = st.integers(0, 2**31 - 1)


# -- the contract --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(named_methods.METHODS) - {"grid"}))  # SPACE has no grid
def test_a_policy_of_an_extended_run_is_the_one_that_a_resume_makes(name: str) -> None:
    """It may have answered before: what it remembers must not depend on the epochs."""
    given = NEEDED[name]
    makers = [lambda epochs: proposing(name, 12, epochs, **given)]
    if name not in named_methods.POPULATIONS:
        makers.append(lambda epochs: proposing(name, None, epochs, **given))
    if name in named_methods.STOPPING:
        makers.append(lambda epochs: stopping(name, epochs, **given))
    for make in makers:
        policy = make(EPOCHS)
        for moment, longer in ((False, EPOCHS), (True, 3 * EPOCHS)):
            if moment:
                policy.extended(longer)
            for seed in range(40):
                history, made = random_history(seed), make(longer)
                for model, epoch in asked_of(history):
                    assert policy.decide(history, model, epoch) == made.decide(history, model, epoch)
                assert policy.propose(history, 1) == made.propose(history, 1)
                assert policy.released(history) == made.released(history)


def test_every_policy_is_under_contract() -> None:
    found = set()
    for module in pkgutil.walk_packages(search.__path__, f"{search.__name__}."):
        for _, one in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            own = one.__module__ == module.name and not inspect.isabstract(one)
            if issubclass(one, Policy) and one is not Policy and own:
                found.add(one)
            if issubclass(one, Sampler) and own:
                assert one in named_methods.METHOD_CLASSES
    assert NeverStop in found and found <= {type(policy) for policy in POLICIES}


@pytest.mark.parametrize("name", named_methods.METHODS)
def test_a_parameter_has_a_field_and_its_default(name: str) -> None:
    known = {one.name: one for one in dataclasses.fields(named_methods.METHODS[name])}  # type: ignore[arg-type]
    for parameter in named_methods.METHODS[name].parameters:
        if not parameter.needed:
            assert known[parameter.name].default == parameter.default


@every_policy
def test_it_has_a_name_and_says_whether_it_is_asked(policy) -> None:
    assert isinstance(policy.name, str) and policy.name
    assert policy.asks is True or policy.asks is False


def ends_a_run(policy, seed) -> None:
    chance, known = random.Random(seed), {}

    class Losses(Clock):
        def wait(self) -> list[Outcome]:
            (one,) = super().wait()
            loss = chance.choice((chance.random(), chance.random(), math.nan))
            return [Outcome(one.unit, one.seconds, weight=7, loss=loss, metrics={"accuracy": chance.random()})]

        def decided(self, decisions: Sequence[Decision]) -> list[ModelPlan]:
            assert len(schedule.progress) <= MOST_MODELS
            decision = decisions[0]
            generation = history.configuration(decision.model).get("generation", 0) + 1
            for new in decision.added:
                chosen = None if new.configuration is None else dict(new.configuration.chosen)
                known[new.model] = {"generation": generation, "chosen": chosen}
            return [ModelPlan(new.model, new.model, new.visits) for new in decision.added]

        def configuration(self, model: int) -> dict[str, Any]:
            return known[model]

    plan = Plan(seed, models(range(1, 7)), SEGMENTS, 4, {"validation": {0: 0, 1: 2}}, evaluate_every=seed % 3)
    schedule, history = Schedule(plan, decides=policy.asks), History()
    orchestrator.run(schedule, Losses(lambda unit: chance.random()), policy, history)
    assert {mine.status for mine in schedule.progress.values()} <= {Status.FINISHED, Status.STOPPED}


@every_policy
@settings(deadline=None, max_examples=tries(10))
@given(seeds, seeds)
def test_the_same_history_gives_the_same_decision_in_whatever_order_it_was_told(policy, seed, order) -> None:
    gives_the_same_answer(policy, seed, order)


@every_policy
@settings(deadline=None, max_examples=tries(10))
@given(seeds)
def test_it_changes_neither_the_history_nor_itself(policy, seed) -> None:
    changes_nothing(policy, seed)


@every_policy
@settings(deadline=None, max_examples=tries(10))
@given(seeds)
def test_its_decision_is_about_the_model_that_was_asked_for_and_can_be_kept_in_a_row(policy, seed) -> None:
    decides_about_the_model(policy, seed)


@every_policy
@pytest.mark.parametrize("seed", range(tries(4)))
def test_a_run_with_it_ends(policy, seed) -> None:
    """Whatever the losses are: it does not add models for ever, and no model is left behind."""
    ends_a_run(policy, seed)


class Guesses(StopAfter):
    def decide(self, history, model, epoch):
        return super().decide(history, model, random.randint(1, 3))


class Counts(StopAfter):
    def decide(self, history, model, epoch):
        self.most += 1
        return super().decide(history, model, epoch)


class Writes(StopAfter):
    def decide(self, history, model, epoch):
        history.complete(model, epoch)
        return super().decide(history, model, epoch)


class CopiesAStranger(StopAfter):
    def decide(self, history, model, epoch):
        return Decision(model, epoch, Verdict.ADD, added=(NewModel(parent=99),))


class Multiplies(StopAfter):
    def decide(self, history, model, epoch):
        return Decision(model, epoch, Verdict.ADD, added=(NewModel(parent=model),))


class CannotBeKept(StopAfter):
    def decide(self, history, model, epoch):
        return Decision(
            model,
            epoch,
            Verdict.ADD,
            added=(NewModel(key=1, configuration=NewConfiguration("", "", 1, None, {"lr": math.nan})),),
        )


@pytest.mark.parametrize(
    ("policy", "check"),
    [
        (Guesses(2), lambda policy: gives_the_same_answer(policy, 5, 6)),
        (Counts(1), lambda policy: changes_nothing(policy, 5)),
        (Writes(1), lambda policy: changes_nothing(policy, 5)),
        (Guesses(2), lambda policy: decides_about_the_model(policy, 5)),
        (CopiesAStranger(2), lambda policy: decides_about_the_model(policy, 5)),
        (CannotBeKept(2), lambda policy: decides_about_the_model(policy, 5)),
        (Multiplies(2), lambda policy: ends_a_run(policy, 5)),
    ],
)
def test_the_contract_notices_a_broken_policy(policy, check) -> None:
    with pytest.raises((AssertionError, ValueError)):
        for _ in range(20):
            check(policy)


@every_policy
def test_it_answers_though_nothing_is_on_record(policy) -> None:
    assert policy.decide(History(), 3, 1).model == 3


def test_never_stop_is_not_asked_and_always_continues() -> None:
    assert not NeverStop().asks
    assert NeverStop().decide(random_history(1), 1, 1) == Decision(1, 1, Verdict.CONTINUE)


# -- decisions -----------------------------------------------------------------------------------------------


def test_a_decision_is_one_row() -> None:
    own = NewConfiguration("loss='mse'", "batch_size=8", chosen={"lr": 0.1})
    best = NewModel(parent=2, configuration=own, model=9, parent_hop=4, from_best=True)
    added = (best, NewModel(key=3, visits=(0, 2)))
    decision = Decision(2, 1, Verdict.STOP, "worse than 1", added)
    row = decision.to_json()
    assert {name: value for name, value in row.items() if name != "detail"} == {
        "model": 2,
        "epoch": 1,
        "decision": "stop",
        "reason": "worse than 1",
        "policy": "policy",
        "request": None,
    }
    assert [new.get("model") for new in row["detail"]["added"]] == [9, None]
    assert Decision.from_json(json.loads(json.dumps(row))) == decision


@pytest.mark.parametrize("more", [{}, {"reason": None, "detail": None}, {"reason": "", "detail": {}}])
def test_a_row_may_leave_out_what_is_empty(more) -> None:
    row = {"model": 2, "epoch": 1, "decision": "continue", **more}
    assert Decision.from_json(row) == Decision(2, 1, Verdict.CONTINUE)


def test_a_new_model_may_leave_out_what_is_empty() -> None:
    row = {"model": 2, "epoch": 1, "decision": "add", "detail": {"added": [{"key": 4, "of a later version": 1}]}}
    assert Decision.from_json(row) == Decision(2, 1, Verdict.ADD, added=(NewModel(key=4),))


NEW = (NewModel(key=1),)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Decision(1, 1, Verdict.CONTINUE, added=NEW), "cannot add"),
        (lambda: Decision(1, 1, Verdict.ADD), "adds none"),
        (lambda: Decision(1, 1, Verdict.STOP), "must have a reason"),
        (lambda: NewModel(), "key"),
        (lambda: NewModel(key=1, parent_hop=2), "no parent"),
        (lambda: NewModel(configuration=NewConfiguration("", "")), "needs an architecture"),
        (lambda: NewConfiguration("", "", 1, "{}"), "not both"),
        (lambda: Decision(1, None, Verdict.STOP, "enough"), "or about neither"),
        (lambda: Decision(None, None, Verdict.STOP, "enough"), "must be about a model"),
        (lambda: Decision(1, 1, Verdict.CONTINUE, gone_on=(1,)), "as another model"),
        (lambda: Decision.from_json({"model": 1, "epoch": 1, "decision": "perhaps"}), "perhaps"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(wrong, said) -> None:
    with pytest.raises((ValueError, BadData), match=said):
        wrong()


# -- the history ---------------------------------------------------------------------------------------------


def test_losses_are_weighted_by_rows_and_metrics_are_the_latest() -> None:
    """A visit's metrics are those of the epoch so far; an evaluation's are those of all parts, told with the last."""
    history = History()
    history.trained(1, 1, 2, 10, 2.0, {"recall": 0.1})
    history.trained(1, 1, 1, 30, 1.0, {"recall": 0.5})
    history.evaluated(1, 1, "validation", 0, Figures.of(1, 4.0, {"recall": 1.0}))
    history.evaluated(1, 1, "validation", 1, Figures.of(3, 8.0, {}))
    history.evaluated(1, 1, "training", 0, Figures.of(5, 0.25, {}))
    history.complete(1, 1)
    assert dict(history.values(1, 1)) == {
        "loss": 1.25,
        "recall": 0.1,
        "val_loss": 7.0,
        "val_recall": 1.0,
        "train_loss": 0.25,
    }
    assert history.value(1, 1, "val_loss") == 7.0
    assert history.value(1, 1, "unheard of") is history.value(1, 2, "loss") is history.value(9, 1, "loss") is None


def test_a_value_that_is_not_finite_or_not_there_is_none() -> None:
    """The log keeps no NaN, so what a running and a resumed driver tell must come to the same."""
    live, resumed = History(), History()
    for history, bad in ((live, math.nan), (resumed, None)):
        history.trained(1, 1, 1, 10, bad, {"accuracy": 0.5, "auc": 0.5})
        history.trained(1, 1, 2, 10, 1.0, {"accuracy": bad})
        history.complete(1, 1)
    assert live == resumed
    assert live.value(1, 1, "loss") is live.value(1, 1, "accuracy") is live.value(1, 1, "auc") is None


def test_a_mean_of_huge_values_is_finite() -> None:
    history = History()
    for hop in (1, 2):
        history.trained(1, 1, hop, 1000, 1e308, {})
    history.complete(1, 1)
    assert history.value(1, 1, "loss") == 1e308


def test_a_part_without_rows_does_not_count() -> None:
    history = History()
    history.evaluated(1, 1, "validation", 0, Figures.of(0, None, {}))
    history.evaluated(1, 1, "validation", 1, Figures.of(4, 0.5, {}))
    history.evaluated(2, 1, "validation", 0, Figures.of(0, None, {}))
    history.complete(1, 1)
    history.complete(2, 1)
    assert history.value(1, 1, "val_loss") == 0.5 and history.value(2, 1, "val_loss") is None


def test_what_is_told_twice_counts_once() -> None:
    """A driver that asks the log about a lost session may tell what it told before."""
    history = History()
    for _ in range(2):
        history.trained(1, 1, 1, 10, 1.0, {})
    history.trained(1, 1, 2, 10, 2.0, {})
    history.complete(1, 1)
    assert history.value(1, 1, "loss") == 1.5


def test_an_epoch_is_seen_once_it_is_complete() -> None:
    history = History()
    history.trained(1, 1, 1, 10, 1.0, {})
    assert history.epochs(1) == () and history.value(1, 1, "loss") is None
    history.complete(1, 1)
    history.trained(1, 2, 2, 10, 9.0, {})
    assert history.epochs(1) == (1,) and history.value(1, 1, "loss") == 1.0 and history.value(1, 2, "loss") is None
    history.complete(1, 0)
    assert history.epochs(1) == (1,), "an epoch that was complete stays so"


def test_a_late_figure_is_not_lost() -> None:
    history = History()
    history.complete(1, 1)
    history.trained(1, 1, 1, 10, 1.0, {})
    assert history.value(1, 1, "loss") == 1.0
    history.trained(1, 1, 2, 10, 2.0, {})
    assert history.value(1, 1, "loss") == 1.5


def test_it_knows_the_models_their_configurations_and_decisions() -> None:
    history = History()
    history.begins(2, {"lr": 0.1})
    history.begins(1)
    history.begins(2)
    assert history.models == (1, 2)
    assert history.configuration(2) == {"lr": 0.1} and history.configuration(1) == history.configuration(9) == {}
    stop = Decision(2, 3, Verdict.STOP, "enough")
    history.decided(stop)
    assert history.decision(2, 3) == stop and history.decision(2, 2) is None
    assert history.stopped(2) and not history.stopped(1)
    history.decided(Decision(1, 1, Verdict.CONTINUE, gone_on=(2,)))
    assert not history.stopped(2)
    history.decided(stop)
    history.decided(Decision(2, 3, Verdict.GO_ON))
    assert not history.stopped(2)
    history.decided(Decision(None, None, Verdict.ADD, added=(NewModel(parent=2, model=5, parent_hop=6),)))
    assert history.parent(5) == 2 and history.parent(2) is None
    history.fails(1)
    assert history.failed(1) and not history.failed(2)


@pytest.mark.parametrize(("direction", "score"), [("min", 0.5), ("max", -0.5)])
def test_a_smaller_score_is_better(direction, score) -> None:
    history = History(Objective("val_auc", direction))
    history.evaluated(1, 1, "validation", 0, Figures.of(5, 0.1, {"auc": 0.5}))
    history.complete(1, 1)
    assert history.score(1, 1) == score and history.score(1, 2) is history.score(2, 1) is None


def test_an_objective_has_a_direction() -> None:
    with pytest.raises(ValueError, match="min or max, not up"):
        Objective("loss", "up")
