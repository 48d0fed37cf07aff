"""``cerebro doctor``: shows the result of ``SELECT * FROM cerebro.doctor()`` as a table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cerebro_db.core.texts import counted

from ..display.terminal import Json, Terminal, lines, named, write_json
from .runs import Dsn, at

COLUMNS = ("component", "check_name", "status", "found", "advice")
COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    dsn: Dsn = None,
    segments: Annotated[
        int | None,
        typer.Option(min=1, help="Start trainers on so many segments; default: as many as packing would use."),
    ] = None,
    json: Json = False,
) -> None:
    """Check the installation, roles, worker logins and trainers. The exit status is 1 if there is a problem."""
    console = Terminal()
    with at(dsn) as cerebro, console.status("Starting a trainer on every segment …"):
        found = cerebro.rows(f"SELECT {', '.join(COLUMNS)} FROM cerebro.doctor(%s)", (segments,))
    statuses = [row[2] for row in found]
    if json:
        write_json([dict(zip(COLUMNS, row)) for row in found])
        if "problem" in statuses:
            raise typer.Exit(1)
        return
    console.print(table(found))
    problems, warnings = statuses.count("problem"), statuses.count("warning")
    summary = "No problems." if not problems else f"{counted(problems, 'problem')}."
    if warnings:
        summary += f" {counted(warnings, 'warning')}."
    console.print(summary, style="bold red" if problems else "bold")
    if problems:
        raise typer.Exit(1)


def table(found: list[tuple[str, str, str, str, str | None]]) -> RenderableType:
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown.add_column("", no_wrap=True)
    shown.add_column("where", no_wrap=True)
    shown.add_column("check")
    shown.add_column("found", overflow="fold", ratio=1)
    before = None
    for component, check, status, text, advice in found:
        told = [lines(text)]
        if advice and status != "ok":
            told.append(lines(f"→ {advice}", style="italic"))
        where = "" if component == before else named(component)
        shown.add_row(Text(status, style=COLOURS.get(status, "")), where, check, Group(*told))
        before = component
    return shown
