"""Aliases: names for a version that move, such as ``production``; and versions that leave the registry."""

from __future__ import annotations

from cerebro_db.core.errors import InUse, InvalidArgument, NotPermitted, UndefinedObject, WrongState

from ..database.access import Database
from ..database.entry import entry
from ..definitions import references
from . import history, stored
from .history import RegisteredModel
from .steps import as_registry


@entry
def set_alias(
    db: Database, registered_model: str | None, alias: str | None, version: int | None, reason: str | None
) -> None:
    """Let the alias name this version; without a version, no version."""
    name_version(db, registered_model, alias, version, reason)


def name_version(
    db: Database, registered_model: str | None, alias: str | None, version: int | None, reason: str | None
) -> None:
    history.require_short("reason", reason)
    model, named = _movable(db, registered_model, alias)

    def step(registry: Database) -> None:
        if version is None:
            _version_of(registry, model, named)
        else:
            _require_version(registry, model, version)
        move(registry, model, named, version, reason)

    as_registry(db, step)


@entry
def roll_back(db: Database, registered_model: str | None, alias: str | None, reason: str | None) -> int:
    """Let the alias name the version that it named before; return its number."""
    history.require_short("reason", reason)
    model, named = _movable(db, registered_model, alias)

    def step(registry: Database) -> int:
        now, there = _version_of(registry, model, named), history.versions(registry, model.name)
        for before in history.earlier(registry, model.name, named):
            if before != now and before in there:
                move(registry, model, named, before, reason)
                return before
        raise WrongState(
            f"'{named}' of '{model.name}' has named no other version that is still there.",
            hint="cerebro.set_alias() lets it name any version.",
        )

    return as_registry(db, step)


def remove_version(db: Database, registered_model: str | None, version: int | None, reason: str | None) -> None:
    """Remove the tables of a version.  Its number and its history stay."""
    history.require_short("reason", reason)
    if version is None:
        raise InvalidArgument("version must not be NULL.", hint="It is the number of one version.")
    model = history.known(db, registered_model)
    history.require(model, model.manages, admin=True)
    table = references.table_name(model.name, version)
    as_registry(db, lambda registry: _require_unused(registry, model, version))
    if not as_registry(db, lambda registry: stored.lock(registry, table)):  # before others wait for the model
        raise InUse(f"version {version} of '{model.name}' is being read.", hint="Try again when nobody reads it.")
    model = history.locked(db, registered_model)
    history.require(model, model.manages, admin=True)

    def step(registry: Database) -> None:
        _require_unused(registry, model, version)
        bodies = stored.bodies(registry, table)
        stored.remove(registry, table)
        others = [one for one in history.versions(registry, model.name) if one != version]
        needed = [
            body
            for other in others
            for body in (stored.bodies(registry, references.table_name(model.name, other)) if bodies else ())
        ]
        for body in bodies:
            if body not in needed:
                stored.drop(registry, body)
        history.write(registry, model.name, "unregistered", by=model.caller, version=version, reason=reason)

    as_registry(db, step)


def move(registry: Database, model: RegisteredModel, alias: str, version: int | None, reason: str | None) -> None:
    history.write(registry, model.name, "alias", by=model.caller, alias=alias, version=version, reason=reason)


def _movable(db: Database, registered_model: str | None, alias: str | None) -> tuple[RegisteredModel, str]:
    named = references.require_name(alias, "alias", "production")
    model = history.locked(db, registered_model)
    if not model.may_move:
        raise NotPermitted(
            f"you may not move the aliases of '{model.name}', which belongs to {model.whose}.",
            hint=f"The owner can say: SELECT cerebro.share('{model.name}', '{model.caller}', 'alias');",
        )
    return model, named


def _version_of(registry: Database, model: RegisteredModel, alias: str) -> int:
    found = history.aliases(registry, model.name)
    if alias not in found:
        listed = f"It has {', '.join(found)}." if found else "It has none. cerebro.set_alias() makes one."
        raise UndefinedObject(f"the model '{model.name}' has no alias '{alias}'.", hint=listed)
    return found[alias]


def _require_unused(registry: Database, model: RegisteredModel, version: int) -> None:
    """An error unless the version is there and no alias names it."""
    _require_version(registry, model, version)
    named = [alias for alias, its in history.aliases(registry, model.name).items() if its == version]
    if named:
        raise InUse(
            f"version {version} of '{model.name}' stays, because it is {', '.join(named)}.",
            hint=f"Move the alias first: SELECT cerebro.set_alias('{model.name}', '{named[0]}', …);",
        )


def _require_version(registry: Database, model: RegisteredModel, version: int) -> None:
    there = history.versions(registry, model.name)
    if version not in there:
        listed = f"It has {', '.join(map(str, there))}." if there else "It has none. cerebro.register() adds one."
        raise UndefinedObject(f"the model '{model.name}' has no version {version}.", hint=listed)
