"""The table that compares cerebro.train with scikit-learn: means over seeds, and mean ranks."""

from __future__ import annotations

from tests.bench.tabular import LINEAR, NETWORK, OURS, TREES, table


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
