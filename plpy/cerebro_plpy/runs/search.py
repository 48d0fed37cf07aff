"""The function ``search``: a run whose configurations are proposed from a space while it goes on."""

from __future__ import annotations

import json
from typing import Any

from cerebro_db.core import documents
from cerebro_db.core.architecture import placeholders, reading
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.errors import CerebroError, InvalidArgument, InvalidSyntax, WrongState
from cerebro_db.core.parameters import params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.search import methods, objective, read_space
from cerebro_db.core.search.methods import Proposals
from cerebro_db.core.search.space import MOST_POINTS, Drawn, Space
from cerebro_db.core.search.tpe import Trial
from cerebro_db.core.sql import sql

from ..data import document_columns, visibility
from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..database.relations import Relation
from ..definitions import custom_functions
from . import background, cross_validation, past
from .fit import run_request, submit_request
from .log import RunLog
from .options import choose_options
from .request import (
    Architecture,
    Request,
    objective_of,
    read_rows,
    require_epochs,
    require_measured,
    require_room,
    require_same_work,
)
from .suggestions import Suggestions

MODULE = "search"
PAST = "past"
# Models per segment.  With two a segment mostly has one to take while another is decided about; with four it is busy
# for 97 % of the time instead of 91 %.  Visits to few rows take milliseconds, and several of them can share an order.
AT_ONCE, AT_ONCE_INDEPENDENT, AT_ONCE_SMALL = 2, 4, 16
SMALL_ROWS = 5000  # of a segment


@entry
def search(db: Database, *arguments: Any, wait: bool | None, **more: Any) -> int:
    """Search and wait, or start a search."""
    visibility.refuse_transaction(db, MODULE)
    if wait is False:
        background.require_statements(db)
    request = request_of(db, *arguments, **more)
    return submit_request(db, request) if wait is False else run_request(db, request)


def request_of(
    db: Database,
    source_table: str,
    model_table: str,
    arch_table: str,
    space: str | None,
    epochs: int,
    method: str | None,
    configurations: int | None,
    at_once: int | None,
    start_from: str | None,
    validation_table: str | None,
    evaluate_every: int | None,
    use_gpus: bool | None,
    name: str | None,
    description: str | None,
    options: str | None,
    **more: Any,
) -> Request:
    """The checked arguments of a search.  ``more``: options that have arguments of their own."""
    require_epochs(epochs, evaluate_every, MODULE, ("epochs", "evaluate_every"))
    source, validation = read_rows(db, source_table, validation_table, epochs, MODULE, folds=True)
    output = relations.new(db, model_table, MODULE, ("_info", "_summary", "_weights"), argument="model_table")
    keys = [partition["key"] for partition in source.layout["partitions"]]
    chosen = choose_options(
        db, json.dumps(with_arguments(options, more)), keys, bool(use_gpus), tables=(source, validation), module=MODULE
    )
    spec = methods.checked(method_of(method), MODULE, proposes=True)
    arch = relations.filled(db, arch_table, MODULE, "load_keras_model() adds architectures.", argument="arch_table")
    document = documents.argument(space, f"{MODULE} error: space")
    rows = read_architectures(db, arch, read_space.model_ids(document))
    decoded = {model_id: reading.decoded(row["arch"]) for model_id, row in rows.items()}
    read = read_space.read(document, decoded)
    known = custom_functions.known(db)
    read.check(known)
    architectures = {model_id: trained(model_id, row, arch, chosen) for model_id, row in rows.items()}
    chosen.update(objective_of_space(read, known, architectures, chosen, validation is not None))
    cross_validation.require_possible(source, {**chosen, "search": spec}, MODULE)
    optimised = objective.of_options(chosen, validation is not None)
    frequency = evaluate_every or (1 if validation is not None else epochs)
    require_measured(spec, optimised.dataset, frequency, MODULE)
    at_once = models_at_once(spec, at_once, len(keys), None if chosen.get("budget") else source.layout["rows"])
    require_end(spec, configurations, chosen)
    plain = {number: one.translated for number, one in architectures.items() if one.translated}
    trials: list[Trial] = []
    if methods.needs_optuna(spec):
        require_optuna(db, chosen["engine"])
    if start_from is not None:
        require_past(start_from, spec)
        trials = past.trials(db, source, read, plain, optimised)
    # Raises what is wrong with the method in this space.
    proposals = Proposals(read, chosen["seed"], at_once, Suggestions(db, chosen["engine"]), trials)
    methods.policy_of(spec, epochs, configurations, proposals)
    require_room(db, source, chosen)
    if "replay" in chosen:
        require_same_architectures(db, chosen["replay"], architectures)
        require_same_work(db, chosen["replay"], source, [], {})
    document = {**(document or {}), "architecture": list(rows)}
    chosen["search"] = spec
    chosen["space"] = {
        "space": document,
        "configurations": configurations,
        "at_once": at_once,
        "past": [trial.to_json() for trial in trials],
    }
    chosen["warm_start"] = False
    return Request(
        source=source,
        validation=validation,
        output=output,
        selection="",
        arch_table=arch,
        rows=[],
        architectures=architectures,
        epochs=epochs,
        evaluate_every=frequency,
        warm_start=False,
        name=name,
        description=description,
        options=chosen,
    )


# -- arguments -----------------------------------------------------------------------------------------


def with_arguments(options: str | None, more: dict[str, Any]) -> Any:
    """The options, with those that were given as arguments."""
    given = documents.argument(options or None, f"{MODULE} error: options", default={})
    if not isinstance(given, dict):
        return given  # choose_options refuses it
    if "search" in given:
        raise InvalidArgument(
            f"{MODULE} error: cerebro.search() has no option 'search'.", hint="The argument method says how to search."
        )
    for name, value in more.items():
        if value is None:
            continue
        if name in given:
            raise InvalidArgument(f"{MODULE} error: {name} is given as an argument and as an option.")
        given[name] = documents.argument(value, f"{MODULE} error: budget") if name == "budget" else value
    return given


def method_of(method: str | None) -> Any:
    if method is None or not method.lstrip().startswith("{"):
        return (method or "asha").strip()
    hint = 'For instance asha, or {"name": "asha", "reduction": 4}.'
    return documents.decoded(method, f"{MODULE} error: method", hint, error=InvalidSyntax)


def read_architectures(db: Database, arch: Relation, ids: list[int] | None) -> dict[int, dict[str, Any]]:
    """The rows of the table of architectures, in the order of the space."""
    present = relations.columns(db, arch)
    document_columns.require(present, arch.text, MODULE)
    name = sql("name::text") if "name" in present else sql("NULL::text AS name")
    relations.require_columns(db, arch, ["model_id", "model_arch"], MODULE)
    found = {
        row["model_id"]: row
        for row in db.rows(
            sql(
                "SELECT model_id, {name}, model_arch::text AS arch, model_weights IS NOT NULL AS has_weights"
                " FROM {arch} WHERE model_arch IS NOT NULL AND ($1 IS NULL OR model_id = ANY ($1)) ORDER BY model_id",
                name=name,
                arch=arch.sql,
            ),
            ("integer[]",),
            ids,
        )
    }
    missing = [number for number in ids or [] if number not in found]
    if missing:
        raise InvalidArgument(
            f"{MODULE} error: the space names architecture {missing[0]}, which {arch.text} does not have.",
            hint=f"SELECT model_id, name FROM {arch.name.quoted} lists them.",
        )
    weighted = [number for number, row in found.items() if row["has_weights"]]
    if weighted:
        db.warning(
            f"{MODULE}: architecture {weighted[0]} has weights. A search does not use them: models start from random"
            " weights"
        )
    return {number: found[number] for number in (ids or list(found))}


def trained(model_id: int, row: dict[str, Any], arch: Relation, chosen: dict[str, Any]) -> Architecture:
    """An architecture as it is trained; one with parameters is not trained as it is."""
    if placeholders.has_parameters(row["arch"]) and reading.parameters(row["arch"]) is not None:
        return Architecture(row["name"], row["arch"], {}, None)
    try:
        translated = reading.architecture(row["arch"])
    except CerebroError as error:
        error.message = f"model_id {model_id} of '{arch.text}': {error.message}"
        raise
    if "precision" in chosen:
        translated = computed_in(translated, chosen["precision"])
    return Architecture(row["name"], row["arch"], translated, None)


def require_same_architectures(db: Database, run_id: int, architectures: dict[int, Architecture]) -> None:
    """Refuse to replay a search with other architectures under the same numbers."""
    given = RunLog.of_caller(db, run_id).given_architectures()
    for model_id, architecture in architectures.items():
        if given.get(model_id) != architecture.given:
            raise WrongState(
                f"{MODULE} error: run {run_id} cannot be replayed: its architecture {model_id} was another one.",
                hint="Leave replay out, or load the architectures of that run into arch_table.",
            )


# -- what belongs together -----------------------------------------------------------------------------


def objective_of_space(
    space: Space, known: Known, architectures: dict[int, Architecture], chosen: dict[str, Any], validated: bool
) -> dict[str, str]:
    """The objective as it goes on record, if all configurations of the space have it."""
    tried: dict[tuple[Any, str], Drawn] = {}
    for point in space.probes():
        drawn = space.configuration(point)
        tried.setdefault(((drawn.model_id, drawn.architecture), drawn.compile_params), drawn)
    translated = {which: architecture_of(drawn, architectures) for (which, _), drawn in tried.items()}
    rows, built = [], {}
    for place, ((which, compile_params), _) in enumerate(tried.items()):
        built[place] = Architecture(None, "", translated[which], None)
        compiled = reading.for_outputs(params.compile_params(compile_params, known), translated[which])
        rows.append({"mst_key": place, "model_id": place, "compile": compiled})
    return objective_of(chosen, rows, built, validated, MODULE)


def architecture_of(drawn: Drawn, architectures: dict[int, Architecture]) -> dict[str, Any]:
    return (
        architectures[drawn.model_id].translated
        if drawn.architecture is None
        else reading.architecture(drawn.architecture)
    )


def models_at_once(spec: dict[str, Any], given: int | None, segments: int, rows: int | None = None) -> int:
    """How many models train at the same time.

    ``rows``: None if the search may end before all models have trained.  Then few of them should have come far.
    """
    if given is None:
        if rows is None or spec.get(methods.SAMPLER, spec)["name"] not in methods.INDEPENDENT:
            return AT_ONCE * segments
        return (AT_ONCE_SMALL if rows <= SMALL_ROWS * segments else AT_ONCE_INDEPENDENT) * segments
    if spec["name"] in methods.POPULATIONS:
        raise InvalidArgument(
            f"{MODULE} error: at_once cannot be given with '{spec['name']}'.",
            hint="The whole population trains at once; configurations says how large it is.",
        )
    if not 1 <= given <= MOST_POINTS:
        raise InvalidArgument(f"{MODULE} error: at_once is {given}; it must be from 1 to {MOST_POINTS}.")
    return given


def require_end(spec: dict[str, Any], configurations: int | None, chosen: dict[str, Any]) -> None:
    """Refuse a search that would never end."""
    if configurations is not None and not 1 <= configurations <= MOST_POINTS:
        raise InvalidArgument(
            f"{MODULE} error: configurations is {configurations}; it must be from 1 to {MOST_POINTS}."
        )
    grid = "grid" in (spec["name"], spec.get(methods.SAMPLER, {}).get("name"))
    limits = set(chosen.get("budget") or ()) - {"least_epochs"}
    endless = spec["name"] in methods.POPULATIONS or not limits
    if configurations is None and not grid and endless:
        raise InvalidArgument(
            f"{MODULE} error: configurations is NULL; '{spec['name']}' needs to know how many it may try.",
            hint="""Give configurations => 64, for instance, or a budget: budget => '{"unit_hours": 2}'.""",
        )


def require_optuna(db: Database, engine: str) -> None:
    suggestions = Suggestions(db, engine)
    try:
        suggestions.require()
    finally:
        suggestions.close()


def require_past(start_from: str, spec: dict[str, Any]) -> None:
    if start_from != PAST:
        raise InvalidArgument(f"{MODULE} error: start_from is '{start_from}'; it can only be '{PAST}'.")
    if not methods.needs_optuna(spec):
        raise InvalidArgument(
            f"{MODULE} error: '{spec['name']}' cannot start from the past.",
            hint="""tpe can: method => 'tpe', or method => '{"name": "asha", "sampler": "tpe"}'.""",
        )
