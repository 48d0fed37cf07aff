"""Portions: a visit takes some of the rows, and the next visits go on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.protocol import Group, Member, MemberVisit, ModelState, RowPortion, Span, StateRef
from cerebro_db.nn.rows.data import places_of, portion_rows, sampled

from . import configurations as c
from .test_trainer import CATEGORICAL, IMAGES, LABELS
from .trainer_client import Trainer, full, visits_of

COLUMNS = {"image": IMAGES, "digit": c.one_hot(LABELS, 10)}
ROWS, OF = len(LABELS), 7


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 100, 1001, 6007])
@pytest.mark.parametrize("of", [1, 2, 3, 7, 40])
def test_a_pass_has_each_row_once(rows: int, of: int) -> None:
    size = portion_rows(rows, of)
    found = [places_of(RowPortion(number, of), rows) for number in range(3 * of)]
    assert {len(one) for one in found} == {size}, "fused models need as many rows each"
    in_order = np.concatenate(found)
    for start in range(0, len(in_order) - rows + 1, rows):
        assert sorted(in_order[start : start + rows]) == list(range(rows)), "the next portion has the rows that follow"


def test_a_portion_has_rows_from_everywhere() -> None:
    """Rows that were added later are in each portion."""
    for number in range(20):
        places = places_of(RowPortion(number, 20), 10_000)
        tenths = np.bincount(places // 1000, minlength=10)
        assert tenths.min() >= 25 and tenths.max() <= 100, tenths
        assert (np.diff(places) == 1).mean() > 0.9, "most rows lie beside the row before"


def test_a_larger_sample_has_the_smaller_one() -> None:
    small, large = sampled(1001, 30), sampled(1001, 60)
    assert len({*small}) == 30 and {*small} <= {*large} and large.max() < 1001
    assert np.diff(small).max() - np.diff(small).min() <= 1


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("portions"), engine=request.param)
    trainer.data("all", c.DIGITS, **COLUMNS)
    yield trainer
    trainer.close()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("number", [0, 2, 9])
def test_the_bits_are_those_of_the_portions_rows_alone(trainer: Trainer, shuffle: bool, number: int) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, shuffle=shuffle, epochs=2)
    member, portion = trainer.member(configuration, seed=3, shuffle_seed=4), RowPortion(number, OF)
    places = places_of(portion, ROWS)
    trainer.data("portion", c.DIGITS, **{name: values[places] for name, values in COLUMNS.items()})
    found = []
    for handle, visit in (("all", MemberVisit(4, portion=portion)), ("portion", MemberVisit(4))):
        (group,) = trainer.train_groups(handle, [[replace(member, visits=[visit])]])
        (trained,) = visits_of([member], group)
        found.append((trained.state.sha256, trained.rows, trained.steps, trained.loss, trained.metrics))
    assert found[0] == found[1]
    assert found[0][1] == 2 * portion_rows(ROWS, OF)


def test_of_some_rows_the_portion_is_one_of_these(trainer: Trainer) -> None:
    configuration, span = c.configuration(c.mlp(), CATEGORICAL), Span(100, 210)
    member = trainer.member(configuration, seed=3)
    places = span.start + places_of(RowPortion(3, 4), span.rows)
    trainer.data("portion", c.DIGITS, **{name: values[places] for name, values in COLUMNS.items()})
    visits = [MemberVisit(1, portion=RowPortion(3, 4))]
    (ours,) = trainer.train_groups("all", [[replace(member, span=span, visits=visits)]])
    (theirs,) = trainer.train_groups("portion", [[member]])
    assert visits_of([member], ours)[0].state.sha256 == visits_of([member], theirs)[0].state.sha256


def test_fused_models_may_be_at_different_portions(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, engine="jax")
    trainer.data("all", c.DIGITS, **COLUMNS)
    rates = [c.configuration(c.mlp(), CATEGORICAL, "Adam", learning_rate=rate) for rate in (0.01, 0.02)]
    members = [
        replace(
            trainer.member(one, seed=place, out=place), visits=[MemberVisit(place, portion=RowPortion(5 * place, OF))]
        )
        for place, one in enumerate(rates)
    ]
    (fused,) = trainer.train_groups("all", [members])
    alone = [visits_of([one], group)[0] for one in members for group in trainer.train_groups("all", [[one]])]
    for together, single in zip(visits_of(members, fused), alone):
        assert together.rows == single.rows and together.loss == pytest.approx(single.loss, rel=1e-5)
    trainer.close()


def test_an_evaluation_is_of_the_sampled_rows(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    visit = trainer.train(configuration, "all")
    places = sampled(ROWS, 200)
    trainer.data("sample", c.DIGITS, **{name: values[places] for name, values in COLUMNS.items()})
    expected = trainer.evaluate(configuration, "sample", full(visit))
    models = [trainer.model(configuration, full(visit), sampled=most) for most in (200, ROWS, ROWS + 1)]
    found, *whole = trainer(trainer.evaluation("all", *models)).models
    assert (found.loss, found.metrics) == (expected.loss, expected.metrics)
    assert found.rows == ROWS, "a part weighs as much as it has rows"
    every = trainer.evaluate(configuration, "all", full(visit))
    assert [(one.loss, one.metrics, one.rows) for one in whole] == [(every.loss, every.metrics, ROWS)] * 2


def test_what_is_no_portion_is_refused() -> None:
    for number, of in ((-1, 2), (0, 0), (0, -3)):
        with pytest.raises(InvalidArgument, match="there is no portion"):
            RowPortion(number, of)
    visits = [MemberVisit(1, portion=RowPortion(0, 2)), MemberVisit(1)]
    with pytest.raises(InvalidArgument, match="as many portions"):
        Group([Member(0, 1, [visit], StateRef.seed()) for visit in visits])
    with pytest.raises(InvalidArgument, match="a sample has a row"):
        ModelState(0, StateRef.seed(), sampled=0)
