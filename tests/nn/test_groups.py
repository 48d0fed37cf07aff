"""Several groups in one order: each has the bits that it has in an order of its own, and its own result or error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.protocol import EvaluatedModel, Member, MemberVisit, ModelState, StateRef, TrainedGroup
from tests.thorough import landing

from . import configurations as c
from .test_trainer import CATEGORICAL, IMAGES, LABELS, failure
from .trainer_client import USUAL_ENGINE, Trainer, full, resident, visits_of

# For tests of what the engine decides: how a program trains and evaluates.
on_both = pytest.mark.parametrize("trainer", ["tensorflow", "jax"], indirect=True)


@pytest.fixture(scope="module", params=landing(["tensorflow", "jax"], USUAL_ENGINE))
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("groups"), engine=request.param)
    trainer.data("digits", c.DIGITS, image=IMAGES, digit=c.one_hot(LABELS, 10))
    yield trainer
    trainer.close()


def figures(group: TrainedGroup) -> list[Any]:
    return [(visit.loss, visit.metrics, visit.metric_states) for visit in group.members[0].visits]


def sha256s(groups: list[TrainedGroup]) -> list[str]:
    return [member.state.sha256 for group in groups for member in group.members]


def members_of(trainer: Trainer) -> list[Member]:
    """Members with two shapes of model; the first and the last member share a program."""
    configurations = [
        c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.01),
        c.configuration(c.mlp(units=24), CATEGORICAL),
        c.configuration(c.mlp(), CATEGORICAL, learning_rate=0.02),
    ]
    return [
        trainer.member(configuration, seed=number, shuffle_seed=number, out=number)
        for number, configuration in enumerate(configurations)
    ]


@on_both
def test_each_group_has_the_bits_that_it_has_alone(trainer: Trainer) -> None:
    members = members_of(trainer)
    many = trainer.train_groups("digits", [[member] for member in members])
    files = [Path(str(member.out)).read_bytes() for member in members]
    alone = [group for member in members for group in trainer.train_groups("digits", [[member]])]
    assert sha256s(many) == sha256s(alone) and len(set(sha256s(many))) == 3
    assert files == [Path(str(member.out)).read_bytes() for member in members]
    assert [member.state.index for group in many for member in group.members] == [0, 1, 2]
    for one, other in zip(many, alone):
        assert figures(one) == figures(other)
        assert set(one.seconds) == {"build", "load", "train", "save"}


def test_they_go_on_from_their_states(trainer: Trainer) -> None:
    members = members_of(trainer)
    groups = trainer.train_groups("digits", [[member] for member in members])
    visits = [visit for member, group in zip(members, groups) for visit in visits_of([member], group)]
    further = [
        replace(member, state=full(visit), visits=[MemberVisit(9)], out=visit.path + ".2")
        for member, visit in zip(members, visits)
    ]
    many = trainer.train_groups("digits", [[member] for member in further])
    assert sha256s(many) == [sha256s(trainer.train_groups("digits", [[member]]))[0] for member in further]


def test_the_error_of_a_group_is_its_own(trainer: Trainer) -> None:
    first, second, third = members_of(trainer)
    expected = sha256s(trainer.train_groups("digits", [[first], [third]]))
    trainer.progress.clear()
    wrong = [
        replace(second, configuration=trainer.place(c.configuration(c.mlp(classes=3), CATEGORICAL))),
        replace(second, configuration=trainer.place(c.configuration(c.mlp(), CATEGORICAL, batch_size=0))),
        replace(second, state=StateRef.full("never received", "0")),
        replace(second, out=str(trainer.folder / "no" / "such" / "folder")),
    ]
    kinds = ["ConfigurationFailed", "ConfigurationFailed", "CorruptState", "TrainerFailed"]
    groups = trainer.train_groups("digits", [[first], *([one] for one in wrong), [third]])
    assert sha256s(groups) == expected
    assert [group.error and group.error.kind for group in groups] == [None, *kinds, None]
    assert not any(group.members for group in groups[1:-1])
    assert [member.state.index for group in groups for member in group.members] == [0, 5]


def test_a_state_that_is_gone_from_memory_is_nobodys_fault(trainer: Trainer) -> None:
    """The whole order is refused before anything trains, so that the driver can send the state and ask again."""
    first, second, _ = members_of(trainer)
    first = replace(first, out=str(trainer.folder / "unwritten"))
    gone = replace(second, state=StateRef.resident("nothing"))
    failure("WrongState", trainer.train_groups, "digits", [[first], [gone]])
    assert not (trainer.folder / "unwritten").exists()


def test_an_answer_tells_which_states_are_still_in_memory(trainer: Trainer) -> None:
    members = members_of(trainer)
    groups = trainer.train_groups("digits", [[member] for member in members])
    tokens = [group.members[0].state.token for group in groups]
    assert None not in tokens and trainer.resident == sorted(tokens[1:])
    for member, group in zip(members[1:], groups[1:]):
        (visit,) = visits_of([member], group)
        trainer.evaluate(trainer.configurations[member.configuration], "digits", resident(visit))


@on_both
def test_fused_groups_beside_others(trainer: Trainer) -> None:
    if trainer.started.versions["engine"] == "tensorflow":
        pytest.skip("TensorFlow cannot fuse")
    members = members_of(trainer)
    fused = trainer.train_fused("digits", members[0], members[2])
    groups = trainer.train_groups("digits", [[members[1]], [members[0], members[2]]])
    assert sha256s(groups)[1:] == [visit.state.sha256 for visit in fused]
    assert [member.state.index for group in groups for member in group.members] == [0, 1, 2]
    tokens = [member.state.token for group in groups for member in group.members]
    assert tokens[1] is None and trainer.resident == sorted(token for token in tokens if token)


def states_left(trainer: Trainer) -> list[ModelState]:
    """The states of three models; that of the second and that of the third are in the trainer's memory."""
    members = members_of(trainer)
    groups = trainer.train_groups("digits", [[member] for member in members])
    visits = [visit for member, group in zip(members, groups) for visit in visits_of([member], group)]
    refs = [full(visits[0]), resident(visits[1]), resident(visits[2])]
    return [ModelState(member.configuration, state) for member, state in zip(members, refs)]


def results(models: list[EvaluatedModel]) -> list[Any]:
    return [(one.rows, one.loss, one.metrics, one.metric_states) for one in models]


@on_both
def test_several_evaluations_in_one_order_have_the_results_of_single_ones(trainer: Trainer) -> None:
    first, second, third = states_left(trainer)
    together = trainer(trainer.evaluation("digits", third, second, first, first))
    assert together.resident == [second.state.token]  # the first model has taken the place of the third
    assert all(set(one.seconds) == {"build", "load", "evaluate"} for one in together.models)
    first, second, third = states_left(trainer)
    known = trainer.configurations
    alone = [trainer.evaluate(known[one.configuration], "digits", one.state) for one in (third, second, first, first)]
    assert results(together.models) == results(alone) and len({one.loss for one in alone}) == 3


def test_the_error_of_an_evaluation_is_its_own(trainer: Trainer) -> None:
    first, second, third = states_left(trainer)
    expected = results(trainer(trainer.evaluation("digits", third, first)).models)
    first, second, third = states_left(trainer)
    wrong = [
        replace(second, configuration=trainer.place(c.configuration(c.mlp(classes=3), CATEGORICAL))),
        replace(second, state=StateRef.full("never received", "0")),
    ]
    found = trainer(trainer.evaluation("digits", third, *wrong, first)).models
    assert [one.error and one.error.kind for one in found] == [None, "ConfigurationFailed", "CorruptState", None]
    assert results([found[0], found[-1]]) == expected
    gone = replace(second, state=StateRef.resident("nothing"))
    failure("WrongState", trainer, trainer.evaluation("digits", first, gone))


@on_both
def test_models_that_begin_alike_have_the_same_bits_whatever_was_trained_before(trainer: Trainer) -> None:
    """As the models of groups do: the trainer keeps their first state."""
    alike = c.configuration(c.mlp(units=12), CATEGORICAL, learning_rate=0.01)
    members = [trainer.member(alike, seed=7, shuffle_seed=7, out=number) for number in range(4)]
    assert len(set(sha256s(trainer.train_groups("digits", [[member] for member in members])))) == 1
    other = trainer.member(alike, seed=8, shuffle_seed=7, out=4)
    first, second, third = sha256s(trainer.train_groups("digits", [[members[0]], [other], [members[1]]]))
    assert first == third != second


def test_progress_counts_all_groups(trainer: Trainer) -> None:
    """Also if no single group takes long enough for a report."""
    short = c.configuration(c.mlp(units=64), CATEGORICAL, batch_size=2, epochs=2)
    trainer.train(short, "digits")
    trainer.progress.clear()
    count = 60 if trainer.started.versions["engine"] == "tensorflow" else 400  # JAX trains one in a few milliseconds
    groups = trainer.train_groups("digits", [[trainer.member(short, out=0)]] * count)
    rows = [progress.rows for progress in trainer.progress]
    assert rows and rows == sorted(rows) and rows[-1] > rows[0] > 0
    assert {progress.of for progress in trainer.progress} == {sum(group.members[0].visits[0].rows for group in groups)}


def test_an_order_without_rows_fails_as_a_whole(trainer: Trainer) -> None:
    failure("UndefinedObject", trainer.train_groups, "never was", [[members_of(trainer)[0]]])
    assert trainer.train_groups("digits", []) == []
