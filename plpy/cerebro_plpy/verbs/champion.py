"""The version that an alias names, how it was made, and the rows on which a new model is compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cerebro_db.core import codec
from cerebro_db.core.architecture import building, ensembles, trees
from cerebro_db.core.arguments import PackArguments
from cerebro_db.core.errors import BadData, InvalidArgument, NotPermitted, Unsupported, WrongState
from cerebro_db.core.models.member_choice import MemberConfiguration, read_members
from cerebro_db.core.names import Name, StoredName
from cerebro_db.core.options import NEW_GROUPS
from cerebro_db.core.packing import related_argument
from cerebro_db.core.packing.packed_summary import Packing
from cerebro_db.core.parameters import flat
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import identifier, shown, sql

from ..database.access import Database
from ..database.relations import Column, Relation
from ..definitions import references
from ..models import trained
from ..models.trained import Grouped, TrainedModel
from ..packing import checked_arguments, pack
from ..packing.rows import group_key
from ..registry import history
from ..runs.record import own_runs
from ..runs.record.own_runs import OwnRun
from .registering import row_of

NAMES_OF_TABLES = ("source_table", "packed_table", "validation_table", "model_table")  # columns of _summary
# The arguments of packing that divide the rows; those of a validation table are not divided.
DIVIDING = ("validation", "split_by", "split_at", "stratify", "folds")


@dataclass(frozen=True)
class RowsOfToday:
    """The tables that a new model is trained on: those of the call, or those of a run of the caller."""

    table: Relation
    validation: Relation | None  # the table with all rows for validation; None: they are a part of ``table``
    related: Mapping[str, str]  # the related tables that the run of the version read, by path

    def arguments_like(self, packing: Packing) -> dict[str, Any]:
        """The arguments of packing of the version, with today's validation table."""
        found = {name: value for name, value in packing.arguments.items() if not isinstance(value, StoredName)}
        if isinstance(found.get("related"), str):
            found["related"] = self._related(found["related"])
        if self.validation is None:
            return found
        if "validation_table" not in packing.arguments:
            found = {**{name: value for name, value in found.items() if name not in DIVIDING}, "validation": 0.0}
        return {**found, "validation_table": self.validation.name.quoted}

    def _related(self, text: str) -> str:
        try:
            return related_argument.with_tables(text, self.related)
        except KeyError as error:
            raise WrongState(
                f"related: the version reads the table at the end of {error.args[0]}, and no run of yours says which it"
                " is: it was trained by another role or imported, or its run was forgotten.",
                hint="Train on today's rows by hand: cerebro.train(…, related => …). docs/security.md says why.",
            ) from None


@dataclass(frozen=True)
class Champion:
    """The version that the alias names, and how it was made."""

    model: str
    alias: str
    version: int
    infos: list[dict[str, Any]]  # its rows of _info
    summary: dict[str, Any]  # without the names of tables: those are in the call, or in the log of the caller
    run: OwnRun | None  # the run that trained it, if it is one of the caller's
    packing: Packing
    configurations: list[dict[str, Any]]  # to train: those of ``infos``, or those of the members of an ensemble
    epochs: int  # the most after which the best state of one of them was kept
    inputs: tuple[str, ...]
    target: str
    is_class: bool  # whether the target is a class
    grouped: Grouped | None  # its models of groups

    @property
    def reference(self) -> str:
        return f"{self.model}@{self.version}"

    @property
    def what(self) -> str:
        """What is retrained: the name of its runs and of the lock."""
        return f"retrain {self.model}@{self.alias}"


def of_alias(db: Database, registered_model: str | None, alias_name: str | None) -> Champion:
    """The version that the alias names; an error if a new model could not be registered or promoted."""
    model = history.known(db, registered_model)
    alias = references.require_name(alias_name, "alias", "production")
    history.require(model, model.owns, admin=False)
    if not model.may_move:
        raise NotPermitted(f"you may not move the aliases of '{model.name}'.")
    ref = references.of_reference(db, f"{model.name}@{alias}")
    table, tables = ref.table, trained.tables_of(db, ref)
    found = trained.read(db, tables, None)
    assert tables.info is not None and tables.summary is not None
    summary = {name: one for name, one in row_of(db, tables.summary, None).items() if name not in NAMES_OF_TABLES}
    version = int(table.table.rpartition("@")[2])
    if summary.get("group_key") is not None:
        raise Unsupported(
            f"version {version} of '{model.name}' is the model of the group {summary['group_key']}, and"
            " cerebro.retrain() trains on the rows of all groups.",
            hint="Retrain the registered model that has all groups, and register the group's model again with"
            " cerebro.register(…, group_value => …).",
        )
    if summary.get("packing") is None:
        raise WrongState(
            f"version {version} of '{model.name}' does not say how its rows were packed.",
            hint="Train and register it once more by hand: what cerebro.train(), search() and fit() of this version"
            " pack says it.",
        )
    if found.layout.outputs[1:]:
        raise Unsupported(
            f"'{model.name}' has {len(found.layout.outputs)} targets, and cerebro.retrain() compares models of one.",
            hint="Train, judge and register it by hand (docs/production.md#retrain-by-hand).",
        )
    where = f"the packing of {model.name}@{version}"
    keys = db.rows(sql("SELECT configuration FROM {table} ORDER BY configuration", table=table.sql))
    models = [trained.of_configuration(db, found, row["configuration"]) for row in keys]
    infos = [row_of(db, tables.info, one.key) for one in models]
    configurations, epochs = _configurations(db, f"the members of {model.name}@{version}", infos, models)
    made = () if found.layout.related is None else found.layout.related.names
    return Champion(
        model=model.name,
        alias=alias,
        version=version,
        infos=infos,
        summary=summary,
        run=own_runs.of_model(db, summary["run"], found.layout),
        packing=codec.read(Packing, summary["packing"], where),
        configurations=configurations,
        epochs=epochs or summary["epochs"],
        inputs=tuple(dict.fromkeys(name for one in found.layout.inputs for name in one.columns if name not in made)),
        target=found.layout.outputs[0].columns[0],
        is_class=found.layout.outputs[0].target != "real",
        grouped=found.grouped,
    )


def _configurations(
    db: Database, where: str, infos: list[dict[str, Any]], models: list[TrainedModel]
) -> tuple[list[dict[str, Any]], int]:
    """The configurations to train, and the most epochs after which the best state of one of them was kept.

    Each member of an ensemble is trained alone: one network of all of them would have the sizes of the earlier rows.
    """
    found, epochs = [], 0
    for info, model in zip(infos, models):
        built = model.definition["architecture"]
        members = read_members(info.get("members"), where)
        one_by_one = members or [MemberConfiguration(info["architecture"], info["parameters"] or {}, info["epoch"])]
        layers = ensembles.members_of(built) if members[1:] else [built]
        if len(layers) != len(one_by_one):
            raise BadData(f"{where} are {len(one_by_one)}, and its architecture has {len(layers)}.")
        for member, its in zip(one_by_one, layers):
            found.append(configuration_of(db, member, its))
            epochs = max(epochs, member.epoch or 0)
    return found, epochs


def configuration_of(db: Database, member: MemberConfiguration, built: Any) -> dict[str, Any]:
    """The configuration of a member, flat.  ``built``: its architecture, with the sizes that the rows gave it."""
    parameters = member.parameters
    if trees.are_grown(built):  # on record they have the parameters of an optimizer that trained nothing
        parameters = {name: one for name, one in parameters.items() if name not in flat.OF_STEPS}
    return _configuration(_architecture(db, member.architecture, built), parameters)


def _architecture(db: Database, name: str | None, built: Any) -> Any:
    """The name of an architecture, which is built for the new rows, or else the layers as they were."""
    added = sql("SELECT EXISTS (SELECT FROM cerebro.architectures a WHERE a.name = $1)")
    if name in building.PARAMETERS or (name is not None and db.value(added, ("text",), name)):
        return name
    return built


def _configuration(architecture: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(architecture, str):  # its parameters are in its layers
        parameters = {name: one for name, one in parameters.items() if name in flat.RESERVED}
    return {flat.ARCHITECTURE: architecture, **parameters}


def packed_like(source: RowsOfToday, arguments: Mapping[str, Any]) -> PackArguments:
    return PackArguments(source_table=source.table.name.quoted, output_table="unused", **{"target": None, **arguments})


def validation_query(db: Database, champion: Champion, source: RowsOfToday, *groups: Name) -> str:
    """The query of the rows that packing keeps for validation, from which neither model has learned.

    Groups have rows for validation of their own (splits.py).  If the new model is trained without groups, the rows are
    those that are for validation with groups and without.  Otherwise they are those of groups that both models know;
    ``groups``: the tables that have them.
    """
    arguments = source.arguments_like(champion.packing)
    others = _rows_for_validation(db, source, arguments)
    if champion.grouped is None and "group_by" in arguments:
        without = _rows_for_validation(db, source, without_groups(arguments))
        if others.condition is not None and without.condition is not None:
            others = others.also(without.condition)
    if champion.grouped is not None and champion.grouped.new_groups == NEW_GROUPS[0]:
        columns = [Column(one.name, one.type.name, str(one.type), "", None) for one in champion.grouped.columns]
        key = group_key.of(columns, lambda column: identifier(column.name))
        for table in (champion.grouped.table.name, *groups):
            others = others.also(sql("{key} IN (SELECT group_key FROM {table})", key=key, table=table.sql))
    return shown(sql("SELECT * FROM {rows} AS cerebro_rows", rows=others.rows))


def without_groups(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "group_by"}


def _rows_for_validation(db: Database, source: RowsOfToday, arguments: Mapping[str, Any]) -> Relation:
    given = packed_like(source, arguments)
    wanted = pack.checked(db, given)
    if not wanted.is_validated:
        raise InvalidArgument(
            "the models cannot be compared: the rows of the version were packed without rows for validation.",
            hint="query => 'SELECT …' names rows that neither model has learned from.",
        )
    others = checked_arguments.sides(
        db, wanted.source, wanted.split, given.validation_table, wanted.known, wanted.completed(db)
    ).validation
    assert others is not None
    pack.drop_copies(db, wanted.source, others)
    return replace(others, copy=None, more=())  # whoever predicts them reads the related tables then
