"""The table that compares cerebro.train with scikit-learn: means over seeds, and mean ranks."""

from __future__ import annotations

import re
import statistics

import pytest

from tests.bench.rivals.tabular import APART
from tests.bench.tabular import LINEAR, NETWORK, OURS, TREES, table
from tests.conftest import CLONE


def test_means_ranks_and_the_ratio() -> None:
    scores = {
        "a": {OURS: [0.8, 0.9], TREES: [0.9, 0.9], LINEAR: [0.8, 0.8], NETWORK: [0.8, 0.8]},
        "b": {OURS: [0.5, 0.5], TREES: [0.4, 0.4], LINEAR: [0.2, 0.2], NETWORK: [0.3, 0.3]},
    }
    lines = [
        {"set": name, "contender": contender, "score": score}
        for name, of_set in scores.items()
        for contender, values in of_set.items()
        for score in values
    ]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(lines).splitlines()]
    assert head == ["", OURS, TREES, LINEAR, NETWORK]
    found = {name: cells for name, *cells in rows}
    assert found["a"][:2] == ["0.850 ± 0.071", "0.900 ± 0.000"]
    assert found["**mean rank**"] == ["1.50", "1.50", "3.75", "3.25"]
    assert found["**mean score**"][:2] == ["0.6750", "0.6500"]
    assert found["**of HistGradientBoosting's**"][0] == "1.038"


def test_the_figures_below_the_table_of_the_page_follow_from_it() -> None:
    page = (CLONE / "docs" / "accuracy.md").read_text()
    text = page.partition("## Compared with scikit-learn")[2].partition("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    means = [[float(cell.split(" ")[0]) for cell in cells] for name, *cells in found if "±" in cells[0]]
    said = {name: [float(cell) for cell in cells] for name, *cells in found if name.startswith("**")}
    assert len(means) == 15
    for place, score in enumerate(said["**mean score**"]):
        assert score == pytest.approx(statistics.fmean(row[place] for row in means), abs=5e-4)
    assert said["**mean rank**"] == pytest.approx(mean_ranks(means), abs=0.005)
    alone = re.findall(r"mean ranks are ([\d.]+) \(`cerebro.train`\), ([\d.]+) .*? and ([\d.]+)", text, re.DOTALL)
    ours, trees, linear = mean_ranks([[row[0], row[2], row[3]] for row in means])
    assert [float(one) for one in alone[0]] == pytest.approx([ours, linear, trees], abs=0.005)


def test_the_figures_of_the_tables_that_were_kept_apart() -> None:
    page = (CLONE / "docs" / "accuracy.md").read_text()
    text = page.partition("## Compared with boosted trees and AutoGluon")[2].partition("\n## ")[0]
    first = "|" + text.partition("\n|")[2].partition("\n\n")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    scores = {name: [float(cell) for cell in cells] for name, *cells in found if name in APART}
    assert list(scores) == list(APART)
    said = {name: [float(cell) for cell in cells] for name, *cells in found if name.startswith("**")}
    means = list(scores.values())
    assert said["**mean rank**"] == pytest.approx(mean_ranks(means), abs=0.15)  # of scores with more digits
    for place, score in enumerate(said["**mean score**"]):
        assert score == pytest.approx(statistics.fmean(row[place] for row in means), abs=5e-4)
    names = ("HistGradientBoosting", "LightGBM", "CatBoost", "AutoGluon")
    better = [re.search(rf"{name}`? on (\d+)", " ".join(text.split())) for name in names]
    said_better = [int(one[1]) for one in better if one]
    assert said_better == [sum(row[0] > row[other] for row in means) for other in range(1, 5)]


def mean_ranks(means: list[list[float]]) -> list[float]:
    """Equal means share their places."""
    return [
        statistics.fmean(
            1 + sum(other > row[place] for other in row) + (row.count(row[place]) - 1) / 2 for row in means
        )
        for place in range(len(means[0]))
    ]
