"""MADlib's interface as a table: it can be read, its help texts are whole, and Hyperband's schedule is MADlib's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.parameters.grids import points
from cerebro_db.core.search.spaces.read_space import read
from cerebro_madlib import automl_methods, grid_space, usage
from cerebro_madlib.automl_methods import Hyperopt, MadlibBracket, MadlibHyperband
from cerebro_madlib.functions import FUNCTIONS
from cerebro_madlib.hyperband_rounds import schedule
from tests.madlib_tables import TABLES

WITH_HELP = {one.name for one in FUNCTIONS if one.result == "VARCHAR"}


def test_signatures_can_be_read() -> None:
    for one in FUNCTIONS:
        assert [argument.type.rstrip("[]").isupper() for argument in one.arguments].count(False) == 0, one
        required = [argument.default is None for argument in one.arguments]
        assert required == sorted(required, reverse=True), f"{one.name}: an argument with a default comes first"
    assert len({(one.name, *(a.type for a in one.arguments)) for one in FUNCTIONS}) == len(FUNCTIONS)
    (split,) = [one for one in FUNCTIONS if one.name == "train_test_split" and one.result == "VOID"]
    last = split.arguments[-1]
    assert (last.name, last.type, last.default) == ("separate_output_tables", "BOOLEAN", "FALSE")


def test_tables_belong_to_functions() -> None:
    assert {table.made_by for table in TABLES} <= {one.name for one in FUNCTIONS}
    assert all(name and kind for table in TABLES for name, kind in table.types)


@pytest.mark.parametrize("name", sorted(WITH_HELP))
def test_help(name: str) -> None:
    summary, shown, example = (usage.text(name, message) for message in (None, " Usage ", "example"))
    assert summary.startswith(f"{name}: ") and usage.text(name, "") == summary
    overloads = [one for one in FUNCTIONS if one.name == name and one.result == "VOID"]
    explained = usage.HELP[name].arguments
    assert {argument.name for one in overloads for argument in one.arguments} == set(explained)
    assert all(f"  {argument} " in shown for argument in explained) and "RETURNS VOID" in shown
    assert f".{name}(" in example
    assert usage.text(name, "perhaps").startswith("No such option")


def test_every_help_text_belongs_to_a_function() -> None:
    assert set(usage.HELP) == WITH_HELP


def test_the_schedule_of_madlibs_documentation() -> None:
    found = schedule(81, 3, 0)
    assert found == [
        (4, 0, 81, 1), (4, 1, 27, 3), (4, 2, 9, 9), (4, 3, 3, 27), (4, 4, 1, 81),
        (3, 0, 27, 3), (3, 1, 9, 9), (3, 2, 3, 27), (3, 3, 1, 81),
        (2, 0, 9, 9), (2, 1, 3, 27), (2, 2, 1, 81),
        (1, 0, 6, 27), (1, 1, 2, 81),
        (0, 0, 5, 81),
    ]  # fmt: skip


def test_last_rounds_are_skipped() -> None:
    assert schedule(9, 3, 1) == [(2, 0, 9, 1), (2, 1, 3, 3), (1, 0, 3, 3)]
    assert schedule(8, 3, 0)[:2] == [(1, 0, 3, 3), (1, 1, 1, 8)]  # 8 / 3 is rounded
    assert schedule(10, 3, 2) == [(2, 0, 9, 1)]  # 10 is no power of 3: a ninth of it is 1


@pytest.mark.parametrize(
    ("r", "eta", "skip_last", "wrong"),
    [(9, 1, 0, "eta is 1"), (9, None, 0, "eta is NULL"), (2, 3, 0, "R is 2"), (None, 3, 0, "R is NULL"),
     (9, 3, 3, "skip_last is 3"), (9, 3, -1, "skip_last is -1"), (9, 3, None, "skip_last is NULL")],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense(r: int, eta: int, skip_last: int, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        schedule(r, eta, skip_last)


# -- AutoML ------------------------------------------------------------------------------------------------------


def test_automl_parameters_have_madlibs_defaults() -> None:
    assert automl_methods.read(None, None) == MadlibHyperband(6, 3, 0) == automl_methods.read("Hyperband", "")
    assert automl_methods.read("hyperband", "R=9") == MadlibHyperband(9, 3, 0)
    assert automl_methods.read("hyperopt", "algorithm=Rand, num_configs=7") == Hyperopt(7, 5, "rand")
    assert automl_methods.read("hyperopt", None).shown == "num_configs=20, num_iterations=5, algorithm=tpe"


@pytest.mark.parametrize(
    ("method", "given", "wrong"),
    [
        ("bayes", None, "The chosen automl method must be 'hyperband' or 'hyperopt'"),
        ("hyperband", "R=9, num_configs=3", "Only R, eta, and skip_last may be specified"),
        ("hyperband", "r=9", "Only R, eta, and skip_last may be specified"),
        ("hyperopt", "R=9", "Only num_configs, num_iterations, and algorithm may be specified"),
        ("hyperband", "R=9, eta=1", "eta is 1"),
        ("hyperband", "R=2, eta=3", "R is 2"),
        ("hyperband", "R=9, skip_last=3", "skip_last is 3"),
        ("hyperband", "R=9.5", "R is 9.5; it must be a whole number"),
        ("hyperband", "R=True", "R is True"),
        ("hyperband", "R", "automl_params"),
        ("hyperopt", "num_configs=0", "num_configs is 0"),
        ("hyperopt", "num_iterations=-1", "num_iterations is -1"),
        ("hyperopt", "algorithm=atpe", "algorithm is 'atpe'"),
        ("hyperopt", "algorithm=3", "algorithm is 3; it must be a name"),
    ],
)
def test_automl_parameters_that_make_no_sense(method: str, given: str | None, wrong: str) -> None:
    with pytest.raises(CerebroError, match=wrong):
        automl_methods.read(method, given)


def test_rounds_of_hyperband_add_up() -> None:
    """A round goes on from the weights of the round before, so its iterations come on top."""
    nine = MadlibHyperband(9, 3, 0)
    assert nine.brackets == [
        MadlibBracket(2, 9, (1, 4, 13)),
        MadlibBracket(1, 3, (3, 12), 1),
        MadlibBracket(0, 3, (9,), 4),
    ]
    assert (nine.configurations, nine.iterations) == (15, 13)
    assert [nine.bracket_of(place).s for place in (0, 8, 9, 12, 14)] == [2, 2, 1, 0, 0]  # type: ignore[union-attr]
    assert nine.bracket_of(15) is None
    assert [nine.brackets[0].round_of(epoch) for epoch in (1, 2, 4, 5, 13)] == [0, 1, 1, 2, 2]
    assert MadlibHyperband(4, 2, 0).brackets[0].ends == (1, 3, 7)
    assert [one.before for one in nine.brackets] == [0, 1, 4]  # MADlib's page counts those of the last one from 5 to 13
    assert nine.measured(None) == [1, 3, 4, 9, 12, 13]
    assert [
        MadlibHyperband(5, 5, 1).last_iterations,
        nine.last_iterations,
        MadlibHyperband(10, 3, 1).last_iterations,
    ] == [1, 9, 3]
    # Every second iteration of a round, and its last: the round of 9 that begins after 4 is measured at 6, 8, 10, 12.
    assert nine.brackets[0].measured(2) == [1, 3, 4, 6, 8, 10, 12, 13]


@pytest.mark.parametrize(
    ("method", "frequency", "wrong"),
    [
        (MadlibHyperband(), 0, "metrics_compute_frequency is 0"),
        (Hyperopt(), 0, "'metrics_compute_frequency' out of iteration range"),
        (Hyperopt(), 6, "'metrics_compute_frequency' out of iteration range"),
        (MadlibHyperband(), 7, None),  # more than any round has: counts for none
        (Hyperopt(), 5, None),
        (Hyperopt(), None, None),
    ],
)
def test_how_often_automl_evaluates(method: Any, frequency: int | None, wrong: str | None) -> None:
    if wrong is None:
        automl_methods.require_frequency(method, frequency)
        return
    with pytest.raises(InvalidArgument, match=wrong):
        automl_methods.require_frequency(method, frequency)


COMPILE = """{'loss': ['mse', 'mse'], 'metrics': [['accuracy']], 'optimizer_params_list': [
    {'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.1, 'log']}, {'optimizer': ['Adam'], 'amsgrad': [True]}]}"""


def test_a_grid_becomes_a_space() -> None:
    assert grid_space.space([1, 2], COMPILE, "{'batch_size': [8, 32, 'linear'], 'epochs': [1, 2, 1]}") == {
        "architecture": [1, 2],
        "compile": {
            "optimizer": {
                "choice": [
                    {"class_name": "Adam", "config": {"lr": {"log_uniform": [0.001, 0.1]}}},
                    {"class_name": "SGD", "config": {"lr": {"log_uniform": [0.001, 0.1]}}},
                    {"class_name": "Adam", "config": {"amsgrad": True}},
                ]
            },
            "loss": "mse",
            "metrics": ["accuracy"],
        },
        "fit": {"batch_size": {"integer": [8, 32]}, "epochs": {"choice": [1, 2]}},
    }


def test_every_point_of_the_space_is_a_configuration_of_the_grid() -> None:
    made = read(grid_space.space([1, 2], COMPILE, "{'batch_size': [8, 16]}"), {1: None, 2: None})
    made.check()
    texts = {made.configuration(made.drawn(7, number)).compile_params for number in range(40)}
    shapes = {re.sub(r"lr=[0-9.e-]+", "lr=?", text) for text in texts}
    assert shapes == {
        f"optimizer='{call}',loss='mse',metrics=['accuracy']"
        for call in ("Adam(lr=?)", "SGD(lr=?)", "Adam(amsgrad=True)")
    }


def test_a_grid_without_optimizers_has_madlibs_default() -> None:
    found = grid_space.space([1], "{'loss': ['mse'], 'lr': [0.1, 0.2]}", None)["compile"]
    assert found["optimizer"] == {"class_name": "RMSprop", "config": {"lr": {"choice": [0.1, 0.2]}}}


def test_callbacks_of_a_grid_are_left_out() -> None:
    grid = """{'batch_size': [8], 'callbacks': ['[TensorBoard(log_dir="/tmp/x")]']}"""
    assert grid_space.space([1], "{'loss': ['mse'], 'lr': [0.1, 0.2]}", grid)["fit"] == {"batch_size": 8}
    assert grid_space.callbacks(grid) == ['callbacks=[TensorBoard(log_dir="/tmp/x")]']
    other = grid_space.space([1], "{'loss': ['mse'], 'lr': [0.1, 0.2]}", "{'callbacks': ['[EarlyStopping()]']}")
    assert other["fit"] == {"callbacks": "[EarlyStopping()]"}


def test_a_distribution_that_tpe_does_not_have() -> None:
    with pytest.raises(InvalidArgument, match="valid distribution type for 'momentum'"):
        grid_space.space([1], "{'loss': ['mse'], 'optimizer': ['SGD'], 'momentum': [0.9, 0.99, 'log_near_one']}", None)


def test_how_many_configurations_a_grid_has() -> None:
    assert points("{'loss': ['mse', 'mae', 'mse'], 'optimizer': ['SGD']}", "{'batch_size': [8, 16]}", 3) == 12
    assert points("{'loss': ['mse'], 'lr': [0.1, 0.2, 'linear']}", None, 1) is None
    many = ", ".join(f"'{name}': {list(range(100))}" for name in ("beta_1", "beta_2", "epsilon"))
    assert points(f"{{'loss': ['mse'], {many}}}", None, 1) == 100**3
