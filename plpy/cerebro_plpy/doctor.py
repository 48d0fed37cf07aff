"""``cerebro.doctor()``: is everything as it should be, on the coordinator and on every segment.

Each check makes its own rows; one that fails becomes a row, too.  Only a cancel ends it early.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Callable

import psycopg2

from cerebro_db import __version__
from cerebro_db.core.engines import DEFAULT, NAMES
from cerebro_db.core.errors import CerebroError

from . import engine, inspection, logins, tables, trainer
from .db import Database, entry
from .dialect import is_greenplum
from .interrupts import Listen, listener
from .machine import megabytes
from .options import choose_options
from .segment import SCRATCH
from .team import Refused, Steps, Team, first_line

OK, WARNING, PROBLEM = "ok", "warning", "problem"
OLDEST_SERVER = 13
OLDEST_PYTHON = (3, 9)
OLDEST_KERAS = (3, 13, 2)  # below it an architecture can get around Keras' own safe mode
ENOUGH_DISK = 1 << 30
TRAINER_WITHIN = "3min"
GROUPS = {  # role -> the roles it is a member of
    "cerebro_user": set(),
    "cerebro_monitor": set(),
    "cerebro_admin": {"cerebro_user", "cerebro_monitor"},
    "cerebro_worker": set(),
    "cerebro_enrol": {"cerebro_worker"},
}


@dataclass(frozen=True)
class Row:
    place: str
    check: str
    status: str
    found: str
    advice: str | None = None


@dataclass(frozen=True)
class Visit:
    """What the checks hand on to each other."""

    db: Database
    listen: Listen
    segments: int | None
    here: dict[str, Any]
    greenplum: bool


@entry
def doctor(db: Database, segments: int | None) -> Iterator[tuple[str, str, str, str, str | None]]:
    rows: list[Row] = []
    here = tried(db, rows, "coordinator", "facts", inspection.facts) or {}
    greenplum = bool(tried(db, rows, "coordinator", "facts", lambda: is_greenplum(db)))
    visit = Visit(db, listener(db.plpy), segments, here, greenplum)
    checks: list[tuple[str, str, Callable[[Visit], Iterable[Row]]]] = [
        ("installation", "server", server),
        ("installation", "extension", extension),
        ("installation", "python", python),
        ("installation", "install.json", install_file),
        ("installation", "engines", engines),
        ("installation", "code folder", code_folder),
        ("coordinator", "search_path", search_path),
        ("coordinator", "connections", connections),
        ("coordinator", "settings", settings),
        ("coordinator", "disk", disk),
        ("roles", "groups", groups),
        ("roles", "worker roles", worker_roles),
        ("worker login", "secret", secret),
        ("worker login", "login", login),
        ("segments", "trainers", trainers),
    ]
    for place, name, check in checks:
        rows += tried(db, rows, place, name, lambda check=check: list(check(visit))) or []  # type: ignore[misc]
    return iter([(row.place, row.check, row.status, row.found, row.advice) for row in rows])


def tried(db: Database, rows: list[Row], place: str, name: str, look: Callable[[], Any]) -> Any:
    try:
        return look()
    except db.plpy.SPIError as error:
        if str(error.sqlstate).startswith("57"):
            raise  # cancelled, or the server goes down
        rows.append(Row(place, name, PROBLEM, first_line(error), "This could not be looked at."))
    except CerebroError as error:
        rows.append(Row(place, name, PROBLEM, with_detail(error), error.hint))
    except Exception as error:
        rows.append(Row(place, name, PROBLEM, f"{type(error).__name__}: {first_line(error)}", None))
    return None


def with_detail(error: CerebroError) -> str:
    return f"{error.message} ({error.detail})" if error.detail else error.message


# -- the installation ----------------------------------------------------------------------------------


def server(visit: Visit) -> Iterator[Row]:
    text = visit.db.value("SELECT pg_catalog.version() AS v")
    number = int(visit.db.value("SELECT pg_catalog.current_setting('server_version_num') AS v")) // 10000
    shown = re.sub(r" on \S+-linux.*|,.*", "", text)
    if number < OLDEST_SERVER and not visit.greenplum:
        yield Row("installation", "server", PROBLEM, shown, f"PostgreSQL {OLDEST_SERVER} or later is needed.")
    else:
        yield Row("installation", "server", OK, shown)


def extension(visit: Visit) -> Iterator[Row]:
    row = visit.db.one(
        "SELECT e.extversion::text AS installed, a.default_version::text AS available FROM pg_catalog.pg_extension e"
        " LEFT JOIN pg_catalog.pg_available_extensions a ON a.name = e.extname WHERE e.extname = 'cerebro_db'"
    ) or {"installed": None, "available": None}
    installed, available = row["installed"], row["available"]
    found = f"SQL {installed}, code {__version__}, on disk {available}"
    if installed == available == __version__:
        yield Row("installation", "extension", OK, found)
    elif installed == available:
        yield Row("installation", "extension", PROBLEM, found, "Run make install again: code and SQL do not match.")
    elif available is None:
        yield Row("installation", "extension", PROBLEM, found, "cerebro_db.control is not there: make install.")
    else:
        advice = "ALTER EXTENSION cerebro_db UPDATE; then start new sessions."
        yield Row("installation", "extension", PROBLEM, found, advice)


def python(visit: Visit) -> Iterator[Row]:
    version = visit.here["python"]
    found = f"embedded Python {version}, psycopg2 {visit.here['psycopg2']}"
    if numbers(version) < OLDEST_PYTHON:
        yield Row("installation", "python", PROBLEM, found, "The server's PL/Python needs Python 3.9 or later.")
    else:
        yield Row("installation", "python", OK, found)


def install_file(visit: Visit) -> Iterator[Row]:
    written, advice = visit.here["installed"], "Run make install TRAINER_PYTHON=… again."
    if not isinstance(written, dict):
        yield Row("installation", "install.json", PROBLEM, str(visit.here["installed_error"]), advice)
        return
    program = str(written.get("trainer_python"))
    found = f"version {written.get('version')}, trainer's Python {program}"
    if written.get("version") != __version__:
        yield Row("installation", "install.json", PROBLEM, f"{found}; the code is {__version__}", advice)
    elif not os.access(program, os.X_OK):
        here = "is not there" if not os.path.exists(program) else "may not be executed by the server's account"
        yield Row("installation", "install.json", PROBLEM, f"{found}, which {here}", advice)
    else:
        yield Row("installation", "install.json", OK, found)


def engines(visit: Visit) -> Iterator[Row]:
    try:
        found = trainer.engines()
    except CerebroError:
        return  # what is wrong with install.json is said there
    names = ", ".join(NAMES[engine] for engine in found)
    if DEFAULT not in found:
        advice = "docker/install.sh makes the trainer's environment; make install TRAINER_PYTHON=… names another."
        said = f"{NAMES[DEFAULT]} is not installed; {names or 'none'} is"
        yield Row("installation", "engines", PROBLEM, said, advice)
    else:
        yield Row("installation", "engines", OK, f"{names}: the option engine of a run chooses")


def code_folder(visit: Visit) -> Iterator[Row]:
    writers, folder = visit.here["code_writers"], visit.here["code"]
    if writers == "others":
        yield Row(
            "installation", "code folder", PROBLEM, f"{folder}: its group or everybody may write there",
            "chmod -R go-w on it, and on the folder it is in: whoever writes there is the server.",
        )  # fmt: skip
    elif writers == "server":
        yield Row(
            "installation", "code folder", WARNING, f"{folder}: the server's own account may write there",
            "Normal for a private cluster of one's own; a shared server's code belongs to root.",
        )  # fmt: skip
    else:
        yield Row("installation", "code folder", OK, f"{folder}: not writable by the server's account")


# -- the coordinator -----------------------------------------------------------------------------------


def search_path(visit: Visit) -> Iterator[Row]:
    shown = visit.db.value("SELECT pg_catalog.current_setting('search_path') AS v")
    there = visit.db.value("SELECT 'cerebro' = ANY (pg_catalog.current_schemas(false)) AS v")
    if there:
        yield Row("coordinator", "search_path", OK, shown)
    else:
        advice = 'Write cerebro.… before names, or: SET search_path = "$user", public, cerebro; ALTER DATABASE keeps it'
        yield Row("coordinator", "search_path", WARNING, shown, advice)
    shared = visit.db.value(
        "SELECT pg_catalog.string_agg(nspname, ', ') AS v FROM pg_catalog.pg_namespace"
        " WHERE nspname = ANY (pg_catalog.current_schemas(false))"
        " AND pg_catalog.has_schema_privilege('public', oid, 'CREATE')"
    )
    if shared:
        yield Row(
            "coordinator", "shared schemas", WARNING, f"everybody may make functions in {shared}, on your search_path",
            f"REVOKE CREATE ON SCHEMA {shared} FROM PUBLIC; else others' functions may run as you, in any query.",
        )  # fmt: skip


def connections(visit: Visit) -> Iterator[Row]:
    facts = visit.db.one(
        "SELECT pg_catalog.current_setting('max_connections')::integer AS most,"
        " pg_catalog.current_setting('superuser_reserved_connections')::integer AS reserved,"
        " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE datid IS NOT NULL) AS used,"
        " (SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) AS limited"
    )
    assert facts is not None
    need = segments_of(visit) + 2  # the record, and a driver of its own for submit()
    free = facts["most"] - facts["reserved"] - facts["used"]
    if facts["limited"] >= 0:
        free = min(free, facts["limited"] - facts["used"])
    found = f"{facts['used']} of {facts['most']} in use; a run takes up to {need}"
    if free >= 2 * need:
        yield Row("coordinator", "connections", OK, found)
    else:
        advice = "Raise max_connections (each segment of a run is a session), or pack into fewer segments."
        yield Row("coordinator", "connections", WARNING if free >= need else PROBLEM, found, advice)


def settings(visit: Visit) -> Iterator[Row]:
    def shown(name: str) -> str | None:
        return visit.db.value("SELECT pg_catalog.current_setting($1, true) AS v", ("text",), name)

    if shown("client_connection_check_interval") is None:
        yield Row(
            "coordinator", "client_connection_check_interval", WARNING, "this server has no such setting",
            "From PostgreSQL 14 on, a run whose client vanished ends within a second; here it goes on to its end.",
        )  # fmt: skip
    else:
        yield Row("coordinator", "client_connection_check_interval", OK, "available; worker sessions set it to 1s")
    if visit.greenplum:
        detector = shown("gp_enable_global_deadlock_detector")
        if detector == "on":
            yield Row("coordinator", "gp_enable_global_deadlock_detector", OK, "on")
        else:
            yield Row(
                "coordinator", "gp_enable_global_deadlock_detector", WARNING, str(detector),
                "With it on, UPDATE and DELETE of others do not lock whole tables: gpconfig -c … -v on, restart.",
            )  # fmt: skip
        yield Row("coordinator", "optimizer", OK, f"{shown('optimizer')}; worker sessions set it to off")


def disk(visit: Visit) -> Iterator[Row]:
    yield room_row("coordinator", "disk", visit.here["disk"], "in the data folder")


def room_row(place: str, check: str, free: int | None, where: str) -> Row:
    if free is None:
        return Row(place, check, WARNING, f"room {where} cannot be told", None)
    found = f"{megabytes(free)} free {where}"
    if free < ENOUGH_DISK:
        return Row(place, check, WARNING, found, "Model states and cached rows go there: make room.")
    return Row(place, check, OK, found)


# -- roles ---------------------------------------------------------------------------------------------

MEMBERS = (
    "SELECT g.rolname::text AS role, m.rolname::text AS member, a.admin_option AS admin, m.rolsuper AS superuser"
    " FROM pg_catalog.pg_auth_members a JOIN pg_catalog.pg_roles g ON g.oid = a.roleid"
    " JOIN pg_catalog.pg_roles m ON m.oid = a.member"
    " WHERE g.rolname LIKE 'cerebro\\_%' OR m.rolname LIKE 'cerebro\\_%'"
)
ROLES = (
    "SELECT rolname::text AS name, oid::bigint AS oid, rolcanlogin AS login, rolsuper OR rolcreaterole OR rolcreatedb"
    " OR rolreplication OR rolbypassrls AS more FROM pg_catalog.pg_roles WHERE rolname LIKE 'cerebro\\_%'"
)


def groups(visit: Visit) -> Iterator[Row]:
    """The five roles are what CREATE EXTENSION made."""
    roles = {row["name"]: row for row in visit.db.rows(ROLES)}
    held: dict[str, set[str]] = {}
    members: dict[str, list[dict[str, Any]]] = {}
    for row in visit.db.rows(MEMBERS):
        held.setdefault(row["member"], set()).add(row["role"])
        members.setdefault(row["role"], []).append(row)
    wrong = []
    for name, wanted in GROUPS.items():
        if name not in roles:
            wrong.append(f"{name} is missing")
            continue
        if roles[name]["more"]:
            wrong.append(f"{name} has powers of its own (SUPERUSER, CREATEROLE, …)")
        if roles[name]["login"] != (name == logins.ENROL):
            wrong.append(f"{name} {'may' if roles[name]['login'] else 'may not'} log in")
        if extra := held.get(name, set()) - wanted:
            wrong.append(f"{name} is a member of {', '.join(sorted(extra))}")
        if lacking := wanted - held.get(name, set()):
            wrong.append(f"{name} is not a member of {', '.join(sorted(lacking))}")
    known = {logins.ENROL} | {name for name in roles if re.fullmatch(r"cerebro_w_\d+", name)}
    for row in members.get(logins.GROUP, []):
        if row["member"] not in known:
            wrong.append(f"{row['member']} is in cerebro_worker, which is for the server's own logins")
    for row in members.get(logins.ENROL, []):
        wrong.append(f"{row['member']} is a member of {logins.ENROL}, which is the server's own")
    if wrong:
        advice = "REVOKE, or ALTER ROLE … NOSUPERUSER NOCREATEROLE and the like; see docs/security.md."
        yield Row("roles", "groups", PROBLEM, "; ".join(wrong), advice)
    else:
        yield Row("roles", "groups", OK, ", ".join(GROUPS))
    admins = sorted(row["member"] for row in members.get("cerebro_admin", []))
    yield Row("roles", "admins", OK, f"members of cerebro_admin: {', '.join(admins) or 'nobody'}")


def worker_roles(visit: Visit) -> Iterator[Row]:
    """Each worker role is a member of exactly two, its user and the group, and nobody's to use."""
    roles = [row for row in visit.db.rows(ROLES) if re.fullmatch(r"cerebro_w_\d+", row["name"])]
    owners = {
        row["oid"]: row["name"]
        for row in visit.db.rows("SELECT oid::bigint AS oid, rolname::text AS name FROM pg_catalog.pg_roles")
    }
    members = visit.db.rows(MEMBERS)
    wrong, left = [], []
    for role in roles:
        name, owner = role["name"], owners.get(int(role["name"].rpartition("_")[2]))
        held = {row["role"] for row in members if row["member"] == name}
        lent = sorted({row["member"] for row in members if row["role"] == name})
        if role["more"]:
            wrong.append(f"{name} has powers of its own")
        if lent:
            wrong.append(f"{name} is granted to {', '.join(lent)}")
        if owner is None:
            left.append(name)
        elif held != {owner, logins.GROUP}:
            wrong.append(f"{name} is a member of {', '.join(sorted(held)) or 'nothing'}; it should be of {owner}")
    if wrong:
        advice = "DROP ROLE it as a superuser: the next run of its user makes it anew."
        yield Row("roles", "worker roles", PROBLEM, "; ".join(wrong), advice)
    elif left:
        advice = f"DROP ROLE {', '.join(left)};"
        yield Row("roles", "worker roles", WARNING, f"{', '.join(left)}: of users who are gone", advice)
    else:
        yield Row("roles", "worker roles", OK, f"{len(roles)}, each a member of its user and of {logins.GROUP} only")


# -- worker logins -------------------------------------------------------------------------------------


def secret(visit: Visit) -> Iterator[Row]:
    path = logins.private_folder() / "secret"
    logins.password(logins.ENROL)  # makes it if it is not there
    folder, file = path.parent.stat(), path.stat()
    if (folder.st_mode | file.st_mode) & 0o077 or file.st_uid != os.getuid():
        advice = "In the data folder: chmod 700 cerebro_db; chmod 600 cerebro_db/secret"
        yield Row("worker login", "secret", PROBLEM, "others can read the file with the server's secret", advice)
    else:
        yield Row("worker login", "secret", OK, "only the server's account reads it")


def login(visit: Visit) -> Iterator[Row]:
    """Enrolment works, the caller's worker role logs in and becomes the caller, and nobody does without a password."""
    user = logins.Owner.current(visit.db)
    database, listen = user.database, visit.listen
    try:
        logins.connect(logins.ENROL, database, "cerebro_db doctor", listen).close()
        yield Row("worker login", "enrolment", OK, f"{logins.ENROL} can log in")
    except CerebroError as error:
        advice = error.hint
        if "password authentication failed" in (error.detail or ""):
            advice = "The server's secret has changed (a restore?). SELECT cerebro._setup_logins(); mends it."
        yield Row("worker login", "enrolment", PROBLEM, with_detail(error), advice)
    try:
        with contextlib.closing(logins.connect_as(visit.db, user.name, "cerebro_db doctor", listen)) as session:
            now, began = session.run("SELECT current_user, session_user")[0]
            host = session.connection.info.host or ""
            way = "its socket" if host.startswith("/") else host
            if (now, began) == (user.name, user.worker):
                yield Row("worker login", "login", OK, f"{began} logs in by {way} and acts as {now}")
            else:
                yield Row("worker login", "login", PROBLEM, f"{user.worker} logged in as {began} and acts as {now}")
    except CerebroError as error:
        yield Row("worker login", "login", PROBLEM, with_detail(error), error.hint)
        return
    try:
        logins.connect(user.worker, database, "cerebro_db doctor", listen, secret="not the password").close()
        yield Row(
            "worker login", "password", PROBLEM, "worker roles are let in whatever the password (trust?)",
            "pg_hba.conf needs, before other lines:  local all +cerebro_worker scram-sha-256",
        )  # fmt: skip
    except CerebroError:
        yield Row("worker login", "password", OK, "a wrong one is refused")


# -- segments ------------------------------------------------------------------------------------------


def segments_of(visit: Visit) -> int:
    wanted = engine.segments_wanted(visit.db, visit.segments, "doctor")
    return wanted or engine.default_segments(visit.db)


def trainers(visit: Visit) -> Iterator[Row]:
    count = segments_of(visit)
    keys = engine.distribution_keys(visit.db, count)
    there = engine.gpus_of_segments(visit.db, keys)
    chosen = choose_options(visit.db, None, keys, use_gpus=any(gpu is not None for gpu in there))
    team = Team(visit.db, tables.current_role(visit.db), keys, chosen)
    try:
        for seat in team.seats:
            seat.session.run(f"SET statement_timeout = '{TRAINER_WITHIN}'")

        def look(seat: Any) -> Steps:
            try:
                return (yield from team.order(seat, {"work": "inspect"}))
            except Refused as refused:
                return refused.error

        answers = team.run_all({seat.segment: look(seat) for seat in team.seats})
    except psycopg2.Error as error:
        yield Row("segments", "trainers", PROBLEM, first_line(error), error.diag.message_hint)
        return
    finally:
        team.close()
    told = {}
    for segment, answer in sorted(answers.items()):
        place = f"segment {segment}"
        if isinstance(answer, CerebroError):
            yield Row(place, "trainer", PROBLEM, with_detail(answer), answer.hint or "Its log says why.")
        else:
            told[place] = answer
            yield from segment_rows(place, answer, there[segment])
    if told:
        yield from together(visit, told)


def segment_rows(place: str, answer: dict[str, Any], gpu: int | None) -> Iterator[Row]:
    hello = answer["hello"]
    versions = hello["versions"]
    found = f"{software(versions)}, numpy {versions['numpy']}, Python {versions['python']}"
    if numbers(versions["keras"]) < OLDEST_KERAS:
        least = ".".join(map(str, OLDEST_KERAS))
        advice = f"Keras {least} or later into the trainer's environment: older ones can be tricked by architectures."
        yield Row(place, "trainer", PROBLEM, found, advice)
    else:
        yield Row(place, "trainer", OK, f"{found}; ready after {answer['seconds']:.1f} s")
    devices = hello["devices"]
    found = f"{', '.join(devices)}; {count_of(answer['threads'], 'thread')}"
    if gpu is not None and not any(device.startswith("GPU") for device in devices):
        advice = "TensorFlow sees no GPU: build and driver do not match, or lack what confinement denies."
        yield Row(place, "devices", WARNING, found, advice)
    else:
        yield Row(place, "devices", OK, found)
    achieved = hello.get("confinement") or []
    if achieved:
        yield Row(place, "confinement", OK, ", ".join(achieved))
    else:
        advice = "Nothing but the allow-list and its own process keeps the trainer in; a newer Linux does more."
        yield Row(place, "confinement", WARNING, "none", advice)
    where = "for cached rows, in memory" if answer["in_memory"] else f"for cached rows, in the data folder ({SCRATCH})"
    yield room_row(place, "room", answer["scratch"], where)


def together(visit: Visit, told: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Whether all segments have the same, and the memory suffices for all of them."""
    same: dict[str, Callable[[dict[str, Any]], Any]] = {
        "trainer": lambda a: {key: a["hello"]["versions"].get(key) for key in sorted(a["hello"]["versions"])},
        "extension's code": lambda a: a["version"],
        "code folder": lambda a: a["code"],
        "install.json": lambda a: a["installed"],
        "embedded Python": lambda a: a["python"],
    }
    differing = []
    for what, of in same.items():
        values = [repr(of(answer)) for answer in told.values()] + ([repr(of(visit.here))] if what != "trainer" else [])
        if len(set(values)) > 1:
            differing.append(f"{what}: {' / '.join(sorted(set(values)))}")
    if differing:
        yield Row(
            "segments", "agreement", PROBLEM, "; ".join(differing),
            "Install the same on every host, to the same paths; sessions from before an upgrade have the old code.",
        )  # fmt: skip
    else:
        yield Row("segments", "agreement", OK, f"{len(told)} alike, and like the coordinator")
    for host in sorted({answer["host"] for answer in told.values()}):
        there = [answer for answer in told.values() if answer["host"] == host]
        needed = [answer["resident"] for answer in there if answer["resident"]]
        free = there[-1]["memory"]
        if not needed or free is None:
            continue
        # What they took is gone from what is available.
        took = f"{count_of(len(there), 'trainer')} took {megabytes(sum(needed))} before any model"
        found = f"{took}; {megabytes(free)} are left"
        place = "memory" if len({answer["host"] for answer in told.values()}) == 1 else f"memory of {host}"
        if free < sum(needed):
            yield Row("segments", place, WARNING, found, "Large models will not fit: pack into fewer segments.")
        else:
            yield Row("segments", place, OK, found)


def software(versions: dict[str, str]) -> str:
    return f"Keras {versions['keras']} on {NAMES[versions['engine']]} {versions['engine_version']}"


def count_of(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
