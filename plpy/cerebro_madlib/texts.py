"""Small functions of MADlib's: help texts, the schedule of Hyperband, the table of GPUs."""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument, UndefinedObject
from cerebro_db.core.sql import literal, sql
from cerebro_plpy import platform
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.entry import INTERNAL
from cerebro_plpy.database.entry import entry as plain_entry
from cerebro_plpy.platform.machine import described_gpus

from . import hyperband_rounds, usage
from .entry import entry, new_table

SOURCES = ("tensorflow", "nvidia")


@plain_entry(called=INTERNAL)
def madlib_usage(db: Database, name: str | None, message: str | None) -> str:
    if name not in usage.HELP:
        raise UndefinedObject(f"there is no help for a function '{name}' of MADlib.")
    return usage.text(name, message)


@entry(called="hyperband_schedule error")
def hyperband_schedule(
    db: Database, schedule_table: str | None, r: int | None, eta: int | None, skip_last: int | None
) -> None:
    name = new_table(db, schedule_table, argument="schedule_table")
    rounds = hyperband_rounds.schedule(r, eta, skip_last)
    db.execute(
        sql("CREATE TABLE {name} (s integer, i integer, n_i integer, r_i integer, UNIQUE (s, i))", name=name.sql)
    )
    columns = [list(column) for column in zip(*rounds)]
    db.execute(
        sql("INSERT INTO {name} SELECT * FROM unnest($1, $2, $3, $4)", name=name.sql), ("integer[]",) * 4, *columns
    )


@plain_entry(called=INTERNAL)
def gpu_texts(db: Database, source: str) -> list[str]:
    """The GPUs of the host on which the function runs: on Greenplum that of a segment."""
    return [gpu.as_nvidia() if source == "nvidia" else gpu.as_tensorflow() for gpu in described_gpus()]


@entry(called="gpu_configuration error")
def gpu_configuration(db: Database, output_table: str | None, source: str | None) -> None:
    name = new_table(db, output_table)
    wanted = (source or "tensorflow").strip().lower()
    if wanted not in SOURCES:
        raise InvalidArgument(
            "DL: source has to be one of tensorflow or nvidia", hint="It decides how gpu_descr describes a GPU."
        )
    found = platform.of(db).gpus_of_hosts(db, sql("cerebro_internal._gpu_texts({wanted})", wanted=literal(wanted)))
    hosts = [host for host, gpus in found.items() for _ in gpus]
    gpus = [gpu for of_host in found.values() for gpu in of_host]
    db.execute(
        sql(
            "CREATE TABLE {name} AS SELECT * FROM unnest($1, $2) AS g (hostname, gpu_descr) {distributed_by}",
            name=name.sql,
            distributed_by=platform.of(db).distributed_by("hostname"),
        ),
        ("text[]", "text[]"),
        hosts,
        gpus,
    )
    if not gpus:
        db.notice("no GPU found")
