"""``cerebro show``: one run's summary, leaderboard, time by activity, and time line of the segments."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from ..cerebro import Cerebro
from ..display import boards, drawing
from ..display.terminal import Terminal
from ..orm import Run, RunProgress
from ..watch import models_done, percent, title

NEXT = {
    "interrupted": "The session that drove it has ended. To continue: cerebro resume {run}",
    "cancelled": "To continue: cerebro resume {run}",
    "failed": "To continue: cerebro resume {run}",
    "running": "To watch it: cerebro watch {run}",
    "finishing": "The models are trained, and their tables are being made.",
}
MOST_GROUPS = 20  # that are shown


def show(cerebro: Cerebro, number: int, console: Terminal) -> None:
    run, progress = cerebro.run(number), cerebro.run_progress(number)
    width = console.width
    summary(run, progress, console)
    console.print(boards.heading("Leaderboard"))
    curves = cerebro.learning_curve(number, groups=False)
    console.print(boards.leaderboard(cerebro.leaderboard(number), width, curves))
    if of_groups := cerebro.groups(number):
        console.print(boards.heading("Best model of each group"))
        console.print(boards.groups(of_groups, MOST_GROUPS))
    made, requests = cerebro.decisions(number, changes_only=True), cerebro.requests(number)
    if made or requests:
        console.print(boards.heading("Decisions"))
        console.print(boards.decisions(made, requests))
    console.print(boards.heading("Where the time went"))
    console.print(boards.where_time_went(cerebro.run_time(number), width))
    console.print(boards.heading("What each segment did"))
    console.print(boards.gantt(cerebro.hop_timeline(number), run.segments, width))


def everything(cerebro: Cerebro, number: int) -> dict[str, Any]:
    """What the views say about a run, by their names."""
    return {
        "runs": cerebro.run(number),
        "run_progress": cerebro.run_progress(number),
        "leaderboard": cerebro.leaderboard(number),
        "groups": cerebro.groups(number),
        "learning_curve": cerebro.learning_curve(number),
        "decisions": cerebro.decisions(number),
        "requests": cerebro.requests(number),
        "run_time": cerebro.run_time(number),
        "hop_timeline": cerebro.hop_timeline(number),
    }


def chosen(run: Run) -> str | None:
    """``configuration 9, the mean of configurations 3, 5 of models``: which model predicts."""
    if run.chosen_configuration is None:
        return None
    return f"configuration {run.chosen_configuration}{f', {run.made_of}' if run.made_of else ''}"


def summary(run: Run, progress: RunProgress, console: Terminal) -> None:
    console.print(title(run, progress))
    facts = {
        "description": run.description,
        "trained on": run.source_table,
        "model table": run.model_table,
        "predicts": chosen(run),
        "quality": run.quality,
        "started": f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.started_at else None,
        "took" if progress.ended else "so far": drawing.seconds(progress.seconds_elapsed),
        "progress": ", ".join([percent(progress), *models_done(progress)]),
        "failed": f"{progress.configurations_failed} configurations" if progress.configurations_failed else None,
        "message": run.message,
        "ended by": "its budget, which is spent" if run.reason == "budget" else run.reason,
        "": NEXT.get(run.status, "").format(run=run.run),
    }
    for label, value in facts.items():
        if value:
            console.print(Text(f"{label:<12}", style="dim").append(str(value), style="default not dim"), soft_wrap=True)
