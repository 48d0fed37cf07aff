"""The plan of a run: what models are alike, what shapes cost, and which one is chosen, also by a wrong profile."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cerebro_db.core.planning import simulation
from cerebro_db.core.planning.model_shapes import ModelShapes
from cerebro_db.core.planning.run_shapes import LEAST_GAIN, Possible, RunWork, WorkModel, plan_shapes
from cerebro_db.core.planning.shape_plan import MOST_SHAPES
from cerebro_db.core.planning.speed_profile import CROWDED, MeasuredSpeed, ProfileKey, SpeedProfile, TrainerSetting
from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.plan import ModelPlan, Plan, Unit
from cerebro_db.core.scheduling.ring import ring_positions
from cerebro_db.core.scheduling.schedule import Schedule
from tests.core.fakes import WORKLOADS, Clock

ROWS: dict[str, list[dict[str, Any]]] = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [8], "scale": 1.0}],
    "outputs": [{"name": "y", "dtype": "int16", "shape": [2], "kind": "class"}],
}


def definition(units: int = 16, activation: str = "relu", name: str = "dense", rate: float = 0.1) -> dict[str, Any]:
    return {
        "architecture": {
            "class_name": "Sequential",
            "config": {
                "name": f"sequential of {name}",
                "layers": [
                    {
                        "class_name": "Dense",
                        "config": {
                            "name": name, "units": units, "activation": activation,
                            "kernel_initializer": {"class_name": "GlorotUniform", "config": {"seed": rate}},
                            "kernel_regularizer": {"class_name": "L2", "config": {"l2": rate}},
                        },
                    },
                    {"class_name": "Dropout", "config": {"name": f"{name} 2", "rate": rate, "seed": 3}},
                ],
            },
        },
        "compile": {
            "optimizer": {"class_name": "Adam", "config": {"learning_rate": rate}}, "loss": "mse", "metrics": ["mae"],
        },
        "fit": {"batch_size": 32},
    }  # fmt: skip


def test_models_that_differ_in_names_and_rates_are_alike() -> None:
    shapes = ModelShapes(ROWS)
    one = shapes.of(definition())
    assert one == shapes.of(definition(name="dense_7", rate=0.5))
    renamed = {side: [{**its, "name": "other"} for its in variables] for side, variables in ROWS.items()}
    assert one == ModelShapes(renamed).of(definition())


def test_models_that_differ_in_what_they_compute_are_not() -> None:
    shapes = ModelShapes(ROWS)
    others = [definition(units=17), definition(activation="tanh"), definition()]
    others[2]["compile"]["optimizer"]["class_name"] = "SGD"
    mixed = definition()
    mixed["architecture"]["config"]["layers"][0]["config"]["dtype"] = "mixed_float16"
    longer = copy.deepcopy(definition())
    longer["architecture"]["config"]["layers"].append(longer["architecture"]["config"]["layers"][0])
    found = {shapes.of(one) for one in [definition(), *others, mixed, longer]}
    wider = {**ROWS, "inputs": [{**ROWS["inputs"][0], "shape": [9]}]}
    assert len(found | {ModelShapes(wider).of(definition())}) == 7


# -- prices ------------------------------------------------------------------------------------------------------


def key(shapes: str = "a", engine: str = "tensorflow") -> ProfileKey:
    return ProfileKey(engine, shapes, 32)


def measured(
    shapes: str = "a", row: float = 1e-4, *, threads: int = 1, trainers: int = 2, visits: int = 4, **more: Any
) -> MeasuredSpeed:
    engine = more.pop("engine", "tensorflow")
    return MeasuredSpeed(key(shapes, engine), 7, threads, trainers, visits, row, **more)


def test_visits_count_more_than_trials_and_the_newest_more_than_old_ones() -> None:
    rows = [3e-3, 2e-3, 4e-3, 9e-3]
    profile = SpeedProfile([measured(row=1e-6, visits=0), *(measured(row=row) for row in rows)], cores=2)
    price = profile.price(key(), TrainerSetting(1, 2, 2))
    assert price is not None and price.train_row == 3e-3  # the median of the newest three
    assert profile.price(key("b"), TrainerSetting(1, 2, 2)) is None
    trial = SpeedProfile([measured(row=1e-6, visits=0)], cores=2).price(key(), TrainerSetting(1, 2, 2))
    assert trial is not None and trial.train_row == 1e-6


def test_what_threads_gain_is_measured_where_several_numbers_were_tried() -> None:
    both = SpeedProfile([measured(), measured(row=0.5e-4, threads=2, trainers=1)], cores=2)
    assert both.exponent(key()) == pytest.approx(1.0)
    none = SpeedProfile([measured(), measured(threads=2, trainers=1)], cores=2)
    assert none.exponent(key()) == pytest.approx(0.0)
    assert SpeedProfile([measured()], cores=2).exponent(key()) is None


def test_more_trainers_than_processors_share_them() -> None:
    assert TrainerSetting(1, 8, 2).speed(0.5) == 0.25
    assert TrainerSetting(2, 1, 2).speed(0.5) == pytest.approx(2**0.5)
    assert TrainerSetting(2, 2, 2).speed(0.5) == 1 - CROWDED


# -- the choice --------------------------------------------------------------------------------------------------


def work(count: int, segments: int, *, rows: float = 1e5, epochs: int = 4) -> RunWork:
    models = [WorkModel("a", 32, rows) for _ in range(count)]
    return RunWork(models, segments, epochs, parts=segments, rows_of_part=1000, evaluate_every=1)


def possible(segments: int, cores: int, **more: Any) -> Possible:
    return Possible(("tensorflow",), max(1, cores // segments), cores, **more)


def test_few_models_get_the_threads_of_idle_segments() -> None:
    profile = SpeedProfile([measured(), measured(row=0.6e-4, threads=2, trainers=1)], cores=2)
    plan = plan_shapes(work(1, 2), possible(2, 2), profile)
    assert (plan.chosen.threads, plan.measured, plan.models) == (2, 1, 1)
    (rule,) = [one for one in plan.others if one.threads == 1]
    assert rule.seconds and plan.chosen.seconds and plan.chosen.seconds < (1 - LEAST_GAIN) * rule.seconds
    assert plan.chosen.share == pytest.approx(plan.chosen.seconds / rule.seconds, abs=1e-3)


def test_as_many_models_as_segments_keep_the_plain_rules() -> None:
    profile = SpeedProfile([measured(), measured(row=0.6e-4, threads=2, trainers=1)], cores=2)
    assert plan_shapes(work(2, 2), possible(2, 2), profile).chosen.threads == 1


def test_a_small_gain_and_a_short_run_are_no_reason_for_other_trainers() -> None:
    little = SpeedProfile([measured(), measured(row=0.95e-4, threads=2, trainers=1)], cores=2)
    assert plan_shapes(work(1, 2), possible(2, 2), little).chosen.threads == 1
    much = SpeedProfile([measured(), measured(row=0.6e-4, threads=2, trainers=1)], cores=2)
    assert plan_shapes(work(1, 2, rows=100), possible(2, 2), much).chosen.threads == 1


def test_what_was_not_measured_changes_nothing_and_is_named() -> None:
    nothing = plan_shapes(work(1, 8), possible(8, 8), SpeedProfile(cores=8))
    assert (nothing.chosen.threads, nothing.chosen.seconds, nothing.measured, nothing.others) == (1, None, 0, ())
    once = plan_shapes(work(1, 8), possible(8, 8), SpeedProfile([measured(trainers=1)], cores=8))
    assert once.chosen.threads == 1 and once.chosen.seconds
    (other,) = once.others
    assert (other.threads, other.seconds) == (8, None) and "threads => 8" in other.why


def test_models_with_long_steps_gain_from_the_processors_of_idle_segments() -> None:
    """One model on eight segments, which was measured with one thread only."""
    long, short = (SpeedProfile([measured(row=step / 32, trainers=1)], cores=8) for step in (0.05, 0.005))
    plan = plan_shapes(work(1, 8), possible(8, 8), long)
    assert plan.chosen.threads == 8 and plan.chosen.share == pytest.approx(8**-0.5, abs=0.01)
    assert plan_shapes(work(1, 8), possible(8, 8), short).chosen.threads == 1
    assert plan_shapes(work(8, 8), possible(8, 8), long).chosen.threads == 1


def test_the_slowest_models_in_the_end_have_the_threads_of_all() -> None:
    """Two slow models beside ten fast ones on two segments: in the end each trains alone."""
    rows = [
        one
        for shapes, row in (("slow", 1e-2), ("fast", 1e-5))
        for one in (measured(shapes, row), measured(shapes, row / 2, threads=2, trainers=1))
    ]
    models = [WorkModel("slow", 32, 1e4), *(WorkModel("fast", 32, 1e4) for _ in range(3))]
    plan = plan_shapes(RunWork(models, 2, 3), possible(2, 2), SpeedProfile(rows, cores=2))
    assert plan.chosen.threads == 2 and plan.chosen.share and plan.chosen.share < 0.9


def test_an_option_fixes_its_dimension_only() -> None:
    profile = SpeedProfile([measured(), measured(row=0.6e-4, threads=2, trainers=1)], cores=2)
    plan = plan_shapes(work(1, 2), possible(2, 2, fixed={"threads": "the option threads"}), profile)
    assert (plan.chosen.threads, plan.chosen.why, plan.others) == (1, "the option threads", ())


def test_engines_and_gradients_are_priced_where_they_were_measured() -> None:
    jax = replace(measured(row=1e-5), key=key(engine="jax"))
    joint = replace(measured(row=1e-5), key=ProfileKey("tensorflow", "a", 32, "gradients"))
    plan = plan_shapes(work(2, 2), possible(2, 2, others=("jax",)), SpeedProfile([measured(), jax, joint], cores=2))
    assert plan.chosen.engine == "tensorflow" and plan.chosen.parallel == "hopping"
    found = [(one.engine, one.parallel, one.threads) for one in plan.others]
    assert found == [("jax", "hopping", 1), ("tensorflow", "gradients", 1)]
    auto = Possible(("tensorflow", "jax"), 1, 2)
    chosen = plan_shapes(work(2, 2), auto, SpeedProfile([measured(), jax], cores=2)).chosen
    slow = plan_shapes(work(2, 2), auto, SpeedProfile([measured()], cores=2)).chosen
    assert chosen.engine == "auto" and chosen.seconds and slow.seconds and chosen.seconds < slow.seconds / 5


@pytest.mark.parametrize("segments", [8, 64])
@pytest.mark.parametrize("count", [1, 16, 256])
def test_planning_is_small(segments: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    class Counting(simulation.SimulatedClock):
        def start(self, groups: Any) -> None:
            nonlocal begun
            begun += 1
            super().start(groups)

    monkeypatch.setattr(simulation, "SimulatedClock", Counting)
    models = [WorkModel(str(place % 5), 32, 1e5) for place in range(count)]
    profile = SpeedProfile([measured(str(place), row=1e-4 * (1 + place)) for place in range(4)], cores=256)
    planned = RunWork(models, segments, 20, parts=segments, rows_of_part=1000, evaluate_every=1)
    plan = plan_shapes(planned, possible(segments, 256, others=("jax",)), profile)
    assert len(plan.others) < MOST_SHAPES
    # A simulated unit takes some 20 microseconds: in all no more than a second.
    assert begun <= (len(plan.others) + 1) * 2 * simulation.MOST_IN_EPOCH <= 50_000


# -- a wrong profile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("segments", "count"), [(8, 16), (8, 256), (16, 40), (64, 16), (64, 129)])
def test_a_profile_does_not_change_the_order_of_visits(workload: str, segments: int, count: int) -> None:
    """Which model goes first follows from what this run has measured: with right prices it would be no faster."""
    costs = WORKLOADS[workload](random.Random(segments * count), count)
    positions = ring_positions(dict(enumerate(costs)))
    orders = []
    for wrong in (0.0, 0.5, 1.0, 2.0):
        models = [ModelPlan(place, positions[place], expected=wrong * cost) for place, cost in enumerate(costs)]
        clock = Recording(lambda unit: costs[unit.model])
        orchestrator.run(Schedule(Plan(0, tuple(models), segments, 3)), clock)
        assert clock.now <= 1.15 * max(3 * sum(costs), 3 * segments * max(costs))
        orders.append(clock.in_order)
    assert all(order == orders[0] for order in orders)


class Recording(Clock):
    def __init__(self, seconds: Callable[[Unit], float]) -> None:
        super().__init__(seconds)
        self.in_order: list[Unit] = []

    def start(self, groups: Sequence[Sequence[Unit]]) -> None:
        self.in_order += [unit for group in groups for unit in group]
        super().start(groups)


@pytest.mark.parametrize("wrong", [0.5, 2.0])
@pytest.mark.parametrize("segments", [8, 64])
@pytest.mark.parametrize("count", [1, 3, 16, 256])
def test_a_wrong_profile_chooses_no_shape_that_is_much_worse(count: int, segments: int, wrong: float) -> None:
    """What the chosen shape really takes, where the gain of threads is measured wrongly, by half or by double."""
    cores, gain = 64, 0.4
    few, many = max(1, cores // segments), max(1, cores // min(segments, count))
    false = {few: 1e-3, many: 1e-3 / (many / few) ** (gain * wrong)}
    rows = [measured(row=row, threads=threads, trainers=cores // threads) for threads, row in false.items()]
    plan = plan_shapes(work(count, segments), possible(segments, cores), SpeedProfile(rows, cores))

    def really(threads: int) -> float:
        useful = min(threads, cores / min(segments, count))
        return 1 / (useful**gain if useful >= 1 else useful)

    assert really(plan.chosen.threads) <= 1.03 * really(few)
