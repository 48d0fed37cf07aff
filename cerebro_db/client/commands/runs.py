"""The commands about runs: ``cerebro runs``, ``watch``, ``show``, ``report`` and others."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from cerebro_db.core.texts import counted

from ..cerebro import Cerebro, connect
from ..display import boards, drawing
from ..display.terminal import Json, Terminal, fail, lines, named, write_json
from ..errors import ClientError
from ..orm import RunProgress
from ..trackers import EXPERIMENT
from ..watch import LINE_EVERY, TOP
from ..watch import watch as watch_run
from .show import everything
from .show import show as show_run

Dsn = Annotated[
    str | None, typer.Option("--dsn", envvar="CEREBRO_DSN", help="The database; default: the embedded cluster.")
]
RunNumber = Annotated[
    int | None, typer.Argument(metavar="[RUN]", help="The run's number; default: the latest.", show_default=False)
]
WhichRun = Annotated[int, typer.Argument(metavar="RUN", help="The run's number.", show_default=False)]

SomeRuns = Annotated[
    list[int] | None,
    typer.Argument(metavar="[RUN…]", help="The runs' numbers; default: the latest.", show_default=False),
]
Runs = Annotated[list[int], typer.Argument(metavar="RUN [RUN…]", help="The runs' numbers.", show_default=False)]
OwnerOfRuns = Annotated[
    str | None, typer.Option(help="For monitors: the user whose runs these are.", show_default=False)
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a line of JSON every few seconds, for programs.")]

OPENS_WITHIN = 30.0  # seconds, of a browser
ENDS_WITHIN = 30.0  # seconds; a cancelled run usually ends after one second, and after more while it starts


def register(app: typer.Typer) -> None:
    for command in (runs, watch, show, report, dashboard, track, cancel, resume):
        app.command()(command)


@contextlib.contextmanager
def at(dsn: str | None) -> Iterator[Cerebro]:
    """A client. Errors are printed in one or two lines, without a traceback."""
    try:
        with connect(dsn) as cerebro:
            yield cerebro
    except ClientError as error:
        fail(error.message, error.hint)


def _chosen(cerebro: Cerebro, run: int | None) -> int:
    if run is not None:
        return run
    known = cerebro.runs()
    if not known:
        raise ClientError("There are no runs yet.", "SELECT cerebro.train(…) starts one.")
    return known[0].run


def runs(
    dsn: Dsn = None,
    limit: Annotated[int, typer.Option(min=1, help="How many runs to list.")] = 30,
    json: Json = False,
) -> None:
    """List your runs, the latest first."""
    console = Terminal()
    with at(dsn) as cerebro:
        known = cerebro.runs()
        if json:
            write_json(known[:limit])
            return
        if not known:
            console.print("No runs yet.")
            return
        shown = known[:limit]
        several = len({run.owner for run in known}) > 1
        table = boards.plain_table()
        sizes = ("epochs",) if console.width < boards.NARROW else ("confs", "segs", "epochs")
        for name in ("run", "status", "run name", "model table", *sizes, "created", "took"):
            right = name in ("run", *sizes, "took")
            whole = right or name in ("status", "created")
            table.add_column(name, justify="right" if right else "left", no_wrap=whole, overflow="fold")
        if several:
            table.add_column("owner")
        for run in shown:
            until = datetime.now(timezone.utc) if run.status == "running" else run.ended_at
            took = max(0.0, (until - run.started_at).total_seconds()) if until and run.started_at else None
            cells = (str(run.run), boards.state(run.status), named(run.run_name), named(run.model_table))
            counts = (str(run.configurations), str(run.segments), str(run.epochs))[-len(sizes) :]
            created = f"{run.created_at.astimezone():%m-%d %H:%M}"
            table.add_row(*cells, *counts, created, drawing.seconds(took), *([named(run.owner)] if several else []))
        console.print(table)
        for run in shown:
            if run.status == "finished" and run.message:
                console.print(lines(f"run {run.run}: {run.message}"), soft_wrap=True)
        if len(known) > limit:
            console.print(f"… and {len(known) - limit} more: cerebro runs --limit {len(known)}", style="dim")


def watch(
    run: RunNumber = None,
    dsn: Dsn = None,
    top: Annotated[int, typer.Option(min=1, help="How many models of the leaderboard to show.")] = TOP,
    json: JsonLines = False,
) -> None:
    """Watch a run until it ends. Ctrl-C stops watching, not the run."""
    console = Terminal()
    with at(dsn) as cerebro:
        if json:
            tell_run(cerebro, _chosen(cerebro, run))
        else:
            follow_run(cerebro, _chosen(cerebro, run), console, top)


def tell_run(cerebro: Cerebro, number: int) -> None:
    for progress in cerebro.follow(number, LINE_EVERY):
        write_json(progress)
    if _complaint(cerebro, progress) is not None:
        raise typer.Exit(1)


def _complaint(cerebro: Cerebro, progress: RunProgress) -> str | None:
    """Why the run did not end well, or None."""
    if progress.status != "finished":
        return progress.message or ""
    return cerebro.run(progress.run).message or None


def follow_run(cerebro: Cerebro, number: int, console: Terminal, top: int) -> None:
    try:
        progress = watch_run(cerebro, number, console, top)
    except KeyboardInterrupt:
        console.print(f"The run continues. To watch it again: cerebro watch {number}")
        return
    message = _complaint(cerebro, progress)
    if message is not None:
        console.print(lines(message), soft_wrap=True)
    console.print(f"Details: cerebro show {number}")
    if message is not None:
        raise typer.Exit(1)


def show(run: RunNumber = None, dsn: Dsn = None, json: Json = False) -> None:
    """Show a run: leaderboard with learning curves, time by activity, and a time line of the segments."""
    with at(dsn) as cerebro:
        if json:
            write_json(everything(cerebro, _chosen(cerebro, run)))
        else:
            show_run(cerebro, _chosen(cerebro, run), Terminal())


def report(
    runs: SomeRuns = None,
    *,
    dsn: Dsn = None,
    file: Annotated[Path, typer.Option("--file", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Write over a file that exists.")] = False,
    examples: Annotated[
        bool, typer.Option(help="Whether the file has example rows and the values of categories.")
    ] = True,
    owner: OwnerOfRuns = None,
    json: Json = False,
) -> None:
    """Write an HTML file about a model and its run, or about several beside each other. It needs no network."""
    with at(dsn) as cerebro:
        chosen = [cerebro.run(run, owner) for run in runs or [_chosen(cerebro, None)]]
        written = cerebro.report(chosen, file, replace, examples=examples)
        if json:
            write_json({"file": str(written)})
        else:
            Terminal().print(lines(f"Written: {written}"), soft_wrap=True)


def dashboard(
    dsn: Dsn = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of 127.0.0.1; 0: any that is free.")] = 8512,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    json: Json = False,
) -> None:
    """Show runs and their reports in a browser on this machine, as they go on. Ctrl-C ends it."""
    from ..dashboard.server import Dashboard  # only now: no other command needs it

    with at(dsn) as cerebro:
        served = Dashboard(cerebro.engine, port)
        if json:
            write_json({"address": served.address, "port": served.port})
        else:
            hint = "Ctrl-C ends it. Whoever has this address sees what you see."
            Terminal().print(lines(f"{served.address}\n{hint}"), soft_wrap=True)
        if open_it:
            threading.Thread(target=opened, args=(served.address,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            served.serve()


def opened(address: str) -> None:
    """Opens it in the browser, by a file that only this user can read: others can read the arguments of commands."""
    with tempfile.TemporaryDirectory(prefix="cerebro-dashboard-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0;url={address}">', encoding="utf-8")
        if webbrowser.open(page.as_uri()):
            time.sleep(OPENS_WITHIN)


def track(
    runs: Runs,
    *,
    dsn: Dsn = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Event files of TensorBoard.", show_default=False)
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="A tracking server of MLflow.", show_default=False)
    ] = None,
    optuna: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A SQLite file for optuna-dashboard.", show_default=False)
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="TRACKER=PLACE", help="The tracker of another package.", show_default=False),
    ] = None,
    experiment: Annotated[str, typer.Option(help="The experiment of MLflow.")] = EXPERIMENT,
    owner: OwnerOfRuns = None,
    json: Json = False,
) -> None:
    """Write runs for TensorBoard, MLflow or Optuna. A later call adds what is new."""
    with at(dsn) as cerebro:
        found = [cerebro.run(run, owner) for run in runs]
        others = dict(places_of(to or []))
        left_out = cerebro.track(
            found, tensorboard=tensorboard, mlflow=mlflow, optuna=optuna, to=others, experiment=experiment
        )
        places = {"tensorboard": tensorboard, "mlflow": mlflow, "optuna": optuna, **others}
        written = {name: None if place is None else str(place) for name, place in places.items()}
        if json:
            write_json({**written, "left_out": left_out})
            return
        for name, place in written.items():
            if place is not None:
                Terminal().print(lines(f"Written for {name}: {place}"), soft_wrap=True)
        if left_out:
            Terminal().print(f"Left out: {counted(left_out, 'model')} of folds or groups.")


def places_of(given: list[str]) -> Iterator[tuple[str, str]]:
    for one in given:
        tracker, _, place = one.partition("=")
        if not (tracker and place):
            raise typer.BadParameter(f"--to cannot be {one}; for instance --to aim=FOLDER.")
        yield tracker, place


def cancel(
    run: WhichRun,
    dsn: Dsn = None,
    owner: Annotated[
        str | None, typer.Option(help="For administrators: the user whose run it is.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Cancel a run that is under way. Its committed hops stay."""
    console = Terminal()
    with at(dsn) as cerebro:
        if not cerebro.cancel(cerebro.run(run, owner)):
            status = cerebro.run(run, owner).status
            if json:
                write_json({"run": run, "cancelled": False, "status": status})
            else:
                console.print(f"Run {run} is not under way: it is {status}.")
            raise typer.Exit(1)
        deadline = time.monotonic() + ENDS_WITHIN
        # A driver that ends while the view is read looks interrupted.
        while (status := cerebro.run(run, owner).status) in ("running", "interrupted"):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if json:
            write_json({"run": run, "cancelled": True, "status": status})
            return
        console.print(f"Run {run} is {'being cancelled' if status == 'running' else status}.")
        if status == "cancelled" and owner is None:
            console.print(f"To continue it: cerebro resume {run}")


def resume(
    run: WhichRun,
    dsn: Dsn = None,
    epochs: Annotated[int | None, typer.Option(help="Extend the run to this many epochs.", show_default=False)] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Train failed configurations again.")] = False,
    json: JsonLines = False,
) -> None:
    """Continue a run that has ended, and watch it. Ctrl-C stops watching, not the run."""
    with at(dsn) as cerebro:
        number = cerebro.resume(run, epochs, retry_failed, wait=False).run
        if json:
            tell_run(cerebro, number)
        else:
            follow_run(cerebro, number, Terminal(), TOP)
