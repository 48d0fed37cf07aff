"""Prepares models that decisions add to a run: checks them, and records them with their initial states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.documents import shown
from cerebro_db.core.errors import CerebroError, CorruptState, InvalidArgument, UndefinedObject, Unsupported, WrongState
from cerebro_db.core.events import Event, Initial, Verdict
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.parameters.optimizers import slots
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.protocol import FrozenPart
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling.ring import derived_seed, ring_positions
from cerebro_db.core.search import objective
from cerebro_db.core.search.decision import AddedWeights, Variant
from cerebro_db.core.search.policy import Decision, NewModel
from cerebro_db.core.sql import sql

from ...definitions import added
from ...platform.base import Platform
from ...sessions.session import BEGIN, COMMIT, ROLLBACK, Session, Statement
from ..preflight import engine_choice
from ..record import state_tables
from ..record.groups import rows_on_record, visits_of
from ..record.log import RunLog
from ..record.run import AskedModel, Model, ModelBuild, Run, StoredWeights, averaging_visits

NOTHING: dict[str, Any] = {"architecture": {}, "compile": {}, "fit": {}}  # the definition of a refused configuration


@dataclass
class Added:
    """A model that is about to be on record."""

    new: NewModel
    model: Model
    given: str | None = None  # the text of its architecture, if the run does not have that yet
    weights: AddedWeights | None = None  # of an architecture, that it starts from


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
    sound = [one.model for one in added if one.model.asked.refused is None]
    if built:
        _settle(run, log, sound)
    statements = [BEGIN]
    for decision in decisions:
        statements.append(log.events.decide(decision, policy))
        if decision.verdict is Verdict.EXTEND:
            statements.append(log.events.event(Event.EXTENDED, epochs=decision.detail["epochs"]))
    statements += _records(run, log, added)
    if built and sound:
        statements.append(log.events.built(sound))
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
    first: dict[int, AskedModel] = {}  # of each configuration, the first model
    for model in run.models.values() if added else ():
        first.setdefault(model.key, model.asked)
    starts = _Starts(run, log, first)
    place = max((asked.place for asked in first.values()), default=-1)
    for new in added:
        assert new.model is not None
        if new.configuration is None:
            asked, given = _alike(run, new, first), None
        else:
            place += 1
            asked, given = _configured(run, new, place, architectures, known)
        architectures.setdefault(asked.model_id, asked.definition["architecture"])
        model = starts.of(new, asked)
        made.append(Added(new, model, given, starts.weights_of(new, model.asked)))
    return made


def _alike(run: Run, new: NewModel, first: Mapping[int, AskedModel]) -> AskedModel:
    """A model of a configuration that the run has."""
    assert new.model is not None
    parent = run.models[new.parent] if new.parent is not None else None
    key = parent.key if new.key is None and parent is not None else new.key
    like = None if key is None else first.get(key)
    if like is None:
        raise UndefinedObject(f"model {new.model} cannot be added: the run has no configuration {key}")
    return replace(
        like,
        number=new.model,
        adopts=parent is not None and parent.key != like.key,
        refused=like.refused or (None if new.variant is not None else _unlike(parent, like.definition)),
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
        number=new.model, key=new.key, place=place, model_id=number, compile_params=own.compile_params,
        fit_params=own.fit_params, definition=NOTHING, seed=0, initial=Initial.RANDOM, adopts=parent is not None,
        chosen=dict(own.chosen),
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


def refusal(run: Run, recorder: Session, new: NewModel, known: Known) -> str | None:
    """Why a configuration that a person has requested cannot be added, as far as this is known before it is built."""
    if new.configuration is None or (new.parent is not None and new.parent not in run.models):
        return None
    asked, _ = _configured(run, replace(new, model=0, key=0), 0, run.architectures, known)
    weights = new.configuration.weights
    if asked.refused is None and weights is not None:
        recorder.finish()
        if not recorder.run(sql("SELECT {same}", same=added.are_there(weights)))[0][0]:
            return f"the architecture {shown(weights.name)} no longer has the weights that it had at the request"
    return asked.refused


def _definition(
    run: Run, text: str | None, asked: AskedModel, architectures: dict[int, Any], known: Known
) -> tuple[dict[str, Any], str | None]:
    """The definition of a configuration after the checks of a selection table's row, and a new architecture's text."""
    if text is not None:
        architecture = keras_json.architecture(text)
        if run.options.precision is not None:
            architecture = computed_in(architecture, run.options.precision)
    elif architectures.get(asked.model_id):
        architecture = architectures[asked.model_id]
    else:
        raise InvalidArgument(f"the run has no architecture {asked.model_id}")
    compiled = keras_json.for_outputs(params.compile_params(asked.compile_params, known), architecture)
    objective.require_reported(run.options.objective, reported(compiled, keras_json.outputs(architecture)))
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
        keras_json.decoded(text)
        return text
    except CerebroError:
        return json.dumps(text)


class _Starts:
    """What new models start from."""

    def __init__(self, run: Run, log: RunLog, first: Mapping[int, AskedModel]) -> None:
        """``first``: of each configuration, the first model."""
        self.run, self.log, self.first = run, log, first
        self._weights: dict[tuple[int, int], StoredWeights] = {}
        self._of_configurations: dict[int, AddedWeights] | None = None  # that people have added

    def of(self, new: NewModel, asked: AskedModel) -> Model:
        """The model, with what it starts from."""
        run = self.run
        if new.parent is not None and new.variant is None:
            return self._copy(new, run.models[new.parent], asked)
        visits = None if new.visits is None else tuple(new.visits)
        if run.averages and asked.home is None:
            visits = averaging_visits(run.segments) if visits is None else (*visits, visits[0])
        if new.group_number is not None or run.options.adds_gradients or asked.home is not None:
            visits = visits_of(run.source, new.variant, run.options.adds_gradients, asked.home)
        # All models of a configuration begin with the same random weights.
        seed = derived_seed(run.seed, "model", new.model) if new.variant is None else self.first[asked.key].seed
        initial, start = Initial.RANDOM, None
        sha256 = None
        if (weights := self.weights_of(new, asked)) is not None:
            initial, sha256 = Initial.WEIGHTS, None if state_tables.is_small(weights.bytes) else weights.sha256
        elif new.parent is not None and new.parent_hop:
            initial, start = Initial.WEIGHTS, self._weights_after(new.parent, new.parent_hop)
        asked = replace(
            asked, visits=visits, parent=new.parent, seed=seed, initial=initial, fold=new.fold,
            group_number=new.group_number, start=start,
        )  # fmt: skip
        return Model(asked, sha256, run.dist_keys[0], given=sha256)

    def _copy(self, new: NewModel, parent: Model, asked: AskedModel) -> Model:
        """A model that goes on with the state of another one, and with the rows that it was trained on."""
        run, visits, sha256 = self.run, new.visits, None
        if run.averages:
            visits = averaging_visits(run.segments) if visits is None else (*visits, visits[0])
        if parent.asked.group_number is not None or run.options.adds_gradients or asked.home is not None:
            visits = parent.asked.visits
        seed, initial, start = derived_seed(run.seed, "model", new.model), Initial.RANDOM, None
        if new.parent_hop is not None and asked.refused is None:
            sha256, _ = self.log.states.state_after(parent.number, new.parent_hop)
            initial = Initial.FULL
            if new.parent_hop == 0:
                seed, initial, start = parent.asked.seed, parent.asked.initial, parent.asked.start
        asked = replace(
            asked, visits=None if visits is None else tuple(visits), parent=new.parent, parent_hop=new.parent_hop,
            seed=seed, initial=initial,
            fold=parent.asked.fold, group_number=parent.asked.group_number, start=start,
        )  # fmt: skip
        given = sha256 if initial == Initial.WEIGHTS and start is None else None
        return Model(asked, sha256, run.dist_keys[0], given=given)

    def weights_of(self, new: NewModel, asked: AskedModel) -> AddedWeights | None:
        """The weights of an added architecture that a model starts from; None: it starts from something else."""
        if new.parent is not None or asked.refused is not None:
            return None
        if new.configuration is not None and new.configuration.weights is not None:
            return new.configuration.weights
        space = self.run.options.space
        found = None if space is None else space.weights_of(asked.chosen)
        first = self.first.get(asked.key)
        if found is None and new.configuration is None and first is not None and first.initial is Initial.WEIGHTS:
            found = self._of_decisions().get(asked.key)  # a model of a fold or of a group
        return found

    def _of_decisions(self) -> dict[int, AddedWeights]:
        if self._of_configurations is None:
            self._of_configurations = {
                new.key: new.configuration.weights
                for decision in self.log.events.decisions()
                for new in decision.added
                if new.key is not None and new.configuration is not None and new.configuration.weights is not None
            }
        return self._of_configurations

    def _weights_after(self, model: int, hop: int) -> StoredWeights:
        if (model, hop) not in self._weights:
            self._weights[model, hop] = self.log.states.weights_after(model, hop, self.run.dist_keys)
        return self._weights[model, hop]


def _settle(run: Run, log: RunLog, models: Sequence[Model]) -> None:
    """Ring positions, engines and what preflight would find out: as models know it that are built alike."""
    if not models:
        return
    earlier = RunLog(log.ask, run.options.replay).plan.built() if run.options.replay is not None else {}
    taken = {position for model in run.models.values() if (position := model.build.position) is not None}
    fresh = ring_positions({model.number: 0 for model in models if model.number not in earlier}, taken)
    whole = {model.key: model.build.position for model in run.models.values() if model.asked.group_number is None}
    alike: dict[int, Model] = {}  # of each architecture, a model that is built
    beside: dict[Any, list[Model]] = {}  # the built models of an architecture that train on the same rows
    sizes: dict[int, int] = {}
    for one in run.models.values():
        if one.build.done:
            alike.setdefault(one.asked.model_id, one)
            beside.setdefault(_rows(one.asked), []).append(one)
            sizes[one.asked.model_id] = max(one.state_bytes, sizes.get(one.asked.model_id, 0))
    largest = max((one.state_bytes for one in run.models.values()), default=0)
    for model in models:
        like = alike.get(model.asked.model_id)
        build = model.build = ModelBuild(done=True)
        if model.number in earlier:
            build.engine, build.position = earlier[model.number]
        else:
            build.position = fresh[model.number]
            if run.is_of_waiting_group(model):  # its number follows from when it began
                build.position = (whole[model.key] or 0) + (model.asked.group_number or 0)
            build.engine = like.build.engine if like is not None else engine_choice.of_added(run, model)
        model.state_bytes = sizes.get(model.asked.model_id, largest)
        model.frozen_bytes = like.frozen_bytes if like is not None else 0
        build.parameters = like.build.parameters if like is not None else None
        build.memory = like.build.memory if like is not None else build.memory
        equal = (one for one in beside.get(_rows(model.asked), ()) if _same_step(one, model))
        build.group = next((one.build.group for one in equal), None)


def _rows(asked: AskedModel) -> tuple[int, Variant | None]:
    """The architecture and the rows of a model."""
    return asked.model_id, asked.variant


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


def _records(run: Run, log: RunLog, added: Sequence[Added]) -> list[Statement]:
    """Few statements, however many models a decision adds: with groups there may be thousands."""
    made, models = [], []
    for one in added:
        asked = one.model.asked
        if one.new.configuration is not None:
            made += log.events.add_configuration(one.model, one.given, one.new.configuration.name)
        parent, hop = one.new.parent, one.new.parent_hop
        if asked.start is not None:  # a copy of a model that has not begun begins with the same weights
            parent, hop = asked.start.model, asked.start.hop
        models.append({
            "model": asked.number,
            "configuration": asked.key,
            "visits": None if asked.visits is None else list(asked.visits),
            "seed": asked.seed,
            "initial": asked.initial.value,
            "initial_sha256": one.model.sha256,
            "parent": parent,
            "parent_hop": hop,
            **_rows_on_record(run, asked),
        })  # fmt: skip
    made += log.plan.add_models(models)
    made += [
        log.events.event(Event.MODEL_FAILED, one.model.number, reason=one.model.asked.refused, refused=True)
        for one in added
        if one.model.asked.refused is not None
    ]
    return made


def _rows_on_record(run: Run, asked: AskedModel) -> dict[str, Any]:
    if asked.variant is None:
        return {}
    return rows_on_record(run.source, run.validation, asked.variant, run.options.adds_gradients, asked.home)


def _copy_state(run: Run, log: RunLog, recorder: Session, platform: Platform, one: Added) -> None:
    """Give the model the state that it starts from."""
    new, model = one.new, one.model
    if model.asked.initial == Initial.RANDOM or model.asked.start is not None:
        return
    if one.weights is not None:
        _store_weights(run, recorder, platform, model, one.weights)
        return
    if model.given is not None:
        return  # it starts from the weights that its parent has started from
    if new.parent is None or new.parent_hop is None:
        raise Unsupported(f"model {new.model} has no parent to start from")
    parent = run.models[new.parent]
    _, segment = log.states.state_after(parent.number, new.parent_hop)
    large = state_tables.has_own_table(parent, new.parent_hop)
    if large:
        model.start_frozen = _frozen_after(log, parent, new.parent_hop)
    into, lead = state_tables.into_start(recorder, platform, run, model, large=large)
    copy = sql(
        "{into} SELECT {lead}{here}, 0, start, payload {rows} AND __dist_key__ = {there} RETURNING 1",
        into=into,
        lead=lead,
        here=run.dist_keys[0],
        rows=state_tables.read_from(run, parent, new.parent_hop, best=new.from_best),
        there=run.dist_keys[segment],
    )
    copied = recorder.run_statement(Statement(copy, answers=True))
    if not copied:
        raise CorruptState(f"model {new.model} cannot start from model {new.parent}: its state is gone")


def _frozen_after(log: RunLog, model: Model, hop: int) -> FrozenPart | None:
    if hop == 0:
        return model.start_frozen
    return log.states.frozen_parts([(model.number, hop)]).get((model.number, hop))


def _store_weights(run: Run, recorder: Session, platform: Platform, model: Model, given: AddedWeights) -> None:
    """Give the model the weights of the architecture that its configuration names."""
    if model.given is not None:
        name = state_tables.given_table_name(run.storage, model.given)
        if state_tables.is_there(recorder, name):
            return
        recorder.run(state_tables.create_frozen_sql(platform, name))
        into, lead, hop = state_tables.into_frozen(name), sql(""), sql("")
    else:
        into, lead = state_tables.into_start(recorder, platform, run, model, large=False)
        hop = sql("0, ")
    copy = sql(
        "{into} SELECT {lead}{here}, {hop}p.start, p.payload FROM {pieces} p WHERE {same} RETURNING 1",
        into=into,
        lead=lead,
        hop=hop,
        here=run.dist_keys[0],
        pieces=added.stored(given.name),
        same=added.are_there(given),
    )
    if not recorder.run_statement(Statement(copy, answers=True)):
        raise WrongState(
            f"the architecture {shown(given.name)} no longer has the weights that models of this run start from.",
            hint=f"Add it again with these weights, then SELECT cerebro.resume({run.id});",
        )
