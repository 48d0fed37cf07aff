"""Shows a run with rich: the leaderboard, the time by activity, and the time line of the segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cerebro_db.core.texts import harmless, short, shortened

from ..orm import BestOfGroup, Decision, LeaderboardEntry, LearningCurvePoint, Request, RunTime, SegmentActivity
from . import drawing
from .differences import differences

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta", "bright_yellow",
           "bright_green", "bright_blue", "bright_red")  # fmt: skip
STATES = {"finished": "green", "running": "cyan", "finishing": "cyan", "created": "dim", "failed": "red",
          "cancelled": "yellow", "interrupted": "yellow", "stopped": "yellow", "training": "cyan",
          "waiting": "dim"}  # fmt: skip
DECISIONS = {"stop": "yellow", "refuse": "red", "add": "green", "go on": "green"}
ENDED_EARLY = {"failed": "failed", "stopped": "ended early"}  # statuses, and the words for them
FAILED_OF_GROUPS = 5  # of the models of groups that failed, so many are named
GROUP = 60  # characters of a group's values
NARROW = 100  # columns; narrower terminals get tables with fewer columns


class Marks:
    """The letter and the colour of each model in the drawings of a run."""

    def __init__(self, models: Sequence[int]) -> None:
        self._letters = drawing.letters(models)
        self._colours = {model: COLOURS[place % len(COLOURS)] for place, model in enumerate(sorted(set(models)))}

    def letter(self, model: int) -> str:
        return self._letters.get(model, "?")

    def colour(self, model: int) -> str:
        return self._colours.get(model, "default")

    def text(self, model: int) -> Text:
        return Text(self.letter(model), style=f"bold {self.colour(model)}")


def plain_table(**options: object) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", **options)  # type: ignore[arg-type]


def state(word: str) -> Text:
    return Text(word, style=STATES.get(word, ""))


def group_of(one: LeaderboardEntry | BestOfGroup) -> str:
    """The values of a group or, where they are not shown to the user, its number."""
    return str(one.group_number) if one.group_value is None else harmless(shortened(one.group_value, GROUP))


def _key(entry: LeaderboardEntry) -> str:
    group = "" if entry.group_number is None else f" of group {group_of(entry)}"
    fold = "" if entry.fold is None else f", fold {entry.fold}"
    return f"{entry.configuration}{group}{fold}"


def leaderboard(
    entries: Sequence[LeaderboardEntry], width: int, curves: Sequence[LearningCurvePoint] = (), top: int | None = None
) -> RenderableType:
    """The models, the best first, each with a sparkline of its loss by epoch.

    An objective that is no loss has a column of its own. ``best`` is the epoch with the best value of the objective,
    ``parent`` the configuration of the model that a model is a copy of.  ``top``: so many models are shown. Of the
    others, only some that have failed are named.  Of models of groups, only the number of each status is shown.
    """
    if not entries:
        return Text("No models.", style="dim")
    marks = Marks([entry.model for entry in entries])
    of_groups = [entry for entry in entries if entry.group_number is not None]
    entries = [entry for entry in entries if entry.group_number is None] or entries
    words = differences(entries)
    validated = any(entry.validation_loss is not None for entry in entries)
    metric = next((entry.metric_name for entry in entries if entry.metric_name), None)
    table = plain_table()
    narrow = width < NARROW
    for heading in ("#", "", "conf." if narrow else "configuration"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    table.add_column("configuration", overflow="fold")
    optimised = None if entries[0].by_loss else entries[0].objective
    if optimised:
        table.add_column(optimised if len(optimised) <= 16 else "objective", justify="right", no_wrap=True)
    rooted = any(entry.validation_rmse is not None for entry in entries)  # a squared loss says nothing to people
    loss = "RMSE" if rooted else "validation loss" if validated and not narrow else "loss"
    table.add_column(loss, justify="right", no_wrap=True)
    if metric:
        table.add_column(metric if len(metric) <= 12 else "metric", justify="right", no_wrap=True)
    with_epochs = not (narrow and curves)
    if with_epochs:
        table.add_column("epochs", justify="right", no_wrap=True)
        table.add_column("best", justify="right", no_wrap=True)
    with_rungs = not narrow and any(entry.rung is not None for entry in entries)
    with_parents = not narrow and any(entry.parent is not None for entry in entries)
    for heading, wanted in (("rung", with_rungs), ("parent", with_parents)):
        if wanted:
            table.add_column(heading, justify="right", no_wrap=True)
    if curves:
        table.add_column("loss by epoch", no_wrap=True)
    keys = {entry.model: entry.configuration for entry in entries}
    losses: dict[int, list[float | None]] = {entry.model: [] for entry in entries}
    for point in curves:
        if point.model in losses:
            losses[point.model].append(point.loss)
    for entry in entries[:top]:
        failed = entry.status == "failed"
        cells: list[RenderableType] = [
            str(entry.rank), marks.text(entry.model), _key(entry), Text(words[entry.configuration]),
        ]  # fmt: skip
        if optimised:
            spread = "" if entry.spread is None else f" ± {drawing.number(entry.spread)}"
            cells.append(drawing.number(entry.objective_value) + spread)
        spread = "" if entry.spread is None or optimised else f" ± {drawing.number(entry.spread)}"
        size = "–" if entry.validation_rmse is None else short(entry.validation_rmse)
        told = size if rooted else drawing.number(entry.loss) + spread
        cells.append(Text("failed", style="red") if failed else told)
        if metric:
            cells.append(drawing.number(entry.metric))
        if with_epochs:
            cells += [str(entry.epochs_done), "–" if entry.best_epoch is None else str(entry.best_epoch)]
        if with_rungs:
            cells.append("–" if entry.rung is None else str(entry.rung))
        if with_parents:
            cells.append("–" if entry.parent is None else str(keys.get(entry.parent, "–")))
        if curves:
            room = 12 if narrow else 16
            cells.append(Text(drawing.sparkline(losses[entry.model], room), style=marks.colour(entry.model)))
        table.add_row(*cells)
    left_out = entries[len(entries) if top is None else top :]
    failed_too = [entry for entry in left_out if entry.status == "failed"][:top]
    if entries[0].group_number is None:
        failed_too += [entry for entry in of_groups if entry.status == "failed"][:FAILED_OF_GROUPS]
    notes = [
        Text(
            f"configuration {_key(entry)} {ENDED_EARLY[entry.status]}"
            f"{f', by {entry.stopped_by}' if entry.status == 'stopped' else ''}: {entry.reason}",
            style=STATES[entry.status],
        )
        for entry in [*entries[:top], *failed_too]
        if entry.status in ENDED_EARLY
    ]
    if left_out:
        times = Counter(entry.status for entry in left_out)
        told = ", ".join(f"{times[status]} {word}" for status, word in ENDED_EARLY.items() if times[status])
        notes.insert(0, Text(f"… and {len(left_out)} more{f': {told}' if told else ''}", style="dim"))
    if of_groups and entries[0].group_number is None:
        times = Counter(entry.status for entry in of_groups)
        told = ", ".join(f"{count} {ENDED_EARLY.get(status, status)}" for status, count in times.items())
        count = len({entry.group_number for entry in of_groups})
        notes.insert(0, Text(f"These are the models on all rows. Models of {count} groups: {told}", style="dim"))
    return Group(table, *notes)


def groups(best: Sequence[BestOfGroup], most: int) -> RenderableType:
    """The best model of each group, and the best model on all rows on the same rows.

    Of more than ``most`` groups, so many are shown: first the groups that gain nothing by a model of their own.
    """
    shown = list(best)
    if len(best) > most:
        chosen = sorted(best, key=lambda one: not one.worse_than_all_rows)[:most]
        shown = sorted(chosen, key=lambda one: one.group_number)
    table = plain_table()
    table.add_column("group", overflow="fold")
    compared = any(one.all_rows_objective_value is not None for one in best)
    for heading in ("rows", "conf.", best[0].objective, *(("model on all rows",) if compared else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in shown:
        figures = [one.objective_value, *([one.all_rows_objective_value] if compared else [])]
        verdict = "gains nothing" if one.worse_than_all_rows else ""
        table.add_row(
            Text(group_of(one)), str(one.rows), str(one.configuration), *map(drawing.number, figures),
            Text(verdict, style="yellow"),
        )  # fmt: skip
    if len(best) == len(shown):
        return table
    gain_nothing = sum(bool(one.worse_than_all_rows) for one in best)
    told = f": {gain_nothing:,} of all groups gain nothing by a model of their own" if compared else ""
    return Group(table, Text(f"… and {len(best) - len(shown):,} more groups{told}", style="dim"))


def decisions(made: Sequence[Decision], requests: Sequence[Request], last: int | None = None) -> RenderableType:
    """A line for each decision, and for each request that waits."""
    lines = [decision(one) for one in made]
    left_out = 0 if last is None else max(0, len(lines) - last)
    lines = lines[left_out:] + [waiting(one) for one in requests if one.status == "waiting"]
    if left_out:
        lines.insert(0, Text(f"… and {left_out} before", style="dim"))
    return Group(*lines) if lines else Text("None.", style="dim")


def decision(one: Decision) -> Text:
    """For instance: 17:03:12 model 3 (configuration 3), epoch 4: stop, worse than the median (rule)"""
    who = one.requested_by or one.decided_by
    models = f", added {one.added}" if one.added else ""
    text = Text(f"{one.at.astimezone():%H:%M:%S} ", style="dim")
    text.append(_about(one.model, one.configuration, one.epoch), style="default not dim")
    text.append(one.decision, style=DECISIONS.get(one.decision, "default not dim"))
    return text.append(f"{models}{f', {one.reason}' if one.reason else ''} ({who})", style="default not dim")


def waiting(one: Request) -> Text:
    told = ", ".join(part for part in (one.parameters, one.reason) if part)
    text = Text(f"{one.at.astimezone():%H:%M:%S} ", style="dim")
    text.append(_about(one.model, one.configuration, None), style="default not dim")
    return text.append(f"{one.action}{f', {told}' if told else ''} ({one.by}; waiting)", style="dim")


def _about(model: int | None, configuration: int | None, epoch: int | None) -> str:
    if model is None:
        return "the run: "
    return f"model {model} (configuration {configuration}){f', epoch {epoch}' if epoch is not None else ''}: "


def where_time_went(parts: Sequence[RunTime], width: int) -> RenderableType:
    """Seconds, share and a bar for each activity, and the share of training in words."""
    if not parts:
        return Text("No time was recorded yet.", style="dim")
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
    """A line per segment. Each column shows the model that took most of its time: a capital letter while it trains or
    is averaged, a small letter while it is evaluated."""
    if not activities:
        return Text("No hops yet.", style="dim")
    zero = min(activity.started_at for activity in activities)
    stretches: list[list[drawing.Stretch]] = [[] for _ in range(segments)]
    for one in activities:
        begin = (one.started_at - zero).total_seconds()
        end = begin + one.seconds - one.seconds_behind  # the segment worked on the next unit while the state was stored
        stretches[one.segment].append(drawing.Stretch(begin, end, (one.activity, one.model)))
    whole = (max(activity.finished_at for activity in activities) - zero).total_seconds()
    marks = Marks([activity.model for activity in activities])
    label = len(f"segment {segments - 1}") + 2
    room = max(10, width - label)
    lines = []
    for segment, line in enumerate(stretches):
        text = Text(f"segment {segment}".ljust(label), no_wrap=True)
        for column in drawing.timeline(line, 0.0, whole, room):
            text.append_text(_column(column, marks))
        lines.append(text)
    axis = Text(" " * label + "0 s" + drawing.seconds(whole).rjust(room - 3), style="dim", no_wrap=True)
    key = Text("A: trains   a: is evaluated   ·: the segment waits", style="dim")
    return Group(*lines, axis, key)


def _column(what: tuple[str, int] | None, marks: Marks) -> Text:
    if what is None:
        return Text("·", style="dim")
    activity, model = what
    if activity == "evaluate":
        return Text(marks.letter(model).lower(), style=marks.colour(model))
    return Text(marks.letter(model), style=f"bold reverse {marks.colour(model)}")


def heading(title: str) -> RenderableType:
    return Group(Text(), Text(title, style="bold"))
