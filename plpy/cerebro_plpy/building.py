"""Before the first hop: every configuration is built once, and the run says what it will need."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg2

from cerebro_db.core.errors import CerebroError, TrainerFailed

from . import limits
from .db import Database
from .dialect import lost_a_segment
from .machine import megabytes, memory_available, memory_needed, room
from .runs import STATES, Configuration, Run, note
from .sessions import Session
from .team import LOST, Refused, Seat, Steps, Team, failure_of

MOST_TRIES = 3


def build_once(db: Database, run: Run, team: Team, recorder: Session) -> None:
    """Have the trainers build every configuration that was never built, before any of them trains.

    What cannot be built, or does not fit the rows, fails here and alone; what can be tells how much
    memory and disk the run will need.
    """
    fresh = [configuration for configuration in run.configurations.values() if not configuration.built]
    if fresh:
        failed = {}
        for key, found in described_for_sure(team, run, fresh).items():
            if isinstance(found, CerebroError):
                failed[key] = found
                note(recorder, run.id, "configuration failed", key, reason=found.message)
            else:
                run.configurations[key].state_bytes = found["state_bytes"]
                note(recorder, run.id, "built", key, parameters=found["parameters"], state_bytes=found["state_bytes"])
        if len(failed) == len(run.configurations):
            key, error = next(iter(failed.items()))
            error.message = f"mst_key {key}: {error.message}"
            raise error
        for key, error in failed.items():
            db.warning(f"mst_key {key} failed: {error.message}", hint=error.hint)
    require_room(recorder, run)
    say_needs(db, run)


def require_room(recorder: Session, run: Run) -> None:
    figures = limits.of_session(recorder)
    if figures["state_bytes"][0] is not None:
        stored = recorder.run(
            "SELECT COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE n.nspname = %s AND starts_with(c.relname::text, %s)",
            (STATES, f"{run.storage}_"),
        )[0][0]
        limits.require_states(figures, [c.state_bytes for c in run.configurations.values()], stored)


def described_for_sure(team: Team, run: Run, configurations: Sequence[Configuration]) -> dict[int, Any]:
    """As ``described``; a trainer or a session that dies meanwhile says little about a configuration: again.

    Both are counted, but apart: a configuration is given up for its own crashes only.
    """
    answers: dict[int, Any] = {}
    crashes: Counter[int] = Counter()
    lost = 0
    while missing := [c for c in configurations if c.key not in answers]:
        try:
            found = described(team, run, missing)
        except psycopg2.Error as error:
            lost += 1
            run.segments_lost |= lost_a_segment(error)
            if lost >= MOST_TRIES or not (error.pgcode in LOST or run.segments_lost):
                raise failure_of("a worker session", error) from error
            team.open()
            continue
        for key, answer in found.items():
            if isinstance(answer, TrainerFailed):
                crashes[key] += 1
                if crashes[key] < MOST_TRIES:
                    continue
                text = f"gave up after {MOST_TRIES} attempts: {answer.message}"
                answer = TrainerFailed(text, hint=answer.hint, detail=answer.detail)
            answers[key] = answer
    return answers


def described(team: Team, run: Run, configurations: Sequence[Configuration]) -> dict[int, Any]:
    """For each configuration what a trainer says of it, or the error that it is."""
    kinds: dict[str, list[Configuration]] = {}
    for configuration in configurations:
        # Configurations that differ only in the optimizer's numbers are built alike.
        compiled = configuration.definition["compile"]
        optimizer = {**compiled["optimizer"], "config": sorted(compiled["optimizer"].get("config") or {})}
        kind = json.dumps([configuration.model_id, {**compiled, "optimizer": optimizer}], sort_keys=True)
        kinds.setdefault(kind, []).append(configuration)
    layout = {side: run.source.layout[side] for side in ("inputs", "outputs")}

    def look_at(seat: Seat, mine: list[str]) -> Steps:
        found: dict[str, Any] = {}
        for kind in mine:
            order = {"work": "describe", "configuration": kinds[kind][0].definition, "layout": layout}
            try:
                found[kind] = yield from team.order(seat, order)
            except Refused as refused:
                found[kind] = refused.error
        return found

    shares = {seat.segment: list(kinds)[seat.segment :: len(team.seats)] for seat in team.seats}
    work = {segment: look_at(team.seats[segment], share) for segment, share in shares.items() if share}
    answers = {kind: found for part in team.run_all(work).values() for kind, found in part.items()}
    return {configuration.key: answers[kind] for kind, alike in kinds.items() for configuration in alike}


def say_needs(db: Database, run: Run) -> None:
    """What the run will take of the machine, and a warning where it has less."""
    states = [configuration.state_bytes for configuration in run.configurations.values()]
    disk = 2 * sum(states)
    largest_part = max(partition["bytes"] for partition in run.source.partitions)
    memory = run.segments * (largest_part + memory_needed(max(states)))
    db.notice(
        f"up to {megabytes(disk)} of disk for model states and about {megabytes(memory)} of memory"
        f" for {run.segments} trainers"
    )
    free_disk, free_memory = room(Path.cwd()), memory_available()
    if free_disk is not None and disk > free_disk:
        db.warning(
            f"only {megabytes(free_disk)} of disk are free",
            hint="Train fewer or smaller configurations at once, or make room: a run can be resumed.",
        )
    if free_memory is not None and memory > free_memory:
        db.warning(
            f"only {megabytes(free_memory)} of memory are available",
            hint="Pack into fewer segments: training_preprocessor_dl(..., segments => 1).",
        )
