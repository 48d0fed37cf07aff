"""cerebro.doctor(): its findings on a sound server, and that it reports defects of a server without failing."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from cerebro_db import __version__
from cerebro_plpy.doctor import segments
from cerebro_plpy.platform import machine
from cerebro_plpy.platform.greenplum import Greenplum
from cerebro_plpy.platform.postgresql import PostgreSQL
from tests.conftest import HAS_TENSORFLOW, connect
from tests.sql.lab import eventually

LINE = "local  all  +cerebro_worker  scram-sha-256"


def ask(connection: Any, segments: int | None = 1) -> dict[tuple[str, str], tuple[str, str, str | None]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM cerebro.doctor(%s)", (segments,))
        return {(place, check): tuple(rest) for place, check, *rest in cursor}


def problems(found: dict[tuple[str, str], tuple[str, str, str | None]]) -> dict[tuple[str, str], str]:
    return {what: text for what, (status, text, _) in found.items() if status == "problem"}


def test_a_sound_server(db: Any) -> None:
    found = ask(db, 2)
    assert problems(found) == {}
    assert all(status in ("ok", "warning") and text for status, text, _ in found.values())
    assert all(advice for status, _, advice in found.values() if status != "ok")
    for segment in ("segment 0", "segment 1"):
        assert "Keras 3." in found[segment, "trainer"][1]
        assert ("GPU" if machine.gpus() else "CPU") in found[segment, "devices"][1]
        status, nice, _ = found[segment, "priority"]
        assert re.match(r"nice -?\d+", nice) and (status == "warning") == (int(nice.split()[1].rstrip(":")) > 0)
    assert found["segments", "agreement"][0] == "ok"
    assert found["installation", "engines"][1].startswith("TensorFlow, JAX" if HAS_TENSORFLOW else "JAX")
    assert found["worker login", "login"][1].endswith(f"acts as {db.info.user}")
    assert found["worker login", "password"] == ("ok", "a wrong one is refused", None)


def test_a_setting_of_greenplum_lowers_the_priority() -> None:
    assert segments.priority("segment 0", 0, "gp_segworker_relative_priority").status == "ok"
    row = segments.priority("segment 0", 19, "gp_segworker_relative_priority")
    assert row.status == "warning" and "nice 19" in row.found
    assert "gpconfig -c gp_segworker_relative_priority -v 0" in (row.advice or "")
    assert Greenplum.priority_setting == "gp_segworker_relative_priority"
    assert segments.priority("segment 0", 5, PostgreSQL.priority_setting).advice == "Start the server without nice."


def test_a_user_of_no_privileges_but_ours(server: str, db: Any) -> None:
    with db.cursor() as cursor:
        cursor.execute("CREATE ROLE doctored LOGIN PASSWORD 'x' IN ROLE cerebro_user")
    try:
        with contextlib.closing(connect(make_dsn(**{**parse_dsn(server), "user": "doctored", "password": "x"}))) as own:
            found = ask(own)
        assert problems(found) == {}
        assert found["worker login", "login"][1].endswith("acts as doctored")
        with db.cursor() as cursor:
            cursor.execute("SELECT 'cerebro_w_' || 'doctored'::regrole::oid || '_'")
            assert found["worker login", "login"][1].startswith(cursor.fetchone()[0])
    finally:
        with db.cursor() as cursor:
            cursor.execute("DROP ROLE doctored")


@pytest.mark.throw_away
def test_what_is_wrong_is_told_with_what_to_do(cluster: Any, db: Any) -> None:
    hba = cluster.data / "pg_hba.conf"
    code = cluster.prefix.code
    sound = {path: path.read_text() for path in (hba, code / "install.json")}
    with db.cursor() as cursor:
        cursor.execute("CREATE ROLE intruder IN ROLE cerebro_worker")
    try:
        hba.write_text(sound[hba].replace(LINE, "local all +cerebro_worker reject"))
        (code / "install.json").write_text('{"trainer_python": "/nowhere/python", "version": "0.0.9"}')
        cluster.reload()
        found = ask(db)
        wrong = problems(found)
        assert set(wrong) == {
            ("installation", "install.json"),
            ("roles", "groups"),
            ("worker login", "enrolment"),
            ("worker login", "login"),
            ("segments", "trainers"),
        }
        assert "0.0.9" in wrong["installation", "install.json"]
        assert "intruder" in wrong["roles", "groups"]
        assert all("+cerebro_worker" in (found["worker login", check][2] or "") for check in ("enrolment", "login"))

        packaged = {"trainer_python": "/nowhere/python", "version": __version__, "setup": "the-setup"}
        (code / "install.json").write_text(json.dumps(packaged))
        hba.write_text(sound[hba].replace(LINE, "local all +cerebro_worker trust"))
        cluster.reload()
        found = ask(db)
        wrong = problems(found)
        assert "Run the-setup as root" in (found["installation", "install.json"][2] or "")
        assert "whatever the password" in wrong["worker login", "password"]
        assert "/nowhere/python" in wrong["segments", "trainers"]
    finally:
        for path, text in sound.items():
            path.write_text(text)
        cluster.reload()
        with db.cursor() as cursor:
            cursor.execute("DROP ROLE intruder")


@pytest.mark.throw_away
def test_a_missing_role_and_a_secret_that_is_not_one(cluster: Any, db: Any) -> None:
    secret, aside = (cluster.data / "cerebro_db" / name for name in ("secret", "aside"))
    with db.cursor() as cursor:
        cursor.execute("ALTER ROLE cerebro_monitor RENAME TO elsewhere")
    try:
        secret.chmod(0o640)
        found = ask(db)
        wrong = problems(found)
        assert set(wrong) == {("roles", "roles"), ("roles", "groups"), ("worker login", "secret")}
        assert wrong["roles", "roles"] == "missing: cerebro_monitor"
        assert "cerebro_admin is not a member of cerebro_monitor" in wrong["roles", "groups"]
        assert wrong["worker login", "secret"] == "others can read the file with the server's secret"
        assert "CREATE ROLE" in (found["roles", "roles"][2] or "")
        assert "chmod" in (found["worker login", "secret"][2] or "")
        secret.rename(aside)
        found = ask(db)
        assert "not in its data folder" in problems(found)["worker login", "secret"]
        assert "cerebro_internal._setup_logins()" in (found["worker login", "secret"][2] or "")
    finally:
        if aside.exists():
            aside.rename(secret)
        secret.chmod(0o600)
        with db.cursor() as cursor:
            cursor.execute("ALTER ROLE elsewhere RENAME TO cerebro_monitor")


def test_it_can_be_cancelled(db: Any) -> None:
    with db.cursor() as cursor, pytest.raises(psycopg2.errors.QueryCanceled):
        cursor.execute("SET statement_timeout = '100ms'; SELECT count(*) FROM cerebro.doctor(1)")


def test_a_framework_is_imported_before_somebody_needs_it(db: Any) -> None:
    with db.cursor() as cursor:
        cursor.execute("SELECT cerebro.warm_up('jax')")
        cursor.execute("SELECT version()")
        if "Greenplum" not in cursor.fetchone()[0]:  # there the segments import, and the coordinator reports of itself
            eventually(lambda: "JAX (ready" in ask(db)["installation", "nursery"][1], 120, "JAX is imported")
        with pytest.raises(psycopg2.Error, match="there is no engine 'caffe'") as refused:
            cursor.execute("SELECT cerebro.warm_up('caffe')")
    assert "tensorflow, jax, torch" in refused.value.diag.message_hint
