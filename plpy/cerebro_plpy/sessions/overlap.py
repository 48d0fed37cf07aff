"""Tasks that share a segment's session: while the trainer computes for one, another fetches or stores a state.

A task is one unit, or several units in one order, from its first statement to its last.  At most one task has the
trainer.  The others use the session whenever the task with the trainer leaves it free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator, Iterator, Sequence
from datetime import datetime
from typing import Any, Callable, Optional, TypeVar

from cerebro_db.core.records import dataclass, field
from cerebro_db.core.scheduling.schedule import Unit

from .session import Rows, Statement

T = TypeVar("T")
TaskWork = Coroutine[Optional[Statement], Any, Any]


class AnotherTask:
    """Awaited by a task that can go on only after another task's next step."""

    def __await__(self) -> Generator[None, Any, None]:
        yield None


@dataclass(eq=False)
class Task:
    """The units of one order: groups of them one after the other.

    A group has units of one model that follow each other, or visits of several models that are fused.
    """

    groups: list[list[Unit]]
    started: float
    may_compute: bool  # nothing is before it, so it need not fetch its states ahead
    work: TaskWork = field(init=False)
    statement: Statement | None = None  # what it wants the session to run next
    shares_session: bool = False  # it leaves the session to other tasks while the trainer computes
    rows: int = 0  # trained on and not committed yet
    result: Any = None

    @property
    def units(self) -> list[Unit]:
        return [unit for group in self.groups for unit in group]


def is_chain(group: Sequence[Unit]) -> bool:
    """Whether a group has units of one model that follow each other; else it has visits that are fused."""
    return all(unit.model == group[0].model for unit in group)


def first_of_chains(groups: Sequence[Sequence[Unit]]) -> set[Unit]:
    """The first units of groups that have several units of one model."""
    return {group[0] for group in groups if len(group) > 1 and is_chain(group)}


def of_each(groups: Sequence[Sequence[Unit]], failed: Callable[[Unit], T]) -> list[T | None]:
    """For each unit of groups that have failed as a whole what that means.  None: it comes after one that failed."""
    return [
        failed(unit) if place == 0 or not is_chain(group) else None
        for group in groups
        for place, unit in enumerate(group)
    ]


@dataclass
class TaskQueue:
    """The tasks of one segment, oldest first."""

    under_way: list[Task] = field(default_factory=list)
    over: list[Task] = field(default_factory=list)
    computing: Task | None = None  # the task that has the trainer
    computing_since: datetime | None = None
    asked: Task | None = None  # the task whose statement the session runs

    async def run(self) -> None:
        """The session's work as long as there are tasks."""
        while self.under_way:
            for task in reversed(self.under_way):  # a later task gets the trainer before an earlier one stores
                if task.statement is None:
                    self._advance(task, None)
            asking = [task for task in reversed(self.under_way) if task.statement is not None]
            if asking:
                task = self.asked = min(asking, key=self._priority)
                assert task.statement is not None
                self._advance(task, await task.statement)
            elif self.under_way:
                raise RuntimeError("all tasks of a segment wait for each other")

    @contextlib.contextmanager
    def computes(self, task: Task) -> Iterator[None]:
        self.computing, self.computing_since = task, None
        try:
            yield
        finally:
            self.computing = self.computing_since = None

    def followed(self, task: Task) -> bool:
        """Whether another task comes after this one."""
        return bool(self.under_way) and self.under_way[-1] is not task  # a joint visit is in no queue

    def abandon(self) -> list[Task]:
        """End all tasks, wherever they are."""
        ended, self.under_way = self.under_way, []
        for task in ended:
            task.work.close()
        return ended

    def _advance(self, task: Task, rows: Rows | None) -> None:
        try:
            task.statement = task.work.send(rows)
        except StopIteration as end:
            task.result = end.value
            self.under_way.remove(task)
            self.over.append(task)

    def _priority(self, task: Task) -> int:
        assert task.statement is not None
        if task.statement.low_priority:
            return 2
        return 0 if task is self.computing else 1
