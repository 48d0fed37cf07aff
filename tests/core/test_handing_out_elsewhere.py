"""Tables of a run that has lost a segment of Greenplum are made by another session, which also replaces models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cerebro_db.core.errors import SegmentLost
from cerebro_db.core.names import Name
from cerebro_db.core.sql import text_of
from cerebro_plpy.runs import fit
from cerebro_plpy.sessions.session import Statement

NOTHING_FOLLOWS = SimpleNamespace(follows=())


class Elsewhere:
    """A session of Greenplum's.  It ``waits`` for what the caller's transaction holds."""

    own = segments_lost = False

    def __init__(self, waits: bool) -> None:
        self.waits = waits
        self.told: list[str] = []

    def run(self, statement: Any, _: Any = None) -> list[Any]:
        self.told.append(text_of(statement))
        return []

    def run_statement(self, statement: Statement) -> list[Any]:
        return self.run(statement.sql)

    def outlive(self) -> None:
        self.told.append("outlive")

    def send(self, statement: Statement) -> None:
        self.run(statement.sql)

    def ends_within(self, _: float) -> bool:
        return not self.waits


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_the_other_session_replaces_what_the_run_replaces(replace: bool, waits: bool) -> None:
    session = Elsewhere(waits=False)
    run: Any = SimpleNamespace(id=7, segments_lost=True, storage="run_0123456789abcdef", options=NOTHING_FOLLOWS)
    says = None
    try:
        fit.hand_out(SimpleNamespace(), session, run, Name("public", "x"), replace=replace, waits=waits)  # type: ignore[arg-type]
    except SegmentLost as error:
        says = error.message
    (made,) = [one for one in session.told if "cerebro.materialize" in one]
    assert (", replace => true)" in made) == replace
    assert waits == (says is not None) and (says is None or "its models are in public.x" in says)


def test_a_session_that_waits_for_the_caller_goes_on_without_it() -> None:
    """The caller has locks on the tables that its run went on from, and would wait for the other session for ever."""
    session = Elsewhere(waits=True)
    run: Any = SimpleNamespace(id=7, segments_lost=True, storage="run_0123456789abcdef", options=NOTHING_FOLLOWS)
    with pytest.raises(SegmentLost, match="When it has ended, the models replace those in public.x"):
        fit.hand_out(SimpleNamespace(), session, run, Name("public", "x"), replace=True)  # type: ignore[arg-type]
    assert session.told[0] == "outlive" and len(session.told) == 2
