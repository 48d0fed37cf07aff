"""Several runs share the processors: by what their drivers say of them, with clocks that are simulated.

CEREBRO_THOROUGH=5 tries five times as many.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from cerebro_db.core import codec
from cerebro_db.core.scheduling import fair_queue
from cerebro_db.core.scheduling.fair_queue import Contender, QueueEntry, QueuePlace, shares, waits_for
from tests.thorough import tries

CASES = tries(300)


def contender(run: int, seconds: float = 60.0, wants: int = 2, owner: str = "ada", **more: object) -> Contender:
    about = {name: more.pop(name) for name in ("began", "share", "processors") if name in more}
    told = {"threads": 1, "served": False, "waits": True, "measured": True, "rows": 1000, **more}
    return Contender(run, owner, standing=QueueEntry(wants=wants, seconds=seconds, **told), **{"began": run, **about})  # type: ignore[arg-type]


def granted(*runs: Contender, processors: int = 2) -> dict[int, int]:
    return {one.run: count for one, count in shares(runs, processors).items()}


# -- one moment ------------------------------------------------------------------------------------------------


def test_a_run_that_is_alone_may_keep_all_its_segments_busy() -> None:
    assert granted(contender(1, wants=8, threads=3)) == {1: 8}
    assert granted(contender(1, wants=8), contender(2, wants=0)) == {1: 8}  # the other one waits for a person
    assert granted(contender(1, wants=8, processors=3)) == {1: 3}  # its owner may have no more


def test_of_one_owner_the_run_with_the_least_time_left_goes_first() -> None:
    assert granted(contender(1, 600), contender(2, 30), contender(3, 40)) == {1: 0, 2: 2, 3: 0}
    assert granted(contender(1, 600), contender(2, 30, wants=1), contender(3, 40)) == {1: 0, 2: 1, 3: 1}
    assert granted(contender(1, 35), contender(2, 40, served=True)) == {1: 0, 2: 2}  # estimates vary a little
    assert granted(contender(1, 600), contender(2, 600)) == {1: 2, 2: 0}


def test_owners_share_equally_however_many_runs_they_have() -> None:
    many = [contender(run, 10) for run in range(1, 11)]
    assert granted(*many, contender(11, 7200, owner="bob"), processors=4)[11] == 2
    assert granted(*many, contender(11, 7200, owner="bob", share=3, wants=9), processors=4)[11] == 3
    # What an owner cannot use, the others get.
    assert granted(*many, contender(11, 7200, owner="bob", wants=1), processors=8)[11] == 1
    assert sum(granted(*many, contender(11, 7200, owner="bob", wants=1), processors=8).values()) == 8


def test_a_run_with_a_budget_of_seconds_does_not_wait() -> None:
    timed = contender(2, 300, waits=False)
    assert granted(contender(1, 30), timed) == {1: 0, 2: 2}
    assert granted(contender(1, 30, owner="bob"), timed) == {1: 1, 2: 1}
    # More of them than processors: each keeps a segment busy.
    assert granted(*(contender(run, 300, waits=False) for run in range(4)), processors=2) == {0: 2, 1: 1, 2: 1, 3: 1}


def test_a_run_whose_trainers_have_too_many_threads_for_what_is_left_waits() -> None:
    assert granted(contender(1, 20, wants=1), contender(2, 30, threads=2, wants=1)) == {1: 1, 2: 0}
    assert granted(contender(1, 20, threads=64, wants=2), contender(2, 30)) == {1: 1, 2: 0}  # one may always work


def test_a_run_that_has_waited_long_goes_first() -> None:
    assert granted(contender(1, 600, first_since=5.0), contender(2, 30), contender(3, 900, first_since=4.0)) == {
        1: 0, 2: 0, 3: 2,
    }  # fmt: skip


def test_it_says_for_which_run_a_run_waits() -> None:
    first, second, third = contender(1, 600), contender(2, 30, wants=1), contender(3, 40, owner="bob")
    found = shares([first, second, third], 2)
    assert waits_for(found, first) == second and waits_for(found, third) is None
    assert waits_for(found, contender(9)) is None


def test_what_any_moment_has() -> None:
    """No more threads than processors, some run works, and no owner has more than one that gets less."""
    for seed in range(CASES):
        chance = random.Random(seed)
        processors = chance.choice((1, 2, 3, 8, 64))
        runs = [
            contender(
                run, chance.choice((1.0, 10.0, 1e4)) * chance.random(), chance.randint(0, 6), chance.choice("abc"),
                threads=chance.choice((1, 1, 2, processors)), served=chance.random() < 0.5,
                waits=chance.random() < 0.8, first_since=chance.choice((None, None, chance.random())),
            )
            for run in range(chance.randint(1, 12))
        ]  # fmt: skip
        found = shares(runs, processors)
        assert set(found) == {one for one in runs if one.standing.wants}, seed
        assert all(0 <= count <= one.standing.wants for one, count in found.items()), seed
        assert not found or any(found.values()), f"{seed}: all wait"
        assert all(count for one, count in found.items() if not one.standing.waits), seed
        if len(found) == 1:
            continue
        forced = sum(one.standing.threads for one in found if not one.standing.waits)
        threads = sum(count * one.standing.threads for one, count in found.items())
        most = max((one.standing.threads for one in found), default=0)
        assert threads <= max(processors, most) + forced, seed
        used: Counter[str] = Counter()
        for one, count in found.items():
            used[one.owner] += count * one.standing.threads
        for one, count in found.items():
            fits = threads + one.standing.threads <= processors
            assert not fits or count == one.standing.wants, f"{seed}: processors are idle"
        for owner in {one.owner for one in found}:
            ones = [one for one in found if one.owner == owner and one.standing.threads == 1]
            short = any(found[one] < one.standing.wants for one in ones)
            largest = max((used[other] for other in used if other != owner), default=0)
            limit = used[owner] + max((one.standing.threads for one in found), default=1)
            assert not short or forced or largest <= limit, f"{seed}: {owner} gets less than its share"


def test_what_cannot_be_read_does_not_count() -> None:
    mine = QueueEntry(1, 2, 3.5, measured=True, rows=7, served=True, waits=False, first_since=1e9)
    text = codec.to_json(codec.encode(mine))
    assert fair_queue.read(text) == mine
    assert fair_queue.read(None) is None
    for wrong in ("[]", "{", "{}", text.replace("3.5", "-1"), text.replace("7", "-7"), text.replace("true", "3")):
        assert fair_queue.read(wrong) is None, wrong
    assert fair_queue.read(text[:-1] + ', "of a later version": 1}') == mine


# -- over time -------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run whose units take some seconds each; its driver looks at the others every second."""

    number: int
    begins: float
    units: int
    unit: float  # seconds
    owner: str = "ada"
    segments: int = 2
    threads: int = 1
    known_after: int = 1  # units, before it can tell how long it takes
    seconds: float | None = None  # of its budget
    place: QueuePlace | None = None
    busy: list[float] = field(default_factory=list)  # seconds until each unit under way ends
    done: int = 0
    ended: float | None = None
    told: QueueEntry | None = None  # what the others know
    most_waited: float = 0.0
    waits_since: float | None = None

    @property
    def alone(self) -> float:
        return self.units * self.unit / self.segments

    def wants(self) -> int:
        return min(self.segments, self.units - self.done)

    def rows(self) -> int:
        """All models are as fast by row but those that are known late."""
        return round(1000 * (self.units - self.done) * self.unit * self.known_after)

    def left(self) -> float | None:
        return None if self.done < self.known_after else (self.units - self.done) * self.unit / self.segments


STEP = 0.25  # seconds


def play(runs: list[Run], processors: int = 2, dead: set[int] = frozenset(), until: float = 1e5) -> None:  # type: ignore[assignment]
    """Let the runs work. With more threads than processors, all are slower. ``dead``: drivers that vanish."""
    now, gone = 0.0, set()
    while any(one.ended is None for one in runs if one.number not in gone):
        assert now < until, f"not ended: {[one.number for one in runs if one.ended is None]}"
        here = [one for one in runs if one.begins <= now and one.ended is None and one.number not in gone]
        for one in here:
            if one.place is None:
                one.place = QueuePlace(one.number, one.owner, one.begins, one.threads, processors)
            if (now - one.begins) % 1.0 < STEP:
                wants = one.wants()
                left = one.left() if one.seconds is None else one.begins + one.seconds - now
                mine = one.told = one.place.standing(wants, left, one.rows(), waits=one.seconds is None)
                others = [
                    Contender(other.number, other.owner, other.begins, other.told) for other in here if other.told
                ]
                one.place.look(now, mine, one.segments, others, busy=bool(one.busy))
                if one.number in dead and one.done > one.units / 2:
                    gone.add(one.number)
            while len(one.busy) < min(one.place.granted, one.units - one.done):
                one.busy.append(one.unit)
            if one.busy:
                one.waits_since = None
            elif one.waits_since is None:
                one.waits_since = now
            one.most_waited = max(one.most_waited, now - (now if one.waits_since is None else one.waits_since))
        threads = sum(len(one.busy) * one.threads for one in here)
        speed = min(1.0, processors / threads) if threads else 1.0
        now += STEP
        for one in here:
            one.busy = [left - STEP * speed for left in one.busy]
            one.done += sum(left <= 1e-9 for left in one.busy)
            one.busy = [left for left in one.busy if left > 1e-9]
            if one.done >= one.units or (one.seconds is not None and now >= one.begins + one.seconds):
                one.ended = now


@pytest.mark.parametrize(("seconds", "units"), [(20.0, 40), (60.0, 40), (1000.0, 100), (4000.0, 400)])
def test_four_equal_runs_end_one_after_the_other(seconds: float, units: int) -> None:
    """They take no longer than one after the other, and the first ends at about a quarter of the time."""
    runs = [Run(number, 0.01 * number, units, 2 * seconds / units) for number in range(4)]
    play(runs)
    ends = sorted(one.ended or 0 for one in runs)
    assert ends[-1] <= 1.1 * 4 * seconds
    assert ends[0] <= (0.35 if seconds > fair_queue.UNKNOWN else 0.28) * 4 * seconds
    assert sum(ends) <= 0.7 * 4 * 4 * seconds  # of runs that share at all times, all would end at the end


@pytest.mark.parametrize("owner", ["ada", "bob"])
def test_a_short_run_beside_a_long_one_takes_at_most_twice_its_time(owner: str) -> None:
    for unit in (0.5, 4.0):
        long = Run(1, 0.0, 2000, unit)
        short = Run(2, 100.0, 20, unit, owner=owner)
        play([long, short])
        assert (short.ended or 0) - short.begins <= 2 * short.alone + unit + 2
        assert (long.ended or 0) <= long.alone + short.alone + 2 * unit + 4


def test_a_run_that_begins_at_the_end_of_another_one_is_known_by_its_rows() -> None:
    """20 s before the long run ends, a run of 2 s begins, and nobody has measured it."""
    long, short = Run(1, 0.0, 400, 1.0), Run(2, 180.0, 8, 0.5)
    play([long, short])
    assert (short.ended or 0) - short.begins <= 2 * short.alone + 3


def test_a_long_run_is_not_starved_by_a_stream_of_short_ones() -> None:
    """An owner begins short runs for ever, each before the last one ends: the long one has a part of the time."""
    long = Run(0, 0.0, 400, 1.0)  # 200 s alone
    stream = [Run(number, 25.5 * number, 50, 1.0) for number in range(1, 130)]  # 25 s each
    play([long, *stream])
    assert (long.ended or 0) < stream[-1].begins
    assert long.most_waited < fair_queue.MOST_PATIENCE


def test_runs_of_two_owners_have_equal_parts_however_many_one_of_them_begins() -> None:
    mine = Run(0, 0.0, 200, 1.0, owner="bob")  # 100 s alone
    others = [Run(number, 0.0, 100, 1.0) for number in range(1, 11)]
    play([mine, *others])
    assert (mine.ended or 0) <= 2.1 * mine.alone


def test_where_owners_are_more_than_processors_each_has_its_turn() -> None:
    runs = [Run(number, 0.0, 60, 1.0, owner=f"owner {number}", segments=1, threads=2) for number in range(5)]
    play(runs, processors=2)
    assert max(one.ended or 0 for one in runs) <= 1.1 * sum(one.alone for one in runs)
    assert min(one.ended or 0 for one in runs) <= 0.4 * sum(one.alone for one in runs)


def test_a_budget_is_not_spent_with_waiting() -> None:
    timed = Run(2, 50.0, 10**6, 1.0, seconds=100.0)
    long = Run(1, 0.0, 600, 1.0)
    play([long, timed])
    assert timed.done >= 0.7 * 2 * 100 and timed.most_waited < 2  # the long one goes first now and then
    assert (long.ended or 0) <= long.alone + 100 + 10


def test_whatever_the_runs_are_all_end_and_no_processor_is_wasted() -> None:
    """Random runs, some of which vanish; estimates come late; the whole takes hardly longer than the work."""
    for seed in range(CASES // 3):
        chance = random.Random(seed)
        processors = chance.choice((1, 2, 4, 8))
        runs = [
            Run(
                number, chance.uniform(0, 60), chance.randint(1, 60), chance.choice((0.5, 1.0, 7.5)),
                chance.choice("abcd"), segments := chance.randint(1, 4), max(1, processors // segments),
                known_after=chance.choice((1, 5, 1000)),
                seconds=chance.choice((None, None, None, chance.uniform(5, 50))),
            )
            for number in range(chance.randint(2, 8))
        ]  # fmt: skip
        dead = {one.number for one in runs if chance.random() < 0.1}
        play(runs, processors, dead)
        work = sum(one.units * one.unit * one.threads for one in runs) / processors
        slack = sum(one.unit * one.units for one in runs if one.segments * one.threads < processors or one.threads > 1)
        last = max((one.ended or 0 for one in runs), default=0)
        assert last <= 60 + 1.3 * work + slack + 5 * len(runs), seed


def test_a_run_with_nothing_to_do_keeps_nobody_waiting() -> None:
    busy, other = QueuePlace(1, "ada", 0.0, 1, 2), QueuePlace(2, "ada", 1.0, 1, 2)
    told = busy.standing(2, 5.0, 9, waits=True)
    other.look(1.0, other.standing(2, 50.0, 9, waits=True), 2, [Contender(1, "ada", 0.0, told)], busy=False)
    assert other.granted == 0 and other.behind is not None and other.behind.run == 1
    told = busy.standing(0, 5.0, 9, waits=True)  # it waits for a person
    other.look(2.0, other.standing(2, 50.0, 9, waits=True), 2, [Contender(1, "ada", 0.0, told)], busy=False)
    assert other.granted == 2 and other.waited == 1.0
    busy.look(2.0, told, 2, [Contender(2, "ada", 1.0, other.standing(2, 50.0, 9, waits=True))], busy=False)
    assert busy.granted == 2  # it may begin at once, and others see that a moment later
