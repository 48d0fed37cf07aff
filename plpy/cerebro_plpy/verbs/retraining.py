"""``cerebro.retrain``: trains the configuration of a registered model on today's rows, and promotes the better model.

One call packs the rows like those of the version, trains, has both models predict the same rows, registers the new
model, and moves the alias.  With ``wait => false`` another session does that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cerebro_db.core.arguments import PACKING
from cerebro_db.core.errors import InvalidArgument, WrongState
from cerebro_db.core.events import Following
from cerebro_db.core.names import LONGEST, Name, written_list
from cerebro_db.core.options import BEST
from cerebro_db.core.packing.packed_summary import Packing
from cerebro_db.core.records import dataclass
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.sql import identifier, joined, sql

from ..database import locks, relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import references
from ..judging.drift import read_packing
from ..models import run_memory
from ..packing import kept_rows, pack, visibility
from ..runs import background
from ..runs.record.log import RunLog, past
from ..runs.request import budgets
from ..runs.request.given import FIT, Given
from ..runs.request.training_rows import PACKED, ROOM_FOR_ENDINGS
from ..segment import memory
from ..sessions.session import Statement
from . import champion as champions
from . import comparing, training
from .champion import Champion, RowsOfToday
from .comparing import BEST_IS
from .succession import ENDINGS, Judged, Judging

# The metrics of cerebro.evaluate that are nearest to objectives of runs, by the objective without its "val_".
OF_OBJECTIVES = {name: name for name in BEST_IS} | {"root_mean_squared_error": "rmse", "mean_absolute_error": "mae"}
# The options of the earlier run that the new run gets, too.
SAME_OPTIONS = ("engine", "precision", "deterministic", "shard", "visit_rows")
SAME_OF_GROUPS = ("least_group_rows", "groups_start")
# Bytes of a model's name in the names of the tables, so that packing does not have to cut them.
LONGEST_STEM = LONGEST - len(PACKED) - ROOM_FOR_ENDINGS - len("_retrained_999")


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


@entry
def retrain(db: Database, **arguments: Any) -> list[dict[str, Any]]:
    """One row about the new version; none if there was nothing to do."""
    given = RetrainArguments(**arguments)
    visibility.refuse_transaction(db)
    champion = champions.of_alias(db, given.registered_model, given.alias)
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
    wanted = None if given.query is None else relations.require_query(db, given.query)
    query = wanted or champions.validation_query(db, champion, source)
    comparing.value(db, metric, champion.reference, query)  # before anything is trained: the query may be wrong
    output = _free_name(db, champion.model)
    asked = Judging(champion.model, champion.alias, metric, given.margin or 0.0, given.standard_errors or 0.0, wanted)
    run = training.run_verb(db, replace(_fit(db, champion, given, source, output), follows=asked.steps))
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
    """The tables that the call names, or that the caller named for the run of the version.

    Tables in the summary of the version do not count: whoever wrote it has chosen them.
    """
    version = f"version {champion.version} of '{champion.model}'"

    def missing(argument: str) -> WrongState:
        why = (
            f"{version} was trained by another role (or imported, or its run was forgotten)"
            if champion.run is None
            else f"the run of {version} does not say it: the call named packed rows, or an earlier version recorded it"
        )
        return WrongState(
            f"{argument}: {why}, so say which table.", hint=f"{argument} => 'schema.table'; docs/security.md says why."
        )

    run = champion.run
    related = {} if run is None else run.related_for_calls
    if given.source_table is not None:
        source = relations.filled(db, given.source_table, argument="source_table")
    else:
        own = None if run is None else run.source(db)
        if own is None:
            raise missing("source_table")
        source = relations.filled(db, own.name.quoted, argument="source_table")
    if given.validation_table is not None:
        others = relations.filled(db, given.validation_table, argument="validation_table")
        return RowsOfToday(source, others, related)
    if "validation_table" not in champion.packing.arguments:
        return RowsOfToday(source, None, related)
    own = None if run is None else run.validation(db)
    if own is None:
        raise missing("validation_table")
    return RowsOfToday(source, own, related)


def _of_these_rows(db: Database, champion: Champion, source: RowsOfToday) -> str | None:
    """The version that was trained on what packing would make of the source now; None: there is none.

    It is the version of the alias, or the last one of such a call, which lost or was rolled back.
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
    like = pack.checked(db, champions.packed_like(source, source.arguments_like(packing)))
    found = kept_rows.fingerprint_of(db, like)
    pack.drop_copies(db, like.source)
    return found == packing.fingerprint


# -- training, comparing, registering ----------------------------------------------------------------------


def _fit(db: Database, champion: Champion, given: RetrainArguments, source: RowsOfToday, output: Name) -> Given:
    arguments = source.arguments_like(champion.packing)
    if champion.grouped is None:  # it is trained on rows without groups
        arguments = champions.without_groups(arguments)
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
    """The argument; without it and ``epochs``, the seconds that the run of the version had."""
    if given.budget is not None or given.epochs is not None or before is None or before.budget is None:
        return given.budget
    seconds = before.budget.seconds
    return None if seconds is None else json.dumps({"seconds": seconds, "least_epochs": 1})


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


def _submitted(db: Database, given: RetrainArguments, champion: Champion) -> list[dict[str, Any]]:
    """Have another session do it; return when the run is on record, or when there is nothing to do."""
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
