"""A run's figures as rich tables: leaderboard, where the time went, what each segment did."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from . import drawing
from .differences import differences
from .orm import LeaderboardEntry, LearningCurvePoint, RunTime, SegmentActivity

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta", "bright_yellow",
           "bright_green", "bright_blue", "bright_red")  # fmt: skip
STATES = {"finished": "green", "running": "cyan", "created": "dim", "failed": "red", "cancelled": "yellow",
          "interrupted": "yellow", "training": "cyan", "waiting": "dim"}  # fmt: skip
NARROW = 100  # columns; below it the tables leave out what is nice to have


class Marks:
    """The letter and the colour by which a configuration is known in the pictures of its run."""

    def __init__(self, keys: Sequence[int]) -> None:
        self._letters = drawing.letters(keys)
        self._colours = {key: COLOURS[place % len(COLOURS)] for place, key in enumerate(sorted(set(keys)))}

    def letter(self, key: int) -> str:
        return self._letters.get(key, "?")

    def colour(self, key: int) -> str:
        return self._colours.get(key, "default")

    def text(self, key: int) -> Text:
        return Text(self.letter(key), style=f"bold {self.colour(key)}")


def plain_table(**options: object) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", **options)  # type: ignore[arg-type]


def state(word: str) -> Text:
    return Text(word, style=STATES.get(word, ""))


def leaderboard(
    entries: Sequence[LeaderboardEntry], width: int, curves: Sequence[LearningCurvePoint] = (), top: int | None = None
) -> RenderableType:
    """The configurations, the best first, with their loss over the epochs as a sparkline."""
    if not entries:
        return Text("No configurations.", style="dim")
    marks = Marks([entry.mst_key for entry in entries])
    words = differences(entries)
    validated = any(entry.validation_loss is not None for entry in entries)
    metric = next((entry.metric_name for entry in entries if entry.metric_name), None)
    table = plain_table()
    narrow = width < NARROW
    for heading in ("#", "", "key" if narrow else "mst_key"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    table.add_column("validation loss" if validated and not narrow else "loss", justify="right", no_wrap=True)
    if metric:
        table.add_column(metric if len(metric) <= 12 else "metric", justify="right", no_wrap=True)
    with_epochs = not (narrow and curves)
    if with_epochs:
        table.add_column("epochs", justify="right", no_wrap=True)
    if curves:
        table.add_column("loss by epoch", no_wrap=True)
    losses = {key: [point.loss for point in curves if point.mst_key == key] for key in words}
    for entry in entries[:top]:
        failed = entry.status == "failed"
        cells: list[RenderableType] = [
            str(entry.rank), marks.text(entry.mst_key), str(entry.mst_key), Text(words[entry.mst_key]),
            Text("failed", style="red") if failed else drawing.number(entry.loss),
        ]  # fmt: skip
        if metric:
            cells.append(drawing.number(entry.metric))
        if with_epochs:
            cells.append(str(entry.epochs_done))
        if curves:
            room = 12 if narrow else 16
            cells.append(Text(drawing.sparkline(losses[entry.mst_key], room), style=marks.colour(entry.mst_key)))
        table.add_row(*cells)
    notes = [
        Text(f"mst_key {entry.mst_key} failed: {entry.reason}", style="red")
        for entry in entries
        if entry.status == "failed"
    ]
    if top is not None and len(entries) > top:
        notes.insert(0, Text(f"… and {len(entries) - top} more", style="dim"))
    return Group(table, *notes)


def where_time_went(parts: Sequence[RunTime], width: int) -> RenderableType:
    """Seconds, share and a bar per activity, and the one number that matters most."""
    if not parts:
        return Text("Nothing was done yet.", style="dim")
    table = plain_table()
    table.add_column("activity", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    room = max(10, min(50, width - 42))
    for part in parts:
        share = part.share or 0.0
        style = "green" if part.activity == "training" else "dim" if part.activity == "waiting" else "cyan"
        cells = (part.activity, f"{part.seconds or 0:,.2f}", f"{100 * share:.1f} %")
        table.add_row(*cells, Text(drawing.bar(share, room), style=style))
    training = next((part.share or 0.0 for part in parts if part.activity == "training"), 0.0)
    return Group(table, Text(f"{100 * training:.0f} % of the segments' time was training", style="bold"))


def gantt(activities: Sequence[SegmentActivity], segments: int, width: int) -> RenderableType:
    """A line per segment, a letter for the configuration that took most of that moment; small ones are validated."""
    if not activities:
        return Text("No hops yet.", style="dim")
    zero = min(activity.started_at for activity in activities)
    stretches: list[list[drawing.Stretch]] = [[] for _ in range(segments)]
    for one in activities:
        begin = (one.started_at - zero).total_seconds()
        end = begin + one.seconds - one.seconds_behind  # while its state was stored, the segment was at the next one
        stretches[one.segment].append(drawing.Stretch(begin, end, (one.activity, one.mst_key)))
    whole = (max(activity.finished_at for activity in activities) - zero).total_seconds()
    marks = Marks([activity.mst_key for activity in activities])
    label = len(f"segment {segments - 1}") + 2
    room = max(10, width - label)
    lines = []
    for segment, line in enumerate(stretches):
        text = Text(f"segment {segment}".ljust(label), no_wrap=True)
        for column in drawing.timeline(line, 0.0, whole, room):
            text.append_text(_column(column, marks))
        lines.append(text)
    axis = Text(" " * label + "0 s" + drawing.seconds(whole).rjust(room - 3), style="dim", no_wrap=True)
    key = Text("A trains, a is validated, · waits", style="dim")
    return Group(*lines, axis, key)


def _column(what: tuple[str, int] | None, marks: Marks) -> Text:
    if what is None:
        return Text("·", style="dim")
    activity, key = what
    if activity == "train":
        return Text(marks.letter(key), style=f"bold reverse {marks.colour(key)}")
    return Text(marks.letter(key).lower(), style=marks.colour(key))


def heading(title: str) -> Text:
    return Text.from_markup(f"\n[bold]{escape(title)}[/]")
