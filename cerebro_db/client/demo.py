"""Sixteen Keras configurations train inside PostgreSQL while you watch: ``python -m cerebro_db.client.demo``.

It works in a schema of its own, cerebro_demo, and shows every SQL statement before it runs it.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import psycopg2
import typer
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import boards, drawing
from .connections import default_dsn, without_password
from .door import Cerebro
from .errors import CannotConnect, ClientError, MissingPackage, of_driver, translated
from .watch import watch

SCHEMA = "cerebro_demo"
MARK = "Made by the demo of cerebro_db, which drops and makes anew the tables digits_… in it."
TABLES = (
    "digits_train", "digits_val", "digits_packed", "digits_packed_summary", "digits_val_packed",
    "digits_val_packed_summary", "digits_arch", "digits_configs", "digits_configs_summary", "digits_models",
    "digits_models_info", "digits_models_summary", "digits_models_weights", "digits_predicted",
)  # fmt: skip
EPOCHS = 7

# --- two architectures, as model.to_json() of Keras 3 writes them ------------------------------------------


def _layer(kind: str, **config: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": kind, "config": config, "registered_name": None}


def _sequential(name: str, *layers: dict[str, Any]) -> str:
    shape = _layer("InputLayer", batch_shape=[None, 8, 8], dtype="float32", name="image")
    config = {"name": name, "trainable": True, "layers": [shape, *layers], "build_input_shape": [None, 8, 8]}
    return json.dumps({"module": "keras", "class_name": "Sequential", "config": config, "registered_name": None})


MLP = _sequential(
    "mlp",
    _layer("Flatten", name="pixels"),
    _layer("Dense", name="hidden_1", units=128, activation="relu"),
    _layer("Dense", name="hidden_2", units=64, activation="relu"),
    _layer("Dense", name="digit", units=10, activation="softmax"),
)
CNN = _sequential(
    "cnn",
    _layer("Reshape", name="pixels", target_shape=[8, 8, 1]),
    _layer("Conv2D", name="strokes", filters=16, kernel_size=[3, 3], padding="same", activation="relu"),
    _layer("MaxPooling2D", name="smaller", pool_size=[2, 2]),
    _layer("Conv2D", name="shapes", filters=32, kernel_size=[3, 3], padding="same", activation="relu"),
    _layer("Flatten", name="all"),
    _layer("Dense", name="digit", units=10, activation="softmax"),
)

# --- the statements ----------------------------------------------------------------------------------------

CREATE = """\
CREATE TABLE {table}
    (id integer PRIMARY KEY, image smallint[] NOT NULL, digit integer NOT NULL);"""
PACK = """\
SELECT training_preprocessor_dl('digits_train', 'digits_packed',
    'digit', 'image', normalizing_const => 16, segments => 4, seed => 1);"""
PACK_VALIDATION = """\
SELECT validation_preprocessor_dl('digits_val', 'digits_val_packed',
    'digit', 'image', 'digits_packed');"""
CONFIGURE = """\
SELECT generate_model_configs('digits_arch', 'digits_configs',
    ARRAY[1, 2],
    $${'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
       'optimizer_params_list': [
           {'optimizer': ['Adam'], 'lr': [0.003, 0.001]},
           {'optimizer': ['SGD'], 'lr': [0.1, 0.02], 'momentum': [0.9]}]}$$,
    $${'batch_size': [16, 32]}$$);"""
FIT = """\
SELECT madlib_fit_multiple_model('digits_packed', 'digits_models',
    'digits_configs', {epochs}, validation_table => 'digits_val_packed',
    metrics_compute_frequency => 1, name => 'digits', options => '{{"seed": 1}}');"""
LEADERBOARD = "SELECT * FROM cerebro.leaderboard WHERE run = {run} ORDER BY rank;"
PREDICT = """\
SELECT madlib_keras_predict('digits_models', 'digits_val',
    'id', 'image', 'digits_predicted', 'response', mst_key => {mst_key});"""
PREDICTED = """\
SELECT id, image, digit, class_value, prob
  FROM digits_predicted JOIN digits_val USING (id)
 ORDER BY class_value = digit::text, id;"""
TIME = """\
SELECT activity, seconds, share
  FROM cerebro.run_time WHERE run = {run} ORDER BY place;"""


class Session:
    """A connection whose statements are shown as psql would."""

    def __init__(self, dsn: str, console: Console) -> None:
        with translated():
            self.connection = psycopg2.connect(dsn, connect_timeout=10)
        self.connection.autocommit = True
        self.console = console
        self.prompt = f"{self.connection.info.dbname}=# "

    def show(self, statement: str) -> None:
        # Later lines are not pushed in under the prompt: so they can be copied, and are not too long.
        text = Text(self.prompt, style="dim").append(statement, style="bold not dim")
        self.console.print(text, soft_wrap=True)

    def run(self, statement: str, shown: str | None = None) -> list[tuple[Any, ...]]:
        """Shows a statement (or what stands for it), runs it, and shows its notices."""
        self.show(shown or statement)
        return self.quietly(statement)

    def quietly(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        with translated(), self.connection.cursor() as cursor:
            self.connection.notices.clear()
            cursor.execute(statement, values)
            for notice in self.connection.notices:
                self.console.print(Text(notice.strip(), style="dim"), soft_wrap=True)
            return cursor.fetchall() if cursor.description else []


class Fit(threading.Thread):
    """The statement that trains, which returns when all is trained: meanwhile its run can be watched."""

    def __init__(self, session: Session, statement: str) -> None:
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
        """The run's number; waits the second or so until the run is on record."""
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
            # Again and again: a request that meets the session between two statements is lost.
            with contextlib.suppress(psycopg2.Error):
                self.session.connection.cancel()
            self.join(0.5)


# --- the steps ---------------------------------------------------------------------------------------------


def make_room(session: Session) -> None:
    """The demo's schema, without the tables of the last time; one that somebody else made is left alone."""
    if not session.quietly("SELECT 1 FROM pg_extension WHERE extname = 'cerebro_db'"):
        raise CannotConnect("The database has no cerebro_db.", "CREATE EXTENSION cerebro_db CASCADE; as a superuser.")
    found = session.quietly(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", (SCHEMA,)
    )
    if found and found[0][0] != MARK:
        raise ClientError(
            f"The schema {SCHEMA} was not made by this demo: left alone.",
            f"ALTER SCHEMA {SCHEMA} RENAME TO something_else; or DROP SCHEMA {SCHEMA} CASCADE;",
        )
    if found:
        session.quietly("SET client_min_messages = warning")
        for table in TABLES:
            session.quietly(f"DROP TABLE IF EXISTS {SCHEMA}.{table}")
        session.quietly("RESET client_min_messages")
    else:
        session.run(f"CREATE SCHEMA {SCHEMA};")
        session.quietly(f"COMMENT ON SCHEMA {SCHEMA} IS %s", (MARK,))
    session.run(f'SET search_path = {SCHEMA}, "$user", public, cerebro;')


def load_digits(session: Session) -> None:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackage("The demo's images come with scikit-learn, which is missing.", "pip install scikit-learn"
                             ) from error  # fmt: skip
    digits = datasets.load_digits()
    rows = list(zip(range(len(digits.target)), digits.images.astype(int).tolist(), digits.target.tolist()))
    for table, chosen in (
        ("digits_train", [row for row in rows if row[0] % 5]),
        ("digits_val", [row for row in rows if row[0] % 5 == 0]),
    ):
        session.run(CREATE.format(table=table))
        session.show(f"COPY {table} FROM STDIN;  -- {len(chosen):,} digits, 8 x 8 pixels")
        _copy(session, table, chosen)


def _copy(session: Session, table: str, rows: Sequence[tuple[int, list[list[int]], int]]) -> None:
    def lines() -> Iterator[str]:
        for number, image, digit in rows:
            yield f"{number}\t{json.dumps(image).replace('[', '{').replace(']', '}')}\t{digit}\n"

    with translated(), session.connection.cursor() as cursor:
        cursor.copy_expert(f"COPY {table} FROM STDIN", io.StringIO("".join(lines())))


def load_architectures(session: Session) -> None:
    for name, architecture in (("mlp", MLP), ("cnn", CNN)):
        statement = "SELECT load_keras_model('digits_arch',\n    $${}$$, name => '{}');"
        short = f"{{… model.to_json() of Keras, {len(architecture):,} characters …}}"
        session.run(statement.format(architecture, name), shown=statement.format(short, name))


def train(session: Session, epochs: int) -> tuple[Cerebro, int]:
    """Trains, and shows on other connections how it goes; Ctrl-C cancels."""
    statement = FIT.format(epochs=epochs)
    session.show(statement)
    cerebro = Cerebro(session.connection)
    fit = Fit(session, statement)
    try:
        with session.console.status("starting a trainer for each segment …"):
            number = fit.number(cerebro)
        watch(cerebro, number, session.console)
        fit.end()
    except BaseException:
        fit.cancel()
        raise
    return cerebro, number


def leaderboard(session: Session, cerebro: Cerebro, run: int) -> int:
    """Shows it, and returns the best mst_key."""
    session.show(LEADERBOARD.format(run=run))
    entries = cerebro.leaderboard(run)
    session.console.print(boards.leaderboard(entries, session.console.width, cerebro.learning_curve(run)))
    return entries[0].mst_key


def predict(session: Session, mst_key: int) -> None:
    session.run(PREDICT.format(mst_key=mst_key))
    rows = session.run(PREDICTED)
    wrong = sum(1 for row in rows if row[3] != str(row[2]))
    # What it takes for something else, and then what it knows.
    room = max(1, (session.console.width + 2) // 18)
    mistakes = [row for row in rows[:wrong]][: room // 2]
    known = rows[wrong :: max(1, (len(rows) - wrong) // room)]
    chosen = [*known[: room - len(mistakes)], *mistakes]
    session.console.print()
    session.console.print(Columns([_digit(*row[1:]) for row in chosen], padding=(0, 2)))
    session.console.print(f"\n{len(rows) - wrong} of {len(rows)} images that it was not trained on are read right.")


def _digit(image: list[list[int]], digit: int, said: str, probability: float) -> Text:
    right = said == str(digit)
    text = Text("\n".join(drawing.image(image, 16)) + "\n", style="" if right else "red", no_wrap=True)
    told = f"{said}, {100 * probability:.1f} %" if right else f"{said}? it is {digit}"
    return text.append(told.center(16), style="bold green" if right else "bold red")


def where_next(console: Console, run: int, dsn: str | None) -> None:
    command = ".venv/bin/cerebro" if Path(".venv/bin/cerebro").exists() else "cerebro"
    if dsn:
        # A line of its own: the table would cut it off.
        console.print(Text(f"export CEREBRO_DSN={shlex.quote(dsn)}", style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for what, why in (
        ('psql "$CEREBRO_DSN"' if dsn else f"{command} psql", "a prompt, for instance for:"),
        ("  SELECT * FROM cerebro.leaderboard;", "all configurations of all runs"),
        (f"  SELECT * FROM {SCHEMA}.digits_models_info;", "as MADlib tells it"),
        ("  \\df+ cerebro.*", "functions and their manual"),
        (f"{command} show {run}", "curves, and who was where when"),
        (f"{command} runs", "all runs; cerebro watch follows one"),
    ):
        table.add_row(Text(what, style="bold"), Text(why, style="dim"))
    console.print(table)


def demo(dsn: str | None, epochs: int, console: Console) -> int:
    """All steps; the run's number."""

    def step(title: str) -> None:
        console.print(Text(f"\n{title}", style="bold cyan"))

    session = Session(dsn or default_dsn(), console)
    step("1. A table of images")
    make_room(session)
    load_digits(session)
    step("2. Pack it: rows into buffers, spread over four segments")
    session.run(PACK)
    session.run(PACK_VALIDATION)
    step("3. Two architectures, sixteen configurations")
    load_architectures(session)
    session.run(CONFIGURE)
    step("4. Train all sixteen inside PostgreSQL: the models hop, the rows stay")
    cerebro, run = train(session, epochs)
    step("5. Which is best?")
    best = leaderboard(session, cerebro, run)
    step("6. Let the best one read digits that it has not seen")
    predict(session, best)
    step("7. Where did the time go?")
    session.show(TIME.format(run=run))
    console.print(boards.where_time_went(cerebro.run_time(run), console.width))
    console.print("With so few rows, starting four trainers and building the models takes longer than training.")
    step("Where to go from here")
    where_next(console, run, without_password(dsn) if dsn else None)
    cerebro.close()
    session.connection.close()
    return run


def main(
    dsn: Annotated[
        str | None, typer.Option(envvar="CEREBRO_DSN", help="Which database; default: the embedded cluster.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the rows.")] = EPOCHS,
) -> None:
    """Sixteen Keras configurations train inside PostgreSQL while you watch."""
    try:
        demo(dsn, epochs, Console(highlight=False))
    except ClientError as error:
        sys.exit(f"cerebro: {error}")
    except KeyboardInterrupt:
        sys.exit("Stopped; a run that was under way is cancelled.")


if __name__ == "__main__":
    typer.run(main)
