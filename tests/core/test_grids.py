"""The rows of a model selection table: grid search, random search and cross products."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_db.core.errors import InvalidArgument, InvalidSyntax
from cerebro_db.core.parameters.grids import cross_product, generate
from cerebro_db.core.parameters.params import compile_params, fit_params

COMPILE = "{'loss': ['categorical_crossentropy'], 'optimizer_params_list': [%s], 'metrics': ['accuracy']}"
ADAM = "{'optimizer': ['Adam'], 'lr': [0.1, 0.01], 'epsilon': [0.3]}"
FIT = "{'batch_size': [8, 32], 'epochs': [1]}"


def test_a_grid_becomes_strings_in_madlibs_form():
    assert generate([2, 1, 1], COMPILE % ADAM, FIT) == [
        (model, f"optimizer='Adam(lr={lr},epsilon=0.3)',loss='categorical_crossentropy',metrics=['accuracy']", fit)
        for lr in (0.1, 0.01)
        for fit in ("batch_size=8,epochs=1", "batch_size=32,epochs=1")
        for model in (1, 2)
    ]


def test_each_optimizer_is_expanded_on_its_own():
    rows = generate([1], COMPILE % f"{ADAM}, {{'optimizer': ['sgd', 'rmsprop'], 'momentum': [0.9]}}", "{}")
    assert [compile for _, compile, _ in rows] == [
        f"optimizer='{optimizer}',loss='categorical_crossentropy',metrics=['accuracy']"
        for optimizer in (
            "Adam(lr=0.1,epsilon=0.3)",
            "Adam(lr=0.01,epsilon=0.3)",
            "SGD(momentum=0.9)",
            "RMSprop(momentum=0.9)",
        )
    ]


@pytest.mark.parametrize(
    ("grid", "row"),
    [
        ("{'loss': ['mse']}", "optimizer='RMSprop()',loss='mse'"),
        ('{"loss": ["mse"], "optimizer": ["adam"], "lr": [1e-3]}', "optimizer='Adam(lr=0.001)',loss='mse'"),
        ("{'loss': ['mse'], 'lr': [0.5], 'momentum': [0]}", "optimizer='RMSprop(lr=0.5,momentum=0)',loss='mse'"),
        (
            "{'loss': ['mse'], 'optimizer': ['SGD'], 'nesterov': [True], 'name': ['my sgd']}",
            "optimizer='SGD(nesterov=True,name=\"my sgd\")',loss='mse'",
        ),
        (
            "{'loss': ['mse'], 'lr': ['CosineDecay(initial_learning_rate=0.1, decay_steps=9)']}",
            "optimizer='RMSprop(lr=CosineDecay(initial_learning_rate=0.1, decay_steps=9))',loss='mse'",
        ),
        (
            "{'loss': [{'a': 'mse', 'b': 'mae'}], 'metrics': [['mae', 'mse']], 'loss_weights': [[1, 2.5]]}",
            "optimizer='RMSprop()',loss={'a':'mse','b':'mae'},metrics=['mae','mse'],loss_weights=[1,2.5]",
        ),
    ],
)
def test_one_row_as_a_string(grid, row):
    assert generate([1], grid, None) == [(1, row, "")]
    compile_params(row)


def test_repeated_and_existing_rows_are_left_out():
    rows = generate([1], "{'loss': ['mse', 'mse', 'mae']}", "{'epochs': [1, 2]}")
    assert len(rows) == 4
    assert generate([1], "{'loss': ['mse', 'hinge']}", "{'epochs': [1, 2]}", existing=rows) == [
        (1, "optimizer='RMSprop()',loss='hinge'", "epochs=1"),
        (1, "optimizer='RMSprop()',loss='hinge'", "epochs=2"),
    ]


@pytest.mark.parametrize("name", ["g", "GRID", "gri", None, "Grid "])
def test_search_types(name):
    assert generate([1], "{'loss': ['mse']}", None, name)
    for other in ("x", "grids", "randomly", "gr id"):
        with pytest.raises(InvalidArgument, match="DL: 'search_type' must be either 'grid' or 'random'"):
            generate([1], "{'loss': ['mse']}", None, other)


RANDOM = "{'loss': ['mse', 'mae'], 'lr': [1e-4, 0.1, 'log'], 'momentum': [0.5, 0.9999, 'log_near_one']}"
RANDOM_FIT = "{'batch_size': [8, 64, 'linear'], 'epochs': [1, 100, 'log']}"


def drawn(rows):
    for _, compile, fit in rows:
        made = compile_params(compile)
        yield made["loss"], made["optimizer"]["config"], fit_params(fit)


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**31), 2**31), st.integers(1, 40))
def test_random_values_lie_within_their_bounds(seed, count):
    rows = generate([3, 4], RANDOM, RANDOM_FIT, "random", count, seed)
    assert len(set(rows)) == count
    for loss, optimizer, fit in drawn(rows):
        assert loss in ("mse", "mae")
        assert 1e-4 <= optimizer["learning_rate"] <= 0.1
        assert 0.5 <= optimizer["momentum"] <= 0.9999
        assert 8 <= fit["batch_size"] <= 64 and isinstance(fit["batch_size"], int)
        assert 1 <= fit["epochs"] <= 100 and isinstance(fit["epochs"], int)
    assert rows == generate([4, 3], RANDOM, RANDOM_FIT, "r", count, seed)


def test_distributions_have_their_shape():
    values = [
        (optimizer["learning_rate"], 1 - optimizer["momentum"], fit["batch_size"], fit["epochs"])
        for _, optimizer, fit in drawn(generate([1], RANDOM, RANDOM_FIT, "random", 3000, 5))
    ]
    rates, near_one, sizes, epochs = (sorted(column) for column in zip(*values))
    assert rates[1500] == pytest.approx(10**-2.5, rel=0.2)  # halfway between the exponents
    assert near_one[1500] == pytest.approx((0.5 * 1e-4) ** 0.5, rel=0.2)
    assert sum(sizes) / 3000 == pytest.approx(36, rel=0.05)
    assert (sizes[0], sizes[-1]) == (8, 64)
    assert epochs[1500] == pytest.approx(7, abs=1)  # as many below as above, each number k as often as 1 / k says
    assert epochs.count(1) == pytest.approx(2 * epochs.count(2), rel=0.3)


def test_dimensions_are_independent():
    values = [
        (optimizer["learning_rate"], optimizer["momentum"], fit["batch_size"])
        for _, optimizer, fit in drawn(
            generate(
                [1], RANDOM.replace("'log'", "'linear'").replace("'log_near_one'", "'linear'"), RANDOM_FIT, "r", 2000, 1
            )
        )
    ]
    columns = list(zip(*values))
    for one in range(3):
        for other in range(one):
            assert abs(correlation(columns[one], columns[other])) < 0.08  # 3.5 standard deviations


def correlation(xs, ys):
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys))
    return covariance / (sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)) ** 0.5


def test_a_further_dimension_does_not_change_the_others():
    plain = generate([1], "{'loss': ['mse'], 'lr': [0, 1, 'linear']}", None, "random", 20, 7)
    more = generate(
        [1, 2], "{'loss': ['mse', 'mae'], 'rho': [0, 1, 'linear'], 'lr': [0, 1, 'linear']}", RANDOM_FIT, "random", 20, 7
    )
    rates = [[optimizer["learning_rate"] for _, optimizer, _ in drawn(rows)] for rows in (plain, more)]
    assert rates[0] == rates[1]


def test_zero_is_a_seed_and_none_means_a_random_seed():
    def rows(seed):
        return generate([1], RANDOM, RANDOM_FIT, "random", 5, seed)

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)
    assert rows(None) != rows(None)


def test_the_rows_of_a_grid_have_madlibs_order():
    rows = generate([1, 2], "{'loss': ['mse', 'mae']}", "{'batch_size': [4, 8]}")
    loss, batch = (
        ("optimizer='RMSprop()',loss='mse'", "optimizer='RMSprop()',loss='mae'"),
        ("batch_size=4", "batch_size=8"),
    )
    assert rows == [(model_id, one, other) for one in loss for other in batch for model_id in (1, 2)]


def test_a_small_space_is_found_completely():
    grid = "{'loss': ['mse', 'mae', 'hinge'], 'lr': [0.1, 0.2]}"
    everything = generate([1, 2], grid, FIT)
    assert len(everything) == 24
    assert sorted(generate([1, 2], grid, FIT, "random", 24, 0)) == sorted(everything)
    assert sorted(generate([1, 2], grid, FIT, "random", 4, 0, existing=everything[:20])) == sorted(everything[20:])
    with pytest.raises(InvalidArgument, match="only 24 different configurations"):
        generate([1, 2], grid, FIT, "random", 25, 0)


def test_a_search_that_cannot_end_well_ends_soon_and_can_be_cancelled():
    grid, drawn = "{'loss': ['mse', 'mae', 'hinge'], 'lr': [0.1, 0.2]}", []
    with pytest.raises(InvalidArgument, match="only 24 different configurations"):
        generate([1, 2], grid, FIT, "random", 100_000, 0)
    with pytest.raises(InvalidArgument, match="only 0 different configurations were found"):
        everything = generate([1, 2], grid, FIT)
        generate([1, 2], grid, FIT, "random", 1, 0, existing=everything, listen=lambda: drawn.append(1))
    assert 3 < len(drawn) < 100

    def cancelled():
        raise KeyboardInterrupt

    for arguments in (("random", 20), ("grid",)):
        with pytest.raises(KeyboardInterrupt):
            generate([1, 2], grid, FIT, *arguments, listen=cancelled)


@pytest.mark.parametrize(
    ("compile", "fit", "arguments", "error", "message"),
    [
        (None, FIT, (), InvalidArgument, "Compile parameters cannot be empty"),
        ("{'loss': 'mse'}", FIT, (), InvalidArgument, "DL: compile param values must be specified in a list"),
        ("{'loss': []}", FIT, (), InvalidArgument, "DL: compile param values must be specified in a list"),
        ("{'loss': ['mse']}", "{'epochs': 1}", (), InvalidArgument, "DL: fit param values must be specified in a list"),
        ("{'loss': ['mse'", FIT, (), InvalidSyntax, "Invalid syntax in 'compile_params_dict'"),
        ("{'loss': [mse]}", FIT, (), InvalidSyntax, "Invalid syntax in 'compile_params_dict': mse must be in quotes"),
        ("['mse']", FIT, (), InvalidSyntax, "Invalid syntax in 'compile_params_dict'"),
        ("{'a': __import__('os')}", FIT, (), InvalidSyntax, "Invalid syntax in 'compile_params_dict'"),
        ("{'a': [f(b=1)]}", FIT, (), InvalidSyntax, "f must be in quotes"),
        ("{'loss': ['mse']}", "{1: 2}", (), InvalidSyntax, "Invalid syntax in 'fit_params_dict'"),
        (
            "{'loss': ['mse'], 'lr': [0, 1, 'linear']}",
            FIT,
            (),
            InvalidArgument,
            "DL: Cannot search from a distribution",
        ),
        ("{'loss': ['mse']}", FIT, ("grid", 3), InvalidArgument, "must be NULL for grid search"),
        ("{'loss': ['mse']}", FIT, ("grid", None, 3), InvalidArgument, "must be NULL for grid search"),
        ("{'loss': ['mse']}", FIT, ("random",), InvalidArgument, "DL: 'num_configs' cannot be NULL and needs to be"),
        ("{'loss': ['mse']}", FIT, ("random", 0), InvalidArgument, "DL: 'num_configs' cannot be NULL and needs to be"),
        ("{'lr': [0, 'log']}", FIT, ("r", 1), InvalidArgument, "DL: 'lr' should have exactly 3 elements"),
        ("{'lr': [1, 2, 'cubic']}", FIT, ("r", 1), InvalidArgument, "DL: Please choose a valid distribution type"),
        ("{'lr': [2, 1, 'log']}", FIT, ("r", 1), InvalidArgument, "DL: 'lr' should be of the format"),
        ("{'lr': [None, 1, 'log']}", FIT, ("r", 1), InvalidArgument, "DL: 'lr' should be of the format"),
        ("{'lr': [0, 1, 'log']}", FIT, ("r", 1), InvalidArgument, "above 0"),
        ("{'rho': [0, 1, 'log_near_one']}", FIT, ("r", 1), InvalidArgument, "below 1"),
        ("{'loss': ['mse']}", "{'epochs': [1, 2.5, 'linear']}", ("r", 1), InvalidArgument, "whole numbers"),
        (COMPILE % "{'loss': ['mse']}", FIT, (), InvalidArgument, "inside and outside 'optimizer_params_list'"),
        ("{'optimizer_params_list': {}}", FIT, (), InvalidArgument, "must be a list of dictionaries"),
        ("{'loss': ['mse'], 'a b': [1]}", FIT, (), InvalidArgument, "a b is not currently accepted"),
        (
            "{'loss': ['mse'], 'lrr': [1]}",
            FIT,
            (),
            InvalidArgument,
            "Compile param check failed for: .*lrr is not curr",
        ),
        ("{'loss': ['mse']}", "{'epoch': [1]}", (), InvalidArgument, "Fit param check failed for: epoch=1"),
        ("{'loss': ['mse'], 'optimizer': ['Adamm']}", FIT, (), InvalidArgument, "invalid optimizer name: Adamm"),
        ("{'metrics': ['mse']}", FIT, (), InvalidArgument, "loss is a required parameter for compile"),
        (
            "{'loss': ['mse'], 'lr': [" + "0.1," * 500 + "]}",
            "{'epochs': [" + "1," * 500 + "]}",
            (),
            InvalidArgument,
            "the limit is 100000",
        ),
    ],
)
def test_refused_searches(compile, fit, arguments, error, message):
    with pytest.raises(error) as caught:
        generate([1], compile, fit, *arguments)
    assert re.search(message, caught.value.message, re.DOTALL), caught.value.message


def test_model_ids_are_needed():
    for ids in ([], [1, None]):
        with pytest.raises(InvalidArgument, match="model_id_list"):
            generate(ids, "{'loss': ['mse']}", None)


# ---- load_model_selection_table -------------------------------------------------------------------

SGD = "optimizer='SGD(lr=0.1)', loss='mse'"


def test_cross_product():
    assert cross_product([2, 1, 2], [SGD, "loss='mae',optimizer='adam'"], ["epochs=1", "epochs=2"]) == [
        (model, compile, fit)
        for model in (1, 2)
        for compile in (SGD, "loss='mae',optimizer='adam'")
        for fit in ("epochs=1", "epochs=2")
    ]


def test_texts_with_the_same_parameters_count_once():
    same = ["loss = 'mse' ,optimizer='SGD(lr=0.1)'", SGD]
    assert cross_product([1], same, ["epochs=1,batch_size=2", "batch_size = 2, epochs = 1"]) == [
        (1, SGD, "batch_size = 2, epochs = 1")
    ]
    assert cross_product([1], [SGD], ["", "  "]) == [(1, SGD, "  ")]
    assert cross_product([1], [SGD], [None]) == [(1, SGD, None)]


@pytest.mark.parametrize(
    ("compile", "fit", "message"),
    [
        (None, ["epochs=1"], "compile_params_list cannot be NULL"),
        ([SGD], None, "fit_params_list cannot be NULL"),
        ([SGD], [], "fit_params_list cannot be NULL"),
        (["optimizer='sgd'"], ["epochs=1"], "Compile param check failed for: optimizer='sgd' \n loss is a required"),
        ([None], ["epochs=1"], "Compile param check failed for"),
        ([SGD], ["epochs=0"], "Fit param check failed for: epochs=0"),
    ],
)
def test_refused_lists(compile, fit, message):
    with pytest.raises(InvalidArgument) as caught:
        cross_product([1], compile, fit)
    assert message in caught.value.message
