"""The request for a search: a run whose configurations are proposed from a space while it goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cerebro_db.core import documents
from cerebro_db.core.architecture import keras_json, placeholders
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.architecture.sources import Kind, Source
from cerebro_db.core.errors import InvalidArgument, InvalidSyntax, WrongState
from cerebro_db.core.packing.layout import Layout
from cerebro_db.core.parameters import params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.records import dataclass
from cerebro_db.core.run_options import RecordedSpace, RunOptions
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.budget import Budget
from cerebro_db.core.search.methods.tpe import Trial
from cerebro_db.core.search.named_methods import Proposals
from cerebro_db.core.search.objective import Reported
from cerebro_db.core.search.spaces import flat_space, read_space
from cerebro_db.core.search.spaces.space import MOST_POINTS, Drawn, Space

from ..database.access import Database
from ..definitions import added, custom_functions
from ..definitions.added import Named
from .drive.suggestions import Suggestions
from .record.log import RunLog
from .request import cross_validation, past
from .request.request import (
    Architecture,
    AskedRun,
    Configurations,
    PlannedRun,
    RunRequest,
    objective_of,
    request_of,
    require_epochs,
    require_measured,
    require_same_work,
)

PAST = "past"
# Models per segment.  With two a segment mostly has one to take while another is decided about; with four it is busy
# for 97 % of the time instead of 91 %.  Visits to few rows take milliseconds, and several of them can share an order.
AT_ONCE, AT_ONCE_INDEPENDENT, AT_ONCE_SMALL = 2, 4, 16
SMALL_ROWS = 5000  # of a segment


@dataclass(frozen=True)
class AskedSearch:
    """A flat space, and how to search it."""

    space: dict[str, Any]
    named: dict[Any, Named]  # the architectures, by their labels
    spec: dict[str, Any]  # the method
    configurations: int | None  # at most
    at_once: int | None = None
    start_from: str | None = None


def of_space(db: Database, asked: AskedRun, searched: AskedSearch) -> RunRequest:
    """The request for a search."""
    source, spec, named = asked.source, searched.spec, searched.named
    validated = asked.validation is not None
    require_epochs(asked.epochs, asked.frequency)

    def plan(chosen: RunOptions) -> PlannedRun:
        layout = source.layout
        document = flat_space.parted(searched.space, {label: one.source for label, one in named.items()}, "space")
        read = read_space.read(document, fitted(named, layout))
        known = custom_functions.known(db)
        read.check(known)
        architectures = {
            number: trained(label, one, chosen.precision) for number, (label, one) in enumerate(named.items(), 1)
        }
        chosen = objective_of_space(read, known, architectures, chosen, validated)
        cross_validation.require_possible(source, replace(chosen, method=spec))
        optimised = chosen.optimised(validated)
        frequency = asked.frequency or (1 if validated else asked.epochs)
        require_measured(spec, optimised.dataset, frequency)
        rows = None if chosen.budget else layout.rows
        at_once = models_at_once(spec, searched.at_once, len(layout.partitions), rows)
        require_end(spec, searched.configurations, chosen.budget)
        plain = {
            label: architectures[number].translated
            for number, label in enumerate(named, 1)
            if architectures[number].translated
        }
        trials: list[Trial] = []
        if named_methods.needs_optuna(spec):
            require_optuna(db, chosen.engine)
        if searched.start_from is not None:
            require_past(searched.start_from, spec)
            trials = past.trials(db, source, read, plain, optimised)
        # Raises what is wrong with the method in this space.
        proposals = Proposals(read, chosen.seed, at_once, Suggestions(db, chosen.engine), trials)
        named_methods.policy_of(spec, asked.epochs, searched.configurations, proposals)
        weights = {str(label): added.recorded(one.label, one.weights()) for label, one in named.items() if one.weights}
        space = RecordedSpace(document, searched.configurations, at_once, tuple(trials), weights)
        configurations = Configurations("the space", [], architectures)
        if chosen.replay is not None:
            require_same_architectures(db, chosen.replay, architectures, space)
            require_same_work(db, chosen, source, configurations)
        chosen = replace(chosen, method=spec, space=space)
        cross_validation.require_possible_groups(source, chosen, searched.configurations or read.size() or 1)
        return PlannedRun(configurations, chosen, frequency)

    return request_of(db, asked, plan)


def fitted(named: dict[Any, Named], layout: Layout | None) -> dict[Any, Source]:
    """The architectures by their labels, with what kinds need to know of the packed columns."""
    return {
        label: one.source.fitted(layout) if isinstance(one.source, Kind) and layout is not None else one.source
        for label, one in named.items()
    }


# -- arguments -----------------------------------------------------------------------------------------


def method_of(method: str | None) -> Any:
    if method is None or not method.lstrip().startswith("{"):
        return (method or "asha").strip()
    hint = 'For instance asha, or {"name": "asha", "reduction": 4}.'
    return documents.decoded(method, "method", hint, error=InvalidSyntax)


def trained(label: Any, named: Named, precision: str | None) -> Architecture:
    """An architecture as it is trained; one that is made anew for each configuration is not trained as it is."""
    source = named.source
    if isinstance(source, Kind):
        return Architecture(str(label), source.written, {}, None)
    return of_text(str(label), json.dumps(source), precision)


def of_text(name: str | None, text: str, precision: str | None) -> Architecture:
    if placeholders.has_parameters(text) and keras_json.parameters(text) is not None:
        return Architecture(name, text, {}, None)
    translated = keras_json.architecture(text)
    if precision is not None:
        translated = computed_in(translated, precision)
    return Architecture(name, text, translated, None)


def require_same_architectures(
    db: Database, run_id: int, architectures: dict[int, Architecture], space: RecordedSpace
) -> None:
    """Refuse to replay a search with other architectures under the same numbers, or with other weights."""
    log = RunLog.of_caller(db, run_id)
    given, earlier = log.plan.given_architectures(), log.known.options()
    if earlier is not None and earlier.space is not None and earlier.space.weights != space.weights:
        raise WrongState(
            f"run {run_id} cannot be replayed: its models started from other weights.",
            hint="Leave replay out, or add the architectures with the weights of that run.",
        )
    for model_id, architecture in architectures.items():
        if given.get(model_id) != architecture.given:
            raise WrongState(
                f"run {run_id} cannot be replayed: its architecture {model_id} was another one.",
                hint="Leave replay out, or name the architectures of that run.",
            )


# -- what belongs together -----------------------------------------------------------------------------


def objective_of_space(
    space: Space, known: Known, architectures: dict[int, Architecture], chosen: RunOptions, validated: bool
) -> RunOptions:
    """The options with the objective as it goes on record, if all configurations of the space have it."""
    tried: dict[tuple[Any, str], Drawn] = {}
    for point in space.probes():
        drawn = space.configuration(point)
        tried.setdefault(((drawn.model_id, drawn.architecture), drawn.compile_params), drawn)
    translated = {which: architecture_of(drawn, architectures) for (which, _), drawn in tried.items()}
    configurations: dict[int, Reported] = {}
    for place, (which, compile_params) in enumerate(tried):
        compiled = keras_json.for_outputs(params.compile_params(compile_params, known), translated[which])
        configurations[place] = reported(compiled, keras_json.outputs(translated[which]))
    return objective_of(chosen, configurations, validated, numbered=False)


def architecture_of(drawn: Drawn, architectures: dict[int, Architecture]) -> dict[str, Any]:
    return (
        architectures[drawn.model_id].translated
        if drawn.architecture is None
        else keras_json.architecture(drawn.architecture)
    )


def models_at_once(spec: dict[str, Any], given: int | None, segments: int, rows: int | None = None) -> int:
    """How many models train at the same time.

    ``rows``: None if the search may end before all models have trained.  Then few of them should have come far.
    """
    if given is None:
        if rows is None or spec.get(named_methods.SAMPLER, spec)["name"] not in named_methods.INDEPENDENT:
            return AT_ONCE * segments
        return (AT_ONCE_SMALL if rows <= SMALL_ROWS * segments else AT_ONCE_INDEPENDENT) * segments
    if spec["name"] in named_methods.POPULATIONS:
        raise InvalidArgument(
            f"at_once cannot be given with '{spec['name']}'.",
            hint="The whole population trains at once; max_configurations says how large it is.",
        )
    if not 1 <= given <= MOST_POINTS:
        raise InvalidArgument(f"at_once is {given}; it must be from 1 to {MOST_POINTS}.")
    return given


def require_end(spec: dict[str, Any], configurations: int | None, budget: Budget | None) -> None:
    """Refuse a search that would never end."""
    if configurations is not None and not 1 <= configurations <= MOST_POINTS:
        raise InvalidArgument(f"max_configurations is {configurations}; it must be from 1 to {MOST_POINTS}.")
    grid = "grid" in (spec["name"], spec.get(named_methods.SAMPLER, {}).get("name"))
    limited = budget is not None and (budget.limits or budget.configurations is not None)
    endless = spec["name"] in named_methods.POPULATIONS or not limited
    if configurations is None and not grid and endless:
        raise InvalidArgument(
            f"max_configurations is NULL; '{spec['name']}' needs to know how many it may try.",
            hint="""Give max_configurations => 64, for instance, or a budget: budget => '{"unit_hours": 2}'.""",
        )


def require_optuna(db: Database, engine: str) -> None:
    suggestions = Suggestions(db, engine)
    try:
        suggestions.require()
    finally:
        suggestions.close()


def require_past(start_from: str, spec: dict[str, Any]) -> None:
    if start_from != PAST:
        raise InvalidArgument(f"start_from is '{start_from}'; it can only be '{PAST}'.")
    if not named_methods.needs_optuna(spec):
        raise InvalidArgument(
            f"'{spec['name']}' cannot start from the past.",
            hint="""tpe can: method => 'tpe', or method => '{"name": "asha", "sampler": "tpe"}'.""",
        )
