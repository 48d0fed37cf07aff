"""``cerebro.retrain``: trains the configuration of a registered model on the rows of today, and promotes it if it wins.

One call does everything, in the session that calls it or in one of its own: it packs the rows as those of the version
were packed, trains, has both models predict the same rows, registers the new one, and moves the alias.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg2

from cerebro_db.core import documents, member_choice, metrics
from cerebro_db.core.architecture import building, ensembles
from cerebro_db.core.arguments import PACKING, PackArguments
from cerebro_db.core.errors import BadData, CerebroError, InvalidArgument, NotPermitted, Unsupported, WrongState
from cerebro_db.core.events import Event, Following
from cerebro_db.core.following import Step
from cerebro_db.core.member_choice import MemberConfiguration, read_members
from cerebro_db.core.metrics import MAX, MIN
from cerebro_db.core.model_columns import COMPANIONS
from cerebro_db.core.names import LONGEST, Name, StoredName, written_list
from cerebro_db.core.options import BEST, NEW_GROUPS
from cerebro_db.core.packed_summary import Packing
from cerebro_db.core.parameters import flat
from cerebro_db.core.records import dataclass
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.sql import Sql, identifier, joined, shown, sql
from cerebro_db.core.texts import counted

from ..data import asked, group_key, kept_rows, pack, run_memory, visibility
from ..database import locks, relations
from ..database.access import Database
from ..database.entry import INTERNAL, entry
from ..database.relations import Column, Relation
from ..judging.drift import read_packing
from ..predicting import calibrations, trained
from ..predicting.trained import Grouped, TrainedModel
from ..registry import history, references
from ..runs import background, ensembling, verbs
from ..runs.record import own_runs
from ..runs.record.log import RunLog, past
from ..runs.record.own_runs import OwnRun
from ..runs.request import budgets
from ..runs.request.given import FIT, Given
from ..runs.request.training_rows import PACKED, PACKED_ENDINGS, ROOM_FOR_ENDINGS
from ..segment import memory
from ..sessions import recorder
from ..sessions.session import Statement
from .registering import row_of

BEST_IS: dict[str, str] = {
    **dict.fromkeys(("accuracy", "f1", "auc", "balanced_accuracy", "r2"), MAX),
    **dict.fromkeys(("log_loss", "ece", "rmse", "mse", "mae", "mape"), MIN),
}
# The metrics of cerebro.evaluate that are nearest to objectives of runs, by the objective without its "val_".
OF_OBJECTIVES = {name: name for name in BEST_IS} | {"root_mean_squared_error": "rmse", "mean_absolute_error": "mae"}
# What a run was asked to do that its successor does, too.
SAME_OPTIONS = ("engine", "precision", "deterministic", "shard")
SAME_OF_GROUPS = ("least_group_rows", "groups_start")
NAMES_OF_TABLES = ("source_table", "packed_table", "validation_table", "model_table")  # columns of _summary
# The arguments of packing that divide the rows; those of a validation table are not divided.
DIVIDING = ("validation", "split_by", "split_at", "stratify", "folds")
ENDINGS = ("", *COMPANIONS, *(PACKED + ending for ending in PACKED_ENDINGS))  # of the tables of a call
# Bytes of a model's name in the names of these tables, so that packing need not cut them.
LONGEST_STEM = LONGEST - len(PACKED) - ROOM_FOR_ENDINGS - len("_retrained_999")


# The rows of a query in the order of their numbers, which are the keys, as arrays: of each the actual value, and the
# prediction, or the probability of its class and whether that was predicted.
OF_NUMBERS = sql(
    "SELECT array_agg(value ORDER BY k) AS numbers, array_agg(actual ORDER BY k) AS actual"
    " FROM (SELECT (p.key_value::json ->> 0)::bigint AS k, (p.key_value::json ->> 1)::double precision AS actual,"
    " p.value FROM cerebro.predict($1, $2, $3) p) a WHERE actual IS NOT NULL AND $4 IS NOT NULL"
)
OF_CLASSES = sql(
    "SELECT array_agg(probability ORDER BY k) AS numbers, array_agg(hit ORDER BY k) AS hits,"
    " array_agg(actual ORDER BY k) AS actual FROM (SELECT k, actual,"
    " max(probability) FILTER (WHERE class IS NOT DISTINCT FROM actual) AS probability,"
    " bool_or(rank = 1 AND class IS NOT DISTINCT FROM actual) AS hit"
    " FROM (SELECT (p.key_value::json ->> 0)::bigint AS k, p.key_value::json ->> 1 AS actual, p.class, p.probability,"
    " p.rank FROM cerebro.predict($1, $2, $3, NULL, 1000000) p) a WHERE actual IS NOT NULL OR $4 GROUP BY k, actual) b"
)


@dataclass(frozen=True)
class RetrainArguments:
    """The arguments of ``cerebro.retrain``."""

    registered_model: str | None
    alias: str | None
    source_table: str | None
    query: str | None
    metric: str | None
    margin: float | None
    epochs: int | None
    use_gpus: bool | None
    if_unchanged: bool | None
    wait: bool | None
    validation_table: str | None
    budget: str | None
    standard_errors: float | None


@dataclass(frozen=True)
class RowsOfToday:
    """The tables that a new model is trained on: the call has named them, or a run of the caller's."""

    table: Relation
    validation: Relation | None  # the table with all rows for validation; None: they are a part of the others

    def packed_like(self, packing: Packing) -> dict[str, Any]:
        """The arguments of packing, as the version has them, but for its tables."""
        found = {name: value for name, value in packing.arguments.items() if not isinstance(value, StoredName)}
        if self.validation is None:
            return found
        if "validation_table" not in packing.arguments:
            found = {**{name: value for name, value in found.items() if name not in DIVIDING}, "validation": 0.0}
        return {**found, "validation_table": self.validation.name.quoted}


@dataclass(frozen=True)
class Champion:
    """The version that the alias names, and how it was made."""

    model: str
    alias: str
    version: int
    infos: list[dict[str, Any]]  # its rows of _info
    summary: dict[str, Any]  # without the names of tables, which the call and the log of the caller say
    run: OwnRun | None  # that trained it, if that is one of the caller's
    packing: Packing
    configurations: list[dict[str, Any]]  # to be trained: those of ``infos``, or of the members of an ensemble
    epochs: int  # after which the best state of one of them was kept
    inputs: tuple[str, ...]
    target: str
    is_class: bool  # whether the target is one of classes
    grouped: Grouped | None  # its models of groups

    @property
    def reference(self) -> str:
        return f"{self.model}@{self.version}"

    @property
    def what(self) -> str:
        """What is retrained: the name of its runs and of the lock."""
        return f"retrain {self.model}@{self.alias}"


@dataclass(frozen=True)
class Judging:
    """What is to be done with the new model, as the record of its run says it."""

    registered_model: str
    alias: str
    metric: str
    margin: float
    standard_errors: float  # of the difference, by which the new model must be better
    query: str | None  # of the rows for the comparison; None: those for validation

    @property
    def steps(self) -> tuple[Step, ...]:
        judge, *others = (Following.JUDGE, Following.REGISTER, Following.PROMOTE, Following.REMOVE)
        given = {name: value for name, value in vars(self).items() if value is not None}
        return (Step(judge, arguments=given), *map(Step, others))

    @classmethod
    def read(cls, fields: documents.Fields) -> Judging:
        return cls(
            fields.text("registered_model"),
            fields.text("alias"),
            fields.choice("metric", BEST_IS),
            fields.number("margin", 0, sys.float_info.max),
            fields.number("standard_errors", 0, sys.float_info.max),
            fields.text("query", default=None),
        )


@dataclass(frozen=True)
class Judged:
    """How the new model and the version of the alias, ``version``, predicted the same rows."""

    version: int
    before: float
    after: float
    needed: float  # by how much the new model had to be better
    wins: bool
    says: str

    def to_json(self) -> dict[str, Any]:
        figures = {name: repr(getattr(self, name)) for name in FIGURES}  # JSON has no infinite numbers
        return {**vars(self), **figures}

    @classmethod
    def read(cls, found: Mapping[str, dict[str, Any]]) -> Judged:
        """``found``: what the steps have found, by their names."""
        judged = found[Following.JUDGE.value]
        before, after, needed = (float(judged[name]) for name in FIGURES)
        return cls(judged["version"], before, after, needed, judged["wins"], judged["says"])


FIGURES = ("before", "after", "needed")


@entry
def retrain(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """One row about the new version; none if there was nothing to do."""
    given = RetrainArguments(**arguments)
    visibility.refuse_transaction(db)
    champion = _champion(db, given.registered_model, given.alias)
    metric = _metric(given, champion)
    _require_sound(db, given)
    source = _rows_to_train_on(db, given, champion)
    if given.wait is False:
        return _submitted(db, given, champion)
    if not db.value(locks.attempt(sql("$1")), ("text",), f"cerebro_db {champion.what}"):
        db.notice(
            f"'{champion.model}@{champion.alias}' is being retrained by another session, so this call does nothing"
        )
        return []
    trained_before = None if given.if_unchanged else _of_these_rows(db, champion, source)
    if trained_before is not None:
        db.notice(
            f"the rows of {source.table.text} are those that {trained_before} was trained on,"
            " so this call does nothing",
            "if_unchanged => true trains nevertheless.",
        )
        return []
    query = given.query or _validation_query(db, champion, source)
    _value(db, metric, champion.reference, query)  # before anything is trained: the query may be wrong
    output = _free_name(db, champion.model)
    asked = Judging(
        champion.model, champion.alias, metric, given.margin or 0.0, given.standard_errors or 0.0, given.query
    )
    run = verbs.run_verb(db, replace(_fit(db, champion, given, source, output), follows=asked.steps))
    assert run is not None
    found = RunLog.of_caller(db, run).events.followed()
    judged, version = Judged.read(found), found[Following.REGISTER.value]["version"]
    db.notice(
        f"{champion.model}@{version} has {judged.says}, so "
        + (
            f"it is '{champion.alias}' now; cerebro.roll_back('{champion.model}', '{champion.alias}') takes that back"
            if judged.wins
            else f"'{champion.alias}' stays version {judged.version}, because it has to be better by more than"
            f" {judged.needed:.2g}"
        )
    )
    return [
        {"run": run, "version": version, "metric": metric, "before": judged.before, "after": judged.after,
         "promoted": judged.wins}
    ]  # fmt: skip


@entry(called=INTERNAL)
def after_retraining(db: Database, run: int, task: str) -> str:
    """Carry out a step that follows the training of a run of the caller's; returns what it found, as JSON."""
    log = RunLog.of_caller(db, run)
    output, options = log.known.model_table(), log.known.options()
    steps = {step.task.value: step for step in options.follows} if options is not None else {}
    if task not in steps or Following.JUDGE.value not in steps:
        raise WrongState(f"run {run} is not followed by the step '{task}' of cerebro.retrain().")
    asked = Judging.read(documents.Fields(steps[Following.JUDGE.value].arguments, f"what follows run {run}"))
    try:
        return json.dumps(_after_training(db, log, Following(task), asked, output))
    except BaseException as error:
        _note(db, run, error)
        raise


def _after_training(db: Database, log: RunLog, step: Following, asked: Judging, output: Name) -> dict[str, Any]:
    if step is Following.REMOVE:
        _drop(db, output)
        return {}
    champion = _champion(db, asked.registered_model, asked.alias)
    if step is Following.JUDGE:
        return _judged(db, log.run, champion, asked, output).to_json()
    found = log.events.followed()
    judged = Judged.read(found)
    reason = f"retrained from version {judged.version} by run {log.run}: {judged.says}"
    if step is Following.REGISTER:
        register = sql("SELECT cerebro.register($1, $2, reason => $3)")
        return {"version": db.value(register, ("text", "text", "text"), champion.model, output.quoted, reason)}
    if judged.wins:
        version = found[Following.REGISTER.value]["version"]
        types = ("text", "text", "integer", "text")
        db.rows(sql("SELECT cerebro.set_alias($1, $2, $3, $4)"), types, champion.model, champion.alias, version, reason)
    return {}


def _require_sound(db: Database, given: RetrainArguments) -> None:
    """Raise the errors of the arguments that do not depend on the version."""
    if given.margin is None or not 0 <= given.margin < float("inf"):
        raise InvalidArgument("margin must be 0 or more.", hint="How much better the new model must be, in the metric.")
    if given.standard_errors is None or not 0 <= given.standard_errors < float("inf"):
        raise InvalidArgument(
            "standard_errors must be 0 or more.", hint="0 compares by margin alone; 1 is the default."
        )
    if given.epochs is not None and given.epochs < 1:
        raise InvalidArgument(f"epochs is {given.epochs}; it must be at least 1.")
    if given.budget is not None:
        budgets.read(db, given.budget, "budget")


# -- what there is -----------------------------------------------------------------------------------------


def _champion(db: Database, registered_model: str | None, alias_name: str | None) -> Champion:
    """An error, before anything is trained, if its successor could not be registered or promoted."""
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
            hint="Train, judge and register it by hand (docs/retrain.md).",
        )
    where = f"the packing of {model.name}@{version}"
    keys = db.rows(sql("SELECT configuration FROM {table} ORDER BY configuration", table=table.sql))
    models = [trained.of_configuration(db, found, row["configuration"]) for row in keys]
    infos = [row_of(db, tables.info, one.key) for one in models]
    configurations, epochs = _configurations(db, f"the members of {model.name}@{version}", infos, models)
    return Champion(
        model=model.name,
        alias=alias,
        version=version,
        infos=infos,
        summary=summary,
        run=own_runs.of_model(db, summary["run"], found.layout),
        packing=Packing.read(documents.Fields(summary["packing"], where)),
        configurations=configurations,
        epochs=epochs or summary["epochs"],
        inputs=tuple(dict.fromkeys(name for one in found.layout.inputs for name in one.columns)),
        target=found.layout.outputs[0].columns[0],
        is_class=found.layout.outputs[0].target != "real",
        grouped=found.grouped,
    )


def _configurations(
    db: Database, where: str, infos: list[dict[str, Any]], models: list[TrainedModel]
) -> tuple[list[dict[str, Any]], int]:
    """The configurations to train, and the most epochs after which the best state of one of them was kept.

    Each member of an ensemble is trained by itself: a network of all of them would have the sizes of the rows of
    before.
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
            found.append(_configuration(_architecture(db, member.architecture, its), member.parameters))
            epochs = max(epochs, member.epoch or 0)
    return found, epochs


def _architecture(db: Database, name: str | None, built: Any) -> Any:
    """A kind or an architecture that the user has added, which fits the new rows; else the layers as they were."""
    added = sql("SELECT EXISTS (SELECT FROM cerebro.architectures a WHERE a.name = $1)")
    if name in building.PARAMETERS or (name is not None and db.value(added, ("text",), name)):
        return name
    return built


def _configuration(architecture: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(architecture, str):  # its parameters are in its layers
        parameters = {name: one for name, one in parameters.items() if name in flat.RESERVED}
    return {flat.ARCHITECTURE: architecture, **parameters}


def _metric(given: RetrainArguments, champion: Champion) -> str:
    """The metric by which the models are compared: the argument, or the objective of the run, or the loss."""
    if given.metric is not None:
        if given.metric not in BEST_IS:
            raise InvalidArgument(
                f"metric cannot be '{given.metric}'.", hint=f"cerebro.evaluate() has {', '.join(BEST_IS)}."
            )
        return given.metric
    objective = str(champion.summary.get("objective") or "").removeprefix("val_").removeprefix("train_")
    return OF_OBJECTIVES.get(objective, "log_loss" if champion.is_class else "rmse")


def _rows_to_train_on(db: Database, given: RetrainArguments, champion: Champion) -> RowsOfToday:
    """Tables that the call names, or that the caller named for the run of the version.

    The summary of the version names some, too, which whoever wrote it has chosen.
    """
    version = f"version {champion.version} of '{champion.model}'"

    def missing(argument: str) -> WrongState:
        why = (
            f"{version} was trained by another role (or imported, or its run was forgotten)"
            if champion.run is None
            else f"the run of {version} does not say it: the call named packed rows, or an earlier version recorded it"
        )
        return WrongState(
            f"{argument}: {why}, so say which table.", hint=f"{argument} => 'schema.table'; docs/retrain.md says why."
        )

    run = champion.run
    if given.source_table is not None:
        source = relations.filled(db, given.source_table, argument="source_table")
    else:
        own = None if run is None else run.source(db)
        if own is None:
            raise missing("source_table")
        source = relations.filled(db, own.name.quoted, argument="source_table")
    if given.validation_table is not None:
        return RowsOfToday(source, relations.filled(db, given.validation_table, argument="validation_table"))
    if "validation_table" not in champion.packing.arguments:
        return RowsOfToday(source, None)
    own = None if run is None else run.validation(db)
    if own is None:
        raise missing("validation_table")
    return RowsOfToday(source, own)


def _packed_like(source: RowsOfToday, arguments: Mapping[str, Any]) -> PackArguments:
    return PackArguments(source_table=source.table.name.quoted, output_table="unused", **{"target": None, **arguments})


def _of_these_rows(db: Database, champion: Champion, source: RowsOfToday) -> str | None:
    """The version that was trained on what packing would make of the source now; None: there is none.

    It is the one of the alias, or the last one that a call like this has made: it has lost, or was rolled back.
    """
    if _is_unchanged(db, champion.packing, source):
        return champion.reference
    last = db.value(
        sql(
            "SELECT max(version) FROM cerebro.registered_versions"
            " WHERE registered_model = $1 AND run_name = $2 AND unregistered_at IS NULL AND may_read"
        ),
        ("text", "text"),
        champion.model,
        champion.what,
    )
    if last is None or last == champion.version:
        return None
    reference = f"{champion.model}@{last}"
    packing = read_packing(db, references.of_reference(db, reference))
    return reference if packing is not None and _is_unchanged(db, packing, source) else None


def _is_unchanged(db: Database, packing: Packing, source: RowsOfToday) -> bool:
    """Whether packing would make of the source what it made before."""
    if packing.fingerprint is None or ("validation_table" in packing.arguments) != (source.validation is not None):
        return False
    like = pack.checked(db, _packed_like(source, source.packed_like(packing)))
    return kept_rows.fingerprint_of(db, like) == packing.fingerprint


def _validation_query(db: Database, champion: Champion, source: RowsOfToday, *groups: Name) -> str:
    """The query of the rows that packing keeps for validation, from which neither model has learned.

    Groups have rows for validation of their own (splits.py).  If the new model is trained without groups, the rows are
    those that are for validation with groups and without.  Otherwise they are those of groups that both models know;
    ``groups``: the tables that have them.
    """
    arguments = source.packed_like(champion.packing)
    others = _rows_for_validation(db, source, arguments)
    if champion.grouped is None and "group_by" in arguments:
        without = _rows_for_validation(db, source, _without_groups(arguments))
        if others.condition is not None and without.condition is not None:
            others = _also(others, without.condition)
    if champion.grouped is not None and champion.grouped.new_groups == NEW_GROUPS[0]:
        columns = [Column(one.name, one.type.name, str(one.type), "", None) for one in champion.grouped.columns]
        key = group_key.of(columns, lambda column: identifier(column.name))
        for table in (champion.grouped.table.name, *groups):
            others = _also(others, sql("{key} IN (SELECT group_key FROM {table})", key=key, table=table.sql))
    return shown(sql("SELECT * FROM {rows} AS cerebro_rows", rows=others.rows))


def _without_groups(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "group_by"}


def _also(rows: Relation, condition: Sql) -> Relation:
    """The rows that fulfil this condition, too."""
    if rows.condition is None:
        return replace(rows, condition=condition)
    return replace(rows, condition=sql("({one}) AND ({other})", one=rows.condition, other=condition))


def _rows_for_validation(db: Database, source: RowsOfToday, arguments: Mapping[str, Any]) -> Relation:
    given = _packed_like(source, arguments)
    wanted = pack.checked(db, given)
    if not wanted.is_validated:
        raise InvalidArgument(
            "the models cannot be compared: the rows of the version were packed without rows for validation.",
            hint="query => 'SELECT …' names rows that neither model has learned from.",
        )
    others = asked.sides(db, wanted.source, wanted.split, given.validation_table).validation
    assert others is not None
    return others


# -- training, comparing, registering ----------------------------------------------------------------------


def _fit(db: Database, champion: Champion, given: RetrainArguments, source: RowsOfToday, output: Name) -> Given:
    arguments = source.packed_like(champion.packing)
    if champion.grouped is None:  # it is trained on rows without groups
        arguments = _without_groups(arguments)
    options: dict[str, Any] = {}
    before = None if champion.run is None else RunLog.of_caller(db, champion.run.number).known.options()
    if before is not None:
        same = (*SAME_OPTIONS, *(SAME_OF_GROUPS if champion.grouped is not None else ()))
        recorded = before.to_json()
        options.update({name: recorded[name] for name in same if name in recorded})
    allowed = memory.within_limit(db, champion.summary.get(run_memory.COLUMN), bool(given.use_gpus))
    if allowed is not None:
        options[run_memory.COLUMN] = allowed
    if champion.grouped is not None:
        options["new_groups"] = champion.grouped.new_groups
    if champion.summary.get("which") == BEST:
        options["keep"] = BEST
    if "seed" in arguments:
        options["seed"] = arguments["seed"]
    epochs = given.epochs or champion.epochs
    return Given(
        verb=FIT,
        source_table=source.table.name.quoted,
        model_table=output.quoted,
        target=arguments.get("target") or written_list([champion.target]),
        configurations=json.dumps(champion.configurations),
        **{name: arguments.get(name) for name in PACKING if name != "inputs"},
        inputs=written_list(champion.inputs),
        epochs=epochs,
        budget=_budget(given, before),
        objective=champion.summary.get("objective"),
        direction=champion.summary.get("direction"),
        evaluate_every=min(champion.summary.get("evaluate_every") or 0, epochs) or None,
        use_gpus=given.use_gpus,
        run_name=champion.what,
        description=f"from version {champion.version}",
        options=options,
    )


def _budget(given: RetrainArguments, before: RunOptions | None) -> str | None:
    """The argument; or, if the caller says nothing of the length, the seconds that the run of the version had."""
    if given.budget is not None or given.epochs is not None or before is None or before.budget is None:
        return given.budget
    seconds = before.budget.seconds
    return None if seconds is None else json.dumps({"seconds": seconds, "least_epochs": 1})


def _join(db: Database, champion: Champion, output: Name) -> None:
    """The successor of an ensemble is an ensemble, of the models that are good on the rows of today."""
    if champion.infos[0].get("members") is not None:
        ensembling.add(db, output, None)


def _calibrate(db: Database, champion: Champion, output: Name, query: str | None) -> None:
    """Intervals and calibrated probabilities of the version are asked of its successor, too."""
    if champion.grouped is not None or champion.infos[0].get(calibrations.COLUMN) is None:
        return
    validated = db.value(sql("SELECT validation_table FROM {summary} LIMIT 1", summary=output.suffixed("_summary").sql))
    rows = query if validated is None else None  # None: the rows for validation
    db.rows(sql("SELECT FROM cerebro.calibrate($1, $2)"), ("text", "text"), output.quoted, rows)


def _value(db: Database, metric: str, model: str, query: str) -> tuple[float, int]:
    """The metric, and the number of rows that it was measured on."""
    found = {
        row["metric"]: row["value"]
        for row in db.rows(sql("SELECT metric, value FROM cerebro.evaluate($1, $2)"), ("text", "text"), model, query)
    }
    if metric not in found:
        raise InvalidArgument(
            f"metric cannot be '{metric}' for this target.",
            hint=f"It has {', '.join(n for n in found if n != 'rows')}.",
        )
    if found[metric] is None:
        raise WrongState(
            f"{metric} has no value on {counted(int(found['rows'] or 0), 'row')} of the query.",
            hint="query => 'SELECT …' names other rows, and metric another metric.",
        )
    return found[metric], int(found["rows"])


def _judged(db: Database, run: int, champion: Champion, asked: Judging, output: Name) -> Judged:
    """How the new model and that which the alias names predict the same rows."""
    _join(db, champion, output)
    _calibrate(db, champion, output, asked.query)
    query = asked.query
    if query is None:
        # Rows may have come while the new model was trained.
        own = own_runs.of_number(db, run)
        source = None if own is None else own.source(db)
        if own is None or source is None:
            raise WrongState(f"run {run} does not say which rows it was trained on, so its model cannot be judged.")
        rows = RowsOfToday(relations.filled(db, source.name.quoted, argument="source_table"), own.validation(db))
        query = _validation_query(db, champion, rows, output.suffixed("_groups"))
    before = _value(db, asked.metric, champion.reference, query)
    after = _value(db, asked.metric, output.quoted, query)
    spread = None
    if asked.standard_errors:
        spread = _standard_error(db, asked.metric, (champion.reference, output.quoted), query, after[1])
    needed = max(asked.margin, asked.standard_errors * (spread or 0.0))
    wins = metrics.is_better(BEST_IS[asked.metric], after[0], before[0], needed)
    says = f"{asked.metric} {after[0]:.6g} instead of {before[0]:.6g} on {counted(after[1], 'row')}"
    if spread is not None:
        says += f" (standard error of the difference: {spread:.2g})"
    return Judged(champion.version, before[0], after[0], needed, wins, says)


def _standard_error(db: Database, metric: str, models: tuple[str, str], query: str, rows: int) -> float | None:
    """The standard error of the difference of the models in the metric; None: it cannot be computed.

    Both predict the same rows, so the differences of the rows count.  A metric that is no mean over the rows is taken
    as one: rmse and r2 by their derivatives; balanced_accuracy, f1 and auc as the share of right classes, in which each
    class counts alike; ece as the share of right classes.  ``rows``: how many the models were compared on.  Of windows
    whose target is that of the majority, rows cannot be told apart.
    """
    losses = [_losses(db, metric, model, query) for model in models]
    if not rows or any(len(one) != rows for one in losses):
        return None
    return member_choice.difference(*losses)[1]


def _losses(db: Database, metric: str, model: str, query: str) -> list[float]:
    """What each row adds to the metric, but for its sign; nothing if there are no rows."""
    judged = db.one(
        sql("SELECT * FROM cerebro._judging('cerebro.retrain', $1, $2, NULL, NULL, 'any', NULL)"),
        ("text", "text"), model, query,
    )  # fmt: skip
    assert judged is not None
    statement = OF_NUMBERS if judged["classes"] is None else OF_CLASSES
    (row,) = db.rows(
        statement, ("text", "text", "text", "boolean"), model, judged["rows_query"], judged["row_key"],
        bool(judged["null_is_class"]),
    )  # fmt: skip
    if row["numbers"] is None:
        return []
    if judged["classes"] is None:
        return _of_errors(metric, row["numbers"], row["actual"])
    if metric == "log_loss":
        return [-math.log(max(one or 0.0, metrics.LEAST_PROBABILITY)) for one in row["numbers"]]
    wrong = [0.0 if one else 1.0 for one in row["hits"]]
    if metric in ("accuracy", "ece"):
        return wrong
    frequency: Counter[str | None] = Counter(row["actual"])
    return [one * len(wrong) / (len(frequency) * frequency[its]) for one, its in zip(wrong, row["actual"])]


def _of_errors(metric: str, predicted: list[float], actual: list[float]) -> list[float]:
    errors = [one - truth for one, truth in zip(predicted, actual)]
    if metric == "mae":
        return [abs(one) for one in errors]
    if metric == "mape":
        return [abs(one / truth) if truth else 0.0 for one, truth in zip(errors, actual)]
    squares = [one * one for one in errors]
    mse = math.fsum(squares) / len(squares)
    middle = math.fsum(actual) / len(actual)
    unit = {
        "rmse": 2 * math.sqrt(mse),
        "r2": math.fsum((one - middle) ** 2 for one in actual) / len(actual),
    }.get(metric, 1.0)
    return [one / (unit or 1.0) for one in squares]


def _note(db: Database, run: int, error: BaseException) -> None:
    """Say in the log of the run what became of its models: perhaps nobody waits for this call."""
    with contextlib.suppress(psycopg2.Error, CerebroError), recorder.opened(db) as session:
        RunLog.of(session, run).events.note(Event.NOT_MATERIALIZED, message=str(error))


def _free_name(db: Database, model: str) -> Name:
    """A name for the tables of this call, in the schema where the user's new tables go."""
    stem, number = model[:LONGEST_STEM], 1
    while True:
        name = relations.qualified(db, Name.parse(f"{stem}_retrained" + (f"_{number}" if number > 1 else "")))
        # A lock, because the model of another alias may be retrained at the same time.
        mine = db.value(locks.attempt(sql("$1")), ("text",), f"cerebro_db retrain into {name}")
        if mine and all(relations.find(db, name.suffixed(ending)) is None for ending in ENDINGS):
            return name
        number += 1


def _drop(db: Database, output: Name) -> None:
    """The registry has the model now; rows that were packed before for another call stay."""
    names = [name for ending in ENDINGS if relations.find(db, name := output.suffixed(ending)) is not None]
    db.patiently(sql("DROP TABLE {names}", names=joined(", ", (name.sql for name in names))))


def _submitted(db: Database, given: RetrainArguments, champion: Champion) -> list[dict[str, Any]]:
    """Have a session of its own do it; return when the run is on record, or when there is nothing to do."""
    before = past.newest_of_name(db, champion.what)
    names = [name for name in vars(given) if name != "wait"]
    call = joined(", ", (sql("{name} => {}", name=identifier(name)) for name in names))
    statement = Statement(
        sql("SELECT * FROM cerebro.retrain({call})", call=call), [getattr(given, name) for name in names]
    )
    background.begin(
        db,
        champion.what,
        statement,
        lambda: past.newest_of_name(db, champion.what) > before,
        search_path=db.value(sql("SELECT pg_catalog.current_setting('search_path')")),
    )
    run = past.newest_of_name(db, champion.what)
    if run <= before:
        db.notice(
            f"there is nothing to do for '{champion.model}@{champion.alias}': its rows have not changed, or another"
            " session retrains it"
        )
        return []
    return [{"run": run, "version": None, "metric": None, "before": None, "after": None, "promoted": None}]
