"""``cerebro watch``: follows a run.

A terminal shows a display that is redrawn. Other output gets a line of text every few seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from cerebro_db.core.texts import counted

from .display import boards, drawing
from .display.terminal import Terminal, named
from .methods.runs import RunMethods
from .orm import LOSSES, Decision, LeaderboardEntry, Request, Run, RunProgress, SegmentNow

EVERY = 0.5  # seconds between two queries
LINE_EVERY = 5.0  # seconds between two lines of text
TOP = 5
DECISIONS = 5  # of which the last are shown
STARTING = "trainers start and build their first models"


@dataclass(frozen=True)
class Snapshot:
    """What the views say about a run at one moment."""

    run: Run
    progress: RunProgress
    leaderboard: list[LeaderboardEntry]
    segments: list[SegmentNow]
    decisions: list[Decision]
    requests: list[Request]


def watch(cerebro: RunMethods, run: int, console: Terminal, top: int = TOP) -> RunProgress:
    """Follows a run on the console until it ends, and says how good its model is. Returns its last progress."""
    progress = _live(cerebro, run, console, top) if console.is_terminal else _lines(cerebro, run, console)
    if (quality := cerebro.run(run).quality) is not None:
        console.print(Text(f"quality: {quality}"), soft_wrap=True)
    return progress


def snapshot(cerebro: RunMethods, run: Run, progress: RunProgress) -> Snapshot:
    segments = [] if progress.ended else cerebro.segments_now(run)
    decisions, requests = cerebro.decisions(run, changes_only=True), cerebro.requests(run)
    return Snapshot(run, progress, cerebro.leaderboard(run), segments, decisions, requests)


def _live(cerebro: RunMethods, number: int, console: Terminal, top: int) -> RunProgress:
    run = cerebro.run(number)
    # Without auto_refresh: a refresh between two queries would draw the same picture again.
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for progress in cerebro.follow(number, EVERY):
            live.update(picture(snapshot(cerebro, run, progress), console.width, top), refresh=True)
    return progress


def _lines(cerebro: RunMethods, number: int, console: Terminal) -> RunProgress:
    printed, told = 0.0, 0
    for progress in cerebro.follow(number, EVERY):
        now = time.monotonic()
        for one in cerebro.decisions(number, told, changes_only=True):
            told = one.decision_id
            console.print(boards.decision(one), soft_wrap=True)
        if progress.ended or now - printed >= LINE_EVERY:
            printed = now
            console.print(line(progress), soft_wrap=True)
    return progress


def line(progress: RunProgress) -> Text:
    """The progress in one line."""
    parts = [
        f"run {progress.run} {progress.status}",
        percent(progress) if progress.hops_done or progress.ended else waiting(progress) or STARTING,
        *([found] if progress.hops_done and (found := waiting(progress)) else []),
        *models_done(progress),
        *([f"{progress.rows_per_second:,.0f} rows/s"] if progress.rows_per_second else []),
        *([left] if (left := time_left(progress)) else []),
        *([f"{progress.configurations_failed} failed"] if progress.configurations_failed else []),
    ]
    if progress.best_loss is not None:
        metric = f" metric {drawing.number(progress.best_metric)}" if progress.best_metric is not None else ""
        optimised = (
            "" if progress.objective in LOSSES else f" {progress.objective} {drawing.number(progress.best_value)}"
        )
        parts.append(
            f"best configuration {progress.best_configuration}:{optimised} loss"
            f" {drawing.number(progress.best_loss)}{metric}"
        )
    return Text(", ".join(parts))


def waiting(progress: RunProgress) -> str | None:
    """For which run this one waits, if it does."""
    return progress.message if progress.status == "running" else None


def models_done(progress: RunProgress) -> list[str]:
    """How many models need no more training; nothing is said of none."""
    return [f"{counted(progress.configurations_finished, 'model')} done"] if progress.configurations_finished else []


def time_left(progress: RunProgress) -> str | None:
    if progress.seconds_left is not None:
        return f"{drawing.seconds(progress.seconds_left)} left"
    return "estimating the time left" if progress.status == "running" and progress.hops_done else None


def percent(progress: RunProgress) -> str:
    return f"{progress.percent:.1f} %"


def picture(seen: Snapshot, width: int, top: int) -> RenderableType:
    progress = seen.progress
    parts: list[RenderableType] = [title(seen.run, progress), _bar(progress, width), _figures(progress)]
    if any(entry.status != "waiting" for entry in seen.leaderboard):
        parts += [Text(), boards.leaderboard(seen.leaderboard, width, top=top)]
    if seen.segments:
        parts += [Text(), _segments(seen)]
    if seen.decisions or any(one.status == "waiting" for one in seen.requests):
        parts += [Text(), boards.decisions(seen.decisions, seen.requests, DECISIONS)]
    return Group(*parts)


def title(run: Run, progress: RunProgress) -> Text:
    name = f" {named(run.run_name)}" if run.run_name else ""
    counts = ((run.configurations, "configuration"), (run.segments, "segment"), (run.epochs, "epoch"))
    shape = " × ".join(counted(*one) for one in counts)
    text = Text(f"run {run.run}{name}", style="bold").append(f"  {shape}  ", style="not bold")
    return text.append_text(boards.state(progress.status))


def _bar(progress: RunProgress, width: int) -> Text:
    shown = percent(progress)
    room = max(10, min(100, width) - len(shown) - 2)
    full = drawing.bar(progress.percent / 100, room)
    text = Text(full, style="green" if progress.status == "finished" else "cyan")
    text.append("─" * (room - len(full)), style="dim")
    return text.append(f"  {shown}", style="bold")


def _figures(progress: RunProgress) -> Text:
    started = progress.hops_done or progress.ended
    parts = models_done(progress) if started else [waiting(progress) or STARTING]
    if started and (found := waiting(progress)):
        parts.append(found)
    if progress.rows_per_second:
        parts.append(f"{progress.rows_per_second:,.0f} rows/s")
    parts.append(f"{drawing.seconds(progress.seconds_elapsed)} so far" if not progress.ended
                 else drawing.seconds(progress.seconds_elapsed))  # fmt: skip
    if left := time_left(progress):
        parts.append(left)
    if progress.configurations_failed:
        parts.append(f"{progress.configurations_failed} configurations failed")
    return Text("  ".join(parts))


def _segments(seen: Snapshot) -> RenderableType:
    marks = boards.Marks([entry.model for entry in seen.leaderboard])
    now = {one.segment: one for one in seen.segments}
    groups = {entry.model: boards.group_of(entry) for entry in seen.leaderboard if entry.group_number is not None}
    table = boards.plain_table(show_header=False)
    for segment in range(seen.run.segments):
        one = now.get(segment)
        if one is None:
            table.add_row(f"segment {segment}", "·", Text("has had no hop yet", style="dim"))
        elif one.done:
            last = f"evaluates or waits; last trained configuration {one.configuration}, epoch {one.epoch}"
            table.add_row(f"segment {segment}", "·", Text(last, style="dim"))
        else:
            group = f" of group {groups[one.model]}" if one.model in groups else ""
            doing = f"trains configuration {one.configuration}{group}, epoch {one.epoch} of {seen.run.epochs}"
            doing += f", {drawing.seconds(one.seconds)}"
            table.add_row(f"segment {segment}", marks.text(one.model), Text(doing))
    return table
