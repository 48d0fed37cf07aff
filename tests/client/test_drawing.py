"""Drawings made of characters, and the descriptions of configurations."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cerebro_db.client.display import boards, drawing
from cerebro_db.client.display.differences import differences
from cerebro_db.client.display.drawing import Stretch
from cerebro_db.client.display.terminal import Terminal


def test_a_sparkline_spans_from_low_to_high() -> None:
    assert drawing.sparkline([1.0, 0.5, 0.0], 10) == "█▅▁"
    assert drawing.sparkline([3.0, 3.0], 10) == "▁▁"
    assert drawing.sparkline([], 10) == ""


def test_a_sparkline_shows_what_is_no_number() -> None:
    assert drawing.sparkline([1.0, None, math.nan, math.inf, 0.0], 10) == "█···▁"
    assert drawing.sparkline([None, math.nan], 10) == "··"


def test_a_sparkline_of_the_largest_numbers() -> None:
    assert drawing.sparkline([1.7976931348623157e308, -1.7976931348623157e308, 0.0, None], 4) == "█▁▅·"
    assert drawing.sparkline([1.7976931348623157e308, -9.9792015476736e291], 2) == "█▁"


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.lists(st.one_of(st.none(), st.floats())), st.integers(1, 40))
def test_a_sparkline_is_never_too_long(values: list[float | None], width: int) -> None:
    assert len(drawing.sparkline(values, width)) == min(len(values), width)


def test_a_long_sparkline_ends_with_the_last_value() -> None:
    assert drawing.sparkline([0.0] * 99 + [1.0], 10).endswith("▁█")


def test_bars() -> None:
    assert drawing.bar(0.5, 10) == "█████"
    assert drawing.bar(0.0, 10) == ""
    assert drawing.bar(7.0, 10) == "█" * 10
    assert drawing.bar(1 / 16, 2) == "▏"


def test_a_column_of_the_time_line_shows_what_took_most_of_it() -> None:
    stretches = [Stretch(0, 4, ("train", 1)), Stretch(4, 5.5, ("evaluate", 1)), Stretch(8, 10, ("train", 2))]
    line = drawing.timeline(stretches, 0, 10, 5)
    assert line == [("train", 1), ("train", 1), ("evaluate", 1), None, ("train", 2)]


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted), max_size=30),
    st.integers(1, 50),
)
def test_a_time_line_fits(spans: list[list[float]], width: int) -> None:
    stretches = [Stretch(begin, end, ("train", key)) for key, (begin, end) in enumerate(spans)]
    assert len(drawing.timeline(stretches, 0, 100, width)) == width


def test_a_state_stored_behind_takes_none_of_the_next_ones_time() -> None:
    zero = datetime(2026, 1, 1)

    def one(key: int, begin: float, end: float, behind: float = 0.0) -> Any:
        started, finished = zero + timedelta(seconds=begin), zero + timedelta(seconds=end)
        times = {"started_at": started, "finished_at": finished, "seconds": end - begin, "seconds_behind": behind}
        return SimpleNamespace(segment=0, activity="train", configuration=key, model=key, **times)

    console = Terminal(width=21, color_system=None)
    with console.capture() as captured:
        console.print(boards.gantt([one(1, 0, 9, behind=5), one(2, 4, 8, behind=1), one(3, 7, 10)], 1, 21))
    assert captured.get().splitlines()[:2] == ["segment 0  AAAABBBCCC", "           0 s 10.0 s"]


def entry(model: int, status: str, reason: str | None, objective: str | None = None) -> Any:
    made = configuration(10 * model, loss="mse", batch_size=model)
    for name, value in {
        "model": model, "rank": model, "status": status, "reason": reason, "validation_loss": None, "loss": 0.5,
        "metric": None, "metric_name": None, "epochs_done": 3, "by_loss": not objective, "objective": objective,
        "group_number": None, "group_value": None,
        "objective_value": 0.75, "best_epoch": 2, "stopped_by": "patience",
        "validation_rmse": None, "fold": None, "spread": None, "rung": None, "parent": None,
    }.items():  # fmt: skip
        setattr(made, name, value)
    return made


def test_the_leaderboard_says_why_a_model_ended_early() -> None:
    entries = [entry(1, "finished", None), entry(2, "stopped", "no better for 2 epochs"), entry(3, "failed", "NaN")]
    console = Terminal(width=100, color_system=None)
    with console.capture() as captured:
        console.print(boards.leaderboard(entries, 100))
    lines = captured.get().splitlines()
    assert lines[-2:] == [
        "configuration 20 ended early, by patience: no better for 2 epochs",
        "configuration 30 failed: NaN",
    ]
    assert "0.5000" in lines[2] and "failed" in lines[3]
    assert lines[0].split()[-3:] == ["loss", "epochs", "best"] and lines[1].split()[-3:] == ["0.5000", "3", "2"]
    with console.capture() as captured:
        console.print(boards.leaderboard([entry(1, "finished", None, "val_auc")], 100))
    lines = captured.get().splitlines()
    assert lines[0].split()[-4:] == ["val_auc", "loss", "epochs", "best"]
    assert lines[1].split()[-4:] == ["0.7500", "0.5000", "3", "2"]
    on_all_rows, of_fold = entry(1, "finished", None), entry(2, "finished", None)
    on_all_rows.spread, of_fold.fold, of_fold.configuration = 0.25, 3, 10
    with console.capture() as captured:
        console.print(boards.leaderboard([on_all_rows, of_fold], 100))
    lines = captured.get().splitlines()
    assert "0.5000 ± 0.2500" in lines[1] and "10, fold 3" in lines[2] and "±" not in lines[2]
    on_all_rows.validation_rmse = 20_787.76  # shown instead of a squared loss, whose spread is not in its units
    with console.capture() as captured:
        console.print(boards.leaderboard([on_all_rows, of_fold], 100))
    lines = captured.get().splitlines()
    assert lines[0].split()[-3] == "RMSE" and lines[1].split()[-3:] == ["20,788", "3", "2"] and "±" not in lines[1]
    entries[0].rung, entries[1].rung, entries[2].parent = 2, 1, 1
    with console.capture() as captured:
        console.print(boards.leaderboard(entries, 100))
    lines = captured.get().splitlines()
    assert lines[0].split()[-2:] == ["rung", "parent"]
    assert [line.split()[-2:] for line in lines[1:4]] == [["2", "–"], ["1", "–"], ["–", "10"]]


def test_models_of_groups_are_not_mixed_with_those_on_all_rows() -> None:
    """Ranks are those within a group, so two models of a run have rank 1."""
    entries = [entry(number, "finished", None) for number in range(1, 5)]
    for one, value in zip(entries[2:], ("Oslo", "x\x1b[31m" + "y" * 100)):
        one.group_number, one.group_value, one.rank = one.model, value, 1
    entries[3].status, entries[3].reason = "failed", "NaN"
    console = Terminal(width=200, color_system=None)
    with console.capture() as captured:
        console.print(boards.leaderboard(entries, 200))
    lines = captured.get().splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"] and len(lines) == 5
    assert lines[3] == "These are the models on all rows. Models of 2 groups: 1 finished, 1 failed"
    assert lines[4].startswith("configuration 40 of group x") and lines[4].endswith("…  failed: NaN".replace("  ", " "))
    assert "\x1b" not in lines[4]
    with console.capture() as captured:  # as a monitor sees the groups of others; there are no models on all rows
        entries[2].group_value = None
        console.print(boards.leaderboard(entries[2:3], 200))
    assert "30 of group 3" in captured.get()


def test_a_leaderboard_of_the_best_is_short_though_a_search_has_stopped_many_models() -> None:
    """Else `cerebro watch` would have no room for the segments and the decisions."""
    entries = [entry(number, "stopped", "waits at rung 1") for number in range(1, 60)]
    console = Terminal(width=100, color_system=None)
    with console.capture() as captured:
        console.print(boards.leaderboard([*entries, entry(60, "failed", "NaN")], 100, top=1))
    assert captured.get().splitlines()[2:] == [
        "… and 59 more: 1 failed, 58 ended early",
        "configuration 10 ended early, by patience: waits at rung 1",
        "configuration 600 failed: NaN",
    ]


def test_more_models_than_letters() -> None:
    letters = drawing.letters([*range(1, 31), 1])
    assert (letters[1], letters[26], letters[27]) == ("A", "Z", "A")


def test_images() -> None:
    assert drawing.image([[0, 16], [8, 1]], 16) == ["  @@", "++  "]


@pytest.mark.parametrize(
    ("value", "told"), [(None, "–"), (3.44, "3.4 s"), (59.96, "1:00"), (67, "1:07"), (7380, "2:03:00"), (math.inf, "–")]
)
def test_seconds(value: float | None, told: str) -> None:
    assert drawing.seconds(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "–"), (0.12345, "0.1235"), (1e-5, "1e-05"), (1234.5, "1,234"), (1.2e10, "1.2e+10"), (math.nan, "nan")],
)
def test_numbers(value: float | None, told: str) -> None:
    assert drawing.number(value) == told


def configuration(key: int, architecture: str = "mlp", **parameters: Any) -> SimpleNamespace:
    return SimpleNamespace(configuration=key, architecture=architecture, parameters=parameters)


def test_only_what_differs_is_told() -> None:
    told = differences(
        [
            configuration(1, loss="mse", metrics=["mae"], optimizer="Adam", learning_rate=0.1, batch_size=8, passes=2),
            configuration(
                2, loss="mse", metrics=["mae"], optimizer="SGD", momentum=0.9, learning_rate=0.1, batch_size=8
            ),
        ]
    )
    assert told == {1: "Adam, passes=2", 2: "SGD, momentum=0.9"}


def test_long_numbers_are_rounded_unless_configurations_would_read_the_same() -> None:
    def told(*rates: float) -> list[str]:
        each = [configuration(key, optimizer="SGD", learning_rate=rate) for key, rate in enumerate(rates)]
        return list(differences(each).values())

    assert told(0.012345678901234567, 3.4567890123e-05, 0.001, 1.0) == [
        "learning_rate=0.012346", "learning_rate=3.4568e-05", "learning_rate=0.001", "learning_rate=1.0"
    ]  # fmt: skip
    assert told(0.01234567891, 0.01234567892) == ["learning_rate=0.01234567891", "learning_rate=0.01234567892"]


def test_architectures_are_told_by_their_names() -> None:
    named = [configuration(key, name, loss="mse") for key, name in enumerate(["mlp", "cnn", "architecture 3"], 1)]
    assert differences(named) == {1: "mlp", 2: "cnn", 3: "architecture 3"}


def test_a_single_configuration_is_told_whole() -> None:
    rate = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 50}}
    told = differences(
        [
            configuration(
                5, units=8, loss="mse", metrics=["mae", {"class_name": "AUC", "config": {}}], optimizer="Adam",
                learning_rate=rate, class_weight={"0": 1.0},
            )
        ]
    )  # fmt: skip
    assert told == {
        5: "mlp, units=8, loss=mse, metrics=[mae, AUC()], Adam, learning_rate=CosineDecay(initial_learning_rate=0.1,"
        " decay_steps=50), class_weight={0: 1.0}"
    }


@pytest.mark.parametrize("count", [20, 21, 3000])
def test_of_many_groups_some_are_shown_first_those_that_gain_nothing(count: int) -> None:
    def group(number: int) -> Any:
        return SimpleNamespace(
            group_number=number, group_value=f"shop {number}", rows=5, configuration=1, objective="val_loss",
            objective_value=0.5, all_rows_objective_value=0.4, worse_than_all_rows=number in (7, count),
        )  # fmt: skip

    console = Terminal(width=100, color_system=None)
    with console.capture() as captured:
        console.print(boards.groups([group(number) for number in range(1, count + 1)], 20))
    _, *lines = captured.get().splitlines()
    shown = [line for line in lines if line.startswith("shop ")]
    assert len(shown) == 20 and [line.split()[1] for line in shown if "gains nothing" in line] == ["7", str(count)]
    told = f"… and {count - 20:,} more groups: 2 of all groups gain nothing by a model of their own"
    assert lines[20:] == ([] if count == 20 else [told])
