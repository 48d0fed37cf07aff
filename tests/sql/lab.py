"""Shared by the tests of whole runs: a schema with packed data, statements, and checks for what runs leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql as compose
from psycopg2.extras import execute_values
from sklearn.datasets import load_digits, load_iris

from cerebro_db.core.architecture import building
from cerebro_db.core.models import model_columns
from cerebro_db.core.packing.layout import Layout

Json = dict[str, Any]
Row = tuple[Any, ...]

WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = 'cerebro_db waiting'"
SESSIONS = (
    "SELECT pid, application_name FROM pg_stat_activity"
    " WHERE application_name LIKE 'cerebro_db %' AND application_name <> 'cerebro_db waiting'"
)
CROSS = "loss='categorical_crossentropy', metrics=['accuracy']"


def layer(class_name: str, name: str, **config: Any) -> Json:
    return {"module": "keras.layers", "class_name": class_name, "config": {"name": name, **config}}


def sequential(shape: Sequence[int | None], *layers: Json, dtype: str = "float32") -> Json:
    first = layer("InputLayer", "rows", batch_shape=[None, *shape], dtype=dtype)
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "model", "layers": [first, *layers]}}


def flower_model(units: int = 8, classes: int = 3) -> Json:
    return sequential(
        [4],
        layer("Dense", "hidden", units=units, activation="relu"),
        layer("Dense", "out", units=classes, activation="softmax"),
    )


def adam_and_sgd(model: int, epochs: int) -> list[tuple[int, str, str]]:
    """A model selection of two configurations that visit their rows so many times in each epoch, in small batches."""
    return [
        (model, f"optimizer='Adam(lr=0.01)', {CROSS}", f"batch_size=4, epochs={epochs}"),
        (model, f"optimizer='SGD(lr=0.05, momentum=0.9)', {CROSS}", f"batch_size=5, epochs={epochs}"),
    ]


@contextlib.contextmanager
def commits_that_wait(lab: Lab, when: str) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Make the commit of a hop whose row (``new``) fulfils a condition wait for a standby that never answers.

    The commit is then done, but not reported.  Gives two functions: the first waits until a session is in this state,
    the second ends the session.
    """
    lab("SET synchronous_commit = local")  # because this session may be late to read the new settings
    lab("ALTER SYSTEM SET synchronous_commit = local")
    lab("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    lab("SELECT pg_reload_conf()")
    lab(
        f"CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {when} THEN"
        " PERFORM set_config('synchronous_commit', 'on', true); END IF; RETURN new; END $$"
    )
    lab("CREATE TRIGGER dawdle AFTER INSERT ON cerebro.hop FOR EACH ROW EXECUTE FUNCTION dawdle()")
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    try:
        yield (
            lambda: eventually(lambda: lab(waits), 60, "the commit waits"),
            lambda: lab(f"SELECT pg_terminate_backend(pid) FROM ({waits}) w"),
        )
    finally:
        lab("DROP TRIGGER dawdle ON cerebro.hop; DROP FUNCTION dawdle()")
        lab("ALTER SYSTEM RESET synchronous_standby_names")
        lab("ALTER SYSTEM RESET synchronous_commit")
        lab("SELECT pg_reload_conf()")
        lab("RESET synchronous_commit")


def eventually(question: Callable[[], Any], within: float = 120.0, what: str = "") -> Any:
    """Repeat the question until its answer is true, and return the answer.  The time limit suits a busy machine."""
    deadline = time.monotonic() + within
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what or question}"
        time.sleep(0.02)
    return answer


def rounded(value: Any) -> Any:
    """The same with numbers of nine digits: Greenplum adds rows up in any order."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return type(value)(map(rounded, value)) if isinstance(value, (list, tuple)) else value


class Lab:
    """A schema for one test module, and the statements of a user in it."""

    def __init__(self, dsn: str, schema: str, home: Path | None) -> None:
        self.dsn, self.schema, self.home = dsn, schema, home
        self._connection: Any = None

    # -- sessions --------------------------------------------------------------------------------------

    def connect(self, **more: Any) -> Any:
        """Open another session whose search_path begins with this schema."""
        connection = connect(self.dsn, **more)
        with connection.cursor() as cursor:
            name = compose.Identifier(self.schema)
            cursor.execute(compose.SQL("SET search_path = {}, public, cerebro, madlib").format(name))
        connection.notices = []
        return connection

    @property
    def db(self) -> Any:
        """The main session.  After a restart of the server it is a new session."""
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        return self._connection

    def __call__(self, statement: str, *values: Any) -> list[Row]:
        return run(self.db, statement, *values)

    def value(self, statement: str, *values: Any) -> Any:
        return self(statement, *values)[0][0]

    def told(self) -> list[str]:
        """The server's messages since the last call."""
        found = [notice.strip() for notice in self.db.notices]
        self.db.notices.clear()
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    # -- a user's tables -------------------------------------------------------------------------------

    def table(self, name: str, columns: dict[str, str], rows: Iterable[Sequence[Any]]) -> None:
        named = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        self(f"CREATE TABLE {name} ({named})")
        casts = ", ".join(f"%s::{kind}" for kind in columns.values())
        with self.db.cursor() as cursor:
            execute_values(cursor, f"INSERT INTO {name} VALUES %s", list(rows), template=f"({casts})", page_size=1000)

    def pack(self, source: str, output: str, dependent: str, independent: str, **more: Any) -> None:
        named = "".join(f", {name} => %s" for name in more)
        function = "pack_like" if "packed_table" in more else "pack_plain"
        self(
            f"SELECT {function}(%s, %s, %s, %s{named})",
            source, output, dependent, independent, *more.values(),
        )  # fmt: skip

    def iris(self, segments: int = 3) -> None:
        """Create flowers and garden (every fifth row), and pack them as train (with these segments) and val."""
        data = load_iris()
        rows = [
            (number, *map(float, data.data[number]), str(data.target_names[data.target[number]]))
            for number in range(len(data.target))
        ]
        columns = {"id": "int", "sl": "real", "sw": "real", "pl": "real", "pw": "real", "species": "text"}
        self.table("flowers", columns, [row for row in rows if row[0] % 5])
        self.table("garden", columns, [row for row in rows if not row[0] % 5])
        self.pack("flowers", "train", "species", "sl, sw, pl, pw", segments=segments, seed=1)
        self.pack("garden", "val", "species", "sl, sw, pl, pw", packed_table="train")

    def digits(self, rows: int, segments: int) -> None:
        """Create the table digits with this number of rows, and pack it as digits_packed."""
        data = load_digits()
        found = [(n, data.images[n].astype(int).tolist(), int(data.target[n])) for n in range(rows)]
        self.table("digits", {"id": "int", "image": "smallint[]", "digit": "int"}, found)
        self.pack("digits", "digits_packed", "digit", "image", divide_by=16, segments=segments, seed=1)

    def architecture(self, model: Json, weights: bytes | None = None, table: str = "arch") -> int:
        self(f"SELECT load_keras_model('{table}', %s, %s)", json.dumps(model), weights)
        return self.value(f"SELECT max(model_id) FROM {table}")

    def compiled(self, packed_table: str, optimizer: str = "AdamW(learning_rate=0.001)") -> str:
        """Compile parameters with the losses and metrics that suit the targets of a packed table."""
        outputs = Layout.from_json(self.value(f"SELECT layout FROM {packed_table}_summary")).outputs
        losses, metrics = [building.loss(one) for one in outputs], [[building.metric(one)] for one in outputs]
        loss, metric = (losses[0], metrics[0]) if len(outputs) == 1 else (losses, metrics)
        return f"optimizer={optimizer!r}, loss={loss!r}, metrics={metric!r}"

    def selection(self, name: str, rows: Sequence[tuple[int, str, str]], arch: str = "arch") -> str:
        """Create a model selection table of (model_id, compile_params, fit_params) with mst_key from 1."""
        columns = {"mst_key": "int", "model_id": "int", "compile_params": "text", "fit_params": "text"}
        self.table(name, columns, [(number, *row) for number, row in enumerate(rows, 1)])
        self(f"CREATE TABLE {name}_summary AS SELECT %s::text AS model_arch_table, NULL::text AS object_table", arch)
        return name

    def fit(self, source: str, output: str, selection: str, epochs: int, on: Any = None, **more: Any) -> int:
        return run(on or self.db, *fit_statement("madlib_fit_multiple_model", source, output, selection, epochs, more))[
            0
        ][0]

    def submit(self, source: str, output: str, selection: str, epochs: int, **more: Any) -> int:
        """Submit a run in a session that ends immediately.  The arguments are those of ``fit`` above."""
        names = {"metrics_compute_frequency": "evaluate_every", "name": "run_name"}
        renamed = {names.get(name, name): value for name, value in more.items()}
        with contextlib.closing(self.connect()) as connection:
            return run(connection, *natural_fit(source, output, selection, epochs, wait=False, **renamed))[0][0]

    # -- results -----------------------------------------------------------------------------

    def remove_registered(self, model: str) -> None:
        """Remove a registered model with its history, which no function of ours does."""
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'cerebro_registry' AND tablename LIKE %s"
        for (table,) in self(tables, f"{model}@%"):
            self(f'DROP TABLE cerebro_registry."{table}" CASCADE')
        for table in ("registry_event WHERE model", "registered_model WHERE name"):
            self(f"DELETE FROM cerebro.{table} = %s", model)

    def columns(self, table: str) -> list[tuple[str, str]]:
        return self(
            "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table,
        )

    def packed_rows(self, model: str, ending: str = "") -> str:
        """The name of the packed rows of a model's newest run, or of a table beside them."""
        newest = "SELECT packed_table FROM cerebro.run_plan WHERE model_table = %s ORDER BY run DESC LIMIT 1"
        return str(self.value(newest, f"{self.schema}.{model}")) + ending

    def tables(self) -> set[str]:
        """What is in the schema, and with their schema the packed rows that calls in it have made out of sight."""
        found = self("SELECT relname::text FROM pg_class WHERE relnamespace = %s::regnamespace UNION ALL"
                     " SELECT 'cerebro_data.' || relname FROM pg_class"
                     " WHERE relnamespace = 'cerebro_data'::regnamespace AND starts_with(relname, %s)",
                     self.schema, f"{self.schema}_")  # fmt: skip
        return {name for (name,) in found}

    def status(self, run_id: int) -> str:
        return self.value("SELECT status FROM runs WHERE run = %s", run_id)

    def ended(self, run_id: int, within: float = 60, what: str = "the run has ended") -> str:
        """How a run ended, once it has.  One that makes its tables is "finishing" before it is finished."""
        return eventually(
            lambda: (status := self.status(run_id)) not in ("running", "finishing") and status, within, what
        )

    def end_driver(self, run_id: int) -> None:
        """End the session that drives a run.  On Greenplum, a query of ``runs`` would ask a segment to end it."""
        self("SELECT pg_terminate_backend(%s)", self.value("SELECT driver_pid FROM runs WHERE run = %s", run_id))

    def weights(self, table: str) -> dict[int, bytes]:
        return {key: weights for key, (_, weights) in self.models(table).items()}

    def models(self, table: str) -> dict[int, tuple[str, bytes]]:
        """Architecture and weights of the configurations in a model table, be it a plain table or one of MADlib's."""
        named = model_columns.of([name for name, _ in self.columns(table)])
        assert named is not None, f"{table} is no model table"
        number = named.configuration if named.has_key else 1
        rows = self(f"SELECT {number}, {named.architecture}::text, {named.weights} FROM {table}")
        return {key: (architecture, bytes(payload)) for key, architecture, payload in rows}

    def losses(self, table: str) -> dict[int, float]:
        """The training losses of the models in a model table, be it a plain table or one of MADlib's."""
        named = model_columns.of([name for name, _ in self.columns(table)])
        assert named is not None, f"{table} is no model table"
        found = self(f"SELECT {named.configuration}, {named.training_loss} FROM {table}_info")
        return {key: loss for key, loss in found if loss is not None}

    def states(self, run_id: int) -> dict[int, bytes]:
        """The last whole state of each configuration, read from its state table."""
        found = {}
        for storage, key, hop in self(
            "SELECT r.storage, h.model, max(h.hop) FROM run r JOIN hop h USING (run) WHERE run = %s GROUP BY 1, 2",
            run_id,
        ):
            table, which = self.stored(storage, key, hop)
            # On Greenplum, each segment that needed the state has a copy.
            payloads = self(f"SELECT DISTINCT start, payload FROM {table} WHERE {which} ORDER BY start")
            found[key] = b"".join(bytes(payload) for _, payload in payloads)
        return found

    def stored(self, storage: str, model: int, hop: int) -> tuple[str, str]:
        """The table that has a model's state after a hop, and the condition for its rows there."""
        own = f'cerebro_state."{storage}_{model}_{hop % 2}"'
        if self.value("SELECT to_regclass(%s) IS NOT NULL", own):
            return own, f"hop = {hop}"
        which = f"model = {model} AND hop = {hop}"
        first, second = (f'cerebro_state."{storage}_shared_{number}"' for number in (0, 1))
        return (first if self.value(f"SELECT EXISTS (SELECT FROM {first} WHERE {which})") else second), which

    @property
    def greenplum(self) -> bool:
        return self.value("SELECT current_setting('gp_role', true)") is not None

    @property
    def everywhere(self) -> str:
        """The view of all processes that serve sessions: on Greenplum, those of the segments have the trainers."""
        return "gp_dist_random('pg_stat_activity')" if self.greenplum else "pg_stat_activity"

    def sessions(self) -> list[Row]:
        """The worker sessions and recorder sessions, without kept teams."""
        return self(SESSIONS)

    def waiting(self) -> set[int]:
        return {pid for (pid,) in self(WAITING)}

    def trainers(self) -> list[tuple[int, int]]:
        """This server's trainers with their sessions' processes, without those of kept teams and of users."""
        if self.home is None:
            return []
        of_people = "SELECT pid FROM {} WHERE usename !~ '^cerebro_w_'"
        # On Greenplum, the coordinator predicts, too.
        views = ("pg_stat_activity", self.everywhere)
        others = {pid for view in views for (pid,) in self(of_people.format(view))} | self.waiting()
        return [(pid, session) for pid, session in trainer_processes(self.home) if session not in others]

    def abandoned(self) -> list[str]:
        """The non-empty scratch folders of this server's workers that have ended.

        Other servers have folders in the same place.  An empty folder is allowed: a trainer can empty its folder, but
        not remove it.
        """
        if self.home is None:
            return []
        ours = {str(pid) for (pid,) in self("SELECT worker_pid FROM attempt UNION SELECT worker_pid FROM evaluation")}
        found = []
        for place in self.scratch_places():
            with contextlib.suppress(OSError):
                for folder in place.iterdir():
                    pid = folder.name.partition("-")[0]
                    if pid in ours and not Path("/proc", pid).exists() and any(folder.glob("*")):
                        found.append(str(folder))
        return found

    def scratch_places(self) -> list[Path]:
        """The folders in which workers of this server, and of others, have their scratch folders."""
        assert self.home is not None
        return [*self.home.glob("clusters/*/data/pgsql_tmp_cerebro"), *Path("/dev/shm").glob("cerebro_db_*")]

    def require_no_orphans(self) -> None:
        """Check that all sessions and trainers of runs end.  A worker notices a lost driver within two seconds."""
        eventually(lambda: not self.sessions(), 15, "worker sessions end")
        eventually(lambda: not self.trainers(), 15, "trainers end")


def connect(dsn: str, **more: Any) -> Any:
    """A psycopg2 connection in autocommit mode."""
    connection = psycopg2.connect(dsn, **more)
    connection.autocommit = True
    return connection


def run(connection: Any, statement: str, *values: Any) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def fit_statement(
    function: str, source: str | None, output: str | None, selection: str | None, epochs: int | None, more: Json
) -> list[Any]:
    more = {name: json.dumps(value) if name == "options" else value for name, value in more.items()}
    named = "".join(f", {name} => %s" for name in more)
    return [f"SELECT {function}(%s, %s, %s, %s{named})", source, output, selection, epochs, *more.values()]


def natural_fit(source: str, output: str, configurations: str, epochs: int, **more: Any) -> list[Any]:
    """A call of ``cerebro.fit``, and its values."""
    return verb("fit", source, output, configurations, epochs=epochs, **more)


def verb(name: str, *first: Any, **more: Any) -> list[Any]:
    """A call of one of the three verbs, and its values.  Lists and objects become JSON."""

    def sent(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, (dict, list)) else value

    named = ["%s"] * len(first) + [f"{argument} => %s" for argument in more]
    return [f"SELECT cerebro.{name}({', '.join(named)})", *map(sent, (*first, *more.values()))]


def trainer_processes(home: Path) -> list[tuple[int, int]]:
    """(pid, process of its session) of the trainers that run the code of this installation.

    All trainers are children of the nursery.  A trainer works in its session's scratch folder, which is named after
    the session's process.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                session, _, born = os.path.basename(os.readlink(folder / "cwd")).partition("-")
                of_ours = any(
                    part.endswith((b"nn/template.py", b"nn/trainer_main.py")) and part.startswith(os.fsencode(home))
                    for part in command
                )
                if of_ours and state != "Z" and session.isdigit() and born:
                    found.append((int(folder.name), int(session)))
    return found
