"""Models that a search policy's decision adds to a run: on record, with their initial states, before they train."""

from __future__ import annotations

import dataclasses

from cerebro_db.core.errors import CorruptState, Unsupported
from cerebro_db.core.events import Event, Initial
from cerebro_db.core.scheduling.ring import derived_seed
from cerebro_db.core.search.policy import Decision, NewModel, Policy

from ..platform.base import Platform
from ..sessions.session import Session, Statement
from . import state_tables
from .log import RunLog
from .run import Model, Run


def commit(
    run: Run, log: RunLog, recorder: Session, platform: Platform, decision: Decision, policy: Policy
) -> list[Model]:
    """Commit a decision and the models that it adds in one transaction; returns these models."""
    added = [_made(run, new) for new in decision.added]
    _run(recorder, Statement("BEGIN"))
    try:
        _run(recorder, log.decide(decision, policy.name))
        for new, model in zip(decision.added, added):
            _add(run, log, recorder, platform, new, model)
    except BaseException:
        recorder.settle()
        recorder.run("ROLLBACK")
        raise
    _run(recorder, Statement("COMMIT"))
    run.models.update({model.number: model for model in added})
    return added


def _made(run: Run, new: NewModel) -> Model:
    if new.changes:
        raise Unsupported(f"model {new.model} cannot have parameters of its own: {', '.join(new.changes)}")
    assert new.model is not None
    like = run.models[new.parent] if new.parent is not None else None
    if like is None or (new.mst_key is not None and new.mst_key != like.mst_key):
        like = next(model for model in run.models.values() if model.mst_key == new.mst_key)
    parent = run.models[new.parent] if new.parent is not None else None
    return dataclasses.replace(
        like,
        number=new.model,
        seed=derived_seed(run.seed, "model", new.model),
        initial=Initial.RANDOM if parent is None else Initial.FULL,
        sha256=None if parent is None else parent.sha256,
        visits=None if new.visits is None else list(new.visits),
        hops=0,
        dist_key=run.dist_keys[0],
        position=new.model - 1,
    )


def _add(run: Run, log: RunLog, recorder: Session, platform: Platform, new: NewModel, model: Model) -> None:
    _run(recorder, log.add_model(model, new.parent, new.parent_hop))
    log.note(Event.BUILT, model.number, state_bytes=model.state_bytes, engine=model.engine, position=model.position)
    if new.parent is None or new.parent_hop is None:
        return
    parent = run.models[new.parent]
    table = state_tables.table_of(run, model, 0)
    recorder.run(state_tables.create_sql(platform, table))
    copied = recorder.run(
        f"INSERT INTO {table} (__dist_key__, hop, start, payload)"
        f" SELECT {run.dist_keys[0]}, 0, start, payload FROM {state_tables.table_of(run, parent, new.parent_hop)}"
        f" WHERE hop = {int(new.parent_hop)} AND __dist_key__ = {parent.dist_key} RETURNING 1"
    )
    if not copied:
        raise CorruptState(f"model {new.model} cannot start from model {new.parent}: its state is gone")


def _run(recorder: Session, statement: Statement) -> None:
    recorder.run(statement.sql, statement.parameters)
