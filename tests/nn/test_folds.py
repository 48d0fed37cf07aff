"""A model of a fold has the bits of one that was given the rows of the other folds only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.protocol import EvaluationRows, MemberVisit, Span, StateRef
from cerebro_db.nn.orders.training import row_orders
from cerebro_db.nn.rows.data import Dataset
from tests.thorough import landing

from . import configurations as c
from .test_trainer import CATEGORICAL, IMAGES, LABELS
from .trainer_client import USUAL_ENGINE, Trainer, full, visits_of

FOLDS = np.random.default_rng(5).integers(1, 4, len(LABELS)).astype("uint8")
FOLDED = {**c.DIGITS, "fold": [c.column("__fold__", [1], "uint8")]}


# For tests of what the engine decides: how a program trains and evaluates.
on_both = pytest.mark.parametrize("trainer", ["tensorflow", "jax"], indirect=True)


@pytest.fixture(scope="module", params=landing(["tensorflow", "jax"], USUAL_ENGINE))
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("folds"), engine=request.param)
    columns = {"image": IMAGES, "digit": c.one_hot(LABELS, 10)}
    trainer.data("all", FOLDED, **columns, __fold__=FOLDS)
    trainer.data("plain", c.DIGITS, **columns)
    for name, chosen in (("others", FOLDS != 2), ("fold", FOLDS == 2)):
        trainer.data(name, c.DIGITS, **{column: values[chosen] for column, values in columns.items()})
    trainer.data("empty", FOLDED, **columns, __fold__=np.full(len(LABELS), 2, "uint8"))
    yield trainer
    trainer.close()


@pytest.mark.parametrize("shuffle", [True, False])
@on_both
def test_the_bits_are_those_of_the_other_rows_alone(trainer: Trainer, shuffle: bool) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, shuffle=shuffle, epochs=2)
    member = trainer.member(configuration, seed=3, shuffle_seed=4)
    found = {}
    for handle, fold in (("all", 2), ("others", None), ("all", None), ("plain", None)):
        (group,) = trainer.train_groups(handle, [[replace(member, fold=fold)]])
        (visit,) = visits_of([member], group)
        found[handle, fold] = visit.state.sha256, visit.rows, visit.steps, visit.loss, visit.metrics
    assert found["all", 2] == found["others", None] and found["all", None] == found["plain", None]
    assert found["all", 2][1] == 2 * (FOLDS != 2).sum()


@on_both
def test_an_evaluation_is_of_the_rows_of_the_fold(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    visit = trainer.train(configuration, "plain")
    expected = trainer.evaluate(configuration, "fold", full(visit))
    (found,) = trainer(trainer.evaluation("all", trainer.model(configuration, full(visit), fold=2))).models
    assert (found.rows, found.loss, found.metrics) == (expected.rows, expected.loss, expected.metrics)
    (none,) = trainer(trainer.evaluation("empty", trainer.model(configuration, full(visit), fold=1))).models
    assert (none.rows, none.loss) == (0, 0.0) and none.metric_states.means["loss"] == [0.0, 0.0]


def test_a_visit_without_rows_leaves_the_state_as_it_was(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    first = trainer.train(configuration, "plain", out=str(trainer.folder / "first"))
    member = replace(trainer.member(configuration, full(first), out="second"), fold=2)
    member = replace(member, out=str(trainer.folder / "second"))
    (group,) = trainer.train_groups("empty", [[member]])
    (visit,) = visits_of([member], group)
    assert (visit.rows, visit.steps, visit.loss, visit.finite) == (0, 0, 0.0, True)
    assert Path(str(visit.path)).read_bytes() == Path(str(first.path)).read_bytes()


@on_both
def test_fused_members_train_on_the_rows_of_their_fold(trainer: Trainer) -> None:
    if trainer.started.versions["engine"] != "jax":
        pytest.skip("only JAX fuses")
    members = [
        replace(
            trainer.member(c.configuration(c.mlp(), CATEGORICAL, learning_rate=rate), seed=place, out=place), fold=fold
        )
        for fold in (2,)
        for place, rate in enumerate((0.01, 0.02))
    ]
    together = trainer.train_fused("all", *members)
    alone = trainer.train_fused("others", *[replace(member, fold=None) for member in members])
    assert [one.state.sha256 for one in together] == [one.state.sha256 for one in alone]
    assert [one.rows for one in together] == [(FOLDS != 2).sum()] * 2


def test_a_fold_of_a_group_has_the_bits_of_these_rows_alone(trainer: Trainer) -> None:
    """A chain of two visits with an evaluation after each, on the rows of the group in the fold."""
    configuration, span = c.configuration(c.mlp(), CATEGORICAL), Span(70, 60)
    lies = np.arange(len(LABELS))
    group = (lies >= 70) & (lies < 130)
    columns = {"image": IMAGES, "digit": c.one_hot(LABELS, 10)}
    for name, chosen in (("others of group", group & (FOLDS != 2)), ("fold of group", group & (FOLDS == 2))):
        trainer.data(name, c.DIGITS, **{column: values[chosen] for column, values in columns.items()})
    visits = [MemberVisit(4, True), MemberVisit(5, True)]
    member = replace(trainer.member(configuration, seed=3), visits=visits)
    found = {}
    for handle, fold, rows, judged in (
        ("all", 2, span, EvaluationRows("all", span, 2)),
        ("others of group", None, None, EvaluationRows("fold of group")),
    ):
        (trained,) = trainer.train_groups(handle, [[replace(member, fold=fold, span=rows, evaluations=[judged])]])
        assert trained.error is None
        its = trained.members[0]
        figures = [(one.rows, one.loss, one.metrics) for visit in its.visits for one in visit.evaluations]
        found[handle] = its.state.sha256, [(visit.rows, visit.loss) for visit in its.visits], figures
    assert found["all"] == found["others of group"] and len(found["all"][2]) == 2
    assert (
        found["all"][1][0][0] == (group & (FOLDS != 2)).sum() and found["all"][2][0][0] == (group & (FOLDS == 2)).sum()
    )
    too_long = replace(member, fold=2, span=Span(70, len(LABELS)))
    (refused,) = trainer.train_groups("all", [[too_long]])
    assert refused.error is not None and "cannot be chosen" in refused.error.message


def test_rows_without_folds_refuse_a_fold(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    group = trainer.train_groups("plain", [[replace(trainer.member(configuration), fold=1)]])[0]
    assert group.error is not None and "these rows have no folds" in group.error.message
    (one,) = trainer(trainer.evaluation("plain", trainer.model(configuration, StateRef.seed(), fold=1))).models
    assert one.error is not None and "these rows have no folds" in one.error.message


def test_members_of_a_group_have_one_fold(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    members = [trainer.member(configuration, out=place) for place in (0, 1)]
    with pytest.raises(Exception, match="the members of a group need the same rows"):
        trainer.train_fused("all", members[0], replace(members[1], fold=1))


def test_rows_on_disk_are_gathered_all_the_same(tmp_path: Path) -> None:
    """Without a framework: each row of the pass once, in its order."""
    files = {}
    for name, values in (("image", IMAGES.astype("uint8")), ("digit", c.one_hot(LABELS, 10)), ("__fold__", FOLDS)):
        files[name] = str(tmp_path / name)
        values.tofile(files[name])
    dataset = Dataset(FOLDED, len(LABELS), files)
    chosen = dataset.rows_of(3, True)
    assert chosen is not None and set(FOLDS[chosen]) == {1, 2}
    order = row_orders(len(chosen), [7], 0, True, chosen)
    assert order is not None and sorted(order) == sorted(chosen) and list(order) != sorted(chosen)
    lines = row_orders(len(chosen), [7, 8], 0, True, chosen)
    assert lines is not None and (lines[0] == order).all() and sorted(lines[1]) == sorted(chosen)
    assert (row_orders(len(chosen), [7], 0, False, chosen) == chosen).all()
    kept = dataset.rows_of(3, False)
    assert kept is not None and len(kept) + len(chosen) == len(LABELS)
