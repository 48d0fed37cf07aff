"""``cerebro.register``: copies a trained model into a version, which nobody can change, of a name that users share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cerebro_db.core.architecture.adapters import document as adapters
from cerebro_db.core.errors import InvalidArgument, NotPermitted, SerializationFailure, Unsupported
from cerebro_db.core.models import quality
from cerebro_db.core.models.model_columns import (
    INFO_COLUMNS,
    LATER_COLUMNS,
    SUMMARY_COLUMNS,
    SUMMARY_OF_GROUPS,
    SUMMARY_OF_ONE_GROUP,
)
from cerebro_db.core.packing.packed_summary import PLAIN
from cerebro_db.core.packing.preparation import OneHot
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, joined, sql
from cerebro_db.core.sql_types import TEXT

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import references
from ..definitions.references import ModelRef
from ..models import document_columns, trained
from ..models.trained import TrainedModel, class_labels
from ..predicting import trainers
from ..registry import aliases, history, rights, stored
from ..registry.steps import as_registry
from ..registry.stored import Content, Labels, Piece
from . import group_copies

# Columns of _info and _summary that the history repeats, because it outlives the tables of the version.
OF_INFO = ("configuration", "epoch", "objective_value", "validation_loss", "training_loss")
OF_SUMMARY = ("run", "run_name", "source_table", "packed_table", "validation_table", "target", "objective", "seed",
              "started_at", "ended_at", "cerebro_version", "group_by", "group_key")  # fmt: skip
LONGEST_DETAILS = 1_000_000  # characters


@dataclass(frozen=True)
class RegisterArguments:
    """The arguments of ``cerebro.register``."""

    registered_model: str | None
    model_table: str | None
    configuration: int | None = None
    alias: str | None = None
    description: str | None = None
    reason: str | None = None
    group_value: str | None = None
    merged: bool | None = False


@dataclass(frozen=True)
class Copy:
    """What a version gets."""

    key: int  # the configuration of its model on all rows, or of the only model
    content: Content
    weights: Iterable[Sequence[Piece]]
    told: dict[str, Any]  # for the history


@entry
def register(db: Database, **arguments: Any) -> int:
    """Add a version; return its number."""
    return add_version(db, RegisterArguments(**arguments))


def add_version(db: Database, given: RegisterArguments) -> int:
    name = references.require_name(given.registered_model, "registered_model", "churn")
    alias = None if given.alias is None else references.require_name(given.alias, "alias", "production")
    for argument in ("description", "reason"):
        history.require_short(argument, getattr(given, argument))
    if (theirs := history.find(db, name)) is not None:
        history.require(theirs, theirs.owns, admin=False)
    model, info, summary = _read(db, references.model_ref(db, given.model_table), given.configuration)
    merged = bool(given.merged) and _can_be_merged(model, given)
    before = model.version(db)
    copy = (
        _of_one_group(db, model, info, summary, given, merged=merged)
        if given.group_value is not None
        else _of_all_rows(db, model, info, summary, given.configuration, merged=merged)
    )
    if history.find(db, name) is None:
        _add_name(db, name, given.description)
    owned = history.locked(db, name)
    history.require(owned, owned.owns, admin=False)
    version = as_registry(db, lambda registry: history.next_version(registry, name))
    table = references.table_name(name, version)
    body = model.body(db) if given.group_value is None and model.grouped is None and not merged else None
    if body is None:
        size, sha256 = stored.create(db, table, copy.content, copy.weights)
    else:
        stored.create(db, table, copy.content, stored.cut_rows(model.key, model.own_rows(db)), refers=True)
        stored.refer(db, table, model.key, body.start, body.sha256, body.pieces)
        size, sha256 = stored.measured(model.weights(db))
    if model.version(db) != before:
        raise SerializationFailure(f"'{model.table.text}' was changed while it was copied.", hint="Try again.")
    copied = {"model_table": str(model.table.name), **copy.told, "bytes": size, "sha256": sha256}

    def finish(registry: Database) -> None:
        rights.grant(registry, owned, version)
        its_info, its_summary = stored.rows(registry, table, copy.key)
        details = {**{one: its_info.get(one) for one in OF_INFO}, **{one: its_summary.get(one) for one in OF_SUMMARY}}
        details["quality"] = quality.sentence_of(its_info.get("quality"))
        text = json.dumps({**details, **copied})
        if len(text) > LONGEST_DETAILS:
            raise InvalidArgument(
                "the names in the summary of the model table are too long.", hint="A name of a run, or of columns."
            )
        history.write(registry, name, "registered", by=owned.caller, version=version, reason=given.reason, details=text)
        if alias is not None:
            aliases.move(registry, owned, alias, version, given.reason)

    as_registry(db, finish)
    return version


def _read(
    db: Database, ref: ModelRef, configuration: int | None
) -> tuple[TrainedModel, relations.Relation, relations.Relation]:
    """The model, and its tables ``_info`` and ``_summary``."""
    model = trained.read(db, trained.tables_of(db, ref), configuration)
    if model.named is not trained.PLAIN:
        raise Unsupported(
            f"'{model.table.text}' is a table of MADlib's form, which the registry does not take.",
            hint="cerebro.train(), cerebro.search() and cerebro.fit() make tables that it takes.",
        )
    info, summary = model.tables.info, model.tables.summary
    assert info is not None and summary is not None
    return model, info, summary


def _can_be_merged(model: TrainedModel, given: RegisterArguments) -> bool:
    """Whether there are adapters to merge; an error if they cannot be merged."""
    architecture = model.definition["architecture"]
    if adapters.KEY not in architecture:
        return False
    if adapters.has_bottleneck(architecture):
        raise Unsupported(
            f"merged cannot be true: configuration {model.key} has networks behind its layers (bottleneck), which no"
            " weights of these layers can have in them.",
            hint="Leave merged out: the version then has its adapters. LoRA and biases can be merged.",
        )
    if model.grouped is not None and given.group_value is None:
        raise Unsupported(
            "merged cannot be true for a table with models of groups.",
            hint="Leave merged out, or register the model of one group: group_value => '…'.",
        )
    return True


def _of_all_rows(
    db: Database,
    model: TrainedModel,
    info: relations.Relation,
    summary: relations.Relation,
    configuration: int | None,
    *,
    merged: bool,
) -> Copy:
    """The model on all rows, and the models of groups that predict, if there are some."""
    keys, groups = [model.key], None
    weights: Iterable[Sequence[Piece]] = stored.cut(None, model.key, _weights(db, model, merged=merged))
    told: dict[str, Any] = {"rows": model.layout.rows}
    if model.grouped is not None:
        rows = group_copies.rows_of(db, model, model.grouped, configuration)
        keys = sorted({model.key, *(row.configuration for row in rows)})
        groups = [row.document for row in rows]
        weights = itertools.chain(weights, group_copies.weights_of(db, model, model.grouped, rows))
        told["groups"] = sum(row.size is not None for row in rows)
    content = Content(
        {key: _architecture(db, trained.of_configuration(db, model, key), merged=merged) for key in keys},
        [row_of(db, info, key) for key in keys],
        row_of(db, summary, None),
        [*_labels(db, model)],
        groups,
    )
    return Copy(model.key, content, weights, told)


def _of_one_group(
    db: Database,
    model: TrainedModel,
    info: relations.Relation,
    summary: relations.Relation,
    given: RegisterArguments,
    *,
    merged: bool,
) -> Copy:
    """The model of a group, as a model of its own: with its figures, and not calibrated."""
    group = group_copies.row_of(db, model, given.group_value or "", given.configuration)
    assert model.grouped is not None
    its = trained.of_configuration(db, model, group.configuration).of_group(model.grouped, group.number)
    figures = json.loads(group.document)
    its_info = {name: figures.get(name, value) for name, value in row_of(db, info, its.key).items()}
    told = {name: value for name, value in row_of(db, summary, None).items() if name not in SUMMARY_OF_GROUPS}
    content = Content(
        {its.key: _architecture(db, its, merged=merged)},
        [{**its_info, "calibration": None, "quality": None}],
        {**told, "group_key": group.key},
        [*_labels(db, its)],
    )
    return Copy(
        its.key, content, stored.cut(None, its.key, _weights(db, its, merged=merged)), {"rows": figures["rows"]}
    )


def _add_name(db: Database, name: str, description: str | None) -> None:
    """Give the name to the caller; an error if another user has it, perhaps only just now."""
    caller = db.value(sql("SELECT current_user::pg_catalog.text"))
    insert = sql(
        "INSERT INTO cerebro.registered_model (name, owner, description)"
        " VALUES ($1, pg_catalog.quote_ident($2)::pg_catalog.regrole, $3) ON CONFLICT DO NOTHING"
    )
    as_registry(db, lambda registry: registry.execute(insert, ("text", "text", "text"), name, caller, description))
    if history.find(db, name) is None:
        raise NotPermitted(f"registered_model: '{name}' belongs to another user.", hint="Choose another name.")


def _weights(db: Database, model: TrainedModel, *, merged: bool) -> Iterator[bytes]:
    return trainers.merged_weights(db, model) if merged else model.weights(db)


def _architecture(db: Database, model: TrainedModel, *, merged: bool) -> str:
    """The document of the architecture.  ``merged``: without its adapters, which the weights have in them."""
    if merged:
        return json.dumps(adapters.without(model.definition["architecture"]))
    text = sql("SELECT architecture::pg_catalog.text FROM {table} WHERE configuration = $1", table=model.table.sql)
    found: str = db.value(text, ("integer",), model.key)
    return found


def row_of(db: Database, table: relations.Relation, key: int | None) -> dict[str, Any]:
    """The row of _info, or that of _summary, by column: of those that cerebro_db makes, but for labels."""
    present = relations.columns(db, table)
    known = {**INFO_COLUMNS, **LATER_COLUMNS, **SUMMARY_COLUMNS, **SUMMARY_OF_GROUPS, **SUMMARY_OF_ONE_GROUP}
    names = [name for name in known if name in present]
    document_columns.require_known_types(present, table.text, names)  # to_jsonb() would run a cast of the type's owner
    chosen = sql(" WHERE configuration = {key}", key=key) if key is not None else sql("")
    text = db.value(
        sql(
            "SELECT pg_catalog.to_jsonb(r)::pg_catalog.text FROM (SELECT {names} FROM {table}{chosen} LIMIT 1) r",
            names=joined(", ", map(identifier, names)),
            table=table.sql,
            chosen=chosen,
        )
    )
    row: dict[str, Any] = json.loads(text)
    return row


def _labels(db: Database, model: TrainedModel) -> list[Labels]:
    """The labels of each class.  Those of a type of a user's become texts: casts of such types are code of users."""
    found = []
    for output in model.layout.outputs:
        if not isinstance(output.preparation, OneHot):
            continue
        own = output.preparation.type
        kept = own.name if own.is_built_in else TEXT.name
        labels = [*output.preparation.labels, *[None] * (len(class_labels(output)) - len(output.preparation.labels))]
        found.append(Labels(output.name + PLAIN.labels, kept, labels))
    return found
