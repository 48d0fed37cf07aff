"""The doctor's checks of the coordinator: search path, connections, settings, disk."""

from __future__ import annotations

from collections.abc import Iterator

from cerebro_db.core.sql import sql

from ..platform.base import FEWEST
from .report import OK, PROBLEM, WARNING, Examined, Row, disk_row


def search_path(examined: Examined) -> Iterator[Row]:
    shown = examined.db.value(sql("SELECT pg_catalog.current_setting('search_path') AS v"))
    if examined.db.value(sql("SELECT 'cerebro' = ANY (pg_catalog.current_schemas(false)) AS v")):
        yield Row("coordinator", "search_path", OK, shown)
    else:
        advice = (
            'Write cerebro.… before names, or: SET search_path = "$user", public, cerebro;'
            " ALTER DATABASE … SET makes it permanent."
        )
        yield Row("coordinator", "search_path", WARNING, shown, advice)
    shared = examined.db.value(
        sql(
            "SELECT pg_catalog.string_agg(nspname, ', ') AS v FROM pg_catalog.pg_namespace"
            " WHERE nspname = ANY (pg_catalog.current_schemas(false))"
            " AND pg_catalog.has_schema_privilege('public', oid, 'CREATE')"
        )
    )
    if shared:
        yield Row(
            "coordinator",
            "shared schemas",
            WARNING,
            f"everybody may create functions in {shared}, which is on your search_path",
            f"REVOKE CREATE ON SCHEMA {shared} FROM PUBLIC; otherwise any query may run functions of others as you.",
        )


def connections(examined: Examined) -> Iterator[Row]:
    facts = examined.db.one(
        sql(
            "SELECT pg_catalog.current_setting('max_connections')::integer AS most,"
            " pg_catalog.current_setting('superuser_reserved_connections')::integer AS reserved,"
            " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL) AS used,"
            " (SELECT datconnlimit FROM pg_catalog.pg_database"
            " WHERE datname = pg_catalog.current_database()) AS limited"
        )
    )
    assert facts is not None
    need = examined.segments + 2  # one per segment, the recorder, and a driver for submit()
    free = facts["most"] - facts["reserved"] - facts["used"]
    if facts["limited"] >= 0:
        free = min(free, facts["limited"] - facts["used"])
    found = f"{facts['used']} of {facts['most']} in use; a run takes up to {need}"
    if free >= 2 * need:
        yield Row("coordinator", "connections", OK, found)
    else:
        advice = "Raise max_connections (each segment of a run is a session), or pack into fewer segments."
        yield Row("coordinator", "connections", WARNING if free >= need else PROBLEM, found, advice)


def statements(examined: Examined) -> Iterator[Row]:
    limit = examined.platform.statement_limit(examined.db)
    if limit is not None:
        short = limit.short_for(examined.segments)
        status = PROBLEM if limit.statements < FEWEST else WARNING if short else OK
        yield Row("coordinator", "statements", status, limit.found(examined.segments), limit.advice if short else None)


def settings(examined: Examined) -> Iterator[Row]:
    def value_of(name: str) -> str | None:
        return examined.db.value(sql("SELECT pg_catalog.current_setting($1, true) AS v"), ("text",), name)

    if value_of("client_connection_check_interval") is None:
        yield Row(
            "coordinator",
            "client_connection_check_interval",
            WARNING,
            "this server does not have the setting",
            "A run whose client vanishes trains to its end; from PostgreSQL 14 on it ends within a second.",
        )
    else:
        yield Row("coordinator", "client_connection_check_interval", OK, "available; worker sessions set it to 1s")
    for name, note in examined.platform.shown_settings:
        yield Row("coordinator", name, OK, f"{value_of(name)}; {note}")


def disk(examined: Examined) -> Iterator[Row]:
    yield disk_row("coordinator", "disk", examined.here.disk, "in the data folder")
