"""How the server logs in to itself as one of its users, and as nobody more.

Every user who starts a run has a *worker role* of their own, ``cerebro_w_<oid>``, which is a member of
exactly two roles: the user, and the group ``cerebro_worker`` that one line of ``pg_hba.conf`` admits.
A worker session logs in as that role and does ``SET ROLE user`` at once; ``RESET ROLE`` or ``RESET
SESSION AUTHORIZATION``, run by whatever code a user planted, gains nothing, because the worker role
can do nothing that its user could not.

The passwords are derived from a secret file in the data folder, which only the server's operating
system account can read; PostgreSQL itself keeps their SCRAM verifiers only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any

import psycopg2

from cerebro_db.core.errors import CannotConnect, NotPermitted
from cerebro_db.core.names import quote

from .db import Database, entry
from .sessions import Listen, Session

ENROL = "cerebro_enrol"
GROUP = "cerebro_worker"
SCRAM_ROUNDS = 4096


def data_folder() -> Path:
    """The cluster's data folder: every backend's working directory."""
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
        # Two sessions may get here at once: whoever links first wins, both read the winner's.
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
    """What PostgreSQL stores for a password; handing it this keeps the password out of its logs."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, SCRAM_ROUNDS)
    client_key = hmac.new(salted, b"Client Key", hashlib.sha256).digest()
    server_key = hmac.new(salted, b"Server Key", hashlib.sha256).digest()
    stored_key = hashlib.sha256(client_key).digest()
    salt64, stored64, server64 = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${SCRAM_ROUNDS}:{salt64}${stored64}:{server64}"


@entry
def setup_logins(db: Database) -> None:
    """Give the login that enrols others its password (CREATE EXTENSION, or a superuser later)."""
    db.execute(f"ALTER ROLE {quote(ENROL)} LOGIN NOINHERIT PASSWORD '{scram_verifier(password(ENROL))}'")


@entry
def enrol(db: Database, owner: str) -> str:
    """Make the worker role of ``owner``, or mend it; runs as the extension's owner."""
    oid = db.value("SELECT oid::bigint FROM pg_catalog.pg_roles WHERE rolname = $1", ("name",), owner)
    if oid is None:
        raise NotPermitted(f'role "{owner}" does not exist')
    worker = worker_role(oid)
    quoted = quote(worker)
    if not db.value("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", ("name",), worker):
        db.execute(f"CREATE ROLE {quoted}")
    # Whatever a role of this name was or had before, it is now exactly this.
    db.execute(
        f"ALTER ROLE {quoted} LOGIN INHERIT NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
        f" CONNECTION LIMIT -1 PASSWORD '{scram_verifier(password(worker))}'"
    )
    held = {
        row["rolname"]
        for row in db.rows(
            "SELECT g.rolname FROM pg_catalog.pg_auth_members m"
            " JOIN pg_catalog.pg_roles g ON g.oid = m.roleid JOIN pg_catalog.pg_roles w ON w.oid = m.member"
            " WHERE w.rolname = $1",
            ("name",),
            worker,
        )
    }
    for extra in held - {owner, GROUP}:
        db.execute(f"REVOKE {quote(extra)} FROM {quoted}")
    for wanted in {owner, GROUP} - held:
        db.execute(f"GRANT {quote(wanted)} TO {quoted}")
    return worker


def worker_role(oid: int) -> str:
    return f"cerebro_w_{oid}"


def addresses() -> list[dict[str, Any]]:
    """Where this server listens, most private first, as its own ``postmaster.pid`` says."""
    lines = (data_folder() / "postmaster.pid").read_text().splitlines()
    port, socket_folder, listen = int(lines[3]), lines[4].strip(), lines[5].strip()
    found: list[dict[str, Any]] = []
    if socket_folder:
        found.append({"host": os.path.abspath(socket_folder), "port": port})
    if listen:
        found.append({"host": "127.0.0.1" if listen in ("*", "0.0.0.0") else listen, "port": port})
    return found


def connect(role: str, database: str, application: str, listen: Listen) -> Session:
    """Log in to this very server as ``role``."""
    problems = []
    for address in addresses():
        try:
            return Session.open(
                listen,
                **address,
                user=role,
                password=password(role),
                dbname=database,
                application_name=application,
                passfile="/dev/null",  # nothing of the environment's
                options="-c client_min_messages=notice -c lock_timeout=10s -c statement_timeout=0",
            )
        except psycopg2.OperationalError as error:
            problems.append(str(error).strip().splitlines()[-1])
    raise CannotConnect(
        "the server cannot open a worker session to itself",
        detail="; ".join(problems),
        hint="pg_hba.conf needs, before other lines:  local all +cerebro_worker scram-sha-256   "
        "(then SELECT pg_reload_conf()). SELECT * FROM cerebro.doctor() checks it.",
    )


def connect_as(db: Database, owner: str, application: str, listen: Listen) -> Session:
    """A worker session that acts as ``owner``: logged in as the owner's worker role, then SET ROLE."""
    found = db.one(
        "SELECT o.oid::bigint AS oid, current_database()::text AS database,"
        " (SELECT array_agg(g.rolname::text ORDER BY g.rolname = $2 DESC) FROM pg_catalog.pg_auth_members m"
        "  JOIN pg_catalog.pg_roles g ON g.oid = m.roleid JOIN pg_catalog.pg_roles w ON w.oid = m.member"
        "  WHERE w.rolname = 'cerebro_w_' || o.oid) AS memberships"
        " FROM pg_catalog.pg_roles o WHERE o.rolname = $1",
        ("name", "text"),
        owner,
        GROUP,
    )
    assert found is not None  # the owner is the current user
    role, database = worker_role(found["oid"]), found["database"]
    session = None
    if found["memberships"] == [GROUP, owner]:
        try:
            session = connect(role, database, application, listen)
        except CannotConnect:
            session = None  # an old password, from before a restore: enrolling again mends it
    if session is None:
        enroller = connect(ENROL, database, "cerebro_db enrol", listen)
        try:
            enroller.run("SELECT cerebro._enrol(%s)", (owner,))
        finally:
            enroller.close()
        session = connect(role, database, application, listen)
    session.run("SET ROLE " + quote(owner))
    return session
