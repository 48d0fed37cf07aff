"""The command ``cerebro train``: from a table to a model, with the arguments of cerebro.train."""

from __future__ import annotations

import json as documents
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from cerebro_db.core.arguments import SearchArguments, kinds_of

from ..arguments import TrainArguments, unknown
from ..database import log
from ..display.terminal import Terminal, lines
from .runs import TOP, Dsn, JsonLines, at, follow_run, tell_run

# What the arguments of each kind take, and how it is called.
VALUES: dict[str, tuple[tuple[type, ...], str]] = {
    "Whole": ((int,), "a whole number"), "Large": ((int,), "a whole number"), "Number": ((int, float), "a number"),
    "Flag": ((bool,), "true or false"), "Json": ((dict, list), "JSON"), "Jsonb": ((dict, list), "JSON"),
}  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    source_table: Annotated[
        str, typer.Argument(metavar="TABLE", help="A table or view with the rows.", show_default=False)
    ],
    model_table: Annotated[
        str, typer.Argument(metavar="MODEL_TABLE", help="The table of models to make.", show_default=False)
    ],
    *,
    target: Annotated[
        str, typer.Option(metavar="COLUMNS", help="What to predict, separated by commas.", show_default=False)
    ],
    inputs: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="What to predict from; default: all others.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="How long it may take; default: '10 minutes'.", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of each model.", show_default=False)] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a model of yours of this name.")] = False,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other argument of cerebro.train, with its value (JSON where it is no text); can be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and train nothing.")] = False,
    dsn: Dsn = None,
    json: JsonLines = False,
) -> None:
    """Train models that predict a column of a table, and keep the best. Ctrl-C stops watching, not the run."""
    usual = {"target": target, "inputs": inputs, "budget": budget, "epochs": epochs, "replace": replace or None}
    arguments = {name: value for name, value in usual.items() if value is not None}
    for text in more or []:
        name, value = _named(text)
        arguments[name] = value
    console = Terminal()
    with at(dsn) as cerebro:
        if dry_run:
            told = cerebro.dry_run("train", source_table=source_table, model_table=model_table, **arguments)
            for notice in told:
                console.print(lines(notice), soft_wrap=True)
            return
        with _told(console, json):
            number = cerebro.train(source_table, model_table, wait=False, **arguments).run  # type: ignore[arg-type]
        if json:
            tell_run(cerebro, number)
        else:
            follow_run(cerebro, number, console, TOP)


def _named(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--set {text}: it has to be NAME=VALUE, for instance --set validation=0.3")
    if name not in TrainArguments.__annotations__:
        raise typer.BadParameter(f"--set {text}: {unknown(name, list(TrainArguments.__annotations__))}")
    kind = kinds_of(SearchArguments)[name]
    if kind in ("Text", "Table"):
        return name, value
    wanted, what = VALUES[kind]
    try:
        found = documents.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, wanted) or isinstance(found, bool) and kind != "Flag":
        raise typer.BadParameter(f"--set {text}: the value of {name} has to be {what}")
    return name, found


@contextmanager
def _told(console: Terminal, json: bool) -> Iterator[None]:
    """Print what the server says meanwhile, unless programs read the output."""

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(lines(record.getMessage()), soft_wrap=True)

    handler, level = Printed(), log.level
    if not json:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
