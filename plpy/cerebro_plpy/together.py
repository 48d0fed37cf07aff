"""Which configurations train together in one pass over the rows, where their engine can do that."""

from __future__ import annotations

from typing import Any

import psycopg2

from cerebro_db.core.schedule import power_of_two

from .db import Database
from .dialect import lost_a_segment
from .runs import MOST_TOGETHER, Configuration, Run, note
from .sessions import Session
from .team import LOST, Refused, Seat, Steps, Team, failure_of

WORTH = 0.7  # of the cost of one alone: below it training together pays for what it keeps waiting (docs/scheduling.md)

SMALL_STATE = 64 << 20  # bytes; many large ones at once would need more memory than one at a time has been found to fit


def settle(db: Database, run: Run, team: Team, recorder: Session, kinds: dict[str, list[Configuration]]) -> None:
    """Settle which configurations train together; of each kind those for whom a rehearsal says that it pays.

    Only what would have to wait for a segment anyway can join others: there must be more of a kind than segments.
    Who is of a kind has a state of the same size.
    """
    if run.options.get("fuse") is False:
        return
    cast = {
        kind: members[: power_of_two(min(MOST_TOGETHER, -(-len(members) // run.segments)))]
        for kind, members in kinds.items()
        if len(members) > run.segments and members[0].state_bytes <= SMALL_STATE
    }
    found: dict[str, dict[str, Any]]
    if "replay" in run.options:
        found = replayed(recorder, run.options["replay"], cast)
    elif run.options.get("fuse"):
        found = {kind: {"together": 0.0, "alone": 1.0, "asked": True} for kind in cast}
    else:
        found = rehearsed(team, run, cast)
    for kind, seconds in found.items():
        pays = seconds["together"] < WORTH * seconds["alone"]
        for configuration in kinds[kind]:
            configuration.alike = kind if pays else None
            event = "trains together" if pays else "trains alone"
            note(recorder, run.id, event, configuration.key, alike=kind, **seconds)
        if pays:
            db.notice(f"{len(kinds[kind])} configurations train up to {len(cast[kind])} at a time in one pass")


def replayed(recorder: Session, run_id: int, cast: dict[str, list[Configuration]]) -> dict[str, dict[str, Any]]:
    """What the run that is replayed has settled."""
    earlier = recorder.run(
        "SELECT DISTINCT ON (detail ->> 'alike') detail ->> 'alike', detail - 'alike' FROM cerebro.event"
        " WHERE run = %s AND owner = current_user AND event IN ('trains together', 'trains alone')",
        (run_id,),
    )
    return {kind: detail for kind, detail in earlier if kind in cast}


def rehearsed(team: Team, run: Run, cast: dict[str, list[Configuration]]) -> dict[str, dict[str, float]]:
    """For each kind what a batch costs a configuration, alone and together; a kind that cannot is left out."""

    def rehearse(seat: Seat, kinds: list[str]) -> Steps:
        found = {}
        handle, _ = yield from team.read(seat, run.source, seat.segment)
        for kind in kinds:
            order = {
                "work": "rehearse",
                "engine": cast[kind][0].engine,
                "handle": handle,
                "members": [{"configuration": one.definition, "seed": one.seed} for one in cast[kind]],
            }
            try:
                answer = yield from team.order(seat, order)
            except Refused:
                continue
            found[kind] = {"alone": answer["alone"], "together": answer["together"]}
        return found

    shares = {seat.segment: list(cast)[seat.segment :: len(team.seats)] for seat in team.seats}
    work = {segment: rehearse(team.seats[segment], share) for segment, share in shares.items() if share}
    try:
        return {kind: seconds for part in team.run_all(work).values() for kind, seconds in part.items()}
    except psycopg2.Error as error:
        if error.pgcode not in LOST and not lost_a_segment(error):
            raise failure_of("a worker session", error) from error
        team.open()  # a session was lost; all train alone, as they can at any time
        return {}
