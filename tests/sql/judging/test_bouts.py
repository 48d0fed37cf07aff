"""Bouts of a class and transitions between classes, beside hand-written examples and a plain computation in Python."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab
from tests.sql.users import town

NAMES = ("subject_value", "day", "class", "valid_days", "worn_hours", "hours", "bouts", "mean_minutes", "usual_minutes",
         "alpha", "share_30", "share_60")  # fmt: skip
STEP = 10  # seconds
Step = tuple[str, dt.datetime, "str | None"]
BEGIN = dt.datetime(2024, 3, 4)


def steps(subject: str, begin: dt.datetime, *bouts: tuple[str | None, float], step: float = 60) -> list[Step]:
    """The steps of bouts, each a class and its minutes."""
    labels = [label for label, minutes in bouts for _ in range(round(minutes * 60 / step))]
    return [(subject, begin + dt.timedelta(seconds=step * place), label) for place, label in enumerate(labels)]


def fill(lab: Lab, table: str, rows: Sequence[Step]) -> None:
    lab(f"DROP TABLE IF EXISTS {table}")
    lab.table(table, {"subject": "text", "at": "timestamp", "posture": "text"}, rows)


def bouts(lab: Lab, query: str, more: str = "") -> list[dict[str, Any]]:
    found = lab(f"SELECT {', '.join(NAMES)} FROM cerebro.bouts(%s, 'subject', 'at', 'posture'{more})", query)
    return [dict(zip(NAMES, row)) for row in found]


def transitions(lab: Lab, tolerance: float, more: str = "") -> dict[tuple[Any, ...], tuple[Any, ...]]:
    found = lab(
        "SELECT subject_value, class_before, class_after, true_transitions, predicted_transitions, matched,"
        " sensitivity, predictive_value"
        f" FROM cerebro.transitions('truth', 'guess', %s, 'subject', 'at', 'posture'{more})",
        tolerance,
    )
    assert [row[0] for row in found] == sorted((row[0] for row in found), key=lambda one: (one is not None, one))
    return {row[:3]: row[3:] for row in found}


# -- by hand ------------------------------------------------------------------------------------------------------


def test_bouts_by_hand(lab: Lab) -> None:
    day = [("sit", 10), ("stand", 2), ("sit", 20), ("stand", 4), ("sit", 60), (None, 30), ("sit", 30), ("stand", 2)]
    fill(lab, "by_hand", steps("a", BEGIN.replace(hour=9), *day))
    today, (sitting, standing) = dt.date(2024, 3, 4), bouts(lab, "by_hand", ", valid_hours => 3")[:2]
    assert (sitting["subject_value"], sitting["day"], sitting["class"], sitting["valid_days"]) == ("a", today, "sit", 0)
    assert sitting["worn_hours"] == pytest.approx(128 / 60) and sitting["hours"] == pytest.approx(2)
    assert sitting["bouts"] == 4 and sitting["mean_minutes"] == pytest.approx(30)
    assert sitting["usual_minutes"] == pytest.approx(60)  # 60 of the 120 minutes
    assert sitting["alpha"] == pytest.approx(1 + 4 / (math.log(2) + math.log(3) + math.log(6)))
    assert sitting["share_30"] == pytest.approx(90 / 120) and sitting["share_60"] == pytest.approx(60 / 120)
    assert standing["bouts"] == 3 and standing["usual_minutes"] == pytest.approx(4) and standing["share_30"] == 0
    assert len(bouts(lab, "by_hand", ", valid_hours => 3")) == 2  # the day is not valid, so there is no row of all days
    valid = bouts(lab, "by_hand", ", valid_hours => 2")
    assert [row["day"] for row in valid] == [today, today, None, None] and {row["valid_days"] for row in valid} == {1}
    assert {**valid[2], "day": today} == valid[0]


def test_where_bouts_end(lab: Lab) -> None:
    """At midnight, at a gap, and where the class is NULL; not where a step is a little late."""
    first = steps("a", BEGIN.replace(hour=23), ("sit", 90))
    after_gap = steps("a", BEGIN + dt.timedelta(days=1, hours=2), ("sit", 30), (None, 5), ("sit", 5))
    late = [(subject, at + dt.timedelta(seconds=at.minute % 2 * 20), label) for subject, at, label in after_gap]
    fill(lab, "ends", [*first, *late])
    found = bouts(lab, "ends", ", valid_hours => 0, step_seconds => 60")
    assert [(row["day"] and row["day"].day, row["bouts"], row["hours"]) for row in found] == [
        (4, 1, 1), (5, 3, pytest.approx(65 / 60)), (None, 4, pytest.approx(125 / 60))
    ]  # fmt: skip
    assert found[0]["alpha"] is None and found[0]["usual_minutes"] == 60 and found[0]["share_60"] == 1
    # With shorter steps, each row is a bout of its own.
    assert bouts(lab, "ends", ", step_seconds => 10, valid_hours => 0")[0]["bouts"] == 60
    # The time zone of the session says when it is midnight.
    lab("SET timezone = 'Asia/Tokyo'")
    abroad = bouts(lab, "SELECT subject, at AT TIME ZONE 'UTC' AS at, posture FROM ends", ", valid_hours => 0")
    lab("RESET timezone")
    assert [row["day"] for row in abroad] == [dt.date(2024, 3, 5), None]


def test_the_length_of_a_step_is_that_of_each_subject(lab: Lab) -> None:
    rows = [*steps("a", BEGIN, ("sit", 30), step=10), *steps("b", BEGIN, ("sit", 30), step=0.1)]
    alone = ("c", BEGIN, "sit")  # one step, as long as most steps are
    fill(lab, "lengths", [*rows, alone])
    found = bouts(lab, "lengths", ", valid_hours => 0")
    assert [(row["subject_value"], row["mean_minutes"], row["share_30"]) for row in found if row["day"]] == [
        ("a", 30, 1), ("b", 30, 1), ("c", pytest.approx(0.1 / 60), 0)
    ]  # fmt: skip


def test_transitions_by_hand(lab: Lab) -> None:
    truth = steps("a", BEGIN, ("sit", 10), ("stand", 5), ("sit", 10), ("stand", 5), ("sit", 1), ("stand", 1))
    guess = steps("a", BEGIN, ("sit", 11), ("stand", 4), ("sit", 8), ("stand", 1), ("sit", 1), ("stand", 4), ("sit", 3))
    fill(lab, "truth", truth)
    fill(lab, "guess", guess)
    # To stand: true 10, 25, 31; predicted 11, 23, 25. To sit: true 15, 30; predicted 15, 24, 29.
    to_stand, to_sit = ("sit", "stand"), ("stand", "sit")
    exact = transitions(lab, 0)
    assert exact[(None, *to_stand)] == (3, 3, 1, pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert exact[(None, *to_sit)] == (2, 3, 1, 0.5, pytest.approx(1 / 3))
    assert transitions(lab, 60)[(None, *to_stand)][2] == 2 and transitions(lab, 59)[(None, *to_stand)][2] == 1
    assert transitions(lab, 60)[(None, *to_sit)] == (2, 3, 2, 1, pytest.approx(2 / 3))
    # Two predicted ones are near the true one at 25, and only one of them matches.
    assert transitions(lab, 120)[(None, *to_stand)][2] == 2 and transitions(lab, 360)[(None, *to_stand)][2] == 3
    assert {key[1:]: row for key, row in exact.items() if key[0] == "a"} == {
        key[1:]: row for key, row in exact.items() if key[0] is None
    }


def test_no_transition_across_a_gap_or_to_what_is_not_known(lab: Lab) -> None:
    later = BEGIN + dt.timedelta(hours=5)
    rows = [*steps("a", BEGIN, ("sit", 5), (None, 1), ("stand", 5)), *steps("a", later, ("sit", 5), ("walk", 1))]
    fill(lab, "truth", rows)
    fill(lab, "guess", steps("a", later, ("sit", 6), ("stand", 6), step=10))
    assert transitions(lab, 60) == {
        (None, "sit", "walk"): (1, 0, 0, 0, None), ("a", "sit", "walk"): (1, 0, 0, 0, None),
        (None, "sit", "stand"): (0, 1, 0, None, 0), ("a", "sit", "stand"): (0, 1, 0, None, 0),
    }  # fmt: skip
    fill(lab, "guess", steps("a", BEGIN, ("sit", 5)))
    fill(lab, "truth", steps("a", BEGIN, ("sit", 5)))
    assert transitions(lab, 60) == {}


def test_subjects_without_predictions_are_left_out(lab: Lab) -> None:
    rows = [steps(subject, BEGIN, ("sit", 5), ("stand", 5)) for subject in "abc"]
    fill(lab, "truth", [*rows[0], *rows[1]])
    fill(lab, "guess", [*rows[1], *rows[2]])
    lab.told()
    assert transitions(lab, 0) == {(None, "sit", "stand"): (1, 1, 1, 1, 1), ("b", "sit", "stand"): (1, 1, 1, 1, 1)}
    assert [line.split(":", 1)[1].strip() for line in lab.told()] == [
        "left out: 1 subject of truth without rows in predicted",
        "left out: 1 subject of predicted without rows in truth",
    ]


# -- beside plain Python ------------------------------------------------------------------------------------------


def person(subject: str, seed: int, days: float) -> list[Step]:
    """Days of one person: bouts of random lengths, gaps, and time that is not worn."""
    some, at, found = random.Random(seed), BEGIN + dt.timedelta(seconds=STEP * seed), []
    while at < BEGIN + dt.timedelta(days=days):
        label = some.choice(("sit", "stand", "walk", "sit", None))
        for _ in range(1 + int(some.paretovariate(0.9)) % 900):
            found.append((subject, at, label))
            at += dt.timedelta(seconds=STEP)
        if some.random() < 0.05:
            at += dt.timedelta(seconds=STEP * some.randrange(1, 400))
    return found


def plain_bouts(rows: Sequence[Step], least: float) -> dict[tuple[Any, ...], dict[str, Any]]:
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    worn: Counter[tuple[str, dt.date]] = Counter()
    for subject, own in itertools.groupby(rows, key=lambda row: row[0]):
        before, length = None, 0
        for row in [*own, None]:
            goes_on = (
                row is not None and before is not None and row[2] == before[2] and row[1].date() == before[1].date()
                and (row[1] - before[1]).total_seconds() <= 15
            )  # fmt: skip
            if before is not None and not goes_on and before[2] is not None:
                found[subject, before[1].date(), before[2]].append(length * STEP)
            length = length + 1 if goes_on else 1
            before = row
            if row is not None and row[2] is not None:
                worn[subject, row[1].date()] += STEP
    valid = {key for key, seconds in worn.items() if seconds >= 3600 * least}
    for (subject, day, label), lengths in list(found.items()):
        if (subject, day) in valid:
            found[subject, None, label] += lengths
    rows_of = {}
    for (subject, day, label), lengths in found.items():
        days = [one for one in valid if one[0] == subject and day in (None, one[1])]
        total, half, usual = sum(lengths), 0.0, 0.0
        for usual in sorted(lengths, reverse=True):
            half += usual
            if half >= total / 2:
                break
        logarithms = sum(math.log(one / min(lengths)) for one in lengths)
        rows_of[subject, day, label] = {
            "valid_days": len(days),
            "worn_hours": sum(worn[one] for one in (days if day is None else [(subject, day)])) / 3600,
            "hours": total / 3600, "bouts": len(lengths), "mean_minutes": total / len(lengths) / 60,
            "usual_minutes": usual / 60, "alpha": 1 + len(lengths) / logarithms if logarithms else None,
            "share_30": sum(one for one in lengths if one >= 1800) / total,
            "share_60": sum(one for one in lengths if one >= 3600) / total,
        }  # fmt: skip
    return rows_of


def test_bouts_of_generated_persons_are_those_of_plain_python(lab: Lab) -> None:
    rows = [row for number in range(5) for row in person(f"p{number}", number, 3.2)]
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    fill(lab, "persons", shuffled)
    expected = plain_bouts(rows, 10)
    found = {
        (row["subject_value"], row["day"], row["class"]): row for row in bouts(lab, "persons", ", valid_hours => 10")
    }
    assert found.keys() == expected.keys() and len(found) > 30
    for key, row in expected.items():
        for name, value in row.items():
            assert found[key][name] == (None if value is None else pytest.approx(value, rel=1e-9)), (key, name)
    assert {row["valid_days"] for row in expected.values()} > {0, 1}


def most_pairs(one: list[float], other: list[float], tolerance: float) -> int:
    """The size of the largest matching, by paths that make it larger."""
    pair: dict[int, int] = {}

    def augment(i: int, seen: set[int]) -> bool:
        for j, value in enumerate(other):
            if abs(one[i] - value) <= tolerance and j not in seen:
                seen.add(j)
                if j not in pair or augment(pair[j], seen):
                    pair[j] = i
                    return True
        return False

    return sum(augment(i, set()) for i in range(len(one)))


def test_matches_are_as_many_as_possible(lab: Lab) -> None:
    some = random.Random(5)
    for _ in range(40):
        one, other = (sorted(some.sample(range(60), some.randrange(0, 14))) for _ in range(2))
        tolerance = some.randrange(0, 9)
        found = lab.value("SELECT cerebro_internal._matched(%s::float8[], %s::float8[], %s)", one, other, tolerance)
        assert found == most_pairs(one, other, tolerance)


def test_transitions_of_generated_persons_are_those_of_plain_python(lab: Lab) -> None:
    truth, guess = ([row for number in range(4) for row in person(f"p{number}", more + number, 0.5)] for more in (0, 9))
    fill(lab, "truth", truth)
    fill(lab, "guess", guess)
    times: dict[tuple[Any, ...], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for place, rows in enumerate((truth, guess)):
        for (subject, at, label), (whose, then, now) in itertools.pairwise(rows):
            if subject == whose and label and now and label != now and (then - at).total_seconds() <= 15:
                times[subject, label, now][place].append(then.timestamp())
    found = transitions(lab, 120)
    totals: Counter[tuple[Any, ...]] = Counter()
    for key, (one, other) in times.items():
        pairs = most_pairs(one, other, 120)
        assert found[key][:3] == (len(one), len(other), pairs)
        assert found[key][3] == (pairs / len(one) if one else None)
        totals[key[1:]] += pairs
    assert sum(totals.values()) > 20
    assert {key[1:]: row[2] for key, row in found.items() if key[0] is None} == dict(totals)


def test_a_million_steps(lab: Lab) -> None:
    # Greenplum computes the steps several times in a statement, and takes several times as long.
    last = 99_999 if lab.greenplum else 999_999
    lab(
        "CREATE TABLE many AS SELECT 'subject ' || i / 60480 AS subject,"
        " timestamp '2024-01-01' + i % 60480 * interval '10 s' AS at,"
        f" CASE WHEN (i / 97) % 3 = 0 THEN 'sit' ELSE 'stand' END AS posture FROM generate_series(0, {last}) i"
    )
    for call in ("bouts('many', ", "transitions('many', 'many', 60, "):
        began = time.monotonic()
        found = lab(f"SELECT * FROM cerebro.{call}'subject', 'at', 'posture')")
        took = time.monotonic() - began
        print(f"{call} {took:.1f} seconds")
        assert found and took < 60


# -- names, rights and refusals -----------------------------------------------------------------------------------


def test_names_that_need_quotes_and_several_columns_of_a_subject(lab: Lab) -> None:
    rows = [(*row[:1], 1 + (place >= 30), *row[1:]) for place, row in enumerate(steps("a", BEGIN, ("sit", 60)))]
    lab.table("odd", {'"Sub""ject"': "text", "night": "int", '"when"': "timestamptz", '"class"': "text"}, rows)
    found = lab(
        """SELECT subject_value, bouts, mean_minutes FROM cerebro.bouts('odd', '"Sub""ject", night', '"when"', 'class',
           valid_hours => 0) WHERE day IS NOT NULL"""
    )
    assert found == [('["a", "1"]', 1, 30), ('["a", "2"]', 1, 30)]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_both_isolation_levels_and_read_only(lab: Lab, level: str) -> None:
    fill(lab, "truth", steps("a", BEGIN, ("sit", 10), ("stand", 5)))
    fill(lab, "guess", steps("a", BEGIN, ("sit", 10), ("stand", 5)))
    lab(f"BEGIN ISOLATION LEVEL {level} READ ONLY")
    assert len(bouts(lab, "truth", ", valid_hours => 0")) == 4 and len(transitions(lab, 0)) == 2
    lab("COMMIT")
    lab("BEGIN; CREATE TEMP TABLE own ON COMMIT DROP AS SELECT * FROM truth")  # the caller's own session reads
    assert len(bouts(lab, "own", ", valid_hours => 0")) == 4
    lab("ROLLBACK")


def test_the_caller_s_rights_hold(server: str) -> None:
    with town(server) as root:
        eve, bob = root.user("eve", "cerebro_user"), root.user("bob", "cerebro_user")
        bob(
            "CREATE TABLE steps AS"
            " SELECT 1 AS who, timestamp '2024-01-01' + i * interval '1 s' AS at, i / 9 AS c, i AS x"
            " FROM generate_series(1, 99) i"
        )
        bob(f"GRANT USAGE ON SCHEMA {bob.name} TO {eve.name}")
        table, columns = f"'{bob.name}.steps'", "'who', 'at', 'c'"
        calls = [f"SELECT * FROM cerebro.bouts({table}, {columns}, valid_hours => 0)",
                 f"SELECT * FROM cerebro.transitions({table}, {table}, 9, {columns})"]  # fmt: skip
        for call in calls:
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                eve(call)
        bob(f"GRANT SELECT (who, at, c) ON steps TO {eve.name}")
        assert [len(eve(call)) for call in calls] == [24, 22]
        with pytest.raises(psycopg2.errors.UndefinedColumn):
            eve(f"SELECT * FROM cerebro.bouts('{bob.name}.steps', 'who', 'at', 'x')")


@pytest.fixture
def sitting(lab: Lab) -> Iterator[Lab]:
    fill(lab, "truth", steps("a", BEGIN, ("sit", 10), ("stand", 5)))
    yield lab


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("'', 'subject', 'at', 'posture'", "query must not be empty", "SELECT"),
        ("'nothing', 'subject', 'at', 'posture'", "there is no table 'nothing'", "spelling"),
        ("'truth', NULL, 'at', 'posture'", "subject must not be NULL", None),
        ("'truth', 'subject', 'at, at2', 'posture'", "step_time names 2 columns", None),
        ("'truth', 'subject', 'at', 'pose'", "has no column 'pose'", "subject, at, posture"),
        ("'truth', 'subject', 'posture', 'posture'", "'posture' has the type text, and no timestamp", "to_timestamp"),
        ("'truth', 'subject', 'at', 'posture', step_seconds => 0", "step_seconds is 0", None),
        ("'truth', 'subject', 'at', 'posture', step_seconds => 'NaN'", "step_seconds is nan", None),
        ("'truth', 'subject', 'at', 'posture', valid_hours => -1", "valid_hours is -1", "worn hours"),
        ("'truth', 'subject', 'at', 'posture', valid_hours => NULL", "valid_hours is NULL", "worn hours"),
        ("'TABLE truth UNION ALL TABLE truth', 'subject', 'at', 'posture'", "15 rows with the same 'at'.*'subject' = a",
         "one step at a time"),
        ("$$SELECT NULL AS s, * FROM truth$$, 's', 'at', 'posture'", "15 rows without a value in 's'", "IS NOT NULL"),
        ("$$SELECT subject, 'infinity'::timestamp AS at, posture FROM truth LIMIT 1$$, 'subject', 'at', 'posture'",
         "1 row without a value in 'at'", "IS NOT NULL"),
        ("'SELECT * FROM truth LIMIT 1', 'subject', 'at', 'posture'", "how long a step is", "step_seconds => 10"),
        ("'SELECT 1; SELECT 2', 'subject', 'at', 'posture'", "several statements|syntax", None),
        ("'SELECT 1/0 AS subject, at, posture FROM truth', 'subject', 'at', 'posture'", "division by zero", None),
    ],
)  # fmt: skip
def test_what_is_refused(sitting: Lab, arguments: str, message: str, hint: str | None) -> None:
    with pytest.raises(psycopg2.Error) as failed:
        sitting(f"SELECT * FROM cerebro.bouts({arguments})")
    told = failed.value.diag
    assert re.search(message, told.message_primary), told.message_primary
    assert "cerebro.bouts" in told.message_primary and (hint is None or hint in (told.message_hint or ""))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'truth', 'truth', -1, 'subject', 'at', 'posture'", "tolerance is -1"),
        ("'truth', 'truth', NULL, 'subject', 'at', 'posture'", "tolerance is NULL"),
        ("'truth', '', 1, 'subject', 'at', 'posture'", "predicted must not be empty"),
        ("'truth', $$SELECT subject, at::timestamptz, posture FROM truth$$, 1, 'subject', 'at', 'posture'",
         "'at' has the type timestamp without time zone in truth, and timestamp with time zone in predicted"),
        ("'truth', $$SELECT 'A' AS subject, at, posture FROM truth$$, 1, 'subject', 'at', 'posture'",
         "no value of 'subject' in common"),
        ("'truth', 'TABLE truth UNION ALL TABLE truth', 1, 'subject', 'at', 'posture'", "predicted: 15 rows with"),
    ],
)  # fmt: skip
def test_what_transitions_refuses(sitting: Lab, arguments: str, message: str) -> None:
    with pytest.raises(psycopg2.Error, match=message):
        sitting(f"SELECT * FROM cerebro.transitions({arguments})")


def test_no_rows_are_no_bouts(sitting: Lab) -> None:
    assert bouts(sitting, "SELECT * FROM truth WHERE false") == []
    assert bouts(sitting, "SELECT subject, at, NULL::text AS posture FROM truth") == []
