"""How the server logs in to itself as one of its users, with exactly that user's rights.

Every user who starts a run has a *worker role*, ``cerebro_w_<oid>``.  It is a member of exactly two roles: the user,
and the group ``cerebro_worker``, which one line of ``pg_hba.conf`` admits.  A worker session logs in as the worker role
and runs ``SET ROLE user`` at once.  Code that a user planted gains nothing by ``RESET ROLE`` or ``RESET SESSION
AUTHORIZATION``, because the worker role has no rights that its user lacks.  On Greenplum the login itself begins as the
user, because a process of a segment that replaces a killed one knows the login only.

The passwords are derived from a secret file in the data folder, which only the server's operating-system account can
read.  PostgreSQL itself stores only their SCRAM verifiers.

A role can always change its own password and settings, so planted code can change those of a worker role.  Therefore a
worker role has a valid password only while the server logs in: ``cerebro._enrol`` renews the password for a moment and
resets the settings, and ``cerebro._close_login`` ends its validity.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import random
import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.errors

from cerebro_db.core.errors import CannotConnect, NotPermitted
from cerebro_db.core.names import quote
from cerebro_db.core.records import dataclass

from .. import platform
from ..database.access import Database
from ..database.cancellation import Listen
from ..database.entry import entry
from ..platform.base import FEWEST, StatementLimit
from .session import Session
from .statement_slots import StatementSlots

ENROL = "cerebro_enrol"
GROUP = "cerebro_worker"
WORKER = "cerebro_w_"  # and the number of the user
SCRAM_ROUNDS = 4096
LOGIN_WITHIN = 30.0  # seconds, while other sessions log in as the same role
PAUSE = 0.1  # seconds at most before the second attempt, twice that before the third, and so on
CONCURRENTLY_UPDATED = "XX000"  # how PostgreSQL reports that two sessions have altered a role at once

_slots = StatementSlots()  # of all sessions that this process opens for its user


def data_folder() -> Path:
    """The cluster's data folder; it is every backend's working directory."""
    return Path(os.getcwd())


def private_folder() -> Path:
    folder = data_folder() / "cerebro_db"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def password(role: str) -> str:
    path = private_folder() / "secret"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
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
        key = path.read_bytes()
    return hmac.new(key, role.encode(), hashlib.sha256).hexdigest()


def scram_verifier(secret: str) -> str:
    """What PostgreSQL stores for a password.  ALTER ROLE takes it, too, which keeps the password out of the logs."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, SCRAM_ROUNDS)
    client_key = hmac.new(salted, b"Client Key", hashlib.sha256).digest()
    server_key = hmac.new(salted, b"Server Key", hashlib.sha256).digest()
    stored_key = hashlib.sha256(client_key).digest()
    salt64, stored64, server64 = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${SCRAM_ROUNDS}:{salt64}${stored64}:{server64}"


@entry
def setup_logins(db: Database) -> None:
    """Give the login that makes worker roles its password: run by CREATE EXTENSION, or later by a superuser."""
    db.execute(f"ALTER ROLE {quote(ENROL)} LOGIN NOINHERIT PASSWORD '{scram_verifier(password(ENROL))}'")


def worker_role(oid: int) -> str:
    return f"{WORKER}{oid}"


def addresses() -> list[dict[str, Any]]:
    """The addresses on which this server listens, from its ``postmaster.pid``; the socket first."""
    lines = (data_folder() / "postmaster.pid").read_text().splitlines()
    port, socket_folder, listen = int(lines[3]), lines[4].strip(), lines[5].strip()
    found: list[dict[str, Any]] = []
    if socket_folder:
        found.append({"host": os.path.abspath(socket_folder), "port": port})
    if listen:
        found.append({"host": "127.0.0.1" if listen in ("*", "0.0.0.0") else listen, "port": port})
    return found


def settings(queued: bool) -> dict[str, str]:
    """The settings of a worker session that those of the database and of its roles must not change.

    A worker session is idle for as long as its segment has no work, and its statements take as long as training does.
    The server refuses a login with a setting that it does not have, so this depends on its version.  Where statements
    are ``queued``, the time in the queue counts as waiting for a lock.
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
    role: str, database: str, application: str, listen: Listen, secret: str | None = None, *, queued: bool = False
) -> Session:
    """Log in to this very server as ``role``."""
    problems = []
    for address in addresses():
        try:
            return Session.open(
                listen,
                **address,
                user=role,
                password=secret or password(role),
                dbname=database,
                application_name=application,
                passfile="/dev/null",  # use no password file of the environment's
                options=" ".join(f"-c {name}={value}" for name, value in settings(queued).items()),
            )
        except psycopg2.OperationalError as error:
            problems.append(str(error).strip().splitlines()[-1])
    raise CannotConnect(
        "the server cannot open a worker session to itself",
        detail="; ".join(problems),
        hint="pg_hba.conf needs, before other lines:  local all +cerebro_worker scram-sha-256   "
        "(then SELECT pg_reload_conf()). SELECT * FROM cerebro.doctor() checks it.",
    )


@dataclass(frozen=True)
class Owner:
    """A user, the state of the user's worker role, and everything else that a new session of that role depends on.

    Every name in the query is qualified, and so are the types: the query runs in the caller's session, whose
    search_path must not influence which worker role this is.
    """

    name: str
    oid: int
    database: str
    admitted: bool  # whether the user itself may log in
    memberships: frozenset[str]  # of the worker role; empty if the role does not exist
    trusted: bool  # whether the worker role has no rights but its memberships, and no members
    sets_role: bool  # whether a login as the worker role begins as the user, where the platform needs that
    settings: str  # with which a login as the worker role begins
    version: str  # of the extension
    limit: StatementLimit | None = None  # of the user's statements
    queued: bool = False  # whether statements of some roles wait in queues, perhaps not the user's

    @classmethod
    def current(cls, db: Database) -> Owner:
        found = db.one(
            "SELECT current_user AS me, o.rolname AS name, o.oid::pg_catalog.int8 AS oid,"
            " pg_catalog.current_database() AS database,"
            " o.rolcanlogin AND COALESCE(o.rolvaliduntil OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), true)"
            "  AS admitted,"
            " ARRAY(SELECT g.rolname::pg_catalog.text FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles g"
            "  ON g.oid OPERATOR(pg_catalog.=) m.roleid WHERE m.member OPERATOR(pg_catalog.=) w.oid) AS memberships,"
            " EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE m.roleid OPERATOR(pg_catalog.=) w.oid) AS lent,"
            " w.rolsuper OR w.rolcreaterole OR w.rolcreatedb OR w.rolreplication OR w.rolbypassrls AS more,"
            " EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s WHERE s.setrole OPERATOR(pg_catalog.=) w.oid"
            "  AND s.setdatabase OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND pg_catalog.concat('role=', current_user)"
            "  OPERATOR(pg_catalog.=) ANY (s.setconfig)) AS sets_role,"
            " ARRAY(SELECT s.setconfig::pg_catalog.text FROM pg_catalog.pg_db_role_setting s"
            "  WHERE s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, w.oid])"
            "   AND s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, d.oid])"
            "  ORDER BY s.setdatabase, s.setrole)::pg_catalog.text AS settings,"
            " (SELECT e.extversion FROM pg_catalog.pg_extension e"
            "   WHERE e.extname OPERATOR(pg_catalog.=) 'cerebro_db') AS version"
            " FROM pg_catalog.pg_roles o JOIN pg_catalog.pg_database d"
            "  ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() LEFT JOIN pg_catalog.pg_roles w"
            "  ON w.rolname OPERATOR(pg_catalog.=) pg_catalog.concat('cerebro_w_', o.oid)::pg_catalog.name"
            " WHERE o.rolname OPERATOR(pg_catalog.=) current_user"
        )
        if found is None or found["name"] != found["me"]:
            raise NotPermitted("could not determine the current user")
        trusted = found["more"] is False and not found["lent"]
        return cls(
            name=found["name"],
            oid=found["oid"],
            database=found["database"],
            admitted=found["admitted"],
            memberships=frozenset(found["memberships"]),
            trusted=trusted,
            sets_role=found["sets_role"] or not platform.of(db).sets_role_at_login,
            settings=found["settings"],
            version=found["version"],
            limit=platform.of(db).statement_limit(db),
            queued=platform.of(db).queues_statements(db),
        )

    @classmethod
    def acting(cls, db: Database, name: str) -> Owner:
        """The current user, who must be of that name."""
        user = cls.current(db)
        if user.name != name:
            raise NotPermitted(f'"{user.name}" cannot open a worker session of "{name}"')
        return user

    @property
    def worker(self) -> str:
        return worker_role(self.oid)

    @property
    def enrolled(self) -> bool:
        return self.admitted and self.trusted and self.sets_role and self.memberships == {GROUP, self.name}


def connect_as(db: Database, owner: str, application: str, listen: Listen) -> Session:
    return session_of(Owner.acting(db, owner), application, listen)


def session_of(user: Owner, application: str, listen: Listen) -> Session:
    """A session that logs in as the user's worker role and then sets the role to the user."""
    if user.limit is not None:
        user.limit.require(FEWEST, "the caller's own and, one after the other, those of the sessions that it opens")
    _slots.limit_to(user.limit)
    enroller = connect(ENROL, user.database, "cerebro_db enrol", listen, queued=user.queued)
    try:
        session = _admitted(enroller, user, application, listen)
    finally:
        enroller.close()
    session.slots = _slots
    if not user.sets_role:
        _set_role_at_login(user, session)
    session.run("SET ROLE " + quote(user.name))
    session.another = partial(session_of, user, application)
    return session


def _set_role_at_login(user: Owner, session: Session) -> None:
    """Have every login of the worker role begin as the user.  Only the role itself can ask for that.

    A function with its owner's rights, such as cerebro._enrol, may not name the parameter "role".
    """
    # Another session may be doing the same at this moment.
    with contextlib.suppress(psycopg2.errors.InternalError_, psycopg2.errors.UniqueViolation):
        session.run(f"ALTER ROLE {quote(user.worker)} SET role TO {quote(user.name)}")


def _admitted(enroller: Session, user: Owner, application: str, listen: Listen) -> Session:
    """Log in as the worker role of a user; another session may open or close the same login meanwhile."""
    enroller.run("SET synchronous_commit = off")  # what a crash undoes here, the next login does again
    deadline, attempts = time.monotonic() + LOGIN_WITHIN, 0
    while True:
        try:
            with _open_login(enroller, user):
                return connect(user.worker, user.database, application, listen, queued=user.limit is not None)
        except (CannotConnect, psycopg2.Error) as error:
            if not _others_were_here(error) or time.monotonic() > deadline:
                raise
        attempts += 1
        time.sleep(random.uniform(0, min(attempts * PAUSE, 1)))  # else the same sessions meet again
        listen()


@contextlib.contextmanager
def _open_login(enroller: Session, user: Owner) -> Iterator[None]:
    """Make the worker role's password valid for the block."""
    verifier = scram_verifier(password(user.worker))
    ((worker,),) = enroller.run("SELECT cerebro._enrol(%s, %s)", (user.name, verifier))
    if worker is None:
        raise NotPermitted(
            f'the role "{user.name}" may not log in, so the server opens no worker session for it',
            detail="The role has NOLOGIN, or its VALID UNTIL has passed.",
            hint=f"ALTER ROLE {quote(user.name)} LOGIN VALID UNTIL 'infinity'; or train as a role that may log in.",
        )
    # The end of the validity is not committed before the login is done. Until then the row of the role is locked, so
    # code in another session of the role cannot change the password that is valid now.
    enroller.run("BEGIN; SELECT cerebro._close_login(%s)", (user.name,))
    try:
        yield
    finally:
        enroller.run("COMMIT")


def _others_were_here(error: CannotConnect | psycopg2.Error) -> bool:
    """Whether a login failed because another session altered the role at the same moment."""
    if isinstance(error, CannotConnect):
        return "password authentication failed" in (error.detail or "")
    return error.pgcode == CONCURRENTLY_UPDATED
