"""The doctor's checks of roles: the roles that CREATE EXTENSION made, and the worker roles of users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cerebro_db.core.sql import sql

from ..sessions import logins
from .report import OK, PROBLEM, WARNING, Examined, Row

GROUPS: dict[str, set[str]] = {  # role -> the roles that it is a member of
    "cerebro_user": set(),
    "cerebro_monitor": set(),
    "cerebro_admin": {"cerebro_user", "cerebro_monitor"},
    "cerebro_worker": set(),
    "cerebro_enrol": {"cerebro_worker"},
    "cerebro_registry": set(),
}
WORKER = re.compile(r"cerebro_w_(\d+)_[0-9a-f]+")

MEMBERS = sql(
    "SELECT g.rolname::text AS role, m.rolname::text AS member, a.admin_option AS admin, m.rolsuper AS superuser"
    " FROM pg_catalog.pg_auth_members a JOIN pg_catalog.pg_roles g ON g.oid = a.roleid"
    " JOIN pg_catalog.pg_roles m ON m.oid = a.member"
    " WHERE g.rolname ~ '^cerebro_' OR m.rolname ~ '^cerebro_'"
)
ROLES = sql(
    "SELECT rolname::text AS name, oid::bigint AS oid, rolcanlogin AS login, rolsuper OR rolcreaterole OR rolcreatedb"
    " OR rolreplication OR rolbypassrls AS more FROM pg_catalog.pg_roles WHERE rolname ~ '^cerebro_'"
)


def groups(examined: Examined) -> Iterator[Row]:
    """The roles have exactly the rights and members that CREATE EXTENSION gave them."""
    roles = {row["name"]: row for row in examined.db.rows(ROLES)}
    held: dict[str, set[str]] = {}
    members: dict[str, list[dict[str, Any]]] = {}
    for row in examined.db.rows(MEMBERS):
        held.setdefault(row["member"], set()).add(row["role"])
        members.setdefault(row["role"], []).append(row)
    missing = [name for name in GROUPS if name not in roles]
    if missing:
        advice = (
            "CREATE ROLE each; then, in each database, repeat the GRANTs to it in cerebro_db--….sql of the server's"
            " extension folder, and SELECT cerebro_internal._setup_logins();"
        )
        yield Row("roles", "roles", PROBLEM, f"missing: {', '.join(missing)}", advice)
    wrong = []
    for name, wanted in GROUPS.items():
        if name in missing:
            continue
        if roles[name]["more"]:
            wrong.append(f"{name} has powers of its own (SUPERUSER, CREATEROLE, …)")
        if roles[name]["login"] != (name == logins.ENROL):
            wrong.append(f"{name} {'may' if roles[name]['login'] else 'may not'} log in")
        if extra := held.get(name, set()) - wanted:
            wrong.append(f"{name} is a member of {', '.join(sorted(extra))}")
        if lacking := wanted - held.get(name, set()):
            wrong.append(f"{name} is not a member of {', '.join(sorted(lacking))}")
    known = {logins.ENROL} | {name for name in roles if WORKER.fullmatch(name)}
    for row in members.get(logins.GROUP, []):
        if row["member"] not in known:
            wrong.append(f"{row['member']} is a member of cerebro_worker, which is reserved for the server's logins")
    for name in (logins.ENROL, "cerebro_registry"):
        for row in members.get(name, []):
            wrong.append(f"{row['member']} is a member of {name}, which is reserved for the server")
    if wrong:
        advice = "REVOKE, or ALTER ROLE … NOSUPERUSER NOCREATEROLE and the like; see docs/security.md."
        yield Row("roles", "groups", PROBLEM, "; ".join(wrong), advice)
    else:
        yield Row("roles", "groups", OK, ", ".join(GROUPS))
    admins = sorted(row["member"] for row in members.get("cerebro_admin", []))
    yield Row("roles", "admins", OK, f"members of cerebro_admin: {', '.join(admins) or 'nobody'}")


def worker_roles(examined: Examined) -> Iterator[Row]:
    """Each worker role is a member of its user and of the group, and no role is a member of it."""
    roles = {
        row["name"]: (found, row["more"]) for row in examined.db.rows(ROLES) if (found := WORKER.fullmatch(row["name"]))
    }
    owners = {
        row["oid"]: row["name"]
        for row in examined.db.rows(sql("SELECT oid::bigint AS oid, rolname::text AS name FROM pg_catalog.pg_roles"))
    }
    members = examined.db.rows(MEMBERS)
    wrong, left = [], []
    for name, (found, more) in roles.items():
        held = {row["role"] for row in members if row["member"] == name}
        lent = sorted({row["member"] for row in members if row["role"] == name})
        if more:
            wrong.append(f"{name} has powers of its own")
        if lent:
            wrong.append(f"{name} is granted to {', '.join(lent)}")
        if other := held - {owners.get(int(found[1])), logins.GROUP}:
            wrong.append(f"{name} is a member of {', '.join(sorted(other))}")
        if not held:
            left.append(name)
    if wrong:
        advice = "DROP ROLE it as a superuser. Its session, if there is one, fails then."
        yield Row("roles", "worker roles", PROBLEM, "; ".join(wrong), advice)
    elif left:
        text = f"{', '.join(left)}: what their sessions left in some database keeps these roles, which can do nothing"
        advice = f"In each database DROP OWNED BY {', '.join(left)}; then the next login drops the roles."
        yield Row("roles", "worker roles", WARNING, text, advice)
    else:
        yield Row("roles", "worker roles", OK, f"{len(roles)}, each a member of its user and of {logins.GROUP} only")
