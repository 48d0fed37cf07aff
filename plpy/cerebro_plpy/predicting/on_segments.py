"""Prediction in worker sessions, which share the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psycopg2

from cerebro_db.core.protocol import BeginPrediction
from cerebro_db.core.sql import Sql, literal, sql

from .. import platform
from ..database import relations
from ..database.access import Database
from ..models.trained import TrainedModel
from ..packing.visibility import refuse_transaction
from ..sessions import logins
from ..sessions.failures import Refused
from ..sessions.session import Session, Statement
from ..sessions.team import Team
from . import staging, teams
from .chunks import Source


def predict(db: Database, use_gpus: bool | None, model: TrainedModel, order: BeginPrediction, source: Source) -> Sql:
    """Each worker session predicts its share of the rows, into a table that only this user can see."""
    here = platform.of(db)
    parts = platform.segments_wanted(db, None) or here.segments(db)
    keys = here.distribution_keys(db, parts)
    refuse_transaction(db)

    def predicted(team: Team) -> Sql:
        table, copy = staging.new_name(), staging.new_name()
        copied = not here.runs_functions_in_session  # functions get only rows stored on their segment
        shares = [source.share_of_copy(copy, key) for key in keys] if copied else source.shares(db, keys)
        sessions = [worker.session for worker in team.workers]
        first = sessions[0]
        staging.drop_forgotten(first)
        for statement in staging.create(table, here):
            first.run(statement)
        statements = [staging.fill(table, share) for share in shares]
        try:
            if copied:
                first.run(source.copied(copy, keys, here))
            else:
                _begin_with_one_snapshot(sessions)
            teams.predict(db, team, model, order, statements, in_transaction=not copied)
            if copied:
                first.run(sql("DROP TABLE {copy}", copy=copy))
        except BaseException:
            with contextlib.suppress(Exception):
                cleaner = logins.connect_as(db, relations.current_role(db), "cerebro_db cleaner", lambda: None)
                cleaner.run(sql("DROP TABLE IF EXISTS {table}, {copy}", table=table, copy=copy))
                cleaner.close()
            raise
        return table

    with teams.team_of(db, keys, teams.options(db, use_gpus, keys, model.memory_mb)) as team:
        try:
            return teams.again_if_lost(team, lambda: predicted(team))
        except (Refused, psycopg2.Error):
            # Only now, because it takes as long as a good part of predicting: are NULLs to blame?
            source.count()
            raise


def _begin_with_one_snapshot(sessions: Sequence[Session]) -> None:
    """Begin a transaction in each session, all with the same snapshot.

    Otherwise a row that others change meanwhile could move from the share of one session into that of another.
    """
    begin = Statement(sql("BEGIN ISOLATION LEVEL REPEATABLE READ"), bounds=True)
    first, *others = sessions
    first.run_statement(begin)
    ((snapshot,),) = first.run(sql("SELECT pg_catalog.pg_export_snapshot()"))
    for session in others:
        session.run_statement(begin)
        session.run(sql("SET TRANSACTION SNAPSHOT {snapshot}", snapshot=literal(snapshot)))
