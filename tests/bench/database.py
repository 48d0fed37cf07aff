"""The benchmark's server, a throw-away cluster with the durability of a real one, and the tables and runs in it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.embedded import cluster as clusters
from cerebro_db.embedded import throw_away
from tests.bench.meter import belongs_to, descendants
from tests.bench.works import CROSS_ENTROPY, Configuration, Rows, Work
from tests.sql.lab import Json, Lab, eventually, run

SCHEMA = "bench"
TRAINER = str(Path(sys.executable).parent.resolve() / Path(sys.executable).name)
# Default settings, except for the memory, which any administrator would set. Commits wait for the disk.
SETTINGS = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}

OTHERS = (
    "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    " AND backend_type IN ('client backend', 'autovacuum worker')"
)


@dataclass
class Fitted:
    """The results of a fit, and how it spent its time."""

    run: int
    results: list[dict[str, float]]
    start: float  # seconds until the first unit
    end: float  # seconds after the last unit
    profile: dict[str, float] = field(default_factory=dict)  # seconds summed over the segments, by activity
    units: dict[int, dict[str, float]] = field(default_factory=dict)  # of each configuration; see growth.py
    states: int = 0  # bytes of the stored model states
    models: int = 0  # bytes of the model tables


class Database:
    """A schema on a server of its own."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.cluster = cluster
        self.lab = Lab(cluster.dsn(), SCHEMA, cluster.home)
        run(cluster_connection := cluster.connect(), f"CREATE SCHEMA {SCHEMA}")
        cluster_connection.close()

    @property
    def server(self) -> int:
        """The postmaster, from which all other processes of the server descend."""
        return int((self.cluster.data / "postmaster.pid").read_text().split()[0])

    @property
    def folders(self) -> list[Path]:
        """The folders of the tables and of the trainers' cached rows, not of the write-ahead log."""
        return [self.cluster.data / "base", self.cluster.data / "pgsql_tmp_cerebro"]

    def wait_until_idle(self) -> None:
        """Wait until all other sessions and autovacuum workers have ended; those that wait for a call are dismissed."""
        self.lab("SELECT cerebro_internal._dismiss_waiting()")
        eventually(lambda: not self.lab(OTHERS), within=120, what="the sessions of the last contender end")

    # -- tables ---------------------------------------------------------------------------------------

    def table(self, name: str, rows: Rows) -> None:
        """id, x (an array of real or smallint), y."""
        kind = "smallint[]" if rows.x.dtype.kind == "i" else "real[]"
        self.lab(f"CREATE TABLE {name} (id integer, x {kind}, y integer)")
        with self.lab.db.cursor() as cursor:
            cursor.copy_expert(f"COPY {name} FROM STDIN (FORMAT binary)", io.BytesIO(binary(rows)))
        self.lab(f"ANALYZE {name}")

    def work(self, work: Work, weights: Sequence[bytes] = ()) -> None:
        """Create the tables of a work (rows, packed rows, architectures, model selection), named after the work.

        ``weights``: those that the models of each architecture begin with.
        """
        name = work.name.lower()
        for ending, rows in zip(("", "_validation"), work.data()):
            self.table(f"{name}{ending}", rows)
        self.pack(work, f"{name}_packed", validation=f"{name}_packed_validation")
        self.selection(work, weights)

    def pack(self, work: Work, packed: str, validation: str) -> None:
        name = work.name.lower()
        self.lab.pack(name, packed, "y", "x", segments=work.segments, seed=1, divide_by=work.scale)
        self.lab.pack(f"{name}_validation", validation, "y", "x", packed_table=packed)

    def selection(self, work: Work, weights: Sequence[bytes] = ()) -> None:
        name = work.name.lower()
        pairs = itertools.zip_longest(work.architectures, weights)
        models = [self.lab.architecture(one, its, f"{name}_arch") for one, its in pairs]
        rows = [
            (models[one.model], compile_parameters(one), f"batch_size={one.batch_size}, epochs=1")
            for one in work.configurations
        ]
        self.lab.selection(f"{name}_mst", rows, arch=f"{name}_arch")

    def bytes_of(self, *tables: str) -> int:
        """The size of a table with its partitions, indexes and TOAST tables."""
        sizes = (
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM (SELECT %s::regclass AS oid"
            " UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = %s::regclass) of_table"
        )
        return sum(self.lab.value(sizes, table, table) for table in tables)

    # -- fitting --------------------------------------------------------------------------------------

    def fit(self, work: Work, session: Any, output: str, options: Json, **more: Any) -> int:
        """Call the fit as a user would."""
        name = work.name.lower()
        return self.lab.fit(
            f"{name}_packed", output, f"{name}_mst", work.epochs, on=session,
            validation_table=f"{name}_packed_validation", options=options, **more,
        )  # fmt: skip

    def fit_as_madlib(self, work: Work, session: Any, output: str) -> int:
        """The same through MADlib's function, which also evaluates the models on the training rows at the end."""
        name = work.name.lower()
        run(
            session, "SELECT madlib.madlib_keras_fit_multiple_model(%s, %s, %s, %s, false, %s)",
            f"{name}_packed", output, f"{name}_mst", work.epochs, f"{name}_packed_validation",
        )  # fmt: skip
        return self.lab.value("SELECT max(run) FROM runs")

    def fitted(self, run_id: int, output: str, began: float, ended: float) -> Fitted:
        """What the log says about a run whose call began and returned at these times (of time.time())."""
        board = self.lab(
            "SELECT validation_loss, validation_metric FROM leaderboard WHERE run = %s ORDER BY configuration", run_id
        )
        first, last = self.lab(
            "SELECT extract(epoch FROM min(started_at))::float8, extract(epoch FROM max(finished_at))::float8"
            " FROM hop_timeline WHERE run = %s",
            run_id,
        )[0]
        storage = self.lab.value("SELECT storage FROM run WHERE run = %s", run_id)
        return Fitted(
            run=run_id,
            results=[{"loss": loss, "accuracy": accuracy} for loss, accuracy in board],
            start=first - began,
            end=ended - last,
            profile=self.profile(run_id),
            units={
                key: {"train": train, "first": first, "later": later}
                for key, train, first, later in self.lab(
                    "SELECT configuration, avg(seconds_training), avg(seconds - seconds_training) FILTER (WHERE hop ="
                    " 1),"
                    " avg(seconds - seconds_training) FILTER (WHERE hop > 1)"
                    " FROM hop_timeline WHERE run = %s AND activity = 'train' GROUP BY configuration ORDER BY"
                    " configuration",
                    run_id,
                )
            },
            states=self.lab.value(
                "SELECT COALESCE(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
                " WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r' AND relname LIKE %s",
                f"{storage}%",
            ),
            models=self.bytes_of(output, f"{output}_info", f"{output}_summary"),
        )

    def profile(self, run_id: int) -> dict[str, float]:
        """Seconds of a run, summed over the segments, by activity."""
        return dict(self.lab("SELECT activity, seconds FROM run_time WHERE run = %s ORDER BY position", run_id))

    def drop_models(self, output: str) -> None:
        self.lab(f"DROP TABLE {output}, {output}_info, {output}_summary")

    def nurseries(self) -> list[int]:
        """The processes that start trainers for the server; this process has adopted them."""
        mine = [pid for pid, parent in descendants().items() if parent == os.getpid() and pid != self.server]
        return [pid for pid in mine if belongs_to(pid, self.server)]

    def forget_what_is_kept(self) -> None:
        """Return to the conditions before the first run: no nursery, trials, measurements, programs, states."""
        self.lab("SELECT forget(run) FROM runs")
        self.lab("DELETE FROM cerebro.profile")
        for pid in self.nurseries():
            os.kill(pid, signal.SIGTERM)
        for folder in self.cluster.data.glob("pgsql_tmp_cerebro/compiled-*"):
            shutil.rmtree(folder)


def compile_parameters(one: Configuration) -> str:
    return (
        f"optimizer='{one.optimizer}(learning_rate={one.learning_rate})', loss='{CROSS_ENTROPY}', metrics=['accuracy']"
    )


def binary(rows: Rows) -> bytes:
    """The rows (id, x, y) in COPY's binary format.  All rows have the same length, so they are one array of records."""
    code, oid = {"f": (">f4", 700), "i": (">i2", 21)}[rows.x.dtype.kind]
    shape = rows.x.shape[1:]
    element = np.dtype([("bytes", ">i4"), ("value", code)])
    count = int(np.prod(shape))
    array_bytes = 12 + 8 * len(shape) + count * element.itemsize
    record = np.dtype(
        [("fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i4"), ("x_bytes", ">i4"), ("dimensions", ">i4"),
         ("nulls", ">i4"), ("kind", ">i4"), ("shape", ">i4", (len(shape), 2)), ("x", element, (count,)),
         ("y_bytes", ">i4"), ("y", ">i4")]
    )  # fmt: skip
    table = np.zeros(len(rows.x), record)
    table["fields"], table["id_bytes"], table["x_bytes"], table["y_bytes"] = 3, 4, array_bytes, 4
    table["id"], table["y"] = np.arange(len(rows.x)), rows.y
    table["dimensions"], table["kind"] = len(shape), oid
    table["shape"] = [(size, 1) for size in shape]
    table["x"]["bytes"] = element["value"].itemsize
    table["x"]["value"] = rows.x.reshape(len(rows.x), count)
    return b"PGCOPY\n\xff\r\n\0" + bytes(8) + table.tobytes() + b"\xff\xff"


@contextlib.contextmanager
def database(settings: dict[str, str] | None = None) -> Iterator[Database]:
    cluster = throw_away.create(TRAINER, settings={**SETTINGS, **(settings or {})})
    try:
        made = Database(cluster)
        try:
            yield made
        finally:
            made.lab.close()
    finally:
        throw_away.remove(cluster)


def write_task(folder: Path, work: Work, dsn: str) -> None:
    """Write the files that the rivals read: the same rows as NumPy arrays, and the same configurations."""
    data = work.data()
    for prefix, rows in zip(("", "validation_"), data):
        np.save(folder / f"{prefix}x.npy", (rows.x / work.scale).astype("float32"))
        np.save(folder / f"{prefix}y.npy", np.eye(work.classes, dtype="float32")[rows.y])
    told = {
        "architectures": work.architectures,
        "configurations": [vars(one) for one in work.configurations],
        "epochs": work.epochs,
        "processes": work.segments,
        # For the rivals that read the table themselves.
        "dsn": dsn,
        "table": f"{SCHEMA}.{work.name.lower()}",
        "shape": list(data[0].x.shape[1:]),
        "classes": work.classes,
        "scale": work.scale,
    }
    (folder / "work.json").write_text(json.dumps(told))
