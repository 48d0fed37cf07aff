"""Tasks that share a segment's session: the order in which the session runs the statements of two tasks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cerebro_db.core.scheduling.schedule import Train
from cerebro_db.core.sql import in_psycopg2, shown, sql, sql_of_user
from cerebro_plpy.sessions.overlap import AnotherTask, Task, TaskQueue
from cerebro_plpy.sessions.session import Statement


def task_of(tasks: TaskQueue, name: str, polls: int = 2) -> Task:
    """Fetches, unless it is the first; has the trainer; stores once the next task has the trainer."""
    task = Task([[Train(1, 1, 1, 0)]], time.monotonic(), may_compute=not tasks.under_way)

    async def steps() -> str:
        if not task.may_compute:
            await Statement(sql_of_user(f"{name} fetches"))
            while tasks.computing is not None:
                await AnotherTask()
        with tasks.computes(task):
            await Statement(sql_of_user(f"{name} begins"))
            for _ in range(polls):
                await Statement(sql_of_user(f"{name} computes"), low_priority=True)
        while tasks.followed(task) and tasks.computing is None:
            await AnotherTask()
        await Statement(sql_of_user(f"{name} stores"))
        return name

    task.work = steps()
    tasks.under_way.append(task)
    return task


def told(work: Any, most: int = 100) -> list[str]:
    """The statements that a session is given, each answered with no rows."""
    found = []
    with pytest.raises(StopIteration):
        statement = work.send(None)
        for _ in range(most):
            found.append(shown(statement.sql))
            statement = work.send([])
    return found


def test_one_task_alone() -> None:
    tasks = TaskQueue()
    task_of(tasks, "a")
    assert told(tasks.run()) == ["a begins", "a computes", "a computes", "a stores"]
    assert [task.result for task in tasks.over] == ["a"] and not tasks.under_way and tasks.computing is None


def test_the_next_task_fetches_meanwhile_and_begins_before_the_last_one_stores() -> None:
    tasks = TaskQueue()
    task_of(tasks, "a")
    task_of(tasks, "b")
    assert told(tasks.run()) == [
        "a begins", "b fetches", "a computes", "a computes", "b begins", "a stores", "b computes", "b computes",
        "b stores",
    ]  # fmt: skip
    assert [task.result for task in tasks.over] == ["a", "b"]


def test_a_late_task_fetches_first_and_has_the_trainer_before_the_other_stores() -> None:
    tasks = TaskQueue()
    task_of(tasks, "a", polls=1)
    work = tasks.run()
    assert shown(work.send(None).sql) == "a begins"
    assert shown(work.send([]).sql) == "a computes"
    task_of(tasks, "b", polls=1)
    assert [shown(work.send([]).sql) for _ in range(5)] == [
        "b fetches", "b begins", "a stores", "b computes", "b stores",
    ]  # fmt: skip
    work.close()


def test_no_abandoned_task_holds_the_trainer() -> None:
    tasks = TaskQueue()
    first, second = task_of(tasks, "a"), task_of(tasks, "b")
    work = tasks.run()
    work.send(None), work.send([])
    assert tasks.computing is first
    assert tasks.abandon() == [first, second]
    assert tasks.computing is None and not tasks.under_way
    work.close()


def test_tasks_that_wait_for_each_other_are_an_error() -> None:
    tasks = TaskQueue()
    stuck = task_of(tasks, "a")
    tasks.computing = Task([], 0.0, may_compute=True)  # a task that is not under way
    stuck.may_compute = False
    work = tasks.run()
    assert shown(work.send(None).sql) == "a fetches"
    with pytest.raises(RuntimeError, match="wait for each other"):
        work.send([])


def test_statements_in_one_message() -> None:
    joined = Statement.joined(
        [Statement(sql("SELECT 5 % 3")), Statement(sql("SELECT {}"), (1,)), Statement(sql("COMMIT"))]
    )
    assert joined.parameters == [1]
    assert in_psycopg2(joined.sql, joined.parameters) == "SELECT 5 %% 3; SELECT %s; COMMIT"
    plain = Statement.joined([Statement(sql("SELECT 5 % 3")), Statement(sql("COMMIT"))])
    assert plain.parameters is None and in_psycopg2(plain.sql, None) == "SELECT 5 % 3; COMMIT"
