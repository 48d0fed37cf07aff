"""Models that a search policy's decision adds to a run: on record, with their initial states, before they train."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.errors import CorruptState, Unsupported
from cerebro_db.core.events import Event, Initial
from cerebro_db.core.scheduling.ring import derived_seed, ring_positions
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
    added = _made(run, log, decision.added)
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


def _made(run: Run, log: RunLog, added: Sequence[NewModel]) -> list[Model]:
    """The new models, as a resumed run would load them."""
    taken = {position for model in run.models.values() if (position := model.position) is not None}
    positions = ring_positions({new.model: 0 for new in added if new.model is not None}, taken)
    made = []
    for new in added:
        if new.changes:
            raise Unsupported(f"model {new.model} cannot have parameters of its own: {', '.join(new.changes)}")
        assert new.model is not None
        parent = run.models[new.parent] if new.parent is not None else None
        if parent is not None and new.mst_key not in (None, parent.mst_key):
            # The state holds the learning rate, too, and may be that of another architecture or optimizer.
            raise Unsupported(f"model {new.model} cannot go on from a model of another configuration")
        like = parent or next(model for model in run.models.values() if model.mst_key == new.mst_key)
        start: dict[str, Any] = {
            "seed": derived_seed(run.seed, "model", new.model), "initial": Initial.RANDOM, "sha256": None,
        }  # fmt: skip
        if parent is not None and new.parent_hop is not None:
            sha256, _ = log.state_after(parent.number, new.parent_hop)
            if new.parent_hop > 0:
                start.update(initial=Initial.FULL, sha256=sha256)
            else:
                start.update(seed=parent.seed, initial=parent.initial, sha256=sha256)
        made.append(
            dataclasses.replace(
                like,
                number=new.model,
                visits=None if new.visits is None else list(new.visits),
                hops=0,
                dist_key=run.dist_keys[0],
                position=positions[new.model],
                **start,
            )
        )
    return made


def _add(run: Run, log: RunLog, recorder: Session, platform: Platform, new: NewModel, model: Model) -> None:
    _run(recorder, log.add_model(model, new.parent, new.parent_hop))
    log.note(Event.BUILT, model.number, state_bytes=model.state_bytes, engine=model.engine, position=model.position)
    if model.initial == Initial.RANDOM:
        return
    assert new.parent is not None and new.parent_hop is not None
    parent = run.models[new.parent]
    _, segment = log.state_after(parent.number, new.parent_hop)
    table = state_tables.table_of(run, model, 0)
    recorder.run(state_tables.create_sql(platform, table))
    copied = recorder.run(
        f"INSERT INTO {table} (__dist_key__, hop, start, payload)"
        f" SELECT {run.dist_keys[0]}, 0, start, payload FROM {state_tables.table_of(run, parent, new.parent_hop)}"
        f" WHERE hop = {int(new.parent_hop)} AND __dist_key__ = {run.dist_keys[segment]} RETURNING 1"
    )
    if not copied:
        raise CorruptState(f"model {new.model} cannot start from model {new.parent}: its state is gone")


def _run(recorder: Session, statement: Statement) -> None:
    recorder.run(statement.sql, statement.parameters)
