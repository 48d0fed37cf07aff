"""How the cost grows with configurations, rows and segments: measured, and simulated for more segments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cerebro_db.core.scheduling import orchestrator
from cerebro_db.core.scheduling.schedule import Plan, Schedule, Unit
from tests.bench import report
from tests.bench.works import Work
from tests.core.fakes import Clock, models

SEGMENTS = (4, 8, 16, 32, 64)
Figures = list[tuple[Work, report.Repeats]]


def wall(repeats: report.Repeats) -> float:
    return median(one.taken.wall for one in report.of(repeats, "ours"))


def cpu(repeats: report.Repeats) -> float:
    return median(one.taken.cpu for one in report.of(repeats, "ours"))


def table(figures: Figures) -> str:
    rows = []
    for work, repeats in figures:
        rows.append(
            [
                f"{len(work.configurations)}",
                f"{work.rows:,}",
                f"{work.segments}",
                report.spread([one.taken.wall for one in report.of(repeats, "ours")], digits=1),
                report.spread([one.taken.cpu for one in report.of(repeats, "ours")], digits=1),
                f"{1e6 * cpu(repeats) / (len(work.configurations) * work.rows):.2f}",
            ]
        )
    return report.table(
        ["configurations", "rows", "segments", "wall s", "CPU s", "CPU µs per row and configuration"], rows
    )


# --- more segments than there are processors ---------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """The mean seconds of one configuration's units."""

    train: float  # training, which is proportional to the rows
    first: float  # everything else in its first unit, which also creates the initial state
    later: float  # everything else in its later units

    def of(self, unit: Unit, share: float) -> float:
        return self.train * share + (self.first if unit.hop == 1 else self.later)


def costs(repeats: report.Repeats) -> dict[int, Cost]:
    last = report.of(repeats, "ours")[-1]
    return {int(key): Cost(**seconds) for key, seconds in last.more["units"].items()}


def simulated(measured: dict[int, Cost], at: int, segments: int, epochs: int) -> tuple[float, float]:
    """The makespan and its lower bound for a number of segments, from costs that were measured on ``at`` segments."""
    share = at / segments
    plan = Plan(1, models(measured), segments, epochs)
    clock = Clock(lambda unit: measured[unit.model].of(unit, share))
    orchestrator.run(Schedule(plan), clock)
    hops = epochs * segments
    whole = [cost.first + (hops - 1) * cost.later + hops * cost.train * share for cost in measured.values()]
    return clock.now, max(sum(whole) / segments, max(whole))


def simulation(figures: Figures) -> list[tuple[int, float, float]]:
    """Segments, makespan and lower bound, simulated with the units of the work that has most configurations."""
    work, repeats = max(figures, key=lambda one: len(one[0].configurations))
    return [(segments, *simulated(costs(repeats), work.segments, segments, work.epochs)) for segments in (1, *SEGMENTS)]


def simulation_table(figures: Figures) -> str:
    (_, one, _), *points = simulation(figures)
    rows = [
        [f"{segments}", f"{makespan:.2f}", f"{makespan / bound:.3f}", f"{one / makespan:.1f}"]
        for segments, makespan, bound in points
    ]
    head = ["segments (simulated)", "training s", "times the lower bound", "times as fast as one segment"]
    return report.table(head, rows)


# --- the picture -----------------------------------------------------------------------------------------


def draw(figures: Figures, path: Path) -> None:
    """Draw both axes logarithmically.  Proportional growth is a line parallel to the dotted one."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    two = [(work, repeats) for work, repeats in figures if work.segments == 2]
    fewest, usual = min(work.rows for work, _ in two), 16
    panel(
        panels[0],
        "configurations",
        [(len(work.configurations), repeats) for work, repeats in two if work.rows == fewest],
    )
    panel(panels[1], "rows", [(work.rows, repeats) for work, repeats in two if len(work.configurations) == usual])
    points = simulation(figures)
    panels[2].loglog([one[0] for one in points], [one[1] for one in points], "o-", label="simulated")
    panels[2].loglog([one[0] for one in points], [points[0][1] / one[0] for one in points], ":", color="grey")
    label(panels[2], "segments", [one[0] for one in points])
    panels[2].set_ylabel("training s")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def panel(axes: Any, what: str, points: list[tuple[int, report.Repeats]]) -> None:
    for figure, name in ((wall, "wall"), (cpu, "CPU")):
        axes.loglog([x for x, _ in points], [figure(repeats) for _, repeats in points], "o-", label=name)
    x, y = points[0][0], cpu(points[0][1])
    axes.loglog([one for one, _ in points], [y * one / x for one, _ in points], ":", color="grey")
    label(axes, what, [x for x, _ in points])
    axes.set_ylabel("s")


def label(axes: Any, what: str, ticks: list[int]) -> None:
    axes.set_xlabel(what)
    axes.set_xticks(ticks, [f"{tick // 1000}k" if tick >= 1000 else f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.legend()
