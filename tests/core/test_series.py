"""Several short visits or evaluations in one order: which share one, and that the models stay the same."""

from __future__ import annotations

from dataclasses import replace

from experiments import Experiment
from fakes import models

from cerebro_db.core.scheduling.plan import Evaluate, Plan, Unit
from cerebro_db.core.scheduling.schedule import Schedule

HALF_A_SECOND = 0.5


def one_segment(numbers: range, **more: object) -> Schedule:
    plan = Plan(1, tuple(replace(one, series="jax") for one in models(numbers)), 1, 10, series_seconds=HALF_A_SECOND)
    return Schedule(replace(plan, **more))  # type: ignore[arg-type]


def first_visits(schedule: Schedule, seconds: float) -> None:
    """One visit of each model, each in an order of its own: now the pace of all is known."""
    for _ in schedule.progress:
        unit = schedule.take(0)
        assert unit is not None and schedule.follow_ups(unit) == []
        schedule.succeeded(unit, seconds)


def test_a_visit_of_unknown_length_has_an_order_of_its_own() -> None:
    first_visits(one_segment(range(1, 9)), 0.01)


def test_the_first_visit_of_a_model_is_expected_to_take_as_long_as_those_of_its_sort() -> None:
    plan = one_segment(range(1, 41)).plan
    sorts = tuple(replace(one, sort="long" if one.model % 2 else "short") for one in plan.models)
    schedule = Schedule(replace(plan, models=sorts))
    for _ in range(2):
        unit = schedule.take(0)
        assert unit is not None and schedule.follow_ups(unit) == [], "nothing is known of its sort"
        schedule.succeeded(unit, 2 * HALF_A_SECOND if unit.model % 2 else 0.1)
    sizes = {}
    for _ in range(4):
        unit = schedule.take(0)
        assert unit is not None
        chosen = schedule.follow_ups(unit)
        assert all(other.model % 2 == 0 for other in chosen)
        sizes[unit.model % 2] = len(chosen)
    assert sizes[0] == 4 and sizes.get(1, 0) == 0


def test_an_order_takes_no_longer_than_the_plan_says() -> None:
    schedule = one_segment(range(1, 101))
    first_visits(schedule, 0.1)
    unit = schedule.take(0)
    assert unit is not None
    assert len(schedule.follow_ups(unit)) == 4  # five visits of 0.1 s
    schedule = one_segment(range(1, 101))
    first_visits(schedule, 0.3)
    unit = schedule.take(0)
    assert unit is not None and schedule.follow_ups(unit) == []


def test_an_order_takes_at_most_half_of_the_segments_work() -> None:
    schedule = one_segment(range(1, 9))
    first_visits(schedule, 0.001)
    unit = schedule.take(0)
    assert unit is not None
    chosen = schedule.follow_ups(unit)
    assert len(chosen) == 3 and schedule.busy[0] == {unit, *chosen}


def test_only_visits_of_one_series_share_an_order() -> None:
    plan = Plan(1, models(range(1, 9)), 1, 10, series_seconds=HALF_A_SECOND)
    kinds = tuple(replace(one, series="jax" if one.model < 5 else None) for one in plan.models)
    schedule = Schedule(replace(plan, models=kinds))
    first_visits(schedule, 0.001)
    unit = schedule.take(0)
    assert unit is not None
    assert {visit.model for visit in schedule.follow_ups(unit)} <= {1, 2, 3, 4}


def test_a_visit_that_failed_before_is_alone() -> None:
    schedule = one_segment(range(1, 9))
    first_visits(schedule, 0.001)
    unit = schedule.take(0)
    assert unit is not None
    schedule.failed(unit, "the trainer died", try_again=True)
    again = schedule.take(0)
    assert again == unit and schedule.follow_ups(again) == []
    schedule.succeeded(again)
    other = schedule.take(0)
    assert other is not None and all(visit != unit for visit in schedule.follow_ups(other))


def orders_of(schedule: Schedule, units: int, seconds: float) -> list[list[Unit]]:
    """The first orders of a segment, all of which succeed; each unit takes so long."""
    orders: list[list[Unit]] = []
    while sum(map(len, orders)) < units:
        unit = schedule.take(0)
        assert unit is not None
        orders.append([unit, *schedule.follow_ups(unit)])
        for one in orders[-1]:
            schedule.succeeded(one, seconds)
    return orders


def test_short_evaluations_on_the_same_rows_share_an_order() -> None:
    schedule = one_segment(range(1, 9), evaluations={"validation": {0: 0, 1: 0}}, evaluate_every=1)
    orders = orders_of(schedule, 100, 0.001)
    evaluations = [order for order in orders if isinstance(order[0], Evaluate)]
    assert max(map(len, evaluations)) > 2 and len(evaluations[0]) == 1  # the pace of the first is not known
    assert all(len({type(one) for one in order}) == 1 for order in orders)
    assert all(len({one.part for one in order if isinstance(one, Evaluate)}) <= 1 for order in orders)


def test_long_evaluations_share_no_order() -> None:
    schedule = one_segment(range(1, 9), evaluations={"validation": {0: 0}}, evaluate_every=1)
    orders = orders_of(schedule, 40, 0.6)
    assert {len(order) for order in orders} == {1} and any(isinstance(order[0], Evaluate) for order in orders)


def test_an_evaluation_that_failed_before_is_alone() -> None:
    schedule = one_segment(range(1, 9), evaluations={"validation": {0: 0}}, evaluate_every=1)
    orders_of(schedule, 30, 0.001)  # now the pace of all is known
    while not isinstance(unit := schedule.take(0), Evaluate):
        assert unit is not None
        schedule.succeeded(unit, 0.001)
    schedule.failed(unit, "the trainer died", try_again=True)
    again = schedule.take(0)
    assert again == unit and schedule.follow_ups(again) == []


def test_whatever_happens_the_models_are_the_same() -> None:
    """Experiments compare each model with the one that trains undisturbed; some of them have long orders."""
    runs = [Experiment(seed).run() for seed in range(1500)]
    for longest in ([one.longest_order for one in runs], [one.most_evaluations for one in runs]):
        assert sum(one > 1 for one in longest) > 10 and max(longest) > 2
