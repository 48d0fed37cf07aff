"""The request for a fit: its arguments, checked, and the tables that they name, read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Callable

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.errors import (
    BadData,
    CerebroError,
    InvalidArgument,
    NotPermitted,
    OutOfResources,
    UndefinedObject,
    WrongState,
)
from cerebro_db.core.names import Name, StoredName, with_ending
from cerebro_db.core.options import GivenOptions
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.search import objective
from cerebro_db.core.search.objective import Reported
from cerebro_db.core.sql import sql

from ... import platform
from ...database import relations
from ...database.access import Database
from ...database.cancellation import listener
from ...database.relations import Relation
from ...definitions import custom_functions
from ...models import document_columns, weights
from ...packing import packed
from ...packing.packed import Packed
from ...platform import machine
from ...sessions import limits
from ..record.log import RunLog
from ..record.run import require_countable
from . import cross_validation, output, shape
from .options import choose_options

# Options that a replay takes over, and what another one would change.
REPLAYED = {
    "least_group_rows": "models of groups",
    "groups_start": "models of groups",
    "parallel": "visits",
    "visit_rows": "visits",
}

SHARE_FOR_COPIES = 0.5  # of the memory that is available, for the copies of the rows


@dataclass(frozen=True)
class Architecture:
    """An architecture of a run: what a model selection table or a configuration names."""

    name: str | None
    given: str
    translated: dict[str, Any]
    weights: Callable[[], Iterator[bytes]] | None  # the pieces of the weights to start from


@dataclass(frozen=True)
class FitConfiguration:
    """A configuration of a fit: its parameters as they were given, and as it trains."""

    key: int
    model_id: int
    compile_params: str | None
    fit_params: str | None
    compile: dict[str, Any]
    fit: dict[str, Any]
    arch_params: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """The flat parameters, without the architecture."""
        return flat.flatten(self.arch_params, self.compile, self.fit)


@dataclass(frozen=True)
class Configurations:
    """The configurations of a fit, and where they are from."""

    text: str  # as errors name them
    listed: list[FitConfiguration]
    architectures: dict[int, Architecture]
    selection: str = ""
    arch_table: str = ""

    def definition(self, one: FitConfiguration) -> dict[str, Any]:
        """What a trainer gets of a configuration."""
        architecture = self.architectures[one.model_id].translated
        return {"architecture": architecture, "compile": one.compile, "fit": one.fit}

    @property
    def reported(self) -> dict[int, Reported]:
        """The losses and metrics of each configuration."""
        outputs = {number: keras_json.outputs(one.translated) for number, one in self.architectures.items()}
        return {one.key: reported(one.compile, outputs[one.model_id]) for one in self.listed}


@dataclass(frozen=True)
class AskedRun:
    """What any call that begins a run names: packed rows, a table for the models, and how long to train."""

    source: Packed
    validation: Packed | None
    output: Name
    epochs: int
    frequency: int | None = None  # epochs between two evaluations; None: as the run needs
    use_gpus: bool | None = None
    options: GivenOptions = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    named: Mapping[str, StoredName] = field(default_factory=dict)  # the tables that the rows were packed from
    related: Mapping[str, StoredName] = field(default_factory=dict)  # those that are read beside them, by path
    replace: bool = False  # whether the model of this name is replaced
    dry: bool = False  # whether it is only asked what the run would do


@dataclass(frozen=True)
class PlannedRun:
    """What a run will train, and how: this may depend on its options."""

    configurations: Configurations
    options: RunOptions
    evaluate_every: int


@dataclass(frozen=True)
class RunRequest:
    """A run that can begin: its arguments are checked, and the tables that they name are read."""

    asked: AskedRun
    configurations: Configurations
    options: RunOptions
    evaluate_every: int


def request_of(db: Database, asked: AskedRun, plan: Callable[[RunOptions], PlannedRun]) -> RunRequest:
    """The request of a run.  ``plan`` says what it trains, when its options are known."""
    keys = [partition.key for partition in asked.source.layout.partitions]
    tables = asked.source, asked.validation
    planned = plan(choose_options(db, asked.options, keys, bool(asked.use_gpus), tables))
    require_room(db, asked, planned.options)
    found = planned.configurations
    chosen = shape.with_plan(
        db, asked.source, asked.validation, [found.definition(one) for one in found.listed], asked.options,
        replace(planned.options, named=asked.named, related=asked.related, replace=asked.replace),
        epochs=asked.epochs, evaluate_every=planned.evaluate_every,
    )  # fmt: skip
    return RunRequest(asked, planned.configurations, chosen, planned.evaluate_every)


def of_configurations(
    db: Database,
    asked: AskedRun,
    listed: Callable[[Known, str | None], Configurations],
    *,
    warm_start: bool | None,
    evaluate_training: bool = False,
) -> RunRequest:
    """The request for a fit of the configurations that ``listed`` reads when the objective is known.

    ``evaluate_training``: models are evaluated on the training table, too.
    """
    source, validation = asked.source, asked.validation

    def plan(chosen: RunOptions) -> PlannedRun:
        # A replay names the versions of custom functions that the earlier run had.
        pinned = RunLog.of_caller(db, chosen.replay).known.compile_texts() if chosen.replay is not None else ""
        found = as_trained(listed(custom_functions.known(db, pinned=pinned), chosen.objective), chosen.precision)
        chosen = objective_of(chosen, found.reported, validation is not None)
        cross_validation.require_possible(source, chosen, warm_start=bool(warm_start))
        cross_validation.require_possible_groups(source, chosen, len(found.listed))
        if warm_start:
            output.require_same_codes(db, asked.output, source.layout)
        if chosen.replay is not None:
            require_same_work(db, chosen, source, found)
        most = chosen.budget.configurations if chosen.budget is not None else None
        if most is not None and most < len(found.listed):
            raise InvalidArgument(
                f"option 'budget' allows {most} configurations, but {found.text} has {len(found.listed)}.",
                hint="Raise the limit, or fit fewer configurations.",
            )
        # An objective that is measured on the validation table needs all epochs, and so does a search by it.
        validated = validation is not None and chosen.method is not None
        dataset = chosen.optimised(validated).dataset
        every = asked.frequency or (1 if dataset else asked.epochs)
        require_measured(chosen.method or {}, dataset, every)
        if warm_start and chosen.trainer.memory_mb is None:
            memory_mb = output.memory_of(db, asked.output, bool(chosen.gpus))
            chosen = replace(chosen, trainer=replace(chosen.trainer, memory_mb=memory_mb))
        chosen = replace(chosen, warm_start=bool(warm_start), evaluate_training=evaluate_training)
        return PlannedRun(found, chosen, every)

    return request_of(db, asked, plan)


def as_trained(found: Configurations, precision: str | None) -> Configurations:
    """The configurations with their architectures in this precision, and with metrics for each output."""
    architectures = found.architectures
    if precision is not None:
        architectures = {
            model_id: replace(one, translated=computed_in(one.translated, precision))
            for model_id, one in architectures.items()
        }
    listed = [
        replace(one, compile=keras_json.for_outputs(one.compile, architectures[one.model_id].translated))
        for one in found.listed
    ]
    return replace(found, listed=listed, architectures=architectures)


def require_epochs(
    epochs: int | None,
    frequency: int | None,
    names: tuple[str, str] = ("epochs", "evaluate_every"),
) -> None:
    if epochs is None or epochs < 1:
        raise InvalidArgument(f"{names[0]} is {'NULL' if epochs is None else epochs}; it must be at least 1.")
    if frequency is not None and not 1 <= frequency <= epochs:
        raise InvalidArgument(f"{names[1]} is {frequency}; it must be between 1 and {names[0]} ({epochs}).")


def require_measured(spec: Mapping[str, Any], dataset: str, frequency: int) -> None:
    """Refuse a method that compares models after epochs in which they are not evaluated."""
    first = spec.get("min_epochs")
    if dataset and first is not None and frequency > first:
        raise InvalidArgument(
            f"'{spec['name']}' compares models from epoch {first} on, but they are evaluated after"
            f" every {frequency} epochs.",
            hint="Evaluate after every epoch, or give the method a larger min_epochs.",
        )


def read_rows(
    db: Database,
    source_table: str,
    validation_table: str | None,
    epochs: int,
    *,
    folds: bool = False,
) -> tuple[Packed, Packed | None]:
    """The packed rows to train on, and those to evaluate on.

    If rows have folds, they are the same.  ``folds``: the caller can train on such rows.
    """
    source = packed.read(db, source_table, argument="source_table")
    require_countable(epochs, len(source.layout.partitions))
    if not folds:
        cross_validation.require_whole(source)
    if source.dataset.folds:
        cross_validation.require_no_validation(source.relation.text, validation_table)
        return source, source
    if validation_table is None:
        return source, None
    validation = packed.read(db, validation_table, argument="validation_table")
    packed.require_same_shapes(source.layout, source.relation.text, validation)
    cross_validation.require_same_groups(source, validation)
    return source, validation


def require_room(db: Database, asked: AskedRun, chosen: RunOptions) -> None:
    """Refuse a run for which the user, or the server, has not enough sessions."""
    segments = len(asked.source.layout.partitions)
    limits.require_run(limits.asking(db), segments, listener(db.plpy))
    if chosen.copies_rows:
        require_copies(asked)
    if chosen.in_session or asked.dry:  # to make room ends sessions that wait for the next run
        return
    sessions = segments + 1 + (chosen.stop_when is not None)  # the recorder, and a rule's own
    limits.make_room(limits.asking(db), sessions, listener(db.plpy))
    limits.require_connections(limits.of(db), sessions)
    limit = platform.of(db).statement_limit(db)
    if limit is not None and limit.short_for(segments):
        db.notice(limit.found(segments), limit.advice)


def require_copies(asked: AskedRun) -> None:
    """Refuse rows of which the memory cannot hold a copy for each segment."""
    tables = {one.relation.text: one.layout for one in (asked.source, asked.validation) if one is not None}
    each = sum(part.bytes for layout in tables.values() for part in layout.partitions)
    segments, free = len(asked.source.layout.partitions), machine.memory_available()
    if free is not None and segments * each > SHARE_FOR_COPIES * free:
        raise OutOfResources(
            f"with the option parallel => copies each of {segments} segments would have all rows in memory,"
            f" {machine.megabytes(each)} each, and {machine.megabytes(free)} are available.",
            hint="Leave the option parallel out: then models hop, and each segment has its own rows only.",
        )


def objective_of(
    chosen: RunOptions, configurations: dict[int, Reported], validated: bool, *, numbered: bool = True
) -> RunOptions:
    """The options with the objective as it goes on record, if all configurations have it.

    Those of a search are not numbered yet.
    """
    found = objective.chosen(
        chosen.objective, chosen.direction, chosen.keep, configurations, validated, numbered=numbered
    )
    return chosen if found is None else replace(chosen, objective=found.name, direction=found.direction)


def require_same_work(
    db: Database,
    chosen: RunOptions,
    source: Packed,
    configurations: Configurations,
) -> None:
    """Refuse to replay a run with other rows or other configurations: the numbers would not be repeated."""
    run_id = chosen.replay
    assert run_id is not None
    log = RunLog.of_caller(db, run_id)
    hint = f"SELECT packed_table FROM cerebro.run_plan WHERE run = {run_id}; or leave replay out."
    its = [partition.sha256 for partition in source.layout.partitions], source.layout.groups
    if not source.planned and log.known.rows() != its:
        raise WrongState(
            f"run {run_id} cannot be replayed on '{source.relation.text}': it had other rows, another"
            " order of rows, or another number of segments.",
            hint=hint,
        )
    recorded = log.known.options()
    for name, what in REPLAYED.items() if recorded is not None else ():
        before, now = getattr(recorded, name), getattr(chosen, name)
        if before != now:
            raise WrongState(
                f"run {run_id} cannot be replayed: its option {name} was {before}, not {now}, so its {what} were"
                " others.",
                hint="Leave the option out: a replay takes it over.",
            )
    earlier = log.known.configurations(added=False)
    planned = {one.key: [*configurations.definition(one).values()] for one in configurations.listed}
    others = sorted(key for key in {*earlier, *planned} if not alike(earlier.get(key), planned.get(key)))
    if others:
        raise WrongState(
            f"run {run_id} cannot be replayed: its configurations were others"
            f" (configuration {', '.join(map(str, others[:10]))}).",
            hint=hint,
        )


def alike(one: Any, other: Any) -> bool:
    """Whether two documents say the same.  The log gives a large number back as an integer: 1e38 as 10^38."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return float(one) == float(other) if numbers else bool(one == other)


def read_selection(db: Database, selection: Relation, known: Known, tensorboard: bool) -> Configurations:
    relations.require_columns(db, selection, ["mst_key", "model_id", "compile_params", "fit_params"])
    document_columns.require(relations.columns(db, selection), selection.text)
    rows = db.rows(
        sql(
            "SELECT mst_key AS key, model_id, compile_params, fit_params FROM {selection} ORDER BY mst_key",
            selection=selection.sql,
        )
    )
    keys = [row["key"] for row in rows]
    if None in keys or len(set(keys)) < len(keys):
        raise BadData(f"the mst_key values of '{selection.text}' must be distinct and not NULL.")
    listed = []
    for row in rows:
        try:
            compiled = params.compile_params(row["compile_params"], known)
            listed.append(
                FitConfiguration(**row, compile=compiled, fit=params.fit_params(row["fit_params"], tensorboard))
            )
        except CerebroError as error:
            error.message = f"mst_key {row['key']} of '{selection.text}': {error.message}"
            raise
    say_tensorboard(db, [one.fit_params for one in listed])
    summary = relations.beside(db, selection, "_summary")
    named = (
        db.value(sql("SELECT model_arch_table FROM {summary} LIMIT 1", summary=summary.sql))
        if summary is not None
        else None
    )
    if named is None:
        name = with_ending(selection.text, "_summary")
        there = f" Input table '{name}' does not exist." if summary is None else ""
        raise UndefinedObject(
            f"'{name}' does not say which table holds the architectures.{there}",
            hint="madlib.generate_model_configs() and madlib.load_model_selection_table() make it.",
        )
    table = relations.existing(db, named_beside(db, selection.name, named), "It should hold the architectures.")
    if not relations.belongs_to(db, table, selection):
        raise NotPermitted(
            f"the summary of '{selection.text}' says that the architectures are in '{table.text}', which is another"
            " user's, or a view: reading it would run code of another user.",
            hint=f"CREATE TABLE architectures AS TABLE {table.name.quoted}; makes a table of yours, for which"
            " madlib.load_model_selection_table() makes a selection table.",
        )
    architectures = {
        model_id: read_architecture(db, table, model_id) for model_id in sorted({one.model_id for one in listed})
    }
    return Configurations(f"'{selection.text}'", listed, architectures, selection.text, named)


def named_beside(db: Database, selection: Name, text: str) -> str:
    """The name of the architectures' table in the summary of a selection table, found whatever the search_path is.

    A name without a schema means a table in the schema of the selection table, if there is one.
    """
    name = Name.parse(text)
    beside = Name(selection.schema, name.table)
    return beside.quoted if name.schema is None and relations.find(db, beside) is not None else text


def say_tensorboard(db: Database, texts: Iterable[str | None]) -> None:
    if any(map(params.has_tensorboard, texts)):
        db.notice(
            "the callback TensorBoard has no effect: cerebro.learning_curve and cerebro.metrics show the losses"
            " and metrics of every epoch, cerebro.hop_timeline what each segment did"
        )


def read_architecture(db: Database, table: Relation, model_id: int | None) -> Architecture:
    present = relations.columns(db, table)
    document_columns.require(present, table.text)
    name = sql("name::text") if "name" in present else sql("NULL::text AS name")
    row = db.one(
        sql(
            "SELECT {name}, model_arch::text AS arch, model_weights IS NOT NULL AS has_weights"
            " FROM {table} WHERE model_id = $1",
            name=name,
            table=table.sql,
        ),
        ("integer",),
        model_id,
    )
    if row is None or row["arch"] is None:
        raise UndefinedObject(
            f"no model arch found in table {table.text} with id {model_id}",
            hint="madlib.load_keras_model() adds one.",
        )
    its_row = sql("FROM {table} WHERE model_id = $1", table=table.sql)
    pieces = partial(weights.value_pieces, db, sql("model_weights"), its_row, ("integer",), model_id)
    given = pieces if row["has_weights"] else None
    try:
        return Architecture(row["name"], row["arch"], keras_json.architecture(row["arch"]), given)
    except CerebroError as error:
        error.message = f"model_id {model_id} of '{table.text}': {error.message}"
        raise
