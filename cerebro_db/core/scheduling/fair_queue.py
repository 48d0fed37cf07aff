# ruff: noqa: UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""How many segments each of several runs may keep busy at once, so that their trainers share the processors.

Every driver computes this for itself, from what all drivers have last said of their runs. Nobody holds a lock: two
drivers that know different things for a second keep too many or too few segments busy for as long.

* Owners get equal shares of the processors, or shares in the proportion that an administrator has set.
* Of the runs of one owner, the run with the least time left goes first. If there are fewer processors than owners,
  this also says which owners wait.
* A run that has waited long goes first for a while (``LongWait``).
* A run with a budget of seconds goes before the other runs of its owner, and always keeps a segment busy.
* A run that is alone may keep all its segments busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Optional

from .. import codec
from ..codec import Within
from ..documents import decoded
from ..errors import BadData
from ..records import dataclass

UNKNOWN = 30.0  # seconds: what a run counts for at most that cannot tell yet how long it takes
HOLDS_ON = 0.8  # times the seconds of a run that is served: estimates vary, and runs must not alternate for that
LEAST_PATIENCE, MOST_PATIENCE = 60.0, 360.0  # seconds
SHARE_OF_WAITING = 1 / 6  # of the time that a run has waited, it then goes first; runs that wait together share that
MOST_SEGMENTS, MOST_SECONDS = 10_000, 1e18
SHARES = (1, 1000)  # the smallest and the largest share of an owner


@dataclass(frozen=True)
class QueueEntry:
    """What other drivers have to know of a run: a part of its heartbeat."""

    threads: Annotated[int, Within(1, MOST_SEGMENTS)]  # of the trainer of a segment
    wants: Annotated[int, Within(0, MOST_SEGMENTS)]  # segments that it could keep busy; 0: it waits for no processor
    seconds: Annotated[float, Within(0, MOST_SECONDS)]  # that it takes from now on, if it gets all that it wants
    measured: bool  # whether that is known from its own pace
    rows: Annotated[int, Within(0, MOST_SECONDS)]  # that are left to train on
    served: bool  # whether it may keep a segment busy, and not because it has waited long
    waits: bool  # whether it may have to wait; a run with a budget of seconds may not
    first_since: Optional[Annotated[float, Within(0, MOST_SECONDS)]] = None  # it goes first, for it has waited long
    lenient = True

    @property
    def counts_for(self) -> float:
        return self.seconds * (HOLDS_ON if self.served else 1.0)


@dataclass(frozen=True)
class Contender:
    """A run that is driven now."""

    run: int
    owner: str
    began: float  # when its session began to drive it
    standing: QueueEntry
    share: int = 1  # of its owner
    processors: Optional[int] = None  # the most that the runs of its owner may keep busy; None: no limit

    @property
    def urgency(self) -> tuple[bool, float, float, float, int, str]:
        """The least one goes first."""
        mine = self.standing
        first = float("inf") if mine.first_since is None else mine.first_since
        return mine.waits, first, mine.counts_for, self.began, self.run, self.owner

    def is_run(self, run: int, owner: str) -> bool:
        return (self.run, self.owner) == (run, owner)


def shares(runs: Iterable[Contender], processors: int) -> dict[Contender, int]:
    """How many segments each run may keep busy."""
    wanting = sorted((one for one in runs if one.standing.wants), key=lambda one: one.urgency)
    granted = dict.fromkeys(wanting, 0)
    used: Counter[str] = Counter()  # owner -> threads
    free = processors
    if len(wanting) == 1:
        free = max(free, wanting[0].standing.wants * wanting[0].standing.threads)

    def fits(one: Contender) -> bool:
        threads = one.standing.threads
        if granted[one] >= one.standing.wants or (threads > free and any(granted.values())):
            return False
        return one.processors is None or not used[one.owner] or used[one.owner] + threads <= one.processors

    # ``min`` takes the first of several: the most urgent one.
    while best := min(filter(fits, wanting), key=lambda one: used[one.owner] / one.share, default=None):
        granted[best] += 1
        used[best.owner] += best.standing.threads
        free -= best.standing.threads
    for one in wanting:
        if not one.standing.waits:
            granted[one] = max(1, granted[one])
    return granted


def waits_for(granted: dict[Contender, int], mine: Contender) -> Contender | None:
    """The most urgent of the runs for which a run waits; None: it does not wait."""
    if granted.get(mine) != 0:
        return None
    return min((one for one in granted if granted[one]), key=lambda one: one.urgency, default=None)


class LongWait:
    """How long a run has waited: then it goes first until it has had a share of that time."""

    def __init__(self) -> None:
        self.waited = 0.0  # below 0: visits of its turn took longer than the turn
        self.first_since: float | None = None
        self.in_turn = False  # what is under way began because it went first

    def passes(
        self, seconds: float, now: float, standing: QueueEntry, granted: int, *, busy: bool, waiting: int
    ) -> None:
        """So many seconds have passed. ``waiting``: the runs that wait beside this one."""
        most = min(MOST_PATIENCE, max(LEAST_PATIENCE, standing.seconds))
        if granted and self.first_since is None:
            self.in_turn = False
        if standing.wants and not granted and not busy:
            self.waited = min(most, self.waited + seconds)
            if self.waited >= most and self.first_since is None:
                self.first_since = now
            self.in_turn = self.first_since is not None
            return
        self.waited -= seconds * (waiting + 1) / SHARE_OF_WAITING
        if self.waited <= 0:
            self.first_since = None
        if not self.in_turn:
            self.waited = max(0.0, self.waited)


class QueuePlace:
    """The place of one run in the queue, as its driver knows it."""

    def __init__(self, run: int, owner: str, began: float, threads: int, processors: int) -> None:
        self.run, self.owner, self.began = run, owner, began
        self.threads, self.processors = threads, processors
        self.granted = 0  # segments that it may keep busy
        self.waited = self.served = 0.0  # seconds
        self.behind: Contender | None = None  # for which it waits
        self._patience = LongWait()
        self._waiting = 0  # runs that wait beside this one, and take about as long
        self._pace: float | None = None  # seconds per row, of the fastest of the other runs
        self._looked_at: float | None = None

    def standing(self, wants: int, seconds: float | None, rows: int, *, waits: bool) -> QueueEntry:
        """``seconds``: that the run takes from now on, if that is known; ``rows``: that are left."""
        measured = seconds is not None
        if seconds is None:  # perhaps it is as fast as others; and one that never knows is no short one
            guessed = UNKNOWN if self._pace is None else min(UNKNOWN, rows * self._pace)
            seconds = max(guessed, self.served)
        # What it gets because it has waited long does not make it go first afterwards.
        served = self.granted > 0 and not self._patience.in_turn
        return QueueEntry(
            threads=self.threads,
            wants=wants,
            seconds=seconds,
            measured=measured,
            rows=rows,
            served=served,
            waits=waits,
            first_since=self._patience.first_since,
        )

    def look(self, now: float, mine: QueueEntry, segments: int, others: Iterable[Contender], *, busy: bool) -> None:
        """Settle what the run may do until it looks again; it has so many segments.

        ``mine``: what it has said. ``busy``: whether it has units under way.
        """
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if self.granted or busy:
            self.served += passed
        elif mine.wants:
            self.waited += passed
        self._patience.passes(passed, now, mine, self.granted, busy=busy, waiting=self._waiting)
        # As if all its segments had units: they may have some before it looks again.
        mine = replace(mine, wants=segments, first_since=self._patience.first_since)
        others = list(others)
        share, most = next(((one.share, one.processors) for one in others if self._is_mine(one)), (1, None))
        me = Contender(self.run, self.owner, self.began, mine, share, most)
        granted = shares([me, *(one for one in others if not self._is_mine(one))], self.processors)
        known = [one.standing for one in granted if one is not me and one.standing.measured and one.standing.rows]
        self._pace = min((one.seconds / one.rows for one in known), default=None)
        # Shorter ones will hardly wait until they go first.
        others_wait = (one.standing.seconds for one, count in granted.items() if one is not me and not count)
        self._waiting = sum(seconds >= mine.seconds / 2 for seconds in others_wait)
        self.granted = granted.get(me, 0)
        self.behind = waits_for(granted, me)

    def _is_mine(self, one: Contender) -> bool:
        return one.is_run(self.run, self.owner)


def read(text: str | None) -> QueueEntry | None:
    """The standing on record: None if there is none that can be read, for users can write anything about their runs."""
    if text is None:
        return None
    try:
        return codec.decode(QueueEntry, decoded(text, "a heartbeat"), "a heartbeat", BadData)
    except BadData:
        return None
