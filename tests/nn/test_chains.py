"""Several visits of a model in one order, with evaluations between them: the bits and figures of an order for each."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.protocol import EvaluatedModel, EvaluationRows, Member, MemberVisit, Span, StateRef, TrainedMember
from tests.thorough import landing

from . import configurations as c
from .test_trainer import CATEGORICAL, IMAGES, LABELS
from .trainer_client import USUAL_ENGINE, Trainer, full, visits_of

SPAN = Span(70, 50)
JUDGED = [EvaluationRows("others", Span(5, 33)), EvaluationRows("digits", SPAN)]
NOISY = c.sequential(
    c.input_layer([64]),
    c.layer("Dense", "hidden", units=12, activation="relu"),
    c.layer("BatchNormalization", "norm"),
    c.layer("Dropout", "drop", rate=0.3, seed=5),
    c.layer("Dense", "out", units=10, activation="softmax"),
)
CONFIGURATIONS = {
    "Adam": c.configuration(NOISY, CATEGORICAL, "Adam", learning_rate=0.01, batch_size=16),
    "averaged weights": c.configuration(
        NOISY, CATEGORICAL, "SGD", learning_rate=0.01, momentum=0.9, use_ema=True, batch_size=7, epochs=2
    ),
    "a metric that is no mean": c.configuration(c.mlp(), CATEGORICAL, metrics=["AUC"], batch_size=50),
}


# For tests of what the engine decides: how a program trains and evaluates.
on_both = pytest.mark.parametrize("trainer", ["tensorflow", "jax"], indirect=True)


@pytest.fixture(scope="module", params=landing(["tensorflow", "jax"], USUAL_ENGINE))
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("chains"), engine=request.param)
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    trainer.data("others", c.DIGITS, image=IMAGES[::-1], digit=c.one_hot(LABELS[::-1], 10))
    yield trainer
    trainer.close()


def member(
    trainer: Trainer, configuration: c.Json, *visits: MemberVisit, state: StateRef | None = None, out: str = "chain"
) -> Member:
    one = trainer.member(configuration, state, seed=3, out=str(trainer.folder / out))
    return replace(one, visits=list(visits), span=SPAN, evaluations=JUDGED)


def trained(trainer: Trainer, *members: Member) -> list[TrainedMember]:
    groups = trainer.train_groups("digits", [[one] for one in members])
    assert [group.error for group in groups] == [None] * len(members)
    return [group.members[0] for group in groups]


def figures(one: EvaluatedModel) -> list[Any]:
    return [one.rows, one.loss, one.metrics, one.metric_states]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_chain_has_the_bits_and_figures_of_single_orders(trainer: Trainer, name: str) -> None:
    configuration = CONFIGURATIONS[name]
    visits = [MemberVisit(seed, seed % 2 == 0) for seed in range(4)]
    (chain,) = trained(trainer, member(trainer, configuration, *visits))
    assert [len(visit.evaluations) for visit in chain.visits] == [2, 0, 2, 0]
    state = None
    for place, (visit, found) in enumerate(zip(visits, chain.visits)):
        alone = trainer.member(configuration, state, seed=3, out=str(trainer.folder / f"alone.{place % 2}"))
        alone = replace(alone, visits=[replace(visit, evaluated=False)], span=SPAN)
        (group,) = trainer.train_groups("digits", [[alone]])
        (one,) = visits_of([alone], group)
        state = full(one)
        assert (found.rows, found.steps, found.loss, found.metrics, found.metric_states) == (
            one.rows, one.steps, one.loss, one.metrics, one.result.metric_states
        )  # fmt: skip
        for rows, evaluated in zip(JUDGED, found.evaluations):
            order = trainer.evaluation(rows.handle, trainer.model(configuration, state, span=rows.span))
            assert figures(evaluated) == figures(trainer(order).models[0])
    assert chain.state.sha256 == one.state.sha256
    assert Path(str(trainer.folder / "chain")).read_bytes() == Path(one.path).read_bytes()


@on_both
def test_chains_of_several_models_are_their_own(trainer: Trainer) -> None:
    visits = [MemberVisit(seed, True) for seed in range(3)]
    members = [
        member(trainer, CONFIGURATIONS[name], *visits, out=f"several.{place}")
        for place, name in enumerate(["Adam", "averaged weights", "Adam"])
    ]
    first, _, third = together = trained(trainer, *members)
    alone = [trained(trainer, one)[0] for one in members]
    assert [one.state.sha256 for one in together] == [one.state.sha256 for one in alone]
    assert first.state.sha256 == third.state.sha256


def diverging(rate: float) -> c.Json:
    line = c.sequential(c.input_layer([64]), c.layer("Dense", "out", units=10))
    return c.configuration(line, "mse", "SGD", learning_rate=rate, batch_size=16)


def test_a_chain_ends_before_a_loss_that_is_not_finite(trainer: Trainer) -> None:
    """With the state and the figures that a shorter chain has."""
    configuration = diverging(10.0)
    visits = [MemberVisit(seed, True) for seed in range(12)]
    (chain,) = trained(trainer, member(trainer, configuration, *visits))
    made = len(chain.visits)
    assert 1 < made < len(visits) and all(visit.finite and visit.evaluations for visit in chain.visits)
    (shorter,) = trained(trainer, member(trainer, configuration, *visits[:made]))
    assert chain.state.sha256 == shorter.state.sha256
    assert [visit.loss for visit in chain.visits] == [visit.loss for visit in shorter.visits]
    path = str(trainer.folder / "chain")
    state = replace(StateRef.full(path, chain.state.sha256), path=path)
    (next_order,) = trained(trainer, member(trainer, configuration, *visits[made:], state=state, out="next"))
    (last,) = next_order.visits
    assert not last.finite and not math.isfinite(last.loss) and not last.evaluations


def test_rows_with_other_columns_are_not_evaluated_between_visits(trainer: Trainer) -> None:
    layout = {**c.DIGITS, "inputs": [{**c.DIGITS["inputs"][0], "name": "picture"}]}
    trainer.data("renamed", layout, picture=IMAGES, digit=c.one_hot(LABELS, 10))
    wrong = replace(
        member(trainer, CONFIGURATIONS["Adam"], MemberVisit(1, True)), evaluations=[EvaluationRows("renamed")]
    )
    (group,) = trainer.train_groups("digits", [[wrong]])
    assert group.error is not None and "the columns that train it" in group.error.message
