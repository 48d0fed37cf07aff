"""Records the requests of users from any session: each is a row, which the run's driver carries out."""

from __future__ import annotations

import json
from typing import Any

from cerebro_db.core import documents
from cerebro_db.core.architecture import keras_json
from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.events import Action, RunStatus
from cerebro_db.core.parameters import changes as parameter_changes
from cerebro_db.core.parameters import flat
from cerebro_db.core.parameters.reported import reported
from cerebro_db.core.search import objective as objectives
from cerebro_db.core.search import request_checks
from cerebro_db.core.search.decision import NewConfiguration, NewModel

from ..database import relations
from ..database.access import Database
from ..database.entry import entry
from ..definitions import added, custom_functions
from .lifecycle import require_admin
from .record.log import RunLog
from .record.run import require_countable
from .request import budgets, configurations


class Steered:
    """A run that the caller may steer: an own one or, for an administrator, anybody's."""

    def __init__(self, db: Database, run_id: int | None, owner: str | None) -> None:
        self.db = db
        self.log = RunLog.of_caller(db, run_id)
        self.run = self.log.run
        self.owner = self.log.drivers.whose(owner)
        self.own = self.owner == relations.current_role(db)
        if not self.own:
            require_admin(db, self.run, self.owner, "steer")

    def ask(self, action: Action, reason: str | None, **detail: Any) -> int:
        """Put a request on record; returns its number."""
        request = self.log.events.ask_for(self.owner, action, request_checks.checked_reason(reason), detail)
        status = self.log.drivers.status(self.owner)
        if status not in (RunStatus.RUNNING, RunStatus.CREATED):
            whose = "" if self.own else f", called by {self.owner}"
            self.db.notice(
                f"run {self.run} is {status}: request {request} takes effect with"
                f" SELECT cerebro.resume({self.run}){whose}."
            )
        return request

    def meant(self, key: int | None, model: int | None, done: str) -> request_checks.Standing:
        return request_checks.meant(self.run, self.log.known.standings(self.owner), key, model, done)


@entry
def stop_model(
    db: Database, run: int, configuration: int | None, reason: str | None, model: int | None, owner: str | None
) -> int:
    steered = Steered(db, run, owner)
    return steered.ask(Action.STOP, reason, model=steered.meant(configuration, model, request_checks.STOPPED).model)


@entry
def go_on(
    db: Database, run: int, configuration: int | None, reason: str | None, model: int | None, owner: str | None
) -> int:
    steered = Steered(db, run, owner)
    return steered.ask(Action.GO_ON, reason, model=steered.meant(configuration, model, request_checks.GONE_ON).model)


@entry
def clone_model(
    db: Database,
    run: int,
    configuration: int | None,
    changes: str | None,
    *,
    reason: str | None,
    model: int | None,
    owner: str | None,
) -> int:
    steered = Steered(db, run, owner)
    parent = steered.meant(configuration, model, request_checks.CLONED)
    new_configuration, more = None, {}
    if changes is not None:
        changed = documents.argument(changes, "changes")
        known = custom_functions.known(db, pinned=parent.parameters)
        where = f"the parameters of {parent}"
        of_parent = flat.recorded(documents.decoded(parent.parameters, where), where, known)
        texts = parameter_changes.changed(*of_parent, changed, known)
        new_configuration = NewConfiguration(*texts, chosen=parameter_changes.chosen(parent.chosen, changed))
        more["parameters"] = changed
    new = NewModel(parent=parent.model, configuration=new_configuration)
    return steered.ask(Action.ADD, reason, new=new.to_json(), **more)


@entry
def add_configuration(db: Database, run: int, parameters: str | None, reason: str | None, owner: str | None) -> int:
    steered = Steered(db, run, owner)
    given = documents.argument(parameters, "parameters")
    if not isinstance(given, dict):
        raise InvalidArgument(f"parameters is {documents.shown(given)}; it must be an object.", hint=flat.EXAMPLE)
    layout, segments, objective = steered.log.known.rows_and_objective(steered.owner)
    listed = configurations.checked(db, given, "parameters", {})
    known = custom_functions.known(db)
    made = configurations.built(listed, layout, segments, objective, known)
    text, label, weights = json.dumps(made.architecture), listed.architecture.label, listed.architecture.weights
    if weights is not None and not steered.own:
        raise InvalidArgument(
            f"parameters: the architecture {documents.shown(label)} has weights of yours, and the run is"
            f" {steered.owner}'s.",
            hint="Its owner can add the architecture and the configuration.",
        )
    translated = keras_json.architecture(text)
    compiled = keras_json.for_outputs(made.compile, translated)
    objectives.require_reported(objective, reported(compiled, keras_json.outputs(translated)))
    own = NewConfiguration(
        made.parts.compile_text, made.parts.fit_text, None, text, name=label, arch_params=made.parts.arch_params,
        weights=None if weights is None else added.recorded(label, weights()),
    )  # fmt: skip
    # Nobody is shown a whole architecture.
    shown = {**listed.given, flat.ARCHITECTURE: label}
    return steered.ask(Action.ADD, reason, new=NewModel(configuration=own).to_json(), parameters=shown)


@entry
def extend(db: Database, run: int, epochs: int | None, reason: str | None, owner: str | None) -> int:
    steered = Steered(db, run, owner)
    planned, segments = steered.log.known.size(steered.owner)
    epochs = request_checks.checked_epochs(steered.run, planned, epochs)
    require_countable(epochs, segments)
    return steered.ask(Action.EXTEND, reason, epochs=epochs)


@entry
def set_budget(db: Database, run: int, budget: str | None, reason: str | None, owner: str | None) -> int:
    steered = Steered(db, run, owner)
    if budget is None:
        raise InvalidArgument("budget cannot be NULL.", hint="{} removes all limits.")
    given = budgets.read(db, budget, "budget")
    return steered.ask(Action.BUDGET, reason, **request_checks.checked_budget(given))
