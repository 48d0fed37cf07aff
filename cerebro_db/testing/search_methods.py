"""The contract of search methods: they are pure functions of a run's history."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
from collections.abc import Mapping
from typing import Any

from ..core.search import named_methods
from ..core.search.history import Figures
from ..core.search.methods.rungs import WAITS
from ..core.search.named_methods import Proposals
from ..core.search.policy import Decision, History, Policy, Verdict
from ..core.search.proposing import Sampler
from ..core.search.spaces.read_space import read

SEGMENTS = 3
EPOCHS = 4
SPACE = read(
    {
        "compile": {
            "loss": "mse",
            "optimizer": {"choice": ["Adam", "SGD"]},
            "learning_rate": {"log_uniform": [1e-4, 1]},
            "momentum": {"uniform": [0, 0.9], "when": {"optimizer": "SGD"}},
        },
        "fit": {"batch_size": {"choice": [16, 32, 64]}},
    },
    {7: None},
)


def suggest(dimensions: Any, seed: int, number: int, trials: Any, count: int) -> list[dict[str, Any]]:
    """Suggests points without Optuna; they depend on all arguments."""
    told = json.dumps([seed, number, [trial.to_json() for trial in trials]], sort_keys=True)
    return [SPACE.drawn(seed, f"{told}/{place}") for place in range(count)]


def proposing(name: str, configurations: int | None = 12, epochs: int = EPOCHS, **given: Any) -> Policy:
    spec = named_methods.checked({"name": name, **given}, proposes=True)
    return named_methods.policy_of(spec, epochs, configurations, Proposals(SPACE, 5, 4, suggest))


def stopping(name: str, epochs: int = EPOCHS, **given: Any) -> Policy:
    return named_methods.policy_of(named_methods.checked({"name": name, **given}, proposes=False), epochs, 6)


def random_history(seed: int, order: int = 0) -> History:
    """A history of some models and epochs, of which the last may be incomplete, recorded in random order."""
    chance = random.Random(seed)
    history = History()
    told: list[tuple[Any, ...]] = []

    def some() -> float:
        return chance.choice((chance.random(), chance.random(), 1e300, math.nan, math.inf))

    for model in range(1, chance.randint(1, 6) + 1):
        chosen = SPACE.drawn(seed, model) if chance.random() < 0.7 else None
        history.begins(model, {"generation": chance.randint(0, 3), "chosen": chosen})
        epochs = chance.randint(0, 4)
        for epoch in range(1, epochs + 1):
            for hop in range(epoch * SEGMENTS - SEGMENTS + 1, epoch * SEGMENTS + 1):
                told.append(("trained", model, epoch, hop, chance.randint(0, 9), some(), {"accuracy": some()}))
            for part in range(chance.randint(0, 2)):
                figures = Figures.of(chance.randint(0, 9), some(), {"accuracy": some()})
                told.append(("evaluated", model, epoch, "validation", part, figures))
        complete = max(0, epochs - chance.randint(0, 1))
        history.complete(model, complete)
        for epoch in range(1, complete):
            history.decided(Decision(model, epoch, Verdict.CONTINUE))
        if complete and chance.random() < 0.4:
            reason = chance.choice(("enough", f"{WAITS} 1: not among the best"))
            history.decided(Decision(model, complete, Verdict.STOP, reason))
        if chance.random() < 0.1:
            history.fails(model)
    random.Random(order).shuffle(told)
    for what, *arguments in told:
        getattr(history, what)(*arguments)
    return history


def asked_of(history: History) -> list[tuple[int, int]]:
    """Questions to a policy: each model's last complete epoch, and epochs of unknown models."""
    known = [(model, history.epochs(model)[-1]) for model in history.models if history.epochs(model)]
    return [*known, (history.models[-1] + 1, 1), (1, 7)]


def gives_the_same_answer(policy: Policy, seed: int, order: int) -> None:
    one, other = random_history(seed), random_history(seed, order)
    assert one == other
    for model, epoch in asked_of(one):
        first = policy.decide(one, model, epoch)
        assert first == policy.decide(one, model, epoch) == policy.decide(other, model, epoch)
        assert first == copy.deepcopy(policy).decide(copy.deepcopy(one), model, epoch)
    for active in range(3):
        proposed = policy.propose(one, active)
        assert proposed == policy.propose(other, active)
        assert proposed == copy.deepcopy(policy).propose(copy.deepcopy(one), active)
    assert policy.released(one) == policy.released(other)


def changes_nothing(policy: Policy, seed: int) -> None:
    history = random_history(seed)
    before, itself = copy.deepcopy(history), copy.deepcopy(vars(policy))
    for model, epoch in asked_of(history):
        policy.decide(history, model, epoch)
    policy.propose(history, 0)
    policy.released(history)
    assert history == before and vars(policy) == itself


def decides_about_the_model(policy: Policy, seed: int) -> None:
    history = random_history(seed)
    for model, epoch in asked_of(history):
        decision = policy.decide(history, model, epoch)
        assert (decision.model, decision.epoch) == (model, epoch)
        assert isinstance(decision.verdict, Verdict)
        assert Decision.from_json(json.loads(json.dumps(decision.to_json(), allow_nan=False))) == decision
        assert all(history.stopped(other) for other in decision.gone_on)
        for new in decision.added:
            assert new.model is None and new.parent_hop is None, "the schedule gives the numbers and the hops"
            assert new.parent is None or new.parent in history.models or new.parent == model
            assert new.visits is None or new.visits


class SearchMethodContract:
    """The tests of a method.  A subclass names its class, which is installed, and the parameters that it needs."""

    method: type[Policy] | type[Sampler]
    needed: Mapping[str, Any] = {}

    def policies(self) -> list[Policy]:
        made = [proposing(self.method.name, **self.needed)]
        return (
            [*made, stopping(self.method.name, **self.needed)] if self.method.name in named_methods.STOPPING else made
        )

    def test_it_is_found_by_its_name(self) -> None:
        assert named_methods.METHODS[self.method.name] is self.method and self.method.does

    def test_a_parameter_has_a_field_and_its_default(self) -> None:
        known = {one.name: one for one in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        for parameter in self.method.parameters:
            assert parameter.name in known
            assert parameter.needed or known[parameter.name].default == parameter.default

    def test_the_same_history_gives_the_same_decision_in_whatever_order_it_was_told(self) -> None:
        for policy in self.policies():
            for seed in range(100):
                gives_the_same_answer(policy, seed, seed + 1)

    def test_it_changes_neither_the_history_nor_itself(self) -> None:
        for policy in self.policies():
            for seed in range(100):
                changes_nothing(policy, seed)

    def test_its_decision_is_about_the_model_that_was_asked_for_and_can_be_kept_in_a_row(self) -> None:
        for policy in self.policies():
            for seed in range(100):
                decides_about_the_model(policy, seed)
