"""The three verbs: ``cerebro.train`` decides everything, ``search`` gets a space, ``fit`` a list of configurations.

Each checks its arguments, finds the packed rows or has them packed, and runs or submits the request for a run.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable

from cerebro_db.core import documents, training_plan
from cerebro_db.core import options as known_options
from cerebro_db.core.architecture import building
from cerebro_db.core.architecture.sources import Kind
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.following import allowed, excess_of_steps, kept_back
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.options import BEST, GRADIENTS
from cerebro_db.core.parameters import flat
from cerebro_db.core.parameters.losses import canonical_metrics
from cerebro_db.core.records import dataclass
from cerebro_db.core.search import named_methods, outlook
from cerebro_db.core.search.spaces import flat_space, read_space
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted
from cerebro_db.core.training_plan import Wishes

from .. import platform
from ..database.access import Database
from ..database.relations import Relation
from ..definitions import added, custom_functions
from ..definitions.added import Named
from ..models import model_parts
from ..packing import visibility
from ..runs import background, search
from ..runs.begin.new_run import require_short
from ..runs.drive import rules
from ..runs.fit import run_request, say_result, submit_request
from ..runs.record.log import OF_ALL_ROWS, RunLog
from ..runs.record.run import require_countable
from ..runs.request import budgets, configurations, cross_validation, needs, shape, training_rows
from ..runs.request import output as output_tables
from ..runs.request.configurations import Listed
from ..runs.request.given import FIT, SEARCH, TRAIN, Given
from ..runs.request.request import (
    AskedRun,
    RunRequest,
    of_configurations,
    read_rows,
    read_selection,
    require_epochs,
)
from ..runs.request.training_rows import MadeRows, Rows, other_session
from ..segment import memory
from . import following

LEAST_FOR_TRAINING = 0.1  # of the budget, however long packing takes
LEAST_SECONDS = 0.1  # of a run: its budget is above 0
MOST_SHOWN = 20  # configurations
LEAST_LEFT, LEAST_SHARE_LEFT = 5.0, 0.2  # seconds, and of a budget: less than that is not worth a word


@dataclass(frozen=True)
class Asked:
    """What the arguments say, whatever the rows are."""

    options: dict[str, Any]  # also those that are arguments, but not the budget
    budget: dict[str, Any] | None
    interval: bool  # the budget is an interval, which limits the whole call
    space: dict[str, Any]  # flat, without its architectures
    named: dict[Any, Named]  # the architectures by their labels
    by_default: bool  # whether the caller named none
    method: Any
    listed: list[Listed] | Relation | None


def run_verb(db: Database, given: Given, begun: float | None = None) -> int | None:
    """What a call of one of the verbs does.  It returns the number of the run; None for a dry run.

    ``begun``: when the call began, as time.monotonic(); None: now.
    """
    begun = time.monotonic() if begun is None else begun
    began_at = time.time() - (time.monotonic() - begun)
    if given.dry_run:
        db.tell_all()
    else:
        visibility.refuse_transaction(db)
        if given.wait is False:
            background.require_statements(db)
    asked = _asked(db, given)
    if given.warm_start:
        output = output_tables.of_warm_start(db, given.model_table, "model_table")
    else:
        output = model_parts.of_new_model(db, given.model_table, bool(given.replace))
    if not given.dry_run:
        output_tables.take(db, output)
    made = MadeRows()
    with _cleaned(db, given, made) as on_record:
        rows = training_rows.resolved(db, output, given, made)
        preparing = time.monotonic() - begun
        _tell_whose_objective(db, asked, rows)
        seconds = whole = (asked.budget or {}).get("seconds")
        steps = following.of_training(db, given, rows, whole if asked.interval else None)
        if seconds is not None and asked.interval:
            seconds = max(seconds * LEAST_FOR_TRAINING, seconds - (time.monotonic() - begun))
            asked = replace(asked, budget={"seconds": max(LEAST_SECONDS, round(seconds, 1)), "least_epochs": 1})
        request_of = _fitting if given.verb == FIT else _searching
        request = request_of(db, given, asked, rows, output, seconds)
        if request is None:
            return None
        request = replace(request, options=replace(request.options, follows=(*(given.follows or ()), *steps)))
        if given.wait is False:
            return submit_request(db, request, on_record)
        run = run_request(db, request, on_record)
        if given.verb != FIT and whole is not None:
            _tell_of_time(db, run.id, rows, preparing, began_at)
            _tell_of_time_left(db, run.id, whole, kept_back(run.options.follows), time.monotonic() - begun)
        limit: float | None = whole if asked.interval else None
        deadline = None if limit is None else begun + limit + excess_of_steps(limit)
        judged = following.carry_out(db, run, output, deadline)
        if limit is not None and time.monotonic() - begun > limit + allowed(limit):
            _tell_of_excess(db, run.id, limit, preparing, began_at)
    if given.verb == TRAIN:
        say_result(db, run, output, judged)
    return run.id


@contextlib.contextmanager
def _cleaned(db: Database, given: Given, made: MadeRows) -> Iterator[Callable[[int | None], None]]:
    """Around a call: if it ends early, its tables are removed, or named if a run on record needs them.

    The value is called when the run is on record, with None if other sessions do not see it before the call commits.
    Until then the call is a subtransaction, because its locks would keep others from dropping the tables that it reads.
    """
    try:
        with contextlib.ExitStack() as held:
            if platform.of(db).subtransactions_are_safe:
                held.enter_context(db.savepoint())

            def on_record(run_id: int | None) -> None:
                held.close()
                made.run = run_id

            yield on_record
    except BaseException:
        if made.run is not None or not training_rows.remove(db, made):
            _tell_what_is_left(db, given, made)
        raise


# -- arguments ---------------------------------------------------------------------------------------------


def _asked(db: Database, given: Given) -> Asked:
    """The arguments, with all errors that do not depend on the rows.  Packing may take hours."""
    for name, value in (("epochs", given.epochs), ("max_configurations", given.max_configurations)):
        if value is not None and value < 1:
            raise InvalidArgument(f"{name} is {value}; it must be at least 1.")
    if given.epochs is not None:
        require_epochs(given.epochs, given.evaluate_every)
    for argument, text in (("run_name", given.run_name), ("description", given.description)):
        require_short(argument, text)
    options = _options(given)
    listed = configurations.read(db, given.configurations) if given.verb == FIT else None
    method = None
    space: dict[str, Any] = {}
    named: dict[Any, Named] = {}
    by_default = False
    if given.verb != FIT:
        if given.method is not None or given.verb == SEARCH:
            method = search.method_of(given.method)
            named_methods.checked(method, proposes=True)
        space, named, by_default = _space(db, given)
    asked = Asked(options, *_budget(db, given, options), space, named, by_default, method, listed)
    _require_sound(db, given, asked)
    return asked


def _options(given: Given) -> dict[str, Any]:
    found = given.options
    if "method" in found and given.verb != FIT:
        raise InvalidArgument(f"{given.verb}() has no option 'method'.", hint="method is an argument.")
    if "replay" in found and given.verb == TRAIN:
        raise InvalidArgument("options has 'replay'.", hint="cerebro.search() takes it.")
    arguments = {name: getattr(given, name) for name in ("objective", "direction", "stop_when")}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    for name in arguments:
        if name in found:
            raise InvalidArgument(f"{name} is given as an argument and as an option.")
    if "direction" in arguments and "objective" not in {*found, *arguments}:
        raise InvalidArgument("direction needs objective.", hint="For instance objective => 'val_auc'.")
    return {**found, **known_options.check(arguments)}


def _budget(db: Database, given: Given, options: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The budget, and whether it is an interval."""
    own = options.pop("budget", None)
    if given.budget is None:
        return own, False
    if own is not None:
        raise InvalidArgument("options has 'budget', and budget is an argument, too.", hint="Leave the option out.")
    return budgets.read(db, given.budget, "budget"), not given.budget.lstrip().startswith("{")


def _space(db: Database, given: Given) -> tuple[dict[str, Any], dict[Any, Named], bool]:
    """The flat space, its architectures, and whether these are the default."""
    where = "space"
    space = documents.argument(given.space, where)
    if not isinstance(space, dict) and not (space is None and given.verb == TRAIN):
        raise InvalidArgument(
            f"{where} must be a JSON object.", hint='For instance {"learning_rate": {"log_uniform": [0.0001, 0.1]}}.'
        )
    space = dict(space or {})
    if given.verb == SEARCH and not space:
        raise InvalidArgument(f"{where}: a space is a JSON object that is not empty.", hint=read_space.EXAMPLE)
    value = space.pop(flat.ARCHITECTURE, None)
    if value is not None and given.architectures is not None:
        raise InvalidArgument(
            "the space has 'architecture', and architectures is an argument, too.",
            hint="Leave one of them out.",
        )
    named = _architectures(db, given, where, value)
    # What a space lacks may come from the plan, so here only its keys are read.
    flat_space.parted(space, search.fitted(named, None), where)
    return space, named, value is None and given.architectures is None


def _architectures(db: Database, given: Given, where: str, value: Any) -> dict[Any, Named]:
    """The architectures that the space names, or the argument of that name, or the one that is taken without them."""
    if given.architectures is not None:
        where = "architectures"
        value = documents.argument(given.architectures, where)
        if isinstance(value, dict) and "class_name" not in value:
            return _kinds(value, where)
    if isinstance(value, dict) and set(value) == {read_space.CHOICE}:
        value = value[read_space.CHOICE]
    if value is None:
        windows = given.verb == TRAIN and given.sequence is not None
        value = list(training_plan.OF_WINDOWS) if windows else training_plan.ARCHITECTURE
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise InvalidArgument(f"{where}: there is no architecture in the list.", hint=added.HINT)
    names = [one for one in listed if isinstance(one, str)]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"{where}: an architecture is given twice.", hint="Leave it out once.")
    return added.labelled([added.named(db, one, where) for one in listed])


def _kinds(value: dict[str, Any], where: str) -> dict[Any, Named]:
    if not value or not all(isinstance(one, dict) for one in value.values()):
        raise InvalidArgument(
            f"{where} must be a list of architectures, or an object with the parameters of each kind.",
            hint="""For instance ["mlp", "resnet"] or {"mlp": {"units": 64, "dropout": "$dropout"}}.""",
        )
    for kind in value:
        if kind not in building.PARAMETERS:
            raise InvalidArgument(f"{where}: there is no kind {kind!r}.", hint=added.HINT)
    return {kind: Named(kind, Kind(kind, fixed, where)) for kind, fixed in value.items()}


def _require_sound(db: Database, given: Given, asked: Asked) -> None:
    """Raise the errors of the run that do not depend on the rows."""
    if given.refit:
        for name in ("group_by", "folds", "validation_table", "weights", "class_weight", "validation"):
            if getattr(given, name) is not None and (name != "validation" or given.validation == 0):
                raise InvalidArgument(
                    f"refit cannot be true together with {name}.",
                    hint="refit trains one model again on the rows of source_table, those for validation included."
                    + (" With folds, the models are trained on all rows already." if name == "folds" else ""),
                )
    if "memory_mb" in asked.options:
        memory.require_within_limit(db, asked.options["memory_mb"], bool(given.use_gpus))
    wished = str(asked.options.get("objective") or "")
    if wished.startswith("val_") and given.validation == 0 and given.validation_table is None and given.folds is None:
        raise InvalidArgument(
            f"objective cannot be '{wished}' without rows for validation.",
            hint=f"Leave validation => 0 out, or choose '{wished[4:]}'.",
        )
    if given.at_once is not None:
        spec = named_methods.checked(asked.method or training_plan.METHOD, proposes=True)
        search.models_at_once(spec, given.at_once, 1)
    metric = training_plan.metric_of(wished or None)
    one_target = given.target is not None and len(split_list(given.target, "target")) == 1
    if metric is not None and one_target and "metrics" not in asked.space and given.verb != FIT:
        canonical_metrics("metrics", [metric], "mse", custom_functions.known(db))
    if given.folds is not None:
        chosen = named_methods.checked(asked.method, proposes=True) if asked.method is not None else None
        cross_validation.require_options(asked.options.get("stop_when"), chosen)
    if given.target is not None and asked.options.get("stop_when") is not None:
        with other_session(db) as session:
            rules.require_sound(asked.options["stop_when"], session)


# -- requests ----------------------------------------------------------------------------------------------


def _all_options(asked: Asked) -> dict[str, Any]:
    return asked.options if asked.budget is None else {**asked.options, "budget": asked.budget}


def _searching(
    db: Database, given: Given, asked: Asked, rows: Rows, output: Name, seconds: float | None
) -> RunRequest | None:
    """The request of a train or a search; None for a dry run."""
    options = _all_options(asked)
    named = asked.named
    if given.verb == TRAIN and asked.by_default:
        usual = training_plan.usual_architectures(rows.layout)
        named = added.labelled([added.named(db, one, "architectures") for one in usual])
    architectures = search.fitted(named, rows.layout)
    wishes = Wishes(
        architectures=architectures,
        space=asked.space,
        method=asked.method,
        epochs=given.epochs,
        configurations=given.max_configurations,
        objective=options.get("objective"),
        visit_rows=options.get("visit_rows"),
        short=given.verb == TRAIN and options.get("parallel") != GRADIENTS,
    )
    limit = platform.of(db).statement_limit(db)
    # The plan reckons with all segments at work. Where a queue lets fewer work at a time, that much less is done.
    share = min(1.0, limit.working / rows.segments) if limit is not None else 1.0
    worth = None if seconds is None else seconds * share
    plan = training_plan.planned(rows.layout, rows.layout.rows, rows.segments, worth, rows.validated, wishes)
    if given.verb == TRAIN:
        options = {"keep": BEST, **options, "objective": plan.objective}
        if plan.visit_rows is not None:
            options["visit_rows"] = plan.visit_rows
        space: dict[str, Any] = plan.space
        most: int | None = plan.configurations
        for sentence in plan.told(seconds):
            db.detail(sentence)
    else:
        defaults = training_plan.defaults(rows.layout, rows.layout.rows, rows.segments, options.get("objective"))
        space, most = training_plan.completed(asked.space, defaults), given.max_configurations
    spec = named_methods.checked(plan.method, proposes=True)
    searched = search.AskedSearch(space, named, spec, most, given.at_once, given.start_from)
    request = search.of_space(db, _run(db, given, rows, output, plan.epochs, options), searched)
    if given.dry_run:
        known = custom_functions.known(db)
        read = read_space.read(flat_space.parted(space, architectures, "space"), architectures)
        if given.verb == SEARCH:
            tries = "configurations" if most is None else f"at most {counted(most, 'configuration')}"
            method = plan.method if isinstance(plan.method, str) else plan.method["name"]
            db.notice(
                f"{method} would try {tries} of {' and '.join(plan.architectures)}, each on"
                f" {counted(rows.segments, 'segment')} for at most {counted(plan.epochs, 'epoch')}"
            )
            db.notice(f"space: {training_plan.dimensions(space)}")
        needs.tell_of_space(db, options, rows.layout, read, architectures, known)
        return None
    return request


def _fitting(
    db: Database, given: Given, asked: Asked, rows: Rows, output: Name, seconds: float | None
) -> RunRequest | None:
    """The request of a fit; None for a dry run."""
    listed, options, epochs = asked.listed, _all_options(asked), given.epochs
    assert listed is not None
    if epochs is None:
        count = (
            db.value(sql("SELECT count(*) FROM {rows}", rows=listed.sql))
            if isinstance(listed, Relation)
            else len(listed)
        )
        visit_rows = options.get("visit_rows")
        epochs = training_plan.epochs_of_list(rows.layout, rows.segments, seconds, count, visit_rows)
        require_epochs(epochs, given.evaluate_every)
        db.told(f"each configuration trains {counted(epochs, 'epoch')}; the argument epochs sets another number")

    def read(known: Any, objective: str | None) -> configurations.Configurations:
        if isinstance(listed, Relation):
            return read_selection(db, listed, known, False)
        return configurations.of_rows(listed, rows.layout, rows.segments, objective, known)

    request = of_configurations(db, _run(db, given, rows, output, epochs, options), read, warm_start=given.warm_start)
    if given.dry_run:
        found = request.configurations
        groups = rows.layout.groups
        each = f", each for all rows and for {counted(len(groups.labels), 'group')}," if groups is not None else ""
        db.notice(
            f"{counted(len(found.listed), 'configuration')}{each} would train on"
            f" {counted(rows.segments, 'segment')} for {counted(epochs, 'epoch')}"
        )
        if given.warm_start and "memory_mb" not in options:
            options = {**options, "memory_mb": output_tables.memory_of(db, output, bool(given.use_gpus))}
        if request.options.plan is not None:
            shape.tell(db, request.options.plan, rows.segments)
        with needs.told(db, options, rows.layout) as tell:
            for one in found.listed[:MOST_SHOWN]:
                name = found.architectures[one.model_id].name or f"architecture {one.model_id}"
                db.notice(f"{one.key}: {json.dumps({flat.ARCHITECTURE: name, **one.parameters})}")
                if tell is not None:
                    db.notice(f"{one.key}: {tell(found.definition(one))}")
        return None
    return request


def _run(db: Database, given: Given, rows: Rows, output: Name, epochs: int, options: dict[str, Any]) -> AskedRun:
    if rows.planned is not None:
        source = rows.planned
        require_countable(epochs, rows.segments)
        validation = source if rows.validated else None
    else:
        assert rows.table is not None
        others = rows.validation.quoted if rows.validation is not None else None
        source, validation = read_rows(
            db, rows.text or rows.table.quoted, rows.validation_text or others, epochs, folds=True
        )
    return AskedRun(
        source=source,
        validation=validation,
        output=output,
        epochs=epochs,
        frequency=given.evaluate_every,
        use_gpus=given.use_gpus,
        options=options,
        name=given.run_name,
        description=given.description,
        named=rows.named,
        related=rows.related,
        replace=bool(given.replace),
        dry=bool(given.dry_run),
    )


# -- the end -----------------------------------------------------------------------------------------------


def _tell_whose_objective(db: Database, asked: Asked, rows: Rows) -> None:
    """Say that an objective is measured on the training rows, where others are there for that."""
    wished = asked.options.get("objective")
    if wished is not None and rows.validated and not wished.startswith("val_"):
        db.notice(
            f"the objective '{wished}' is measured on the rows for training;"
            f" objective => 'val_{wished}' measures it on the rows for validation"
        )


def _tell_of_time(db: Database, run: int, rows: Rows, preparing: float, began_at: float) -> None:
    """To a caller who wants details: where the time went, and what twice the budget would probably bring."""
    if not db.verbose:
        return
    log = RunLog.of_caller(db, run)
    trained = _trained(log)
    if not trained:
        return
    board = db.rows(
        sql("SELECT b.model, b.parent FROM cerebro.leaderboard b WHERE b.run = $1 AND b.owner = current_user"
            " AND {of_all_rows} ORDER BY b.rank, b.model", of_all_rows=OF_ALL_ROWS),
        ("bigint",), run,
    )  # fmt: skip
    parents = {row["model"]: row["parent"] for row in board}
    line, one = [], board[0]["model"]
    while one is not None and one not in line:
        line.append(one)
        one = parents.get(one)
    of_best = sum(trained[model][0] for model in line if model in trained) / sum(
        took for took, _, _ in trained.values()
    )
    whole = _where_it_went(trained, preparing, began_at, of_best)
    options = log.known.options()
    expected = ""
    if options is not None and options.objective is not None:
        curve = log.units.objective_over_time()
        judged = log.units.judged_rows()
        expected = outlook.outlook(curve, curve[-1][0] if curve else 0.0, options.optimised(rows.validated), judged)
    db.detail(whole, expected or None)


def _trained(log: RunLog) -> dict[int, tuple[float, float, float]]:
    """Of each model the seconds of its training, and when its first and its last visit ended."""
    return {model: (took, first, last) for model, took, first, last in log.units.trained_seconds()}


def _where_it_went(
    trained: Mapping[int, tuple[float, float, float]], preparing: float, began_at: float, of_best: float | None
) -> str:
    first, last = min(first for _, first, _ in trained.values()), max(last for _, _, last in trained.values())
    return outlook.where_it_went(
        preparing, first - began_at - preparing, last - first, max(0.0, time.time() - last), of_best
    )


def _tell_of_excess(db: Database, run: int, whole: float, preparing: float, began_at: float) -> None:
    """Say what a budget was too small for."""
    trained = _trained(RunLog.of_caller(db, run))
    if not trained:
        return
    took = time.time() - began_at
    db.notice(
        f"the call took {took:.0f} s, because a budget of {whole:g} s is too small for these rows on this machine,"
        f" as busy as it is; {_where_it_went(trained, preparing, began_at, None)}",
        f"A budget of at least {math.ceil(took)} s can be kept. Fewer rows or columns need less time.",
    )


def _tell_of_time_left(db: Database, run: int, whole: float, kept_back: float, elapsed: float) -> None:
    """Say why a search ended before its budget did, and how to use the rest.

    ``whole``: the seconds of the budget.  ``kept_back``: those of them that are for what follows.
    """
    if whole - kept_back - elapsed < max(LEAST_LEFT, LEAST_SHARE_LEFT * whole):
        return
    tried = db.value(
        sql(
            "SELECT count(*) FROM cerebro.leaderboard b"
            " WHERE b.run = $1 AND b.owner = current_user AND b.parent IS NULL AND {of_all_rows}",
            of_all_rows=OF_ALL_ROWS,
        ),
        ("bigint",), run,
    )  # fmt: skip
    db.told(
        f"the search ended after {elapsed:.0f} s of {whole:.0f} s, because all its {counted(tried, 'configuration')}"
        " have been tried",
        f"max_configurations => {2 * tried} tries more, and epochs trains each of them longer.",
    )


def _tell_what_is_left(db: Database, given: Given, made: MadeRows) -> None:
    """Name what a call that ends early leaves behind, and how to go on with it."""
    if not made.tables:
        return
    if made.run is not None:
        hint = f"SELECT cerebro.resume({made.run}); continues the run."
    else:
        hint = f"{given.verb}('{made.packed}', …) trains on the packed rows without packing again."
    db.notice(f"{given.verb} ended early. These tables remain: {', '.join(map(str, made.tables))}", hint)
