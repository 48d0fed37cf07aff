"""The demo: trains sixteen Keras configurations inside PostgreSQL. Run it with ``python -m cerebro_db.client.demo``.

The demo works in its own schema, cerebro_demo, and prints each SQL statement before it runs it.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import psycopg2
import typer
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import demo_statements as statements
from .cerebro import Cerebro
from .commands.clusters import command
from .connections import default_dsn, without_password
from .display import boards, drawing
from .display.terminal import Terminal, fail, lines
from .errors import CannotConnect, ClientError, MissingPackage, of_driver, translated
from .watch import watch

SCHEMA = "cerebro_demo"
MARK = "Made by the demo of cerebro_db"  # how the comment of the demo's schema begins
COMMENT = f"{MARK}. The demo drops the tables digits_… in it and makes them again."
TABLES = (
    "digits_train", "digits_val", "digits_packed", "digits_packed_summary", "digits_val_packed",
    "digits_val_packed_summary", "digits_models", "digits_models_info", "digits_models_summary",
    "digits_models_weights", "digits_predicted",
)  # fmt: skip
EPOCHS = 7


class DemoSession:
    """A connection that shows its statements as psql would."""

    def __init__(self, dsn: str, console: Terminal) -> None:
        with translated():
            self.connection = psycopg2.connect(dsn, connect_timeout=10)
        self.connection.autocommit = True
        self.console = console
        self.prompt = f"{self.connection.info.dbname}=# "

    def show(self, statement: str) -> None:
        # Later lines are not indented to the prompt, so that they can be copied and fit the terminal.
        first, *others = statement.splitlines()
        begin = Text(self.prompt, style="dim").append(first, style="bold not dim")
        self.console.print(Group(begin, *(Text(line, style="bold") for line in others)), soft_wrap=True)

    def run(self, statement: str, shown: str | None = None) -> list[tuple[Any, ...]]:
        """Shows a statement, or a shorter text in its place, runs it, and shows its notices."""
        self.show(shown or statement)
        return self.quietly(statement)

    def quietly(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """Runs a statement without showing it, and shows its notices."""
        with translated(), self.connection.cursor() as cursor:
            self.connection.notices.clear()
            cursor.execute(statement, values)
            for notice in self.connection.notices:
                self.console.print(lines(notice.strip(), style="dim"), soft_wrap=True)
            return cursor.fetchall() if cursor.description else []


class DemoFit(threading.Thread):
    """Runs the statement that trains. The statement returns when all is trained; meanwhile its run can be watched."""

    def __init__(self, session: DemoSession, statement: str) -> None:
        super().__init__(name="fit")
        self.session, self.statement = session, statement
        self.error: psycopg2.Error | None = None
        pid = session.connection.info.backend_pid
        began = session.quietly("SELECT clock_timestamp()")[0][0]
        started = "SELECT max(run) FROM cerebro.event WHERE event = 'started' AND at > %s AND detail ->> 'pid' = %s"
        self.find = (started, (began, str(pid)))
        self.start()

    def run(self) -> None:
        try:
            with self.session.connection.cursor() as cursor:
                cursor.execute(self.statement)
        except psycopg2.Error as error:
            self.error = error

    def number(self, cerebro: Cerebro) -> int:
        """The run's number. Waits until the run is in the log, which takes about a second."""
        while (found := cerebro.rows(*self.find)[0][0]) is None:
            self.join(0.2)
            if not self.is_alive():
                self.end()
        return found

    def end(self) -> None:
        self.join()
        if self.error is not None:
            raise of_driver(self.error) from self.error

    def cancel(self) -> None:
        while self.is_alive():
            # Repeated, because a cancel request has no effect between two statements.
            with contextlib.suppress(psycopg2.Error):
                self.session.connection.cancel()
            self.join(0.5)


# --- the steps ---------------------------------------------------------------------------------------------


def make_room(session: DemoSession) -> None:
    """Makes the demo's schema, or drops the demo's tables in it. Raises an error if somebody else made the schema."""
    if not session.quietly("SELECT 1 FROM pg_extension WHERE extname = 'cerebro_db'"):
        raise CannotConnect(
            "The database does not have the extension cerebro_db.",
            "As a superuser: CREATE EXTENSION cerebro_db CASCADE;",
        )
    found = session.quietly(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (SCHEMA,)
    )
    if found and not (found[0][0] or "").startswith(MARK):
        raise ClientError(
            f"The schema {SCHEMA} was not made by this demo: it is left as it is.",
            f"ALTER SCHEMA {SCHEMA} RENAME TO something_else; makes room.",
        )
    if found:
        session.quietly("SET client_min_messages = warning")
        for table in TABLES:
            session.quietly(f"DROP TABLE IF EXISTS {SCHEMA}.{table}")
        session.quietly("RESET client_min_messages")
    else:
        session.run(f"CREATE SCHEMA {SCHEMA};")
        session.quietly(f"COMMENT ON SCHEMA {SCHEMA} IS %s", (COMMENT,))
    session.run(f'SET search_path = {SCHEMA}, "$user", public;')


def load_digits(session: DemoSession) -> None:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackage(
            "The demo's images come with scikit-learn, which is not installed.", "scikit-learn"
        ) from error
    digits = datasets.load_digits()
    rows = list(zip(range(len(digits.target)), digits.images.astype(int).tolist(), digits.target.tolist()))
    for table, chosen in (
        ("digits_train", [row for row in rows if row[0] % 5]),
        ("digits_val", [row for row in rows if row[0] % 5 == 0]),
    ):
        session.run(statements.CREATE.format(table=table))
        session.show(f"COPY {table} FROM STDIN;  -- {len(chosen):,} digits, 8 x 8 pixels")
        _copy(session, table, chosen)


def _copy(session: DemoSession, table: str, rows: Sequence[tuple[int, list[list[int]], int]]) -> None:
    def lines() -> Iterator[str]:
        for number, image, digit in rows:
            yield f"{number}\t{json.dumps(image).replace('[', '{').replace(']', '}')}\t{digit}\n"

    with translated(), session.connection.cursor() as cursor:
        cursor.copy_expert(f"COPY {table} FROM STDIN", io.StringIO("".join(lines())))


def train(session: DemoSession, epochs: int) -> tuple[Cerebro, int]:
    """Trains, and shows the run's progress through other connections. Ctrl-C cancels the run."""
    statement = statements.FIT.format(epochs=epochs)
    session.show(statement)
    cerebro = Cerebro(session.connection)
    fit = DemoFit(session, statement)
    try:
        with session.console.status("Starting a trainer on each segment …"):
            number = fit.number(cerebro)
        watch(cerebro, number, session.console)
        fit.end()
    except BaseException:
        fit.cancel()
        raise
    return cerebro, number


def leaderboard(session: DemoSession, cerebro: Cerebro, run: int) -> int:
    """Shows the leaderboard and returns the number of the best configuration."""
    session.show(statements.LEADERBOARD.format(run=run))
    entries = cerebro.leaderboard(run)
    session.console.print(boards.leaderboard(entries, session.console.width, cerebro.learning_curve(run)))
    return entries[0].configuration


def predict(session: DemoSession, configuration: int) -> None:
    session.run(statements.PREDICT.format(configuration=configuration))
    rows = session.run(statements.PREDICTED)
    wrong = sum(1 for row in rows if row[3] != row[2])
    # Half of the images shown are mistakes, as far as there are any.
    room = max(1, (session.console.width + 2) // 18)
    mistakes = [row for row in rows[:wrong]][: room // 2]
    known = rows[wrong :: max(1, (len(rows) - wrong) // room)]
    chosen = [*known[: room - len(mistakes)], *mistakes]
    session.console.print()
    session.console.print(Columns([_digit(*row[1:]) for row in chosen], padding=(0, 2)))
    session.console.print()
    session.console.print(f"{len(rows) - wrong} of {len(rows)} validation images are classified correctly.")


def _digit(image: list[list[int]], digit: int, said: int, probability: float) -> RenderableType:
    right = said == digit
    drawn = [Text(line, style="" if right else "red", no_wrap=True) for line in drawing.image(image, 16)]
    label = f"{said}, {100 * probability:.1f} %" if right else f"{said}, not {digit}"
    return Group(*drawn, Text(label.center(16), style="bold green" if right else "bold red", no_wrap=True))


def where_next(console: Terminal, run: int, dsn: str | None) -> None:
    cerebro = command()
    if dsn:
        # On its own line, because the table would cut it off.
        console.print(Text(f"export CEREBRO_DSN={shlex.quote(dsn)}", style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for what, why in (
        ('psql "$CEREBRO_DSN"' if dsn else f"{cerebro} psql", "a prompt, for example for:"),
        ("  SELECT * FROM cerebro.leaderboard;", "the configurations of all runs"),
        (f"  SELECT * FROM {SCHEMA}.digits_models_info;", "what each model has reached"),
        *([] if dsn else [("  SELECT * FROM iris;", "a small table, for the examples of README.md")]),
        ("  \\df+ cerebro.*", "the functions and their comments"),
        (f"{cerebro} show {run}", "learning curves and a time line of the segments"),
        (f"{cerebro} report", "charts of this run, in an HTML file"),
        (f"{cerebro} runs", "all runs"),
    ):
        table.add_row(Text(what, style="bold"), Text(why, style="dim"))
    console.print(table)


def demo(dsn: str | None, epochs: int, console: Terminal) -> int:
    """Runs all steps and returns the run's number."""

    def step(title: str) -> None:
        console.print()
        console.print(Text(title, style="bold cyan"))

    session = DemoSession(dsn or default_dsn(), console)
    step("1. A table of images")
    make_room(session)
    load_digits(session)
    step("2. Pack the rows into buffers on two segments")
    session.run(statements.PACK)
    session.run(statements.PACK_VALIDATION)
    step("3. Train sixteen configurations inside PostgreSQL: models move between segments, rows stay")
    cerebro, run = train(session, epochs)
    step("4. Which is best?")
    best = leaderboard(session, cerebro, run)
    step("5. Predict the validation images with the best configuration")
    predict(session, best)
    step("6. Where did the time go?")
    session.show(statements.TIME.format(run=run))
    console.print(boards.where_time_went(cerebro.run_time(run), console.width))
    console.print("With so few rows, much of it goes into starting two trainers, building models and moving states.")
    step("Where to go from here")
    where_next(console, run, without_password(dsn) if dsn else None)
    cerebro.close()
    session.connection.close()
    return run


def main(
    dsn: Annotated[
        str | None, typer.Option(envvar="CEREBRO_DSN", help="The database; default: the embedded cluster.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How many epochs to train.")] = EPOCHS,
) -> None:
    """Train sixteen Keras configurations inside PostgreSQL and watch the run."""
    try:
        demo(dsn, epochs, Terminal())
    except ClientError as error:
        fail(error.message, error.hint)
    except KeyboardInterrupt:
        fail("Stopped. If a run was under way, it was cancelled.")


if __name__ == "__main__":
    typer.run(main)
