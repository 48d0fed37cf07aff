"""Who may do what with a registered model.

Three rights are shared, with any role, and a role that is a member of it has them, too:

- use: predict with the model, and judge it.  PostgreSQL's SELECT on the tables of its versions but those of weights.
- read: also take the weights, for an export or for further training.  SELECT on all tables.
- alias: move the aliases.

The owner of the model's name and the members of that role may do all of that, register versions, and share.  They and
cerebro_admin may unregister versions; cerebro_admin may also move aliases.
"""

from __future__ import annotations

from cerebro_db.core.errors import InvalidArgument, UndefinedObject
from cerebro_db.core.names import Name
from cerebro_db.core.sql import identifier, quoted, sql

from ..database.access import Database
from ..database.entry import entry
from ..definitions import references
from . import history, stored
from .history import RegisteredModel
from .steps import as_registry

RIGHTS = ("use", "read", "alias")
OF_THE_TABLES = "cerebro_registry"


@entry
def share(db: Database, registered_model: str | None, role: str | None, right: str | None) -> None:
    _change(db, "shared", registered_model, role, right)


@entry
def unshare(db: Database, registered_model: str | None, role: str | None, right: str | None) -> None:
    _change(db, "unshared", registered_model, role, right)


def grant(registry: Database, model: RegisteredModel, version: int) -> None:
    """Give all that have a right to the model their rights to the tables of a version."""
    table = references.table_name(model.name, version)
    if model.owner is not None:
        _grant_to(registry, table, model.owner, "read")
    for role, rights in history.shared(registry, model.name).items():
        _grant_to(registry, table, role, *rights)


def _grant_again(registry: Database, model: RegisteredModel) -> None:
    """After DROP OWNED BY, which takes the privileges of a role."""
    for version in history.versions(registry, model.name):
        grant(registry, model, version)


def _grant_to(registry: Database, table: Name, role: str, *rights: str) -> None:
    """Let a role read what these rights allow, and nothing else."""
    allowed = {ending for ending in stored.USED if {"use", "read"} & {*rights}}
    allowed |= {ending for ending in stored.READ if "read" in rights}
    tables = [(table.suffixed(ending), ending in allowed) for ending in stored.endings(registry, table)]
    tables += [(body, "read" in rights) for body in stored.bodies(registry, table)]
    for named, may_read in tables:
        name, grantee = named.sql, identifier(role)
        if may_read:
            registry.execute(sql("GRANT SELECT ON TABLE {table} TO {role}", table=name, role=grantee))
        else:
            registry.execute(sql("REVOKE SELECT ON TABLE {table} FROM {role}", table=name, role=grantee))


def _change(db: Database, event: str, registered_model: str | None, role: str | None, right: str | None) -> None:
    if right not in RIGHTS:
        raise InvalidArgument(f"right must be one of {', '.join(RIGHTS)}.", hint="use: predict with the model.")
    if role is None or not db.value(sql("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1"), ("text",), role):
        raise UndefinedObject(f"there is no role '{role or ''}'.", hint="\\du lists the roles; CREATE ROLE makes one.")
    model = history.locked(db, registered_model)
    history.require(model, model.owns, admin=False)
    if role == model.owner and event == "shared":
        as_registry(db, lambda registry: _grant_again(registry, model))
        return
    if role in (model.owner, OF_THE_TABLES):
        raise InvalidArgument(f"role: {role} has all rights to '{model.name}'.", hint="They cannot be given or taken.")

    def step(registry: Database) -> list[int]:
        held = history.shared(registry, model.name).get(role, ())
        if event == "unshared" and right not in held:
            has = f"{role} has {' and '.join(held)}" if held else f"{role} was given none"
            raise UndefinedObject(f"{role} was not given the right '{right}' to '{model.name}'.", hint=f"{has}.")
        if (right in held) != (event == "shared"):
            history.write(registry, model.name, event, by=model.caller, role=role, right=right)
        rights = history.shared(registry, model.name).get(role, ())
        there = history.versions(registry, model.name)
        for version in there:  # also where nothing is new: DROP OWNED BY may have taken the privileges
            _grant_to(registry, references.table_name(model.name, version), role, *rights)
        return there

    there = as_registry(db, step)
    _tell_what_holds(db, event, model, role, right, there)


def _tell_what_holds(
    db: Database, event: str, model: RegisteredModel, role: str, right: str, versions: list[int]
) -> None:
    """Say it if a right has no effect yet, or if the role keeps it in another way."""
    if event == "shared":
        may_call = sql("SELECT pg_catalog.pg_has_role($1::name, 'cerebro_user', 'USAGE')")
        if not db.value(may_call, ("text",), role):
            db.warning(f"{role} may call no function of cerebro_db yet.", hint=f"GRANT cerebro_user TO {quoted(role)};")
        return
    may_read = sql("SELECT pg_catalog.has_table_privilege($1::name, pg_catalog.to_regclass($2), 'SELECT')")
    for name, ending in (("use", ""), ("read", stored.WEIGHTS)):
        table = references.table_name(model.name, versions[-1]).suffixed(ending) if versions and right == name else None
        if table is not None and db.value(may_read, ("text", "text"), role, table.quoted):
            db.warning(
                f"{role} still has the right '{right}' to '{model.name}': by another right, or as a member of a role.",
                hint="SELECT * FROM cerebro.registered_rights lists the rights that were given.",
            )
