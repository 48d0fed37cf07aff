"""A model of a group, whose rows lie together, has the bits of one that was given these rows only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.protocol import Span
from cerebro_db.nn.orders.training import row_orders

from . import configurations as c
from .test_trainer import CATEGORICAL, IMAGES, LABELS
from .trainer_client import Trainer, full, visits_of

SPAN = Span(70, 150)
ROWS = slice(SPAN.start, SPAN.start + SPAN.rows)


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def trainer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = Trainer(tmp_path_factory.mktemp("spans"), engine=request.param)
    columns = {"image": IMAGES, "digit": c.one_hot(LABELS, 10)}
    trainer.data("all", c.DIGITS, **columns)
    trainer.data("group", c.DIGITS, **{name: values[ROWS] for name, values in columns.items()})
    yield trainer
    trainer.close()


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_bits_are_those_of_the_groups_rows_alone(trainer: Trainer, shuffle: bool) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL, shuffle=shuffle, epochs=2)
    member = trainer.member(configuration, seed=3, shuffle_seed=4)
    found = {}
    for handle, span in (("all", SPAN), ("group", None), ("all", Span(0, len(LABELS))), ("all", None)):
        (group,) = trainer.train_groups(handle, [[replace(member, span=span)]])
        (visit,) = visits_of([member], group)
        found[handle, span] = visit.state.sha256, visit.rows, visit.steps, visit.loss, visit.metrics
    assert found["all", SPAN] == found["group", None] != found["all", None]
    assert found["all", Span(0, len(LABELS))] == found["all", None]
    assert found["all", SPAN][1] == 2 * SPAN.rows


def test_an_evaluation_is_of_the_rows_of_the_group(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    visit = trainer.train(configuration, "all")
    expected = trainer.evaluate(configuration, "group", full(visit))
    models = [trainer.model(configuration, full(visit), span=span) for span in (SPAN, Span(5, 0))]
    found, none = trainer(trainer.evaluation("all", *models)).models
    assert (found.rows, found.loss, found.metrics) == (expected.rows, expected.loss, expected.metrics)
    assert (none.rows, none.loss) == (0, 0.0)


def test_a_visit_to_no_row_leaves_the_state_as_it_was(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    first = trainer.train(configuration, "all", out=str(trainer.folder / "first"))
    member = replace(trainer.member(configuration, full(first)), span=Span(3, 0), out=str(trainer.folder / "second"))
    (group,) = trainer.train_groups("all", [[member]])
    (visit,) = visits_of([member], group)
    assert (visit.rows, visit.steps, visit.finite) == (0, 0, True)
    assert Path(str(visit.path)).read_bytes() == Path(str(first.path)).read_bytes()


def test_rows_that_are_not_there_are_refused(trainer: Trainer) -> None:
    configuration = c.configuration(c.mlp(), CATEGORICAL)
    member = replace(trainer.member(configuration), span=Span(1, len(LABELS)))
    (group,) = trainer.train_groups("all", [[member]])
    assert group.error is not None and "cannot be chosen" in group.error.message
    state = trainer.model(configuration, full(trainer.train(configuration, "all")), span=Span(len(LABELS), 1))
    (found,) = trainer(trainer.evaluation("all", state)).models
    assert found.error is not None and "cannot be chosen" in found.error.message


def test_members_of_a_pass_need_the_same_rows(trainer: Trainer) -> None:
    members = [replace(trainer.member(c.configuration(c.mlp(), CATEGORICAL)), span=Span(0, rows)) for rows in (8, 9)]
    with pytest.raises(InvalidArgument, match="same rows"):
        trainer.train_groups("all", [members])


def test_the_order_of_a_groups_rows_is_that_of_so_many_rows() -> None:
    chosen = list(range(ROWS.start, ROWS.stop))
    alone, within = row_orders(SPAN.rows, [4], 1, True), row_orders(SPAN.rows, [4], 1, True, np.array(chosen))
    assert [row + SPAN.start for row in alone] == list(within)
