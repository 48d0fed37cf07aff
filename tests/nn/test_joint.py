"""Joint visits: several trainers with the gradients of their own rows, against one trainer with all rows."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.protocol import BeginJoint, EndJoint, JointStep, Member, MemberVisit, StateRef, StepJoint, Trained
from cerebro_db.nn.orders.joint import counts_before
from cerebro_db.nn.rows.data import row_order
from tests.thorough import landing

from . import configurations as c
from .test_averaging import CROSS
from .test_hops import partitions
from .trainer_client import USUAL_ENGINE, OrderFailed, Trainer, full

SEED, PARTS = 5, (7, 0, 3)  # rows of different number


ADAM = c.configuration(c.mlp(), CROSS, learning_rate=0.01, global_clipnorm=0.5, weight_decay=0.01)
CASES: dict[str, tuple[c.Json, c.Json]] = {
    "Adam, clipped by the norm of the whole gradient": (ADAM, c.DIGITS),
    "SGD with momentum, metrics that are no means": (
        c.configuration(c.mlp(), CROSS, "SGD", learning_rate=0.1, momentum=0.9, metrics=["AUC", "acc"], batch_size=37),
        c.DIGITS,
    ),
    "a convolution": (c.configuration(c.cnn(), CROSS, "RMSprop", learning_rate=0.01), c.DIGITS),
    # With TensorFlow, adaptive optimizers square the gradient of a lookup for each row on its own; here it is a sum.
    "two inputs, two outputs, a lookup": (
        c.configuration(
            c.two_by_two(), ["mse", CROSS], "SGD", learning_rate=0.01, momentum=0.9, metrics=[["mae"], ["acc"]]
        ),
        c.TWO_BY_TWO,
    ),
    "mixed_float16, loss scaled": (
        c.configuration(computed_in(c.mlp(), "mixed_float16"), CROSS, learning_rate=0.01),
        c.DIGITS,
    ),
    "class weights": (
        c.configuration(c.mlp(), CROSS, learning_rate=0.01, class_weight={"1": 5.0, "4": 0.2}),
        c.DIGITS,
    ),
    "some batches of two passes": (
        c.configuration(c.mlp(), CROSS, learning_rate=0.01, epochs=2, steps_per_epoch=5, shuffle=False),
        c.DIGITS,
    ),
}


ENGINES = ["tensorflow", "jax", "torch"]


@pytest.fixture(scope="module", params=ENGINES)
def trainers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Trainer]]:
    folder = tmp_path_factory.mktemp(f"joint-{request.param}")
    made = [Trainer(folder / str(number), engine=request.param, deterministic=True) for number in range(len(PARTS))]
    yield made
    for trainer in made:
        trainer.close()


def arrays_of(layout: c.Json) -> list[dict[str, np.ndarray]]:
    parts = partitions(layout)
    return [parts[number] for number in PARTS]


def sizes_of(parts: Sequence[dict[str, np.ndarray]]) -> list[int]:
    return [len(next(iter(part.values()))) for part in parts]


def joint_visit(
    trainers: Sequence[Trainer],
    configuration: c.Json,
    parts: Sequence[dict[str, np.ndarray]],
    layout: c.Json,
    states: Sequence[StateRef] | None = None,
    out: str = "joint",
) -> tuple[Trained, list[list[JointStep]]]:
    """The answer of the first trainer, and what each has added to each step."""
    rows, steps = sizes_of(parts), []
    for place, (trainer, part) in enumerate(zip(trainers, parts)):
        trainer.data("part", layout, **part)
        member = Member(0, SEED, [MemberVisit(100 + place)], states[place] if states else StateRef.seed())
        steps.append([trainer(BeginJoint(configuration, "part", member, rows, place))])
    for number in range(steps[0][0].steps):
        last = [mine[-1] for mine in steps]
        for place, trainer in enumerate(trainers):
            gradients = [None if other == place else one.gradient for other, one in enumerate(last)]
            steps[place].append(trainer(StepJoint(number, gradients)))
    ends = [mine[-1] for mine in steps]
    assert all(one.metric_states is not None for one in ends)
    counted = [one.metric_states for one in ends if one.metric_states is not None]
    statistics = [one.statistics for one in ends if one.statistics is not None]
    return trainers[0](EndJoint(counted, statistics, out=str(trainers[0].folder / out))), steps


def ends_of_batches(sizes: Sequence[int], batch_size: int) -> list[list[int]]:
    """How many rows of each part come before each minibatch, and in all."""
    rows = sum(sizes)
    return [counts_before(sizes, min(end, rows)) for end in range(0, rows + batch_size, batch_size)]


def in_order(parts: Sequence[dict[str, np.ndarray]], configuration: c.Json, epoch: int) -> dict[str, np.ndarray]:
    """The rows of all parts in the order in which a joint visit trains on them."""
    sizes, fit = sizes_of(parts), configuration["fit"]
    orders = [
        row_order(size, 100 + place, epoch) if fit.get("shuffle", True) else np.arange(size)
        for place, size in enumerate(sizes)
    ]
    cut = ends_of_batches(sizes, fit["batch_size"])
    found: dict[str, list[np.ndarray]] = {name: [] for name in parts[0]}
    for first, last in zip(cut, cut[1:]):
        for part, order, start, end in zip(parts, orders, first, last):
            for name in found:
                found[name].append(part[name][order[start:end]])
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def load(path: str | Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(path)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trainers", [USUAL_ENGINE], indirect=True)
def test_the_numbers_are_those_of_one_process_with_all_rows(trainers: list[Trainer], name: str) -> None:
    check_numbers(trainers, name)


@pytest.mark.parametrize("name", landing(CASES, "Adam, clipped by the norm of the whole gradient", "class weights"))
@pytest.mark.parametrize("trainers", [engine for engine in ENGINES if engine != USUAL_ENGINE], indirect=True)
def test_other_engines_have_the_numbers_of_one_process(trainers: list[Trainer], name: str) -> None:
    check_numbers(trainers, name)


def check_numbers(trainers: list[Trainer], name: str) -> None:
    """For two visits: the second one starts from the state of the first."""
    configuration, layout = CASES[name]
    fit, parts = configuration["fit"], arrays_of(layout)
    alone = {**configuration, "fit": {**fit, "shuffle": False, "epochs": 1}}
    state, states = None, None
    for visit in range(2):
        answer, steps = joint_visit(trainers, configuration, parts, layout, states, f"joint.{visit}")
        (member,) = answer.groups[0].members
        result = member.visits[0]
        path = str(trainers[0].folder / f"joint.{visit}")
        expected = None
        rows = 0
        for epoch in range(fit.get("epochs", 1)):
            trainers[1].data("all", layout, **in_order(parts, configuration, epoch))
            out = str(trainers[1].folder / f"alone.{visit}.{epoch}")
            expected = trainers[1].train(alone, "all", state, seed=SEED, out=out)
            state, rows = full(expected), rows + expected.rows
        assert expected is not None
        assert (result.rows, result.steps) == (rows, fit.get("epochs", 1) * expected.steps)
        assert {len(mine) for mine in steps} == {result.steps + 1}
        loose = 0.02 if "float16" in name else 2e-4
        if fit.get("epochs", 1) == 1:
            assert result.loss == pytest.approx(expected.loss, rel=loose)
            for metric, value in expected.metrics.items():
                assert result.metrics[metric] == pytest.approx(value, rel=loose, abs=0.02)
        mine, its = load(path), load(expected.path)
        assert list(mine) == list(its)
        for tensor, value in its.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(mine[tensor], value, rtol=loose, atol=loose, err_msg=tensor)
            else:
                np.testing.assert_array_equal(mine[tensor], value, err_msg=tensor)
        reference = StateRef.full(path, member.state.sha256)
        states = [replace(reference, path=path)] * len(trainers)


@pytest.mark.parametrize("trainers", ["tensorflow"], indirect=True)
def test_all_trainers_have_the_same_weights_after_each_step(trainers: list[Trainer]) -> None:
    """And the same bits again in a second visit, whoever computes which part."""
    parts = arrays_of(c.DIGITS)
    first, steps = joint_visit(trainers, ADAM, parts, c.DIGITS)
    again, others = joint_visit(trainers, ADAM, parts, c.DIGITS)
    assert steps == others
    assert first.groups[0].members[0].state.sha256 == again.groups[0].members[0].state.sha256


@pytest.mark.parametrize("trainers", landing(["tensorflow", "jax"], USUAL_ENGINE), indirect=True)
def test_a_segment_with_few_rows_adds_nothing_to_some_minibatches(trainers: list[Trainer]) -> None:
    parts = arrays_of(c.DIGITS)
    few = [parts[0], {name: array[:2] for name, array in parts[1].items()}, parts[2]]
    answer, steps = joint_visit(trainers, ADAM, few, c.DIGITS)
    added = [step.gradient is not None for step in steps[1][:-1]]
    assert sum(added) == 2 and not added[0]
    trainers[1].data("all", c.DIGITS, **in_order(few, ADAM, 0))
    alone = {**ADAM, "fit": {**ADAM["fit"], "shuffle": False}}
    expected = trainers[1].train(alone, "all", seed=SEED)
    mine, its = load(trainers[0].folder / "joint"), load(expected.path)
    for tensor, value in its.items():
        np.testing.assert_allclose(mine[tensor], value, rtol=2e-4, atol=2e-4, err_msg=tensor)
    assert answer.groups[0].members[0].visits[0].loss == pytest.approx(expected.loss, rel=1e-4)


@pytest.mark.parametrize("trainers", ["tensorflow", "jax"], indirect=True)
def test_dropout_draws_other_numbers_on_each_segment(trainers: list[Trainer]) -> None:
    """With the same rows everywhere, the gradients would be equal if it drew the same."""
    architecture = c.sequential(
        c.input_layer([64]),
        c.layer("Dropout", "drop", rate=0.5),
        c.layer("Dense", "out", units=10, activation="softmax"),
    )
    configuration = c.configuration(architecture, CROSS, learning_rate=0.01, shuffle=False)
    part = arrays_of(c.DIGITS)[0]
    _, steps = joint_visit(trainers, configuration, [part] * 3, c.DIGITS)
    gradients = [step.gradient for step in (mine[0] for mine in steps)]
    assert len(set(gradients)) == 3
    without = c.configuration(c.mlp(), CROSS, learning_rate=0.01, shuffle=False, batch_size=30)
    _, steps = joint_visit(trainers, without, [part] * 3, c.DIGITS)
    assert len({step.gradient for step in (mine[0] for mine in steps)}) == 1


@pytest.mark.parametrize("trainers", ["tensorflow", "jax"], indirect=True)
def test_moving_averages_are_averaged_by_rows(trainers: list[Trainer]) -> None:
    """Each segment normalizes with its own rows, so the moving averages differ."""
    parts = arrays_of(c.DIGITS)
    configuration = c.configuration(c.noisy_mlp(), CROSS, learning_rate=0.01)
    _, steps = joint_visit(trainers, configuration, parts, c.DIGITS)
    moving = [np.frombuffer(base64.b64decode(mine[-1].statistics or ""), "<f4").reshape(2, 16) for mine in steps]
    assert len({one.tobytes() for one in moving}) == 3
    expected = np.average(np.stack(moving).astype("float64"), axis=0, weights=sizes_of(parts)).astype("f4")
    found = [value for name, value in load(trainers[0].folder / "joint").items() if "moving" in name]
    np.testing.assert_array_equal(np.stack(found), expected)


@pytest.mark.parametrize("trainers", ["tensorflow"], indirect=True)
def test_what_cannot_be_added_up_is_refused(trainers: list[Trainer]) -> None:
    (trainer, *_), part = trainers, arrays_of(c.DIGITS)[0]
    rows = sizes_of([part])
    trainer.data("part", c.DIGITS, **part)
    member = Member(0, SEED, [MemberVisit(1)], StateRef.seed())
    masked = c.sequential(
        c.input_layer([8, 8]),
        c.layer("Masking", "mask"),
        c.layer("Flatten", "flat"),
        c.layer("Dense", "out", units=10, activation="softmax"),
    )
    summed = {"module": "keras.losses", "class_name": "CategoricalCrossentropy", "config": {"reduction": "sum"}}
    for architecture, loss, message in (
        (masked, CROSS, "the layer mask masks steps"),
        (c.mlp(), summed, "reduction"),
    ):
        with pytest.raises(OrderFailed, match=message) as failure:
            trainer(BeginJoint(c.configuration(architecture, loss), "part", member, [*rows, 5], 0))
        assert failure.value.kind == "ConfigurationFailed"


@pytest.mark.parametrize("trainers", ["tensorflow"], indirect=True)
def test_orders_that_do_not_fit_are_refused(trainers: list[Trainer]) -> None:
    (trainer, *_), part = trainers, arrays_of(c.DIGITS)[0]
    (rows,) = sizes_of([part])
    trainer.data("part", c.DIGITS, **part)
    member = Member(0, SEED, [MemberVisit(1)], StateRef.seed())

    def begin() -> JointStep:
        return trainer(BeginJoint(ADAM, "part", member, [rows, 20], 0))

    with pytest.raises(OrderFailed, match="has 61 rows of the model, not 60"):
        trainer(BeginJoint(ADAM, "part", member, [60, 20], 0))
    with pytest.raises(OrderFailed, match="no joint visit is under way"):
        trainer(StepJoint(0, [None, None]))
    first = begin()
    with pytest.raises(OrderFailed, match="at step 0 of 6, not at step 1"):
        trainer(StepJoint(1, [None, first.gradient]))
    with pytest.raises(OrderFailed, match="1 segments have added gradients, of 2"):
        trainer(StepJoint(0, [None]))
    with pytest.raises(OrderFailed, match="a segment has sent 4 bytes"):
        trainer(StepJoint(0, [None, base64.b64encode(b"four").decode()]))
    with pytest.raises(OrderFailed, match="at step 0 of 6"):
        trainer(EndJoint([], out=str(trainer.folder / "never")))
    begin()
    trainer.train(ADAM, "part")
    with pytest.raises(OrderFailed, match="no joint visit is under way"):
        trainer(StepJoint(0, [None, first.gradient]))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any), st.integers(1, 50))
def test_every_minibatch_has_its_share_of_each_segment(sizes: list[int], batch_size: int) -> None:
    rows = sum(sizes)
    cut = ends_of_batches(sizes, batch_size)
    assert cut[0] == [0] * len(sizes) and cut[-1] == sizes
    batches = np.diff(cut, axis=0)
    batches = batches[batches.sum(axis=1) > 0]
    assert (batches >= 0).all() and [*batches.sum(axis=1)] == [
        *[batch_size] * (rows // batch_size),
        *([rows % batch_size] if rows % batch_size else []),
    ]
    shares = np.array(sizes) / rows
    # Each segment is off by half a row at both ends, and has its share of what the others are off by.
    assert (np.abs(batches - batches.sum(axis=1)[:, None] * shares) <= 1 + len(sizes) * shares + 1e-9).all()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any))
def test_rows_are_spread_evenly(sizes: list[int]) -> None:
    """Row by row, in the order of their places: against a sort of all rows."""
    places = sorted((Fraction(2 * row + 1, size), part) for part, size in enumerate(sizes) for row in range(size))
    for end in range(sum(sizes) + 1):
        assert counts_before(sizes, end) == [sum(part == one for _, part in places[:end]) for one in range(len(sizes))]


def test_huge_numbers_of_rows_cost_nothing() -> None:
    assert sum(counts_before([10**12, 7, 10**9], 10**11 + 1)) == 10**11 + 1


@pytest.mark.parametrize("trainers", landing(["tensorflow", "jax"], USUAL_ENGINE), indirect=True)
def test_configurations_that_share_a_program_keep_their_numbers(trainers: list[Trainer]) -> None:
    """The momentum, for instance, is no constant of the program."""
    parts, found = arrays_of(c.DIGITS), []
    for momentum in (0.9, 0.1):
        one = c.configuration(c.mlp(), CROSS, "SGD", learning_rate=0.1, momentum=momentum)
        joint_visit(trainers, one, parts, c.DIGITS)
        trainers[1].data("all", c.DIGITS, **in_order(parts, one, 0))
        alone = {**one, "fit": {**one["fit"], "shuffle": False}}
        expected = load(trainers[1].train(alone, "all", seed=SEED).path)
        mine = load(trainers[0].folder / "joint")
        for tensor, value in expected.items():
            np.testing.assert_allclose(mine[tensor], value, rtol=2e-4, atol=2e-4, err_msg=f"{momentum} {tensor}")
        found.append(mine)
    assert any((found[0][name] != found[1][name]).any() for name in found[0])


@pytest.mark.parametrize("trainers", landing(["tensorflow", "jax"], USUAL_ENGINE), indirect=True)
def test_a_visit_that_is_broken_off_leaves_nothing_behind(trainers: list[Trainer]) -> None:
    """Neither its statistics nor those of a row that only shows the form of the gradients."""
    layers = (c.layer("BatchNormalization", "norm"), c.layer("Dense", "out", units=10, activation="softmax"))
    one = c.configuration(c.sequential(c.input_layer([64]), *layers), CROSS, learning_rate=0.02)
    parts = arrays_of(c.DIGITS)
    few = [parts[0], {name: array[:2] for name, array in parts[1].items()}, parts[2]]
    rows, first = sizes_of(few), None
    for visit in range(2):
        answer, _ = joint_visit(trainers, one, few, c.DIGITS, out=f"broken.{visit}")
        state = answer.groups[0].members[0].state.sha256
        first = first or state
        assert state == first
        for place, (trainer, part) in enumerate(zip(trainers, few)):
            trainer.data("part", c.DIGITS, **part)
            trainer(BeginJoint(one, "part", Member(0, SEED, [MemberVisit(7)], StateRef.seed()), rows, place))
