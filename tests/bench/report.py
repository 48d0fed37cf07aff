"""The report: medians, spreads and paired ratios of the measurements, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from tests.bench.stage import Measured

Repeats = list[list[Measured]]  # for each repeat, the measurements of the contenders


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(zip(cells, widths))
        ]
        return f"| {' | '.join(aligned)} |"

    rule = ["-" * width + (":" if place else "-") for place, width in enumerate(widths)]
    return "\n".join([line(head), f"|-{rule[0]}|" + "|".join(f"-{one}" for one in rule[1:]) + "|", *map(line, rows)])


def spread(values: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """The median, and the smallest and largest value."""
    middle = f"{median(values):.{digits}f}{unit}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def contenders(repeats: Repeats) -> list[str]:
    return list(dict.fromkeys(one.contender for repeat in repeats for one in repeat))


def of(repeats: Repeats, contender: str) -> list[Measured]:
    return [one for repeat in repeats for one in repeat if one.contender == contender]


def quality(measured: list[Measured]) -> tuple[float, float] | None:
    """The median loss of the configurations and the best accuracy, each as the median of the repeats."""
    scored = [one.results for one in measured if one.results]
    if not scored:
        return None
    losses = [median(result["loss"] for result in results) for results in scored]
    return median(losses), median(max(result["accuracy"] for result in results) for results in scored)


def same_work(mine: tuple[float, float], all_of_them: list[tuple[float, float]]) -> bool:
    """Whether a contender did the same work as the others: chance changes the loss only by a few percent."""
    loss, accuracy = (median(values) for values in zip(*all_of_them))
    return abs(mine[0] - loss) <= 0.1 * loss and abs(mine[1] - accuracy) <= 0.02


def overview(repeats: Repeats) -> str:
    """A table of the resources of each contender."""
    qualities = {name: quality(of(repeats, name)) for name in contenders(repeats)}
    known = [one for one in qualities.values() if one]
    rows = []
    for name in contenders(repeats):
        mine = of(repeats, name)
        reached = qualities[name]
        rows.append(
            [
                name,
                spread([one.taken.wall for one in mine], digits=1),
                spread([one.start for one in mine], digits=1),
                spread([one.taken.cpu for one in mine], digits=1),
                spread([one.taken.others for one in mine]),
                f"{max(one.taken.memory for one in mine) / 2**20:,.0f}",
                f"{max(one.taken.disk for one in mine) / 2**20:,.0f}",
                *([f"{reached[0]:.4f}", f"{reached[1]:.4f}"] if reached else ["", ""]),
                "" if not reached else "yes" if same_work(reached, known) else "NO",
            ]
        )
    head = [
        "",
        "wall s",
        "of it start",
        "CPU s",
        "others",
        "memory MB",
        "disk MB",
        "median loss",
        "best accuracy",
        "same work",
    ]
    return table(head, rows)


def times(repeats: Repeats, ours: str, other: str) -> dict[str, list[float]]:
    """What a contender takes divided by what ours takes, in each repeat that has both: wall, without start, CPU."""
    pairs = [
        (mine, its)
        for repeat in repeats
        for mine in repeat
        for its in repeat
        if mine.contender == ours and its.contender == other
    ]
    if not pairs:
        return {}
    return {
        "wall": [its.taken.wall / mine.taken.wall for mine, its in pairs],
        "without start": [(its.taken.wall - its.start) / (mine.taken.wall - mine.start) for mine, its in pairs],
        "CPU": [its.taken.cpu / mine.taken.cpu for mine, its in pairs],
    }


def ratios(repeats: Repeats, ours: str) -> str:
    """A table of each rival's time divided by ours in the same repeat."""
    compared = {name: times(repeats, ours, name) for name in contenders(repeats) if name != ours}
    rows = [[name, *map(spread, found.values())] for name, found in compared.items() if found]
    return table([f"… times {ours}", "wall", "wall without start", "CPU"], rows) if rows else ""


def profile(repeats: Repeats, ours: str) -> str:
    """A table of how the segments spent their time in our runs."""
    mine = [one for one in of(repeats, ours) if "profile" in one.more]
    if not mine:
        return ""
    rows = [
        [activity, spread([one.more["profile"].get(activity, 0.0) for one in mine])]
        for activity in mine[0].more["profile"]
    ]
    rows.append(
        [
            "(share) of the time between first and last unit that segments were busy",
            spread([busy(one) for one in mine], digits=3),
        ]
    )
    rows.append(["(wall) before the first unit", spread([one.start for one in mine])])
    rows.append(["(wall) after the last unit", spread([one.more["end"] for one in mine])])
    return table([f"{ours}: seconds, summed over the segments", "s"], rows)


def busy(one: Measured) -> float:
    spent = one.more["profile"]
    return 1 - spent["waiting"] / (sum(spent.values()) - spent["starting"])


def rates(repeats: Repeats) -> str:
    """A table of rows per second, for predictions."""
    rows = [
        [name, spread([one.more["rows"] / (one.taken.wall - one.start) for one in of(repeats, name)], digits=0)]
        for name in contenders(repeats)
        if all("rows" in one.more for one in of(repeats, name))
    ]
    return table(["", "rows/s"], rows) if rows else ""


def delays(repeats: Repeats) -> str:
    """A table of the milliseconds that a single prediction takes."""
    rows = [
        [name, spread([one.more["milliseconds"] for one in of(repeats, name)], digits=1)]
        for name in contenders(repeats)
        if all("milliseconds" in one.more for one in of(repeats, name))
    ]
    return table(["", "ms, the median of the rows"], rows) if rows else ""


def about(repeats: Repeats) -> Iterator[str]:
    """The whole report about a work."""
    yield overview(repeats)
    yield rates(repeats)
    yield delays(repeats)
    for name in contenders(repeats):
        if name.startswith("ours"):
            yield ratios(repeats, name)
            yield profile(repeats, name)
