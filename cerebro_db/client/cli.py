"""The ``cerebro`` command. What looks after the embedded cluster is here, what looks at runs in commands.py."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
from typing import Annotated, Optional

import psycopg2
import typer
from rich.console import Console
from rich.markup import escape

from .cluster import Cluster, ClusterError, Up

app = typer.Typer(
    help="Deep-learning model selection inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(soft_wrap=True)

Name = Annotated[str, typer.Option("--name", "-n", envvar="CEREBRO_CLUSTER", help="Which cluster.")]


def _told(did: Up, cluster: Cluster) -> str:
    if did.created:
        return f"Cluster {cluster.name} is made and running."
    return f"Cluster {cluster.name} is {'started' if did.started else 'running already'}."


@app.command()
def up(
    name: Name = "default",
    listen: Annotated[
        Optional[str],  # noqa: UP045  typer reads this at run time, on Python 3.9 too
        typer.Option(help="Also listen on this address, say 127.0.0.1 for a BI tool; '' for the socket only."),
    ] = None,
    port: Annotated[Optional[int], typer.Option(min=1024, max=65535, help="Default: a free one.")] = None,  # noqa: UP045
    recreate: Annotated[
        bool,
        typer.Option(
            "--recreate", help="Drop the extension, its recorded runs and all that depends on it, and create it anew."
        ),
    ] = False,
) -> None:
    """Make, start and equip the cluster, as far as that is not done yet."""
    cluster = Cluster(name)
    did = cluster.up(listen=listen, port=port, recreate=recreate)
    out.print(_told(did, cluster))
    if did.extension == "stale":
        # Only between two states of one version: a newer version updates itself.
        raise ClusterError(
            f"The extension in {cluster.path} was made by another state of this version, whose SQL differed:"
            " cerebro up --recreate makes it anew (recorded runs are lost)."
        )
    if did.extension != "unchanged":
        out.print(f"The extension is {did.extension}.")
    elif did.files_changed:
        out.print("The extension's Python is new: sessions that start from now on use it.")
    out.print(f"DSN: {cluster.dsn()}", highlight=False)
    out.print("Go on with: cerebro psql", highlight=False)


@app.command()
def down(name: Name = "default") -> None:
    """Stop the cluster."""
    stopped = Cluster(name).down()
    out.print(f"Cluster {name} is stopped." if stopped else f"Cluster {name} was not running.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context, name: Name = "default") -> None:
    """Open psql on the database; arguments go to psql, after -- where they look like ours."""
    command = Cluster(name).psql(list(context.args))
    if not os.access(command[0], os.X_OK):
        raise ClusterError(f"{command[0]} is missing: apt-get install postgresql-client")
    sys.stdout.flush()
    os.execv(command[0], command)


@app.command()
def dsn(name: Name = "default") -> None:
    """Print the connection string of the database."""
    print(Cluster(name).dsn())


@app.command()
def status(name: Name = "default") -> None:
    """Show the state of the cluster."""
    shown = Cluster(name).status()
    width = max(map(len, shown))
    for label, value in shown.items():
        out.print(f"[bold]{label:<{width}}[/]  {escape(str(value))}", highlight=False)


@app.command()
def destroy(
    name: Name = "default", yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Stop the cluster and remove it, with all data in it."""
    cluster = Cluster(name)
    cluster.facts()
    if not yes:
        typer.confirm(f"Remove {shlex.quote(str(cluster.path))} with all its data?", abort=True)
    cluster.destroy()
    out.print(f"Cluster {name} is gone.")


def main() -> None:
    # Commands about runs and about the server's health: such a module has a function register(app).
    for room in ("commands", "doctor"):
        if importlib.util.find_spec(f"cerebro_db.client.{room}"):
            importlib.import_module(f"cerebro_db.client.{room}").register(app)
    try:
        app()
    except ClusterError as error:
        sys.exit(f"cerebro: {error}")
    except psycopg2.OperationalError as error:
        sys.exit(f"cerebro: {str(error).strip().splitlines()[0]}")


if __name__ == "__main__":
    main()
