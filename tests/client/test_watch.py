"""The time that is left, and what was decided, as the terminal shows it."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from typing import Any

import pytest

from cerebro_db.client.display import boards
from cerebro_db.client.display.terminal import Terminal
from cerebro_db.client.orm import Decision, Request, RunProgress
from cerebro_db.client.watch import STARTING, line

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("hops", "left", "shown", "hidden"),
    [(0, None, STARTING, "left"), (3, None, "estimating the time left", STARTING), (3, 90.0, "left", "estimating")],
)
def test_no_estimate_is_said_to_be_none(hops: int, left: float | None, shown: str, hidden: str) -> None:
    progress = RunProgress(
        run=1, status="running", percent=2.0, hops_done=hops, hops_total=50, seconds_left=left, best_loss=None,
        configurations_failed=0, rows_per_second=None,
    )  # fmt: skip
    assert shown in line(progress).plain and hidden not in line(progress).plain


def decision(**values: Any) -> Decision:
    nothing = dict.fromkeys(("model", "configuration", "epoch", "reason", "added", "request_id", "requested_by"))
    return Decision(run=1, decision_id=1, at=NOON, owner="ann", **{"decided_by": "request", **nothing, **values})


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (decision(decision="stop", model=3, configuration=7, epoch=4, reason="worse [than] the median",
                  decided_by="rule"),
         "model 3 (configuration 7), epoch 4: stop, worse [than] the median (rule)"),
        (decision(decision="add", added="5, 6", requested_by="ann"), "the run: add, added 5, 6 (ann)"),
        (decision(decision="budget", reason="more", requested_by="ann"), "the run: budget, more (ann)"),
    ],
)  # fmt: skip
def test_a_decision_in_one_line(made: Decision, shown: str) -> None:
    assert boards.decision(made).plain == f"{NOON.astimezone():%H:%M:%S} {shown}"


def test_the_last_decisions_and_the_requests_that_wait() -> None:
    made = [decision(decision="stop", model=number, configuration=1, epoch=1, reason="r") for number in range(1, 5)]
    asked = [
        Request(run=1, request_id=number, at=NOON, by="bob", action="clone", model=2, configuration=2,
                parameters="lr=1",
                reason="why", status=status)
        for number, status in enumerate(("done", "waiting"))
    ]  # fmt: skip
    console = Terminal(file=io.StringIO(), width=100)
    console.print(boards.decisions(made, asked, last=2))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "… and 2 before" and len(lines) == 4
    assert lines[1].endswith("model 3 (configuration 1), epoch 1: stop, r (request)")
    assert lines[3].endswith("model 2 (configuration 2): clone, lr=1, why (bob; waiting)")
