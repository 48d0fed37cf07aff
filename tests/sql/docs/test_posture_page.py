"""The statements of docs/posture.md, run as printed: from samples to bouts, transitions and a vote."""

from __future__ import annotations

import pytest

from tests.sql.docs.task_pages import Rows
from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements


@pytest.fixture(scope="module")
def shown(lab: Lab) -> dict[str, Rows]:
    """What each statement returns."""
    lab("SELECT setseed(0.5)")
    return {one: lab(one) for block in blocks("docs/posture.md", "sql") for one in statements(block)}


def of(shown: dict[str, Rows], part: str) -> Rows:
    (rows,) = (rows for statement, rows in shown.items() if part in statement)
    return rows


def test_fifths_are_of_persons(shown: dict[str, Rows], lab: Lab) -> None:
    parts = dict(lab("SELECT fifth, count(DISTINCT subject) FROM labelled GROUP BY fifth"))
    assert parts == dict.fromkeys(range(1, 6), 3)
    assert lab("SELECT count(*) FROM labelled WHERE posture IS NULL") == [(0,)]


def test_every_step_of_a_recording_is_predicted(shown: dict[str, Rows], lab: Lab) -> None:
    """But for the samples that fill no step before a gap or the end."""
    ((samples, persons),) = lab("SELECT count(*), count(DISTINCT subject) FROM testing")
    ((predicted, apart),) = lab("SELECT count(*), count(DISTINCT (subject, at)) FROM steps")
    assert samples / 10 - 2 * persons <= predicted == apart <= samples / 10 + 2 * persons


def test_steps_are_classified(shown: dict[str, Rows], lab: Lab) -> None:
    right = lab.value(
        "SELECT avg((s.posture = t.posture)::int)::float8 FROM steps s JOIN testing t USING (subject, at)"
    )
    usual = lab.value("SELECT avg((posture = 'sitting')::int)::float8 FROM testing")
    assert right > 0.9 > usual + 0.05


def test_bouts_and_transitions_are_reported(shown: dict[str, Rows]) -> None:
    found = of(shown, "cerebro.bouts(")
    assert len(found) == 6 and {row[1] for row in found} == {"sitting", "upright"} and all(row[3] > 3 for row in found)
    moved = of(shown, "cerebro.transitions(")
    assert {row[0] for row in moved} == {"sitting", "upright"}
    assert all(min(found, right) > 0.6 for _, found, right in moved), moved


def test_most_of_three_models_decide(shown: dict[str, Rows], lab: Lab) -> None:
    voted = {(subject, at): posture for subject, at, posture in of(shown, "GROUP BY subject, at")}
    votes = lab("SELECT subject, at, array_agg(predicted_posture ORDER BY predicted_posture) FROM"
                " (SELECT * FROM votes_1 UNION ALL SELECT * FROM votes_2 UNION ALL SELECT * FROM votes_3) v"
                " GROUP BY subject, at")  # fmt: skip
    assert len(voted) == len(votes) and all(voted[subject, at] == three[1] for subject, at, three in votes)
    assert any(len(set(three)) > 1 for _, _, three in votes)
