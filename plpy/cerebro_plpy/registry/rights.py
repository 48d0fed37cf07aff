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
from . import history, references, stored
from .history import RegisteredModel
from .steps import as_registry

RIGHTS = ("use", "read", "alias")


@entry
def share(db: Database, registered_model: str | None, role: str | None, right: str | None) -> None:
    _change(db, "shared", registered_model, role, right)


@entry
def unshare(db: Database, registered_model: str | None, role: str | None, right: str | None) -> None:
    _change(db, "unshared", registered_model, role, right)


def grant(registry: Database, model: RegisteredModel, version: int) -> None:
    """Give all that have a right to the model their rights to the tables of a version."""
    grant_to(registry, references.table_name(model.name, version), model.owner, "read")
    for role, rights in history.shared(registry, model.name).items():
        grant_to(registry, references.table_name(model.name, version), role, *rights)


def grant_to(registry: Database, table: Name, role: str, *rights: str) -> None:
    """Let a role read what these rights allow, and nothing else."""
    allowed = {ending for ending in stored.USED if {"use", "read"} & {*rights}}
    allowed |= {stored.WEIGHTS for right in rights if right == "read"}
    for ending in (*stored.USED, stored.WEIGHTS):
        name, grantee = table.suffixed(ending).sql, identifier(role)
        if ending in allowed:
            registry.execute(sql("GRANT SELECT ON TABLE {table} TO {role}", table=name, role=grantee))
        else:
            registry.execute(sql("REVOKE SELECT ON TABLE {table} FROM {role}", table=name, role=grantee))


def _change(db: Database, event: str, registered_model: str | None, role: str | None, right: str | None) -> None:
    model = history.known(db, registered_model)
    history.require(model, model.owns, admin=False)
    if right not in RIGHTS:
        raise InvalidArgument(f"right must be one of {', '.join(RIGHTS)}.", hint="use: predict with the model.")
    if role is None or not db.value(sql("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1"), ("text",), role):
        raise UndefinedObject(f"there is no role '{role or ''}'.", hint="\\du lists the roles; CREATE ROLE makes one.")
    if role == model.owner:
        raise InvalidArgument(f"{role} owns '{model.name}' and has all rights.")

    def step(registry: Database) -> None:
        history.lock(registry, model.name)
        if (right in history.shared(registry, model.name).get(role, ())) == (event == "shared"):
            return  # so it is already
        history.write(registry, model.name, event, by=model.caller, role=role, right=right)
        rights = history.shared(registry, model.name).get(role, ())
        for version in history.versions(registry, model.name):
            grant_to(registry, references.table_name(model.name, version), role, *rights)

    as_registry(db, step)
    if event == "shared" and not db.value(
        sql("SELECT pg_catalog.pg_has_role($1::name, 'cerebro_user', 'USAGE')"), ("text",), role
    ):
        db.warning(
            f"{role} may call no function of cerebro_db yet.",
            hint=f"GRANT cerebro_user TO {quoted(role)};",
        )
