"""Before the first hop: every configuration is built once, and the run says what it will need."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg2

from cerebro_db.core.engines import AUTO
from cerebro_db.core.errors import CerebroError, TrainerFailed
from cerebro_db.core.schedule import entries

from . import choosing, limits, together
from .db import Database
from .dialect import lost_a_segment
from .machine import megabytes, memory_available, memory_needed, room
from .runs import STATES, Configuration, Run, built_in, note, note_each
from .sessions import Session
from .team import LOST, Refused, Seat, Steps, Team, failure_of

MOST_TRIES = 3
# What is on record of a configuration.
BUILT = (
    "parameters", "state_bytes", "engine",
    "trial", "tried", "untried", "refused", "of_run", "form", "program",
)  # fmt: skip


def build_once(db: Database, run: Run, team: Team, recorder: Session) -> None:
    """Have the trainers build every configuration that was never built, before any of them trains.

    What cannot be built, or does not fit the rows, fails here and alone; what can be tells how much
    memory and disk the run will need.
    """
    fresh = [configuration for configuration in run.configurations.values() if not configuration.built]
    kinds: dict[str, list[Configuration]] = {}
    if fresh:
        failed: dict[int, CerebroError] = {}
        built: dict[int, dict[str, Any]] = {}
        for key, found in described_for_sure(team, run, fresh).items():
            if isinstance(found, CerebroError):
                failed[key] = found
                note(recorder, run.id, "configuration failed", key, reason=found.message)
            else:
                mine = run.configurations[key]
                mine.state_bytes, mine.engine = found["state_bytes"], found["engine"]
                built[key] = {**{name: found[name] for name in BUILT if name in found}, **mine.trial}
                if found["kind"] is not None:
                    kinds.setdefault(found["kind"], []).append(mine)
        if built:
            enter(run, recorder, {key: facts["parameters"] for key, facts in built.items()})
            entered = {key: {**facts, "enters": run.configurations[key].enters} for key, facts in built.items()}
            note_each(recorder, run.id, "built", entered)
        if len(failed) == len(run.configurations):
            key, error = next(iter(failed.items()))
            error.message = f"mst_key {key}: {error.message}"
            raise error
        for key, error in failed.items():
            db.warning(f"mst_key {key} failed: {error.message}", hint=error.hint)
        if run.options["engine"] == AUTO:
            choosing.tell(db, run, team)
    require_room(recorder, run)
    say_needs(db, run)
    together.settle(db, run, team, recorder, kinds)


def enter(run: Run, recorder: Session, parameters: dict[int, int]) -> None:
    """Where the configurations that were built just now enter the ring; with those that did before, nothing changes."""
    earlier = built_in(recorder, run.options["replay"]) if "replay" in run.options else {}
    costs = {}
    for key, mine in run.configurations.items():
        if key in parameters and mine.place in earlier:
            _, mine.enters = earlier[mine.place]
        elif key in parameters:
            # Of one architecture the one with more batches takes longer.
            costs[key] = (parameters[key], run.rows_of(mine) / choosing.batch_size(mine))
    taken = {mine.enters for mine in run.configurations.values() if mine.enters is not None}
    for key, entry in entries(costs, taken).items():
        run.configurations[key].enters = entry


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
            segment_lost = lost_a_segment(error)
            run.segments_lost |= segment_lost
            if lost >= MOST_TRIES or not (error.pgcode in LOST or segment_lost):
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
        kinds.setdefault(choosing.form_of(run, configuration), []).append(configuration)
    kinds = {kind: choosing.typical_first(alike) for kind, alike in kinds.items()}  # it is the one that is tried
    layout = {side: run.source.layout[side] for side in ("inputs", "outputs")}
    engines = {kind: alike[0].engine for kind, alike in kinds.items() if alike[0].engine}
    answers: dict[tuple[str, str], Any] = {}

    def look_at(seat: Seat, mine: list[tuple[str, str]]) -> Steps:
        found: dict[tuple[str, str], Any] = {}
        with contextlib.suppress(Refused):  # a trainer that dies: the hop will see to it
            yield from team.read(seat, run.source, seat.segment)  # while the framework is imported
        for kind, engine in mine:
            one, *others = kinds[kind]
            order: dict[str, Any] = {
                "work": "describe",
                "engine": engine,
                "configuration": one.definition,
                "others": [other.definition for other in others],
                "layout": layout,
            }
            try:
                if kind not in engines:
                    handle, _ = yield from team.read(seat, run.source, seat.segment)
                    order.update(work="trial", handle=handle, seed=one.seed)
                found[kind, engine] = yield from team.order(seat, order)
            except Refused as refused:
                found[kind, engine] = refused.error
        return found

    def ask(tasks: list[tuple[str, str]]) -> None:
        if not tasks:
            return
        shares: dict[int, list[tuple[str, str]]] = {seat.segment: [] for seat in team.seats}
        for engine in {engine: None for _, engine in tasks}:
            # Where trainers were started with that engine, if there are any: the others would start one more.
            seats = [seat for seat in team.seats if team.engine(seat.segment) == engine] or team.seats
            for number, task in enumerate(task for task in tasks if task[1] == engine):
                shares[seats[number % len(seats)].segment].append(task)
        # Who has nothing to try reads the rows meanwhile.
        work = {
            segment: look_at(team.seats[segment], share)
            for segment, share in shares.items()
            if share or not team.seats[segment].looked_at
        }
        for found in team.run_all(work).values():
            answers.update(found)

    undecided = {kind: alike for kind, alike in kinds.items() if kind not in engines}
    reasons: dict[str, dict[str, Any]] = {}
    first = choosing.first_tried(run)
    known = {kind for kind, alike in undecided.items() if alike[0].earlier and first in alike[0].earlier.figures}
    ask([(kind, engines.get(kind, first)) for kind in kinds if kind not in known])
    ask(choosing.still_to_try(run, choosing.programs_of(run, undecided, answers)))
    for kind, (engine, why) in choosing.chosen(run, choosing.programs_of(run, undecided, answers)).items():
        engines[kind], reasons[kind] = engine, why
    ask([(kind, engine) for kind, engine in engines.items() if (kind, engine) not in answers])
    result = {}
    for kind, engine in engines.items():
        found = answers[kind, engine]
        for place, one in enumerate(kinds[kind]):
            if told(found):
                result[one.key] = {**found, "engine": engine, "kind": found["kinds"][place], **reasons.get(kind, {})}
            else:
                result[one.key] = found
    return result


def told(answer: Any) -> dict[str, Any]:
    """What a trainer said, if it is not an error."""
    return {} if isinstance(answer, CerebroError) else answer


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
