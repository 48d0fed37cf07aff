"""The order in which waiting units begin, compared with a search through all of them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from cerebro_db.core.scheduling.companions import MOST_TOO_LONG, Chain, in_series
from cerebro_db.core.scheduling.plan import Evaluate, ModelPlan, Plan, Train, Unit
from cerebro_db.core.scheduling.schedule import Schedule


class Searching(Schedule):
    """Looks at all units that wait, and at all active models, whenever a unit begins."""

    def _urgency(self, unit: Unit) -> tuple[bool, float, int]:
        return self._goes_ahead(unit), self.remaining(unit.model), -self.progress[unit.model].plan.position

    def expected(self, segment: int) -> Unit | None:
        return max(self._waiting[segment], key=self._urgency, default=None)

    def expected_beside(self, unit: Unit, word: str) -> list[Unit]:
        def sort(one: Unit) -> object:
            rows = (one.dataset, one.part) if isinstance(one, Evaluate) else None
            return rows, getattr(self.progress[one.model].plan, word)

        alike = (one for one in self._waiting[unit.segment] if sort(one) == sort(unit) and self._is_untried(one))
        return sorted(alike, key=self._urgency, reverse=True)

    def expected_share(self) -> float:
        return sum(map(self.remaining, self._active)) / self.plan.segments


@pytest.mark.parametrize("seed", range(20))
def test_units_begin_as_if_all_had_been_searched(seed: int) -> None:
    chance = random.Random(seed)
    words = [None, "x", "y"]
    models = tuple(
        ModelPlan(number, position, group=chance.choice(words), series=chance.choice(words))
        for position, number in enumerate(chance.sample(range(1, 100), 30))
    )
    evaluations = {"validation": {0: 0, 1: 1}, "training": {0: 0}}
    plan = Plan(seed, models, 3, 3, evaluations, evaluate_every=2, series_seconds=1.0)
    schedule, under_way, beside = Searching(plan), [], 0
    while not schedule.finished:
        segment = chance.randrange(plan.segments)
        if segment not in schedule.busy and (unit := schedule.expected(segment)):
            assert schedule.take(segment) == unit
            for word in ("group", "series"):
                if getattr(schedule.progress[unit.model].plan, word) and schedule._is_untried(unit):
                    found = list(schedule._beside(unit, word))
                    assert found == schedule.expected_beside(unit, word)
                    beside += len(found)
            under_way.append(unit)
        elif under_way:
            unit = under_way.pop(chance.randrange(len(under_way)))
            if chance.random() < 0.1:
                schedule.failed(unit, "lost", try_again=True)
            else:
                schedule.succeeded(unit, chance.choice([0.0, 0.5, chance.random()]))
        assert schedule._share_of_work() == pytest.approx(schedule.expected_share(), rel=1e-9, abs=1e-9)
        if chance.random() < 0.02 and schedule.plan.epochs < 5:
            schedule._extend(schedule.plan.epochs + 1)
    assert beside > 50


def test_of_many_models_few_are_looked_at_for_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    models = tuple(ModelPlan(number, number, series="x", sort="x") for number in range(1, 5001))
    schedule = Schedule(Plan(1, models, 3, 2, series_seconds=0.1))
    looked: list[Any] = []
    left = schedule._left
    monkeypatch.setattr(schedule, "_left", lambda model: (looked.append(model), left(model))[1])
    for segment in (0, 1, 2) * 10:
        unit = schedule.take(segment)
        assert isinstance(unit, Train)
        for one in itertools.chain(*schedule.order_with(unit)):
            schedule.succeeded(one, 0.005)
    assert schedule.hops > 500
    assert len(looked) < 12 * schedule.hops


def test_an_order_looks_at_few_units_that_take_longer_than_what_is_left_of_it() -> None:
    asked: list[Unit] = []

    def chain(unit: Unit, seconds: float, most: int | None) -> Chain:
        asked.append(unit)
        return Chain([unit], 0.1, True)

    units = [Train(model, 1, 1, 0) for model in range(1000)]
    assert len(in_series(units, chain, lambda model: 1.0, 1.0, 0.35)) == 3
    assert len(asked) <= 3 + MOST_TOO_LONG + 1
