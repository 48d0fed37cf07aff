"""Search spaces: what their JSON means, that independent dimensions are independent, and what is refused where."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.parameters import params
from cerebro_db.core.search.spaces.dimensions import Choice, Number, of_description
from cerebro_db.core.search.spaces.past_points import point_of
from cerebro_db.core.search.spaces.read_space import labels, read
from cerebro_db.core.search.spaces.space import Space

LR = {"log_uniform": [0.0001, 1]}
MLP = {
    "class_name": "Sequential",
    "config": {
        "name": "mlp",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "in"}},
            {
                "repeat": "$depth",
                "layers": [
                    {"class_name": "Dense", "config": {"name": "hidden", "units": "$width", "activation": "relu"}}
                ],
            },
            {"class_name": "Dense", "config": {"name": "out", "units": 3, "activation": "softmax"}},
        ],
    },
}
PLAIN = {
    "class_name": "Sequential",
    "config": {
        "name": "plain",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "in"}},
            {"class_name": "Dense", "config": {"name": "out", "units": 3, "activation": "softmax"}},
        ],
    },
}
WHOLE = {
    "architecture": [1, 2],
    "arch_params": {"width": {"integer": [16, 64], "step": 16}, "depth": {"choice": [1, 2]}},
    "compile": {
        "loss": {"choice": ["categorical_crossentropy", {"class_name": "CategoricalHinge", "config": {}}]},
        "metrics": ["accuracy"],
        "optimizer": {
            "choice": [
                "Adam",
                {
                    "class_name": "SGD",
                    "config": {"momentum": {"uniform": [0, 0.9]}, "nesterov": {"choice": [True, False]}},
                },
            ]
        },
        "learning_rate": {
            "choice": [
                0.01,
                {
                    "class_name": "CosineDecay",
                    "config": {"initial_learning_rate": LR, "decay_steps": {"log_integer": [10, 1000]}},
                },
            ]
        },
        "beta_1": {"uniform": [0.8, 0.99], "when": {"optimizer": "Adam"}},
        "clipnorm": {"choice": [None, 1.0]},
    },
    "fit": {"batch_size": {"choice": [16, 32]}, "epochs": 1, "class_weight": {"choice": [None, {"0": 2.0}]}},
}


def compile_only(**parameters: Any) -> Space:
    return read({"compile": {"loss": "mse", **parameters}}, {1: None})


def values(space: Space, name: str, count: int = 4000) -> list[Any]:
    return [point[name] for number in range(count) if name in (point := space.drawn(1, number))]


# -- what the kinds of dimension mean ------------------------------------------------------------------


def test_log_uniform_means_that_every_order_of_magnitude_is_equally_likely() -> None:
    found = values(compile_only(learning_rate=LR), "learning_rate")
    for low in (1e-4, 1e-3, 1e-2, 1e-1):
        assert sum(low <= value < 10 * low for value in found) / len(found) == pytest.approx(0.25, abs=0.03)


def test_uniform_means_that_every_number_is_equally_likely() -> None:
    found = values(compile_only(momentum={"uniform": [0.5, 0.9]}), "momentum")
    assert 0.5 <= min(found) < 0.51 and 0.89 < max(found) <= 0.9
    assert sum(found) / len(found) == pytest.approx(0.7, abs=0.01)


def test_integers_include_both_bounds_equally() -> None:
    found = values(compile_only(ema_overwrite_frequency={"integer": [1, 4]}), "ema_overwrite_frequency")
    assert all(found.count(value) / len(found) == pytest.approx(0.25, abs=0.03) for value in (1, 2, 3, 4))
    assert all(type(value) is int for value in found)


def test_of_log_integers_each_is_about_as_likely_as_one_by_its_size() -> None:
    found = values(compile_only(gradient_accumulation_steps={"log_integer": [1, 64]}), "gradient_accumulation_steps")
    assert found.count(1) / found.count(2) == pytest.approx(math.log(3) / math.log(5 / 3), rel=0.2)
    assert found.count(10) / found.count(20) == pytest.approx(2, rel=0.5)


@pytest.mark.parametrize(
    ("dimension", "expected"),
    [
        ({"uniform": [0, 0.5], "step": 0.1}, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"uniform": [0, 1], "step": 0.3}, [0.0, 0.3, 0.6, 0.9]),
        ({"integer": [16, 60], "step": 16}, [16, 32, 48]),
    ],
)
def test_quantised(dimension, expected) -> None:
    space = compile_only(momentum=dimension)
    found = values(space, "momentum")
    assert sorted(set(found)) == expected
    assert all(found.count(value) / len(found) == pytest.approx(1 / len(expected), rel=0.15) for value in expected)
    assert [point["momentum"] for point in space.grid()] == expected


def test_quantised_and_logarithmic() -> None:
    found = values(compile_only(learning_rate={"log_uniform": [0.1, 10], "step": 0.1}), "learning_rate")
    assert all(abs(value * 10 - round(value * 10)) < 1e-9 for value in found)
    assert sum(value < 1 for value in found) / len(found) == pytest.approx(0.5, abs=0.05)


# -- points --------------------------------------------------------------------------------------------


def test_independent_dimensions_are_independent() -> None:
    """No two are correlated, and a further dimension changes no value of the others."""
    space = compile_only(learning_rate=LR, momentum={"uniform": [0, 1]}, weight_decay={"log_uniform": [1e-6, 1]})
    points = [space.drawn(7, number) for number in range(3000)]
    ranks = {
        name: [sorted(point[name] for point in points).index(point[name]) / 3000 for point in points[:600]]
        for name in points[0]
    }
    for one in ranks:
        for other in ranks:
            if one < other:
                covariance = sum((a - 0.5) * (b - 0.5) for a, b in zip(ranks[one], ranks[other])) / 600
                assert abs(covariance * 12) < 0.12, f"{one} and {other} are correlated"
    again = compile_only(beta_1={"uniform": [0, 1]}, learning_rate=LR, momentum={"uniform": [0, 1]})
    for number in range(50):
        other = again.drawn(7, number)
        assert {name: other[name] for name in ("learning_rate", "momentum")} == {
            name: points[number][name] for name in ("learning_rate", "momentum")
        }


def test_points_follow_from_the_seed_and_the_number() -> None:
    space = read(WHOLE, {1: MLP, 2: PLAIN})
    assert [space.drawn(1, number) for number in range(5)] == [space.drawn(1, number) for number in range(5)]
    assert space.drawn(1, 0) != space.drawn(2, 0) != space.drawn(2, 1)


def test_a_dimension_is_part_of_a_point_only_if_its_conditions_hold() -> None:
    space = read(WHOLE, {1: MLP, 2: PLAIN})
    seen = set()
    for number in range(200):
        point = space.drawn(3, number)
        seen.add((point["architecture"], point["optimizer"], point["learning_rate"]))
        assert ("width" in point) == ("depth" in point) == (point["architecture"] == 1)
        assert ("momentum" in point) == ("nesterov" in point) == (point["optimizer"] == "SGD")
        assert ("beta_1" in point) == (point["optimizer"] == "Adam")
        assert ("decay_steps" in point) == (point["learning_rate"] == "CosineDecay")
    assert len(seen) == 8


def test_every_point_is_a_configuration_that_is_accepted_and_survives_the_log() -> None:
    space = read(WHOLE, {1: MLP, 2: PLAIN})
    space.check()
    for number in range(100):
        point = space.drawn(4, number)
        kept = json.loads(json.dumps(point))
        assert space.has(kept) and space.key(kept) == space.key(point)
        drawn = space.configuration(kept)
        assert drawn == space.configuration(point)
        compiled, fit = params.compile_params(drawn.compile_params), params.fit_params(drawn.fit_params)
        optimizer = compiled["optimizer"]
        assert optimizer["class_name"] == point["optimizer"]
        assert fit["batch_size"] == point["batch_size"] and (drawn.architecture is None) == (drawn.model_id == 2)
        if point["learning_rate"] == "CosineDecay":
            schedule = optimizer["config"]["learning_rate"]
            assert schedule["class_name"] == "CosineDecay"
            assert schedule["config"]["decay_steps"] == point["decay_steps"]
            assert schedule["config"]["initial_learning_rate"] == point["initial_learning_rate"]
        for name in ("momentum", "beta_1", "nesterov"):
            assert optimizer["config"].get(name) == point.get(name)
        assert fit["class_weight"] in (None, {"0": 2.0})


def test_a_configuration_reads_as_people_write_it() -> None:
    space = compile_only(optimizer="SGD", learning_rate={"choice": [0.1]}, momentum={"choice": [0.9]})
    drawn = space.configuration(space.drawn(1, 1))
    assert drawn.compile_params == "optimizer='SGD(learning_rate=0.1,momentum=0.9)',loss='mse'"


def test_dimensions_of_one_key_are_named_by_their_places() -> None:
    rate: dict[str, Any] = {"uniform": [0.1, 0.2]}
    options: list[Any] = [{"class_name": name, "config": {"learning_rate": rate}} for name in ("SGD", "Adam")]
    space = compile_only(optimizer={"choice": options})
    names = {name for number in range(20) for name in space.drawn(1, number)}
    assert names == {
        "optimizer",
        "optimizer[0].config.learning_rate",
        "optimizer[1].config.learning_rate",
    }
    options[0] = {"class_name": "SGD", "config": {"learning_rate": {**rate, "name": "sgd_rate"}}}
    names = {one.name for one in compile_only(optimizer={"choice": options}).dimensions}
    assert names == {"optimizer", "sgd_rate", "learning_rate"}


def test_a_grid_has_every_combination_once() -> None:
    space = read(
        {
            "architecture": [1, 2],
            "arch_params": {"width": {"choice": [8, 16]}, "depth": {"integer": [0, 1]}},
            "compile": {
                "loss": "mse",
                "optimizer": {"choice": ["Adam", "SGD"]},
                "momentum": {"uniform": [0, 0.9], "points": 2, "when": {"optimizer": "SGD"}},
            },
        },
        {1: MLP, 2: PLAIN},
    )
    points = list(space.grid())
    assert len(points) == (4 + 1) * (1 + 2) == len({space.key(point) for point in points})
    assert all(map(space.has, points))


def test_a_mutation_changes_one_value_and_stays_in_the_space() -> None:
    space, chance = read(WHOLE, {1: MLP, 2: PLAIN}), random.Random(1)
    changed = set()
    for number in range(300):
        point = space.drawn(1, number)
        child = space.mutated(point, chance)
        assert space.has(child)
        (one,) = [name for name in point if name in child and child[name] != point[name]] or [None]
        changed.add(one)
    assert changed >= {one.name for one in space.dimensions} - {"nesterov"}


def test_what_a_sampler_outside_is_told_is_enough() -> None:
    space = read(WHOLE, {1: MLP, 2: PLAIN})
    assert [of_description(json.loads(json.dumps(one))) for one in space.described()] == list(space.dimensions)
    assert {type(one) for one in space.dimensions} == {Choice, Number}


def test_all_architectures_or_some() -> None:
    assert labels({"compile": {}}) is None
    assert labels({"architecture": 3}) == [3]
    assert labels({"architecture": {"choice": [3, 1]}}) == [3, 1]


# -- earlier runs --------------------------------------------------------------------------------------


PAST = read(
    {
        "architecture": [1, 2],
        "compile": {
            "loss": "mse",
            "optimizer": {"choice": ["adam", {"class_name": "SGD", "config": {"momentum": {"uniform": [0, 0.9]}}}]},
            "lr": LR,
        },
        "fit": {"batch_size": {"choice": [16, 32]}},
    },
    {1: PLAIN, 2: {**PLAIN, "class_name": "Functional"}},
)


def earlier(compile_text: str, fit_text: str = "batch_size=32", architecture: Any = PLAIN) -> dict[str, Any] | None:
    """The point that a row of a model selection table is."""
    compiled, fit = params.compile_params(compile_text), params.fit_params(fit_text)
    return point_of(PAST, {1: PLAIN}, None, architecture, compiled, fit)


def test_a_row_of_a_selection_table_is_a_point_if_the_space_has_it() -> None:
    assert earlier("optimizer='Adam(lr=0.01)', loss='mse'") == {
        "architecture": 1,
        "optimizer": "adam",
        "lr": 0.01,
        "batch_size": 32,
    }
    assert earlier("optimizer='SGD(lr=0.1, momentum=0.5)', loss='mse'") == {
        "architecture": 1,
        "optimizer": "SGD",
        "lr": 0.1,
        "momentum": 0.5,
        "batch_size": 32,
    }


@pytest.mark.parametrize(
    ("compile_text", "fit_text", "architecture"),
    [
        ("optimizer='Adam(lr=2)', loss='mse'", "batch_size=32", PLAIN),  # out of bounds
        ("optimizer='Adam(lr=0.01)', loss='mae'", "batch_size=32", PLAIN),  # another constant
        ("optimizer='Adam(lr=0.01)', loss='mse', metrics=['mae']", "batch_size=32", PLAIN),
        ("optimizer='Adam(lr=0.01, beta_1=0.5)', loss='mse'", "batch_size=32", PLAIN),  # something besides
        ("optimizer='Adam', loss='mse'", "batch_size=32", PLAIN),  # the default is not written
        ("optimizer='RMSprop(lr=0.01)', loss='mse'", "batch_size=32", PLAIN),
        ("optimizer='Adam(lr=0.01)', loss='mse'", "batch_size=8", PLAIN),
        ("optimizer='Adam(lr=0.01)', loss='mse'", "batch_size=32, epochs=2", PLAIN),
        ("optimizer='Adam(lr=0.01)', loss='mse'", "batch_size=32", MLP),
    ],
)
def test_what_is_no_point_of_the_space_says_nothing(compile_text, fit_text, architecture) -> None:
    assert earlier(compile_text, fit_text, architecture) is None


def test_a_point_of_an_earlier_search_is_taken_as_it_is() -> None:
    point = PAST.drawn(1, 1)
    assert point_of(PAST, {}, point, {}, {}, {}) == point
    assert point_of(PAST, {}, {**point, "more": 1}, {}, {}, {}) is None


# -- errors --------------------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"learning_rate": {"log_uniform": [0.1, 0.01]}},
            "learning_rate.log_uniform: there is no number from 0.1",
        ),
        ({"learning_rate": {"log_uniform": [0, 1]}}, "learning_rate.log_uniform: the bounds must be above 0"),
        ({"x": {"log_integer": [0, 8]}}, "x.log_integer: the bounds must be at least 1"),
        ({"x": {"integer": [0.5, 8]}}, "x.integer: the bounds must be whole numbers"),
        ({"x": {"uniform": [0]}}, "x.uniform: this must be a list of two numbers"),
        ({"x": {"uniform": [0, True]}}, "x.uniform: this must be a list of two numbers"),
        ({"x": {"uniform": [0, 1], "step": 2}}, "x.step: the step 2 is larger than the distance from 0 to 1"),
        ({"x": {"uniform": [0, 1], "step": 0}}, "x.step: this must be a number above 0"),
        ({"x": {"integer": [0, 9], "step": 1.5}}, "x.step: this must be a whole number above 0"),
        ({"x": {"uniform": [0, 1e9], "step": 1e-9}}, "x.step: the step 1e-09 is too small"),
        ({"x": {"uniform": [0, 1], "points": 0}}, "x.points: this must be a whole number from 1 to 1000"),
        ({"x": {"choice": []}}, "x.choice: this must be a list with at least one option"),
        ({"x": {"choice": [1, 1.0]}}, "x.choice: 1 is given twice"),
        ({"x": {"choice": [1, 2], "step": 1}}, "x: a choice has no step"),
        ({"x": {"choice": [1], "uniform": [0, 1]}}, "x: choice and uniform cannot be used together"),
        ({"x": {"uniform": [0, 1], "steps": 1}}, "x: uniform and steps cannot be used together"),
        (
            {"x": {"log": [0, 1], "step": 1}},
            "x: step is allowed only in a dimension, and this is not a dimension",
        ),
        ({"x": {"uniform": [0, 1], "when": "Adam"}}, "x.when: this must be an object"),
        ({"x": {"uniform": [0, 1], "when": {"y": 1}}}, "x.when: there is no dimension y"),
        ({"x": {"uniform": [0, 1], "name": 3}}, "x.name: this must be a text"),
        (
            {"x": {"uniform": [0, 1], "when": {"y": 3}}, "y": {"choice": [1, 2]}},
            "x.when.y: y is never 3",
        ),
        (
            {"x": {"choice": [1], "when": {"y": 1}}, "y": {"choice": [1], "when": {"x": 1}}},
            "x.when: x and y depend on each other",
        ),
        (
            {"x": {"uniform": [0, 1], "name": "a"}, "y": {"uniform": [0, 1], "name": "a"}},
            "x: another dimension has the name a, too",
        ),
        ({"x": [{"y": {"choice": {}}}]}, "x[0].y.choice: this must be a list"),
        ({"x": nested(40)}, "nested more than 32 levels deep"),
        ({}, "at the top: there is nothing to search: every parameter is a constant"),
        ({"x": {"loguniform": [0.1, 1]}}, "x: loguniform is no dimension; did you mean log_uniform?"),
        ({"x": {"randInt": [1, 4]}}, "x: randInt is no dimension; did you mean integer?"),
        ({"x": {"Categorical": ["a", "b"]}}, "x: Categorical is no dimension; did you mean choice?"),
        ({"x": {"quniform": [1, 10, 2]}}, "x: quniform is no dimension; did you mean uniform?"),
        ({"x": {"log-uniform": [1, 10], "points": 3}}, "x: log-uniform is no dimension; did you mean log_uniform?"),
        ({"x": {"log_unifrom": [0.1, 1]}}, "x: log_unifrom is no dimension; did you mean log_uniform?"),
        ({"x": {"loguniform": {"low": 0.1, "high": 1}}}, "x: loguniform is no dimension; did you mean log_uniform?"),
        ({"x": {"chioce": ["a", "b"]}}, "x: chioce is no dimension; did you mean choice?"),
        ({"x": {"values": [1, 2]}}, "x: values is no dimension; did you mean choice?"),
        ({"x": {"class_name": "SGD", "config": {"y": [0.1, 0.2]}}}, "every parameter is a constant, also the list y"),
        ({"loss": ["mse", "mae"], "x": [16, 64]}, "every parameter is a constant, also the list x"),
        ({"x": [16, 64]}, "every parameter is a constant, also the list x"),
    ],
)
def test_an_error_names_the_place(parameters, said) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_only(**parameters)
    assert said in caught.value.message and caught.value.message.startswith("search space, at ")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "a space is a JSON object that is not empty"),
        ([], "a space is a JSON object that is not empty"),
        ({"fit": {}}, "at the top: compile is missing"),
        ({"compile": {"loss": "mse"}, "optimizer": {}}, "at optimizer: a space has no such key"),
        ({"compile": {"choice": [{}]}}, "at compile: this must be an object with one entry for each parameter"),
        ({"compile": [], "fit": {}}, "at compile: this must be an object"),
        ({"compile": {"lr": LR}, "arch_params": {"width": 3}}, "at depth: the architecture 1 has this parameter"),
        (
            {"compile": {"lr": LR}, "arch_params": {"width": 3, "depth": 1, "heigth": 3}},
            "at heigth: no architecture has this parameter",
        ),
    ],
)
def test_a_wrong_space_is_refused(given, said) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(given, {1: MLP})
    assert said in caught.value.message


@pytest.mark.parametrize("given", [{"architecture": []}, {"architecture": [1, "1"]}, {"architecture": [1, 1]}])
def test_architectures_are_numbers_or_names(given) -> None:
    with pytest.raises(InvalidArgument, match="search space, at architecture"):
        labels(given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compile": {"loss": "mse", "learning_rate": {"uniform": [-1, 1]}}}, "learning_rate = -1"),
        ({"compile": {"loss": {"choice": ["mse", "mean"]}, "learning_rate": LR}}, "with loss = mean"),
        ({"compile": {"loss": "mse", "optimizer": {"choice": ["Adam", "SGDD"]}}}, "Did you mean SGD?"),
        ({"compile": {"optimizer": {"choice": ["Adam", "SGD"]}}}, "loss is a required parameter"),
        (
            {"compile": {"loss": "mse", "lr": LR, "optimizer": {"class_name": "SGD", "config": {"lr": 1}}}},
            "lr is given both",
        ),
        ({"compile": {"loss": "mse", "lr": LR}, "fit": {"batch_sizes": 3}}, "batch_sizes is not currently accepted"),
        (
            {"compile": {"loss": "mse", "lr": LR}, "arch_params": {"width": 0, "depth": 1}},
            "units must be a whole number",
        ),
        (
            {"compile": {"loss": "mse", "lr": LR}, "arch_params": {"width": 1, "depth": -1}},
            "repeat must be a whole number",
        ),
        (
            {
                "compile": {"loss": "mse", "lr": LR},
                "arch_params": {"width": {"choice": [1, {"class_name": "Lambda"}]}, "depth": 1},
            },
            "is not allowed here",
        ),
    ],
)
def test_what_would_fail_in_the_run_is_refused_before(changes, said) -> None:
    space = read({"arch_params": {"width": 4, "depth": 1}, **changes}, {1: MLP})
    with pytest.raises(CerebroError) as caught:
        space.check()
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.message.startswith("search space, with ")


def test_a_grid_of_a_continuous_dimension_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="learning_rate: a grid needs a list of values"):
        list(compile_only(learning_rate=LR).grid())
    with pytest.raises(InvalidArgument, match="more than 100000 points"):
        list(compile_only(**{name: {"integer": [1, 100]} for name in "abc"}).grid())


def test_the_largest_point_of_each_architecture() -> None:
    space = read(WHOLE, {1: MLP, 2: PLAIN})
    point = space.largest(1)
    assert point["architecture"] == 1 and (point["width"], point["depth"]) == (64, 2)
    assert point["optimizer"] == "Adam", "SGD keeps less for each weight"
    assert space.has(point) and space.has(space.largest(2)) and "width" not in space.largest(2)
    frozen = {"compile": {"loss": "mse"}, "arch_params": {"frozen": {"choice": [1, 3]}, "width": 8, "depth": 1}}
    assert read(frozen, {1: MLP}).largest(1) == {"frozen": 1}, "what is frozen has no gradients"
