"""The commands that steer a run: ``cerebro stop``, ``go-on``, ``clone``, ``add``, ``extend``, ``budget``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json import JSONDecodeError, loads
from typing import Annotated, Any

import typer

from ..cerebro import Cerebro
from ..display.terminal import Json, Terminal, write_json
from ..orm import UNDER_WAY
from .runs import Dsn, WhichRun, at

Key = Annotated[
    int | None, typer.Argument(metavar="[CONFIGURATION]", help="The configuration's number.", show_default=False)
]
Model = Annotated[
    int | None, typer.Option(help="The model's number, if the configuration has several.", show_default=False)
]
Reason = Annotated[str | None, typer.Option(help="Why; the views show it.", show_default=False)]
Owner = Annotated[str | None, typer.Option(help="For administrators: the user whose run it is.", show_default=False)]
WAITS = {
    "stop": "The model stops at the end of its epoch.",
    "go on": "The model trains on.",
    "clone": "The clone begins at once, or at the end of the epoch of a model in training.",
    "add": "The new model begins.",
    "extend": "All models get more epochs.",
    "budget": "The run has a new budget.",
}


def register(app: typer.Typer) -> None:
    for command in (stop, go_on, clone, add, extend, budget):
        app.command()(command)


def stop(
    run: WhichRun,
    key: Key = None,
    *,
    dsn: Dsn = None,
    model: Model = None,
    reason: Reason = None,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Stop a model of a run at the end of its epoch. The others go on."""
    _ask(
        "stop",
        run,
        dsn,
        owner,
        json,
        lambda cerebro: cerebro.stop_model(run, key, model=model, reason=reason, owner=owner),
    )


def go_on(
    run: WhichRun,
    key: Key = None,
    *,
    dsn: Dsn = None,
    model: Model = None,
    reason: Reason = None,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Let a model that was stopped train on."""
    _ask(
        "go on", run, dsn, owner, json, lambda cerebro: cerebro.go_on(run, key, model=model, reason=reason, owner=owner)
    )


def clone(
    run: WhichRun,
    key: Annotated[
        int,
        typer.Argument(metavar="CONFIGURATION", help="The number of the parent's configuration.", show_default=False),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="For instance learning_rate=0.001.", show_default=False),
    ] = None,
    *,
    dsn: Dsn = None,
    model: Model = None,
    reason: Reason = None,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Add a model that begins with another one's weights and optimizer state, with changed parameters."""
    given = _pairs(changes or []) or None
    _ask(
        "clone", run, dsn, owner, json,
        lambda cerebro: cerebro.clone_model(run, key, given, model=model, reason=reason, owner=owner),
    )  # fmt: skip


def add(
    run: WhichRun,
    configuration: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="For instance architecture=mlp units=64 learning_rate=0.01.",
                       show_default=False),
    ],
    *,
    dsn: Dsn = None,
    reason: Reason = None,
    owner: Owner = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Add a configuration to a run. Its model begins from the start."""
    _ask(
        "add", run, dsn, owner, json,
        lambda cerebro: cerebro.add_configuration(run, _pairs(configuration), reason=reason, owner=owner),
    )  # fmt: skip


def extend(
    run: WhichRun,
    epochs: Annotated[int, typer.Argument(metavar="EPOCHS", help="The new total.", show_default=False)],
    *,
    dsn: Dsn = None,
    reason: Reason = None,
    owner: Owner = None,
    json: Json = False,
) -> None:
    """Give all models of a run more epochs."""
    _ask("extend", run, dsn, owner, json, lambda cerebro: cerebro.extend(run, epochs, reason=reason, owner=owner))


def budget(
    run: WhichRun,
    limits: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INTERVAL] [NAME=VALUE]...", show_default=False,
                       help="'2 hours', or seconds, unit_hours, hops, configurations; nothing: no limit."),
    ] = None,
    *,
    dsn: Dsn = None,
    reason: Reason = None,
    owner: Owner = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Replace the budget of a run."""
    given = limits[0] if limits and len(limits) == 1 and "=" not in limits[0] else _pairs(limits or [])
    _ask("budget", run, dsn, owner, json, lambda cerebro: cerebro.set_budget(run, given, reason=reason, owner=owner))


def _ask(
    action: str, run: int, dsn: str | None, owner: str | None, as_json: bool, ask: Callable[[Cerebro], int]
) -> None:
    with at(dsn) as cerebro:
        request = ask(cerebro)
        status = cerebro.run(run, owner).status
        if as_json:
            write_json({"run": run, "request": request, "status": status})
        elif status in UNDER_WAY:
            Terminal().print(f"Request {request}: {WAITS[action]}")
        else:
            Terminal().print(f"Request {request}: run {run} is {status}. It takes effect with: cerebro resume {run}")


def _pairs(texts: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE of a command line; a value that is no JSON is a text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text} is not of the form NAME=VALUE")
        try:
            found[name] = loads(value)
        except JSONDecodeError:
            found[name] = value
    return found
