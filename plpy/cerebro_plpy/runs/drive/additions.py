"""Prepares models that decisions add to a run: checks them, and records them with their initial states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.architecture import reading
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.errors import CerebroError, CorruptState, InvalidArgument, UndefinedObject, Unsupported
from cerebro_db.core.events import Event, Initial, Verdict
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.parameters.optimizers import slots
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling.ring import derived_seed, ring_positions
from cerebro_db.core.search import objective
from cerebro_db.core.search.policy import Decision, NewModel
from cerebro_db.core.sql import sql

from ...platform.base import Platform
from ...sessions.session import BEGIN, COMMIT, ROLLBACK, Session, Statement
from ..preflight import engine_choice
from ..record import state_tables
from ..record.groups import group_on_record
from ..record.log import RunLog
from ..record.run import AskedModel, Model, ModelBuild, Run, averaging_visits

NOTHING: dict[str, Any] = {"architecture": {}, "compile": {}, "fit": {}}  # the definition of a refused configuration


@dataclass
class Added:
    """A model that is about to be on record."""

    new: NewModel
    model: Model
    given: str | None = None  # the text of its architecture, if the run does not have that yet


def commit(
    run: Run,
    log: RunLog,
    recorder: Session,
    platform: Platform,
    decisions: Sequence[Decision],
    *,
    policy: str,
    known: Known,
    built: bool,
) -> list[Model]:
    """Commit decisions and the models that they add in one transaction; returns these models.

    ``built``: preflight is over, so nothing describes the models before they train.
    """
    added = _made(run, log, [new for decision in decisions for new in decision.added], known)
    if built:
        _settle(run, log, [one.model for one in added if one.model.asked.refused is None])
    statements = [BEGIN]
    for decision in decisions:
        statements.append(log.events.decide(decision, policy))
        if decision.verdict is Verdict.EXTEND:
            statements.append(log.events.event(Event.EXTENDED, epochs=decision.detail["epochs"]))
    for one in added:
        statements += _records(run, log, one, built)
    try:
        recorder.run_statement(Statement.joined(statements))
        for one in added:
            _copy_state(run, log, recorder, platform, one)
    except BaseException:
        recorder.settle()
        recorder.run_statement(ROLLBACK)
        raise
    recorder.run_statement(COMMIT)
    for one in added:
        run.models[one.model.number] = one.model
        run.architectures.setdefault(one.model.asked.model_id, one.model.asked.definition["architecture"])
    return [one.model for one in added]


# -- what the models are ---------------------------------------------------------------------------------


def _made(run: Run, log: RunLog, added: Sequence[NewModel], known: Known) -> list[Added]:
    """The new models, as a resumed run would load them."""
    made: list[Added] = []
    architectures = dict(run.architectures)
    place = max((model.asked.place for model in run.models.values()), default=-1)
    for new in added:
        assert new.model is not None
        if new.configuration is None:
            asked, given = _alike(run, new), None
        else:
            place += 1
            asked, given = _configured(run, new, place, architectures, known)
        architectures.setdefault(asked.model_id, asked.definition["architecture"])
        made.append(Added(new, _start(run, log, new, asked), given))
    return made


def _alike(run: Run, new: NewModel) -> AskedModel:
    """A model of a configuration that the run has."""
    assert new.model is not None
    parent = run.models[new.parent] if new.parent is not None else None
    key = parent.key if new.key is None and parent is not None else new.key
    like = next((model.asked for model in run.models.values() if model.key == key), None)
    if like is None:
        raise UndefinedObject(f"model {new.model} cannot be added: the run has no configuration {key}")
    return replace(
        like,
        number=new.model,
        adopts=parent is not None and parent.key != like.key,
        refused=like.refused or _unlike(parent, like.definition),
    )


def _configured(
    run: Run, new: NewModel, place: int, architectures: dict[int, Any], known: Known
) -> tuple[AskedModel, str | None]:
    """A model of a new configuration; one that fails the checks is refused, and the run goes on without it."""
    own, parent = new.configuration, run.models[new.parent] if new.parent is not None else None
    assert new.model is not None and new.key is not None and own is not None
    number = own.model_id if own.architecture is None else max([0, *architectures]) + 1
    if number is None:
        assert parent is not None
        number = parent.asked.model_id
    asked = AskedModel(
        new.model, new.key, place, number, own.compile_params, own.fit_params, NOTHING, seed=0, initial=Initial.RANDOM,
        adopts=parent is not None, chosen=dict(own.chosen),
    )  # fmt: skip
    # A model that starts from another one's state has the same architecture.
    arch_params = dict(own.arch_params) if parent is None else flat.of_architecture(parent.asked.parameters)
    asked, given = replace(asked, parameters=arch_params), None
    try:
        definition, given = _definition(run, own.architecture, asked, architectures, known)
        for known_id, architecture in architectures.items():
            if given is not None and architecture == definition["architecture"]:
                number, given = known_id, None
        asked = replace(asked, parameters=flat.flatten(arch_params, definition["compile"], definition["fit"]))
        refused = _unlike(parent, definition)
    except CerebroError as error:
        definition, refused = NOTHING, error.message
        if own.architecture is not None:
            given = _as_json(own.architecture)
    return replace(
        asked, model_id=number, definition=definition if refused is None else NOTHING, refused=refused
    ), given


def refusal(run: Run, new: NewModel, known: Known) -> str | None:
    """Why a configuration that a person has requested cannot be added, as far as this is known before it is built."""
    if new.configuration is None or (new.parent is not None and new.parent not in run.models):
        return None
    asked, _ = _configured(run, replace(new, model=0, key=0), 0, run.architectures, known)
    return asked.refused


def _definition(
    run: Run, text: str | None, asked: AskedModel, architectures: dict[int, Any], known: Known
) -> tuple[dict[str, Any], str | None]:
    """The definition of a configuration after the checks of a selection table's row, and a new architecture's text."""
    if text is not None:
        architecture = reading.architecture(text)
        if run.options.precision is not None:
            architecture = computed_in(architecture, run.options.precision)
    elif architectures.get(asked.model_id):
        architecture = architectures[asked.model_id]
    else:
        raise InvalidArgument(f"the run has no architecture {asked.model_id}")
    compiled = reading.for_outputs(params.compile_params(asked.compile_params, known), architecture)
    objective.require_reported(run.options.objective, reported(compiled, reading.outputs(architecture)))
    fitted = params.fit_params(asked.fit_params)
    return {"architecture": architecture, "compile": compiled, "fit": fitted}, text


def _unlike(parent: Model | None, definition: dict[str, Any]) -> str | None:
    """Why a model cannot start from another one's state: the state fits one architecture and one optimizer."""
    if parent is None:
        return None
    if definition["architecture"] != parent.asked.definition["architecture"]:
        return f"it cannot start from the state of model {parent.number}, which has another architecture"
    mine, its = (one["compile"].get("optimizer") for one in (definition, parent.asked.definition))
    if mine is None or its is None or slots(mine) != slots(its):
        return (
            f"it cannot start from the state of model {parent.number}, whose optimizer has another class or other slots"
        )
    return None


def _as_json(text: str) -> str:
    """An architecture's text as the log can hold it: one that is no JSON becomes a JSON string."""
    try:
        reading.decoded(text)
        return text
    except CerebroError:
        return json.dumps(text)


def _start(run: Run, log: RunLog, new: NewModel, asked: AskedModel) -> Model:
    """The model, with what it starts from."""
    visits = None if new.visits is None else tuple(new.visits)
    if run.averages:
        visits = averaging_visits(run.segments) if visits is None else (*visits, visits[0])
    parent = run.models[new.parent] if new.parent is not None else None
    seed, initial, sha256 = derived_seed(run.seed, "model", asked.number), Initial.RANDOM, None
    if new.variant is not None:  # all models of a configuration begin with the same weights
        of_key = [one.asked for one in run.models.values() if one.key == asked.key]
        seed = next(one.seed for one in of_key if one.parent is None)
    if parent is not None and new.parent_hop is not None and asked.refused is None:
        sha256, _ = log.states.state_after(parent.number, new.parent_hop)
        if new.parent_hop > 0:
            initial = Initial.FULL
        else:
            seed, initial = parent.asked.seed, parent.asked.initial
    # A state goes on with the rows that it was trained on.
    fold = new.fold if parent is None else parent.asked.fold
    group_number = new.group_number if parent is None else parent.asked.group_number
    if group_number is not None:
        visits = tuple(sorted(run.source.pieces[group_number]))
    asked = replace(
        asked, visits=visits, parent=new.parent, seed=seed, initial=initial, fold=fold, group_number=group_number
    )
    return Model(asked, sha256, run.dist_keys[0])


def _settle(run: Run, log: RunLog, models: Sequence[Model]) -> None:
    """Ring positions, engines and what preflight would find out: as models know it that are built alike."""
    earlier = RunLog(log.ask, run.options.replay).plan.built() if run.options.replay is not None else {}
    taken = {position for model in run.models.values() if (position := model.build.position) is not None}
    fresh = ring_positions({model.number: 0 for model in models if model.number not in earlier}, taken)
    for model in models:
        alike = [one for one in run.models.values() if one.build.done and one.asked.model_id == model.asked.model_id]
        build = model.build = ModelBuild(done=True)
        if model.number in earlier:
            build.engine, build.position = earlier[model.number]
        else:
            build.position = fresh[model.number]
            build.engine = alike[0].build.engine if alike else engine_choice.of_added(run, model)
        model.state_bytes = max((one.state_bytes for one in alike or run.models.values()), default=0)
        build.parameters = alike[0].build.parameters if alike else None
        equal = (one for one in alike if _same_rows(one.asked, model.asked) and _same_step(one, model))
        build.group = next((one.build.group for one in equal), None)


def _same_rows(one: AskedModel, other: AskedModel) -> bool:
    return (one.fold, one.group_number) == (other.fold, other.group_number)


def _same_step(one: Model, other: Model) -> bool:
    """Whether two models surely have one compiled step and the same batches: all but the learning rate is the same."""

    def step(model: Model) -> list[Any]:
        definition = model.asked.definition
        optimizer = definition["compile"]["optimizer"]
        config = dict(optimizer.get("config") or {})
        if isinstance(config.get("learning_rate", 0.0), (int, float)):
            config.pop("learning_rate", None)
        compiled = {**definition["compile"], "optimizer": {**optimizer, "config": config}}
        return [definition["architecture"], compiled, definition["fit"]]

    return one.build.engine == other.build.engine and step(one) == step(other)


# -- what the log gets -------------------------------------------------------------------------------------


def _records(run: Run, log: RunLog, one: Added, built: bool) -> list[Statement]:
    model, made = one.model, []
    rows: dict[str, Any] = {}
    if model.asked.fold is not None:
        rows = {"fold": model.asked.fold, "fold_rows": run.source.rows_of_fold(model.asked.fold)}
    elif model.asked.group_number is not None:
        rows = group_on_record(run.source, run.validation, model.asked.group_number)
    if one.new.configuration is not None:
        made += log.events.add_configuration(model, one.given, one.new.configuration.name)
    made.append(log.events.add_model(model, one.new.parent, one.new.parent_hop, rows))
    if model.asked.refused is not None:
        made.append(log.events.event(Event.MODEL_FAILED, model.number, reason=model.asked.refused, refused=True))
    elif built:
        told = {"state_bytes": model.state_bytes, "engine": model.build.engine, "position": model.build.position}
        known = {} if model.build.parameters is None else {"parameters": model.build.parameters}
        made.append(log.events.event(Event.BUILT, model.number, **told, **known))
    return made


def _copy_state(run: Run, log: RunLog, recorder: Session, platform: Platform, one: Added) -> None:
    """Give the model the state that it starts from."""
    new, model = one.new, one.model
    if model.asked.initial == Initial.RANDOM:
        return
    if new.parent is None or new.parent_hop is None:
        raise Unsupported(f"model {new.model} has no parent to start from")
    parent = run.models[new.parent]
    _, segment = log.states.state_after(parent.number, new.parent_hop)
    large = state_tables.has_own_table(parent, new.parent_hop)
    into, lead = state_tables.into_start(recorder, platform, run, model, large=large)
    copy = sql(
        "{into} SELECT {lead}{here}, 0, start, payload {rows} AND __dist_key__ = {there} RETURNING 1",
        into=into,
        lead=lead,
        here=run.dist_keys[0],
        rows=state_tables.read_from(run, parent, new.parent_hop),
        there=run.dist_keys[segment],
    )
    copied = recorder.run_statement(Statement(copy, answers=True))
    if not copied:
        raise CorruptState(f"model {new.model} cannot start from model {new.parent}: its state is gone")
