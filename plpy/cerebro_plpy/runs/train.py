"""``cerebro.train``: from a table to a trained model in one call.  It packs the table, plans a search, and searches."""

from __future__ import annotations

import json
import time
from typing import Any

from cerebro_db.core import documents, training_plan
from cerebro_db.core import options as known_options
from cerebro_db.core.architecture import building
from cerebro_db.core.errors import InvalidArgument, Unsupported
from cerebro_db.core.names import Name, split_list
from cerebro_db.core.options import BEST, LAST
from cerebro_db.core.parameters.losses import canonical_metrics
from cerebro_db.core.search import methods, read_space
from cerebro_db.core.sql import sql
from cerebro_db.core.training_plan import Plan, Wishes

from ..data import visibility
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import custom_functions
from . import background, cross_validation, rules, search, training_rows
from .fit import run_request, submit_request
from .training_rows import MODULE, Asked, Made, free_name, notice_others_tables, other_session

MODEL_ENDINGS = ("_info", "_summary", "_weights")
LEAST_FOR_TRAINING = 0.5  # of the budget, however long packing takes


@entry
def train(db: Database, **arguments: Any) -> int | None:
    """The number of the run; None for a dry run."""
    begun = time.monotonic()
    asked = Asked(**arguments)
    if not asked.dry_run:
        visibility.refuse_transaction(db, MODULE)
        if asked.wait is False:
            background.require_statements(db)
    seconds, wishes, given = _budget(db, asked.budget), _wishes(asked), _options(asked)
    _require_sound(db, asked, wishes)
    if asked.folds is not None:
        spec = methods.checked(wishes.method, MODULE, proposes=True) if wishes.method is not None else None
        cross_validation.require_options({**given, "stop_when": asked.stop_when}, spec, MODULE)
    output = relations.new(db, asked.model, MODULE, MODEL_ENDINGS, argument="model")
    source = relations.filled(db, asked.source, MODULE, argument="source")
    made = Made()
    try:
        if training_rows.is_packed(db, source):
            rows = training_rows.packed_already(db, source, asked)
        elif asked.dry_run:
            rows = training_rows.would_pack(db, source, output, asked)
        else:
            rows = training_rows.pack_apart(db, source, output, asked, made)
        left = None if seconds is None else max(seconds * LEAST_FOR_TRAINING, seconds - (time.monotonic() - begun))
        given.setdefault("keep", LAST if rows.layout.folds else BEST)
        plan = training_plan.planned(rows.layout, rows.layout.rows, rows.segments, left, rows.validated, wishes, MODULE)
        for sentence in plan.told(left):
            db.notice(f"{MODULE}: {sentence}")
        templates = {number: one for number, (_, one) in enumerate(plan.architectures, 1)}
        read_space.read(plan.space, templates).check(custom_functions.known(db))
        if asked.dry_run:
            return None
        assert rows.table is not None
        architectures = _load_architectures(db, output, plan, made)
        if left is not None:
            given["budget"] = {"seconds": round(left, 1), "least_epochs": 1}
        others = rows.validation.quoted if rows.validation is not None else None
        method = plan.method if isinstance(plan.method, str) else json.dumps(plan.method)
        request = search.request_of(
            db, rows.table.quoted, output.quoted, architectures.quoted, json.dumps(plan.space), plan.epochs, method,
            plan.configurations, asked.at_once, None, others, None, asked.use_gpus, asked.name, asked.description,
            json.dumps({**given, "objective": plan.objective}), stop_when=asked.stop_when,
        )  # fmt: skip
        if asked.wait is False:
            return submit_request(db, request)
        run = run_request(db, request, on_record=lambda run_id: setattr(made, "run", run_id))
    except BaseException:
        _tell_what_is_left(db, made)
        raise
    db.notice(f"{MODULE}: to predict, SELECT * FROM cerebro.predict('{output}', 'SELECT * FROM …');")
    return run


# -- arguments ---------------------------------------------------------------------------------------------


def _budget(db: Database, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = float(db.value(sql("SELECT extract(epoch FROM $1::interval)"), ("text",), text))
    if seconds <= 0:
        raise InvalidArgument(
            f"{MODULE}: budget is {text}; it must be longer than that.",
            hint="For instance budget => '10 minutes'; NULL: no limit.",
        )
    return seconds


def _wishes(asked: Asked) -> Wishes:
    for name, value in (("epochs", asked.epochs), ("configurations", asked.configurations)):
        if value is not None and value < 1:
            raise InvalidArgument(f"{MODULE}: {name} is {value}; it must be at least 1.")
    method = None
    if asked.method is not None:
        method = search.method_of(asked.method)
        methods.checked(method, MODULE, proposes=True)
    space = documents.argument(asked.space, f"{MODULE}: space")
    if space is not None and not isinstance(space, dict):
        raise InvalidArgument(
            f"{MODULE}: space must be a JSON object.", hint='For instance {"fit": {"batch_size": 64}}.'
        )
    training_plan.require_parts(space or {}, MODULE)
    return Wishes(_kinds(asked.architectures), space, method, asked.epochs, asked.configurations, asked.objective)


def _kinds(text: str | None) -> dict[str, dict[str, Any]] | None:
    if text is None:
        return None
    given = documents.argument(text, f"{MODULE}: architectures")
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        given = {one: training_plan.ARCHITECTURES.get(one, {}) for one in given}
    if not isinstance(given, dict) or not given or not all(isinstance(one, dict) for one in given.values()):
        raise InvalidArgument(
            f"{MODULE}: architectures must be a list of kinds, or an object with the parameters of each.",
            hint="""For instance ["mlp", "resnet"] or {"mlp": {"units": 64, "dropout": "$dropout"}}.""",
        )
    for kind, parameters in given.items():
        if kind not in building.PARAMETERS:
            raise InvalidArgument(
                f"{MODULE}: architectures: there is no kind {kind!r}.", hint=f"Kinds: {', '.join(building.PARAMETERS)}."
            )
        building.parameters_of(kind, parameters, f"{MODULE}: architectures")
    return given


def _options(asked: Asked) -> dict[str, Any]:
    """The options of the run, checked before anything is packed."""
    given = documents.argument(asked.options, f"{MODULE}: options", default={})
    known_options.check(given, MODULE)
    for name in ("search", "budget", "objective", "direction", "stop_when", "replay"):
        if name in given:
            raise InvalidArgument(
                f"{MODULE}: options has '{name}'.",
                hint="cerebro.search() takes it." if name == "replay" else "An argument of the function sets it.",
            )
    if asked.direction is not None:
        if asked.objective is None:
            raise InvalidArgument(f"{MODULE}: direction needs objective.", hint="For instance objective => 'val_auc'.")
        given["direction"] = asked.direction
        known_options.check(given, MODULE)
    return dict(given)


def _require_sound(db: Database, asked: Asked, wishes: Wishes) -> None:
    """Raise the errors of the search that do not depend on the rows.  Packing may take hours."""
    for argument, text in (("model", asked.model), ("packed_table", asked.packed_table)):
        if text is not None and Name.parse(text, f"{MODULE}: {argument}").schema == relations.TEMPORARY:
            raise Unsupported(
                f"{MODULE}: {argument} cannot be a temporary table: several sessions make and read it.",
                hint="Name an ordinary table.",
            )
    none_validated = asked.validation == 0 and asked.validation_table is None and asked.folds is None
    if none_validated and (asked.objective or "").startswith("val_"):
        raise InvalidArgument(
            f"{MODULE}: objective cannot be '{asked.objective}' without rows for validation.",
            hint=f"Leave validation => 0 out, or choose '{str(asked.objective)[4:]}'.",
        )
    if asked.at_once is not None:
        spec = methods.checked(wishes.method or training_plan.METHOD, MODULE, proposes=True)
        search.models_at_once(spec, asked.at_once, 1)
    metric = training_plan.metric_of(asked.objective)
    one_target = asked.target is not None and len(split_list(asked.target, f"{MODULE}: target")) == 1
    if metric is not None and one_target and "metrics" not in (wishes.space or {}).get("compile", {}):
        canonical_metrics("metrics", [metric], "mse", custom_functions.known(db))
    if asked.stop_when is not None:
        with other_session(db) as session:
            rules.require_sound(asked.stop_when, session)


# -- the architectures, and the end ------------------------------------------------------------------------


def _load_architectures(db: Database, output: Name, plan: Plan, made: Made) -> Name:
    table = free_name(db, output, "_arch", ("",))
    with other_session(db) as session:
        session.run(sql("BEGIN"))
        for kind, architecture in plan.architectures:
            call = sql("SELECT cerebro.load_keras_model({}, {}, NULL, {})")
            session.run(call, (table.quoted, json.dumps(architecture), kind))
        session.run(sql("COMMIT"))
    made.tables.append(table)
    notice_others_tables(db)
    return table


def _tell_what_is_left(db: Database, made: Made) -> None:
    """Name what a call that ends early leaves behind, and how to go on with it."""
    if not made.tables:
        return
    if made.run is not None:
        hint = f"SELECT cerebro.resume({made.run}); continues the run."
    elif made.packed is not None:
        hint = f"cerebro.train('{made.packed}', …) trains on the packed rows without packing again."
    else:
        hint = "The next call makes new tables. You can drop these."
    db.notice(f"{MODULE} ended early. These tables remain: {', '.join(map(str, made.tables))}", hint)
