"""Architectures that a user has added by a name, and what the architecture of a configuration means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Callable

from cerebro_db.core import documents
from cerebro_db.core.architecture import building, keras2, keras_json
from cerebro_db.core.architecture.limits import MOST_BYTES
from cerebro_db.core.architecture.sources import Kind, Source
from cerebro_db.core.errors import BadData, CerebroError, InvalidArgument, UndefinedObject, WrongState
from cerebro_db.core.models.state import PIECE, cut
from cerebro_db.core.parameters import flat
from cerebro_db.core.records import dataclass
from cerebro_db.core.search.decision import AddedWeights
from cerebro_db.core.sql import Sql, literal, sql

from ..database.access import Database
from ..database.entry import entry

LONGEST = 200  # bytes of a name
ME = sql("pg_catalog.quote_ident(current_user)::pg_catalog.regrole")
VALUE = sql(
    "FROM cerebro.added_architecture"
    " WHERE name = $1 AND owner = (SELECT quote_ident(current_user)::regrole) AND NOT dropped"
)
PIECES = sql("FROM cerebro.added_weights WHERE name = $1 AND owner = (SELECT quote_ident(current_user)::regrole)")
HINT = (
    f"An architecture is a kind ({', '.join(building.PARAMETERS)}), the name of one that cerebro.add_architecture() has"
    " added (SELECT name FROM cerebro.architectures), or JSON of Keras."
)


@entry(longest=MOST_BYTES)
def add_architecture(
    db: Database, name: str | None, architecture: str | None, initial_weights: bytes | None, description: str | None
) -> None:
    if name is None or not name.strip() or len(name.encode()) > LONGEST or name != name.strip() or name[0] in "{[":
        raise InvalidArgument(
            f"name must be a text of 1 to {LONGEST} bytes that begins and ends with no space, and not with"
            f" a bracket, not {'NULL' if name is None else documents.shown(name)}.",
            hint="For instance 'my_network'.",
        )
    if name in building.PARAMETERS:
        raise InvalidArgument(f"'{name}' is a kind of architecture.", hint="Choose another name.")
    try:
        parameters = _parameters(db, architecture, initial_weights)
    except CerebroError as error:
        error.hint = error.hint or "model.to_json() of Keras gives the architecture."
        raise
    flat.require_parameters(parameters, "architecture")
    if _row(db, name) is not None:
        raise WrongState(
            f"you have added an architecture '{name}' already.",
            hint=f"Choose another name, or SELECT cerebro.drop_architecture('{name}'); first.",
        )
    db.execute(
        sql("INSERT INTO cerebro.added_architecture (name, architecture, parameters, description)"
            " VALUES ($1, $2::json, $3, $4)"),
        ("text", "text", "text[]", "text"),
        name, architecture, parameters, description,
    )  # fmt: skip
    start = 0
    for piece in cut(initial_weights or b""):
        db.execute(
            sql("INSERT INTO cerebro.added_weights (name, start, payload) VALUES ($1, $2, $3)"),
            ("text", "bigint", "bytea"),
            name, start, piece,
        )  # fmt: skip
        start += len(piece)


def _parameters(db: Database, architecture: str | None, initial: bytes | None) -> list[str]:
    """The parameters of an architecture; an error if it cannot be trained."""
    if architecture is None:
        raise InvalidArgument("architecture must not be NULL.", hint="model.to_json() of Keras gives it.")
    parameters = keras_json.parameters(architecture)
    if parameters is None:
        keras_json.architecture(architecture)  # refuses now, not in a run, what is no architecture or runs code
        for warning in keras2.warnings(keras_json.decoded(architecture)):
            db.warning(warning)
    elif initial is not None:
        raise InvalidArgument(
            f"an architecture with parameters ({', '.join(parameters)}) cannot have initial_weights.",
            hint="The sizes of the weights depend on the values of the parameters.",
        )
    if initial is not None and len(initial) % 4:
        raise BadData(
            f"initial_weights has {len(initial)} bytes, which is not a multiple of 4.",
            hint="Weights are float32: np.concatenate([w.flatten() for w in model.get_weights()]).tobytes().",
        )
    return parameters or []


def _row(db: Database, name: str) -> dict[str, Any] | None:
    return db.one(
        sql("SELECT architecture::text AS given, octet_length(weights) AS in_value,"
            " (SELECT sum(octet_length(payload))::bigint {pieces}) AS in_pieces {value}", pieces=PIECES, value=VALUE),
        ("text",),
        name,
    )  # fmt: skip


def _weights(db: Database, name: str, row: dict[str, Any]) -> Callable[[], Iterator[bytes]] | None:
    if row["in_value"] is not None:  # added in version 0.1.0
        return lambda: cut(db.value(sql("SELECT weights {value}", value=VALUE), ("text",), name))
    return partial(_pieces, db, name, row["in_pieces"]) if row["in_pieces"] else None


def _pieces(db: Database, name: str, size: int) -> Iterator[bytes]:
    cursor = db.cursor(sql("SELECT start, payload {pieces} ORDER BY start", pieces=PIECES), ("text",), name)
    end = 0
    while batch := cursor.fetch(1):
        if batch[0]["start"] != end:
            break
        yield batch[0]["payload"]
        end += len(batch[0]["payload"])
    cursor.close()
    if end != size:
        raise WrongState(
            f"the weights of the architecture '{name}' have {size:,} bytes, and the first {end:,} of them can be read.",
            hint=f"SELECT cerebro.drop_architecture('{name}'); and add it again.",
        )


def stored(name: str) -> Sql:
    """The pieces of the weights of an added architecture, as a query names them after FROM."""
    return sql(
        "(SELECT w.start, w.payload FROM cerebro.added_weights w WHERE w.owner = {me} AND w.name = {name}"
        " UNION ALL SELECT n::bigint * {piece}, substr(a.weights, n * {piece} + 1, {piece})"  # of version 0.1.0
        " FROM cerebro.added_architecture a, generate_series(0, (octet_length(a.weights) - 1) / {piece}) n"
        " WHERE a.owner = {me} AND a.name = {name} AND NOT a.dropped AND a.weights IS NOT NULL)",
        me=ME,
        name=literal(name),
        piece=PIECE,
    )


def are_there(given: AddedWeights) -> Sql:
    """Whether an architecture has these weights still, as an expression."""
    return sql(
        "COALESCE((SELECT encode(sha256(string_agg(sha256(d.payload), '' ORDER BY d.start)), 'hex') = {sha256}"
        " FROM {pieces} d), false)",
        sha256=literal(given.sha256),
        pieces=stored(given.name),
    )


def recorded(name: str, pieces: Iterable[bytes]) -> AddedWeights:
    """What a run remembers of weights.  The hash is that of the pieces' hashes, which the server can compute, too."""
    size, digest = 0, hashlib.sha256()
    for piece in pieces:
        size += len(piece)
        digest.update(hashlib.sha256(piece).digest())
    return AddedWeights(name, size, digest.hexdigest())


@dataclass(frozen=True)
class Named:
    """An architecture as a configuration names it."""

    label: str
    source: Source
    weights: Callable[[], Iterator[bytes]] | None = None  # the pieces of those that training starts from


def named(db: Database, value: Any, where: str) -> Named:
    """What the value of ``architecture`` means."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = keras_json.decoded(value)
    if isinstance(value, dict):
        if not isinstance(value.get("class_name"), str):
            raise InvalidArgument(f"{where}: the architecture is no JSON of a Keras model.", hint=HINT)
        _require_sound(value, where)
        config = value.get("config")
        own = config.get("name") if isinstance(config, dict) else None
        return Named(own if isinstance(own, str) and own else value["class_name"], value)
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(f"{where}: the architecture cannot be {documents.shown(value)}.", hint=HINT)
    if value in building.PARAMETERS:
        return Named(value, Kind(value, {}, where))
    row = _row(db, value)
    if row is None:
        raise UndefinedObject(f"{where}: there is no architecture {documents.shown(value)}.", hint=HINT)
    return Named(value, keras_json.decoded(row["given"]), _weights(db, value, row))


def _require_sound(given: dict[str, Any], where: str) -> None:
    try:
        parameters = keras_json.parameters(json.dumps(given))
        if parameters is None:
            keras_json.architecture(given)
    except CerebroError as error:
        error.message = f"{where}: the architecture: {error.message}"
        raise
    flat.require_parameters(parameters or (), where)


def labelled(found: Iterable[Named]) -> dict[Any, Named]:
    """By different labels."""
    made: dict[Any, Named] = {}
    for one in found:
        label, number = one.label, 1
        while label in made:
            number += 1
            label = f"{one.label} #{number}"
        made[label] = one
    return made
