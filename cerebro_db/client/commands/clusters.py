"""The commands about the embedded cluster: ``cerebro up``, ``down``, ``psql``, ``dsn``, ``status``, ``destroy``."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ...core.engines import ENGINES
from ...embedded.cluster import Cluster, UpResult
from ...embedded.errors import ClusterError
from ...embedded.files import option_of
from ..display.terminal import Json, Terminal, confirm, write_json

TRAINS_WITH = ("numpy", "keras")  # and an engine: the trainers of the cluster run in this environment
Name = Annotated[str, typer.Option("--name", "-n", envvar="CEREBRO_CLUSTER", help="The cluster's name.")]


def register(app: typer.Typer) -> None:
    for command in (up, down):
        app.command()(command)
    # psql's own options, such as -c, are passed on to psql.
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(psql)
    app.command()(dsn)
    app.command()(status)
    app.command()(destroy)


def _say(text: str | Text) -> None:
    Terminal(soft_wrap=True).print(text)


def _say_aside(text: str | Text) -> None:
    """Beside JSON on standard output, what is going on is told on standard error."""
    Terminal(stderr=True, soft_wrap=True).print(text)


def up(
    name: Name = "default",
    listen: Annotated[
        str | None,
        typer.Option(
            help="Also listen on this address, for example 127.0.0.1 for a BI tool. '' listens on the socket only.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="The port; default: a free one.", show_default=False)
    ] = None,
    recreate: Annotated[
        bool,
        typer.Option(
            "--recreate",
            help="Drop the extension and create it again. Recorded runs and everything that depends on the extension"
            " are lost.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make the cluster, start it, and install the extension, as far as that is not done yet.

    The cluster is in the folder that the environment variable CEREBRO_HOME names. Its default is
    ~/.local/share/cerebro, and /var/lib/cerebro for root.

    PG_CONFIG chooses the PostgreSQL installation; its default is the newest one with PL/Python.
    """
    missing = [package for package in TRAINS_WITH if not find_spec(package)]
    if not any(map(find_spec, ENGINES.values())):
        missing.append("an engine (TensorFlow or JAX)")
    if missing:
        raise ClusterError(
            f"This environment has the client only. Its models could not be trained without {', '.join(missing)}:"
            " pip install 'cerebro_db[trainer]'. To use the server of a database that is there, set CEREBRO_DSN or"
            " write --dsn."
        )
    say = _say_aside if json else _say
    cluster = Cluster(name)
    result = cluster.up(listen=listen, port=port, recreate=recreate, say=say)
    say(_summary(result, cluster))
    if result.extension == "stale":
        # Only between two states of the code with the same version number: a newer version updates itself.
        raise ClusterError(
            f"The extension in {cluster.path} was created from other SQL of the same version."
            f" cerebro up{option_of(name)} --recreate creates it again; recorded runs are lost."
        )
    cluster.warm_up()
    if result.extension != "unchanged":
        say(f"The extension was {result.extension}.")
    elif result.files_changed:
        say("The extension's Python code has changed. New sessions use the new code.")
    if cluster.add_iris():
        say("The table iris was made: 150 rows for the examples of README.md.")
    if json:
        write_json({"name": cluster.name, "dsn": cluster.dsn(), "made": result.created, "started": result.started,
                    "extension": result.extension})  # fmt: skip
        return
    say(f"DSN: {cluster.dsn()}")
    say(f"Next: {command()} psql{option_of(name)}")


def command() -> str:
    """How a user in this folder calls us: a clone has a link to the environment, which need not be in PATH."""
    return ".venv/bin/cerebro" if Path(".venv/bin/cerebro").exists() else "cerebro"


def _summary(result: UpResult, cluster: Cluster) -> str:
    if result.created:
        return f"Cluster {cluster.name} was made and is running."
    return f"Cluster {cluster.name} {'was started' if result.started else 'is running already'}."


def down(name: Name = "default", json: Json = False) -> None:
    """Stop the cluster. Its data stays."""
    stopped = Cluster(name).down()
    if json:
        write_json({"name": name, "stopped": stopped})
        return
    _say(f"Cluster {name} was stopped." if stopped else f"Cluster {name} was not running.")


def psql(context: typer.Context, name: Name = "default") -> None:
    """Open psql on the database. Arguments are passed on to psql. Write -- before a -n that psql is to get."""
    arguments = Cluster(name).psql(list(context.args))
    if not os.access(arguments[0], os.X_OK):
        raise ClusterError(f"{arguments[0]} is missing: apt-get install postgresql-client")
    sys.stdout.flush()
    os.execv(arguments[0], arguments)


def dsn(name: Name = "default", json: Json = False) -> None:
    """Print the connection string of the database."""
    found = Cluster(name).dsn()
    if json:
        write_json({"name": name, "dsn": found})
    else:
        _say(found)


def status(name: Name = "default", json: Json = False) -> None:
    """Show whether the cluster is running, where it is, and which versions it has."""
    shown = Cluster(name).status()
    if json:
        write_json(shown)
        return
    width = max(map(len, shown))
    for label, value in shown.items():
        _say(Text(f"{label:<{width}}", style="bold").append(f"  {value}", style="not bold"))


def destroy(
    name: Name = "default",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Stop the cluster and remove it with all its data."""
    cluster = Cluster(name)
    cluster.record()  # raises an error if the folder was not made by cerebro
    if not yes:
        confirm(f"Remove {shlex.quote(str(cluster.path))} with all its data?")
    cluster.destroy()
    if json:
        write_json({"name": name, "removed": True})
    else:
        _say(f"Cluster {name} was removed.")
