"""How the server logs in to itself as one of its users, with exactly that user's rights.

Each worker session logs in as a *worker role* of its own, ``cerebro_w_<oid of the user>_<random>``, and runs ``SET ROLE
user`` at once.  The role is a member of exactly two roles: the user, and the group ``cerebro_worker``, which one line
of ``pg_hba.conf`` admits.  Planted code that runs ``RESET ROLE`` or ``RESET SESSION AUTHORIZATION`` gains nothing,
because the worker role has no rights that its user lacks.  On Greenplum the role also asks to begin as the user: a
process of a segment that replaces a killed one knows the login only.

A role can always change its own password, settings and members, and code planted in a worker session can act as the
worker role, even after the session.  Therefore a worker role can log in once only:

1. ``_enrol`` makes the role.  Its random password is valid for 30 seconds, and only this process knows it.
2. This process logs in as the role.
3. ``_close_login`` ends the validity and commits.  Nothing ever begins it again; the role itself may not.
4. The first statement runs in the new session.

So nobody's code can act as the role while a password of it is valid.  ``_enrol`` also drops the worker roles of
sessions that have ended.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2

from cerebro_db.core.errors import CannotConnect, NotPermitted
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, joined, literal, quoted, sql

from .. import platform
from ..database.access import Database
from ..database.cancellation import Listen
from ..database.entry import INTERNAL, entry
from ..platform.base import FEWEST, StatementLimit
from .refusals import ACCEPTED, refusal
from .session import Session
from .statement_slots import StatementSlots

ENROL = "cerebro_enrol"
GROUP = "cerebro_worker"
WORKER = "cerebro_w_"  # and the OID of the user, and random digits
SCRAM_ROUNDS = 4096
# Settings on which the values of views and casts depend: worker sessions have those of the caller's session.
SAME = ("TimeZone", "DateStyle", "lc_monetary", "lc_numeric", "lc_time", "xmlbinary", "xmloption", "array_nulls",
        "default_text_search_config", "transform_null_equals")  # fmt: skip

_slots = StatementSlots()  # of all sessions that this process opens for its user


def data_folder() -> Path:
    """The cluster's data folder; it is every backend's working directory."""
    return Path(os.getcwd())


def enrol_password() -> str:
    """The password of the login that makes worker roles, derived from the server's secret."""
    try:
        key = secret_file().read_bytes()
    except FileNotFoundError:
        raise CannotConnect(
            "the server cannot open a worker session to itself: its secret is not in the data folder",
            detail="pg_upgrade does not take it along, and a data folder can be restored without it.",
            hint="As a superuser: SELECT cerebro_internal._setup_logins();",
        ) from None
    return hmac.new(key, ENROL.encode(), hashlib.sha256).hexdigest()


def secret_file() -> Path:
    return data_folder() / "cerebro_db" / "secret"


def make_secret() -> None:
    """The secret, if the server has none."""
    path = secret_file()
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # Two sessions may get here at once: the first to link its file wins, and both read that file.
    draft = path.with_name(f"secret.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def scram_verifier(secret: str) -> str:
    """What PostgreSQL stores for a password.  ALTER ROLE takes it, too, which keeps the password out of the logs."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, SCRAM_ROUNDS)
    client_key = hmac.new(salted, b"Client Key", hashlib.sha256).digest()
    server_key = hmac.new(salted, b"Server Key", hashlib.sha256).digest()
    stored_key = hashlib.sha256(client_key).digest()
    salt64, stored64, server64 = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${SCRAM_ROUNDS}:{salt64}${stored64}:{server64}"


@entry(called=INTERNAL, any_version=True)  # upgrade scripts of every version call it
def setup_logins(db: Database) -> None:
    """Give the login that makes worker roles its password: run by CREATE EXTENSION, or later by a superuser."""
    make_secret()
    db.execute(
        sql(
            "ALTER ROLE {enrol} LOGIN NOINHERIT PASSWORD {verifier}",
            enrol=identifier(ENROL),
            verifier=literal(scram_verifier(enrol_password())),
        )
    )


def addresses() -> list[dict[str, Any]]:
    """The addresses on which this server listens, from its ``postmaster.pid``; the socket first."""
    try:
        lines = (data_folder() / "postmaster.pid").read_text().splitlines()
        port, socket_folder, listen = int(lines[3]), lines[4].strip(), lines[5].strip()
    except (OSError, ValueError, IndexError) as error:  # the server removes the file when it ends
        raise cannot_log_in(ENROL, [f"its postmaster.pid cannot be read ({error})"], []) from error
    found: list[dict[str, Any]] = []
    if socket_folder:
        found.append({"host": os.path.abspath(socket_folder), "port": port})
    if listen:
        found.append({"host": "127.0.0.1" if listen in ("*", "0.0.0.0") else listen, "port": port})
    return found


def settings(queued: bool) -> dict[str, str]:
    """The settings of a worker session that those of the database and of its roles must not change.

    A worker session is idle for as long as its segment has no work, and its statements take as long as training does.
    They come with the login, because a timeout can be over before the first statement.  The server refuses a login with
    a setting that it does not have, so this depends on its version.  Where statements are ``queued``, the time in the
    queue counts as waiting for a lock.
    """
    version = int((data_folder() / "PG_VERSION").read_text().split(".")[0])
    return {
        "client_min_messages": "notice",
        # A session whose driver is gone must leave its queue; teams set this, too, but in a statement that is queued.
        **({"lock_timeout": "0", "client_connection_check_interval": "1s"} if queued else {"lock_timeout": "10s"}),
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        **({"idle_session_timeout": "0"} if version >= 14 else {}),
        **({"transaction_timeout": "0"} if version >= 17 else {}),
        "default_transaction_isolation": r"read\ committed",
        "default_transaction_read_only": "off",
        "row_security": "on",
        "standard_conforming_strings": "on",
        "extra_float_digits": "1",  # numbers are texts on their way, and come back exactly
        "IntervalStyle": "postgres",
    }


def connect(
    role: str,
    password: str,
    database: str,
    application: str,
    listen: Listen,
    *,
    queued: bool = False,
    same: Sequence[str] = (),
) -> Session:
    """Log in to this very server as ``role``.  ``same``: the values of the settings SAME."""
    problems = []
    wanted = {**settings(queued), **{name: _option(name, value) for name, value in zip(SAME, same)}}
    for address in addresses():
        try:
            return Session.open(
                listen,
                **address,
                user=role,
                password=password,
                dbname=database,
                application_name=application,
                passfile="/dev/null",  # use no password file of the environment's
                options=" ".join(f"-c {name}={value}" for name, value in wanted.items()),
            )
        except psycopg2.OperationalError as error:
            problems.append(str(error).strip().splitlines()[-1])
    raise cannot_log_in(role, problems, [refusal(address, role, password, database) for address in addresses()])


def _option(name: str, value: str) -> str:
    """The value of a setting in the options of a connection."""
    if name == "DateStyle":  # how dates are read, but not how they are written: psycopg2 reads one form only
        value = f"ISO, {value.rpartition(' ')[2]}"
    return re.sub(r"([\s\\])", r"\\\1", value)


ENDING = {"57P01", "57P02", "57P03"}  # it shuts down, has crashed, or is starting
FULL, WRONG_PASSWORD = "53300", "28P01"


def cannot_log_in(role: str, problems: Sequence[str], refusals: Sequence[str | None]) -> CannotConnect:
    """The error for a login that failed; ``refusals``: the SQLSTATE at each address, None where nothing answers."""
    told, states = "; ".join(problems), {state for state in refusals if state is not None}
    if not states or states & ENDING:
        return CannotConnect(
            "the server cannot open a worker session to itself: it has ended, or is ending or starting",
            detail=told,
            hint="When the server is back, SELECT cerebro.resume(run) continues a run. The server's log says why it"
            " ended.",
        )
    if ACCEPTED in states:
        return CannotConnect(
            "the server could not open a worker session to itself for a moment",
            detail=told,
            hint="Repeat the call; SELECT cerebro.resume(run) continues a run.",
        )
    if FULL in states:
        return CannotConnect(
            "the server cannot open a worker session to itself: it has no connection left",
            detail=told,
            hint="End other sessions, train in fewer segments, or raise max_connections.",
        )
    if role == ENROL and WRONG_PASSWORD in states:
        return CannotConnect(
            "the server cannot open a worker session to itself: the secret in its data folder is not the one that its"
            " roles know",
            detail=f"{told}. It is so where the data folder, or the roles, come from another server.",
            hint="As a superuser: SELECT cerebro_internal._setup_logins();",
        )
    return CannotConnect(
        "the server cannot open a worker session to itself",
        detail=told,
        hint="pg_hba.conf needs, before other lines:  local all +cerebro_worker scram-sha-256   "
        "(then SELECT pg_reload_conf()). SELECT * FROM cerebro.doctor() checks it.",
    )


@dataclass(frozen=True)
class Owner:
    """A user, and everything else that a new worker session of the user depends on.

    Every name in the query is qualified, and so are the types: the query runs in the caller's session, whose
    search_path must not influence whose worker roles these are.
    """

    name: str
    oid: int
    database: str
    admitted: bool  # whether the user itself may log in
    settings: str  # with which a login begins
    version: str  # of the extension
    sets_role: bool = False  # whether the worker role asks to begin as the user, where the platform needs that
    limit: StatementLimit | None = None  # of the user's statements
    queued: bool = False  # whether statements of some roles wait in queues, perhaps not the user's
    same: tuple[str, ...] = ()  # the caller's values of the settings SAME

    @classmethod
    def current(cls, db: Database) -> Owner:
        found = db.one(
            sql(
                "SELECT current_user AS me, o.rolname AS name, o.oid::pg_catalog.int8 AS oid,"
                " pg_catalog.current_database() AS database,"
                " o.rolcanlogin AND COALESCE(o.rolvaliduntil OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), true)"
                "  AS admitted,"
                " ARRAY(SELECT s.setconfig::pg_catalog.text FROM pg_catalog.pg_db_role_setting s"
                "  WHERE s.setrole OPERATOR(pg_catalog.=) 0::pg_catalog.oid"
                "   AND s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, d.oid])"
                "  ORDER BY s.setdatabase)::pg_catalog.text AS settings,"
                " (SELECT e.extversion FROM pg_catalog.pg_extension e"
                "   WHERE e.extname OPERATOR(pg_catalog.=) 'cerebro_db') AS version,"
                " ARRAY[{same}]::pg_catalog.text[] AS same"
                " FROM pg_catalog.pg_roles o JOIN pg_catalog.pg_database d"
                "  ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
                " WHERE o.rolname OPERATOR(pg_catalog.=) current_user",
                same=joined(", ", (sql("pg_catalog.current_setting({name})", name=literal(name)) for name in SAME)),
            )
        )
        if found is None or found["name"] != found["me"]:
            raise NotPermitted("could not determine the current user")
        return cls(
            name=found["name"],
            oid=found["oid"],
            database=found["database"],
            admitted=found["admitted"],
            settings=found["settings"],
            version=found["version"],
            sets_role=platform.of(db).sets_role_at_login,
            limit=platform.of(db).statement_limit(db),
            queued=platform.of(db).queues_statements(db),
            same=tuple(found["same"]),
        )

    @classmethod
    def acting(cls, db: Database, name: str) -> Owner:
        """The current user, who must be of that name."""
        user = cls.current(db)
        if user.name != name:
            raise NotPermitted(f'"{user.name}" cannot open a worker session of "{name}"')
        return user


def connect_as(db: Database, owner: str, application: str, listen: Listen) -> Session:
    return session_of(Owner.acting(db, owner), application, listen)


def session_of(user: Owner, application: str, listen: Listen) -> Session:
    """A session that logs in as a new worker role of the user and then sets the role to the user."""
    if user.limit is not None:
        user.limit.require(FEWEST, "the caller's own and, one after the other, those of the sessions that it opens")
    _slots.limit_to(user.limit)
    session = _logged_in(user, application, listen)
    session.owner, session.slots = user, _slots
    if user.sets_role:
        # Only the role itself can do this: a function with its owner's rights may not name the parameter "role".
        session.run(
            sql("ALTER ROLE {worker} SET role TO {name}", worker=identifier(session.role), name=identifier(user.name))
        )
    session.run(sql("SET ROLE {role}", role=identifier(user.name)))
    session.another = partial(session_of, user, application)
    return session


def _logged_in(user: Owner, application: str, listen: Listen) -> Session:
    """A session of a new worker role.  No statement has run in it, and nobody can log in as the role any more."""
    secret = secrets.token_hex(32)
    with contextlib.ExitStack() as opened:
        enroller = connect(ENROL, enrol_password(), user.database, "cerebro_db enrol", listen, queued=user.queued)
        opened.callback(enroller.close)
        enroller.run(
            sql("SET synchronous_commit = off")
        )  # after a crash there is no session, and nobody knows the password
        ((worker,),) = enroller.run(sql("SELECT cerebro_internal._enrol({}, {})"), (user.oid, scram_verifier(secret)))
        if worker is None:
            raise NotPermitted(
                f'the role "{user.name}" may not log in, so the server opens no worker session for it',
                detail="The role has NOLOGIN, or its VALID UNTIL has passed.",
                hint=f"ALTER ROLE {quoted(user.name)} LOGIN VALID UNTIL 'infinity';"
                " or train as a role that may log in.",
            )
        with contextlib.ExitStack() as entered:
            try:
                session = connect(
                    worker, secret, user.database, application, listen, queued=user.limit is not None, same=user.same
                )
                entered.callback(session.close)
            finally:
                enroller.run(sql("SELECT cerebro_internal._close_login({})"), (worker,))
            entered.pop_all()
        return session


def note_run(session: Session, run: int, segments: int) -> None:
    """Put on record, where no user can write, that a session drives a run.  Limits count such sessions."""
    user = session.owner
    assert user is not None
    enroller = connect(ENROL, enrol_password(), user.database, "cerebro_db enrol", session.listen, queued=user.queued)
    with contextlib.closing(enroller):
        enroller.run(sql("SET synchronous_commit = off"))  # after a crash the session is gone
        with contextlib.suppress(psycopg2.errors.UndefinedFunction):  # before ALTER EXTENSION
            enroller.run(sql("SELECT cerebro_internal._note_run({}, {}, {})"), (session.role, run, segments))


def intact(db: Database, user: Owner, roles: Sequence[str]) -> bool:
    """Whether these worker roles of the user are as they were made, and own nothing."""
    found = db.value(
        sql(
            "SELECT pg_catalog.count(*) AS intact FROM"
            " (SELECT *, ARRAY(SELECT g.rolname::pg_catalog.text FROM pg_catalog.pg_auth_members m"
            "   JOIN pg_catalog.pg_roles g ON g.oid OPERATOR(pg_catalog.=) m.roleid"
            "   WHERE m.member OPERATOR(pg_catalog.=) r.oid) AS held"
            "  FROM pg_catalog.pg_roles r) w"
            " WHERE w.rolname::pg_catalog.text OPERATOR(pg_catalog.=) ANY ($1)"
            " AND w.held OPERATOR(pg_catalog.@>) $2 AND w.held OPERATOR(pg_catalog.<@) $2"
            " AND NOT (w.rolsuper OR w.rolcreaterole OR w.rolcreatedb OR w.rolreplication OR w.rolbypassrls)"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE m.roleid OPERATOR(pg_catalog.=) w.oid)"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_shdepend d"
            "  WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass"
            "   AND d.refobjid OPERATOR(pg_catalog.=) w.oid)"
        ),
        ("pg_catalog.text[]", "pg_catalog.text[]"),
        list(roles),
        [user.name, GROUP],
    )
    return bool(found == len(roles))
