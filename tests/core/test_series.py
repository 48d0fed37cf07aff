"""Several short visits or evaluations in one order: which share one, and that the models stay the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from experiments import Experiment
from fakes import models

from cerebro_db.core.scheduling.plan import Evaluate, ModelPlan, Plan, Train, Unit
from cerebro_db.core.scheduling.schedule import MOST_TRIES, Schedule
from tests.thorough import tries

HALF_A_SECOND = 0.5


def one_segment(numbers: range, **more: object) -> Schedule:
    plan = Plan(1, tuple(replace(one, series="jax") for one in models(numbers)), 1, 10, series_seconds=HALF_A_SECOND)
    return Schedule(replace(plan, **more))  # type: ignore[arg-type]


def follow_ups(schedule: Schedule, unit: Unit, most: int | None = None) -> list[Unit]:
    """What an order has after a unit, if no model has several units in it."""
    (first,), *others = schedule.order_with(unit, most)
    assert first == unit and all(len(chain) == 1 for chain in others)
    return [one for (one,) in others]


def first_visits(schedule: Schedule, seconds: float) -> None:
    """One visit of each model, each in an order of its own: now the pace of all is known."""
    for _ in schedule.progress:
        unit = schedule.take(0)
        assert unit is not None and follow_ups(schedule, unit) == []
        schedule.succeeded(unit, seconds)


def test_a_visit_of_unknown_length_has_an_order_of_its_own() -> None:
    first_visits(one_segment(range(1, 9)), 0.01)


def test_the_first_visit_of_a_model_is_expected_to_take_as_long_as_those_of_its_sort() -> None:
    plan = one_segment(range(1, 41)).plan
    sorts = tuple(replace(one, sort="long" if one.model % 2 else "short") for one in plan.models)
    schedule = Schedule(replace(plan, models=sorts))
    for _ in range(2):
        unit = schedule.take(0)
        assert unit is not None and follow_ups(schedule, unit) == [], "nothing is known of its sort"
        schedule.succeeded(unit, 2 * HALF_A_SECOND if unit.model % 2 else 0.1)
    sizes = {}
    for _ in range(4):
        unit = schedule.take(0)
        assert unit is not None
        chosen = follow_ups(schedule, unit)
        assert all(other.model % 2 == 0 for other in chosen)
        sizes[unit.model % 2] = len(chosen)
    assert sizes[0] == 4 and sizes.get(1, 0) == 0


def test_an_order_takes_no_longer_than_the_plan_says() -> None:
    schedule = one_segment(range(1, 101))
    first_visits(schedule, 0.1)
    unit = schedule.take(0)
    assert unit is not None
    assert len(follow_ups(schedule, unit)) == 4  # five visits of 0.1 s
    schedule = one_segment(range(1, 101))
    first_visits(schedule, 0.3)
    unit = schedule.take(0)
    assert unit is not None and follow_ups(schedule, unit) == []


def test_an_order_takes_at_most_half_of_the_segments_work() -> None:
    schedule = one_segment(range(1, 9))
    first_visits(schedule, 0.001)
    unit = schedule.take(0)
    assert unit is not None
    chosen = follow_ups(schedule, unit)
    assert len(chosen) == 3 and schedule.busy[0] == {unit, *chosen}


def test_only_visits_of_one_series_share_an_order() -> None:
    plan = Plan(1, models(range(1, 9)), 1, 10, series_seconds=HALF_A_SECOND)
    kinds = tuple(replace(one, series="jax" if one.model < 5 else None) for one in plan.models)
    schedule = Schedule(replace(plan, models=kinds))
    first_visits(schedule, 0.001)
    unit = schedule.take(0)
    assert unit is not None
    assert {visit.model for visit in follow_ups(schedule, unit)} <= {1, 2, 3, 4}


def test_a_visit_that_failed_before_is_alone() -> None:
    schedule = one_segment(range(1, 9))
    first_visits(schedule, 0.001)
    unit = schedule.take(0)
    assert unit is not None
    schedule.failed(unit, "the trainer died", try_again=True)
    again = schedule.take(0)
    assert again == unit and follow_ups(schedule, again) == []
    schedule.succeeded(again)
    other = schedule.take(0)
    assert other is not None and all(visit != unit for visit in follow_ups(schedule, other))


def orders_of(schedule: Schedule, units: int, seconds: float) -> list[list[Unit]]:
    """The first orders of a segment, all of which succeed; each unit takes so long."""
    orders: list[list[Unit]] = []
    while sum(map(len, orders)) < units:
        unit = schedule.take(0)
        assert unit is not None
        orders.append([unit, *follow_ups(schedule, unit)])
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
    assert again == unit and follow_ups(schedule, again) == []


# -- chains: several units of one model in an order ---------------------------------------------------------------


def chained(numbers: range, epochs: int = 4, **more: object) -> Schedule:
    """Models of groups on the first of two segments, each evaluated after every epoch there."""
    models = [
        ModelPlan(n, n, (0,), series="jax", sort="x", parts={"validation": [0]}, most_chained=99) for n in numbers
    ]
    evaluations = {"validation": {0: 0, 1: 1}}
    plan = Plan(1, tuple(models), 2, epochs, evaluations, 1, series_seconds=HALF_A_SECOND)
    return Schedule(replace(plan, **more))  # type: ignore[arg-type]


def chain_of(model: int, hops: range) -> list[Unit]:
    return [unit for hop in hops for unit in (Train(model, hop, hop, 0), Evaluate(model, hop, hop, 0, "validation", 0))]


def first_order(schedule: Schedule, seconds: float) -> Unit:
    """Of a model whose pace nobody knows: one epoch, which is evaluated in the same order."""
    unit = schedule.take(0)
    assert unit is not None
    ((first, *others),) = schedule.order_with(unit)
    assert [first, *others] == chain_of(unit.model, range(1, 2))
    for one in (first, *others):
        schedule.succeeded(one, seconds)
    return unit


def test_an_order_has_all_epochs_of_models_whose_rows_are_on_one_segment() -> None:
    schedule = chained(range(1, 2))
    first_order(schedule, 0.01)
    unit = schedule.take(0)
    assert unit is not None
    chains = schedule.order_with(unit)
    assert chains == [chain_of(1, range(2, 5))]
    for one in chains[0]:
        schedule.succeeded(one, 0.01)
    assert schedule.finished and schedule.progress[1].epochs == 4


def test_models_of_one_sort_share_an_order_with_all_their_epochs() -> None:
    schedule = chained(range(1, 7))
    first = first_order(schedule, 0.01)
    unit = schedule.take(0)
    assert unit is not None and unit.model != first.model
    chains = schedule.order_with(unit)
    # Four epochs of two units: 0.08 s each; they are as many as 0.5 s allow.
    whole = [chain_of(chain[0].model, range(1, 5)) for chain in chains if chain[0].model != first.model]
    assert [chain for chain in chains if chain[0].model != first.model] == whole and len(chains) == 6


def test_an_order_ends_after_its_seconds_within_the_epochs_of_a_model() -> None:
    schedule = chained(range(1, 2), epochs=100)
    first_order(schedule, 0.03)
    unit = schedule.take(0)
    assert unit is not None
    assert schedule.order_with(unit) == [chain_of(1, range(2, 10))]  # eight epochs of 0.06 s


@pytest.mark.parametrize(("most", "hops"), [(0, 1), (1, 2), (2, 3)])
def test_an_order_has_as_many_visits_as_the_budget_allows(most: int, hops: int) -> None:
    schedule = chained(range(1, 4))
    first_order(schedule, 0.01)
    unit = schedule.take(0)
    assert unit is not None
    assert sum(isinstance(one, Train) for chain in schedule.order_with(unit, most) for one in chain) == hops


def test_nothing_goes_on_in_an_order_where_something_decides() -> None:
    schedule = Schedule(chained(range(1, 4)).plan, decides=True)
    for _ in range(2):
        unit = schedule.take(0)
        assert unit is not None
        assert schedule.order_with(unit)[0] == chain_of(unit.model, range(1, 2))
        for one in chain_of(unit.model, range(1, 2)):
            schedule.succeeded(one, 0.01)
        assert (unit.model, 1) in schedule.awaiting()


def test_a_model_that_people_ask_about_ends_its_order_with_the_epoch() -> None:
    schedule = chained(range(1, 2))
    first_order(schedule, 0.01)
    unit = schedule.take(0)
    assert unit is not None
    (chain,) = schedule.order_with(unit)
    schedule.ask_about(1)  # too late for the units under way
    for one in chain:
        schedule.succeeded(one, 0.01)
    assert schedule.awaiting() == [(1, 4)]


def test_an_order_that_ends_early_leaves_the_rest_for_another_one() -> None:
    schedule = chained(range(1, 2))
    first_order(schedule, 0.01)
    unit = schedule.take(0)
    assert unit is not None
    (chain,) = schedule.order_with(unit)
    for one in chain[2:]:
        schedule.cut(one)
    for one in chain[:2]:
        schedule.succeeded(one, 0.01)
    assert schedule.hops == 2 and schedule.take(0) == Train(1, 3, 3, 0)


def test_a_chain_that_fails_is_repeated_unit_by_unit() -> None:
    schedule = chained(range(1, 2))
    first_order(schedule, 0.01)
    unit = schedule.take(0)
    assert unit is not None
    (chain,) = schedule.order_with(unit)
    for one in chain[1:]:
        schedule.cut(one)
    assert schedule.failed(chain[0], "the trainer died", try_again=True)
    again = schedule.take(0)
    assert again == chain[0] and schedule.order_with(again) == [[again]] and schedule.hops == 2


def test_a_chain_that_fails_is_no_try_of_its_first_unit() -> None:
    """It may have been any of its units.  But the first one is alone the next time, and those tries count."""
    schedule = chained(range(1, 2))
    for failures in range(MOST_TRIES + 1):
        unit = schedule.take(0)
        assert unit is not None
        (chain,) = schedule.order_with(unit)
        assert len(chain) == (1 if failures else 2)
        for one in chain[1:]:
            schedule.cut(one)
        again = schedule.failed(unit, "the trainer died", try_again=True, counts=len(chain) == 1)
        assert again == (failures < MOST_TRIES)
    assert schedule.progress[1].reason == f"gave up after {MOST_TRIES} attempts: the trainer died"


def test_a_model_that_was_set_apart_is_alone_in_its_orders() -> None:
    schedule = chained(range(1, 4))
    first_order(schedule, 0.01)
    for model in (1, 2, 3):
        schedule.set_apart(model)
    for _ in range(2 * (3 * 4 - 1)):
        unit = schedule.take(0)
        assert unit is not None and schedule.order_with(unit) == [[unit]]
        schedule.succeeded(unit, 0.01)
    assert schedule.finished


def test_a_model_that_was_set_apart_has_one_unit_in_an_order() -> None:
    schedule = chained(range(1, 2))
    first_order(schedule, 0.01)
    schedule.set_apart(1)
    for expected in (chain_of(1, range(2, 3)), chain_of(1, range(3, 4))):
        for one in expected:
            unit = schedule.take(0)
            assert unit == one and schedule.order_with(unit) == [[unit]]
            schedule.succeeded(unit, 0.01)


def test_a_model_with_rows_on_several_segments_cannot_be_chained() -> None:
    plan = chained(range(1, 2)).plan
    for wrong in (replace(plan.models[0], visits=(0, 1)), replace(plan.models[0], parts={"validation": [1]})):
        with pytest.raises(ValueError, match="on several segments"):
            Schedule(replace(plan, models=(wrong,)))


def test_whatever_happens_the_models_are_the_same() -> None:
    """Experiments compare each model with the one that trains undisturbed; some of them have long orders."""
    runs = [Experiment(seed).run() for seed in range(tries(300))]
    for longest in ([one.longest_order for one in runs], [one.most_evaluations for one in runs]):
        assert sum(one > 1 for one in longest) > 10 and max(longest) > 2
