"""Waiting for runs beside other tasks of an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psycopg2
import pytest
from small_run import Trained

from cerebro_db import client


def test_two_runs_are_awaited_while_the_loop_goes_on(trained: Trained, fresh_output: Callable[[], str]) -> None:
    handles = [trained.cerebro.fit("packed", fresh_output(), "alone", epochs=2, wait=False) for _ in range(2)]
    ticks = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.02)

    async def both() -> list[int]:
        ticking = asyncio.create_task(tick())
        try:
            return await asyncio.gather(*(handle.wait_async(120) for handle in handles))
        finally:
            ticking.cancel()

    assert asyncio.run(both()) == [handle.run for handle in handles]
    assert len(ticks) > 5, "nothing blocked the loop"
    assert [len(handle.leaderboard()) for handle in handles] == [1, 1]


def test_following_timeouts_and_failures(trained: Trained, fresh_output: Callable[[], str]) -> None:
    handle = trained.cerebro.fit("packed", fresh_output(), "alone", epochs=100_000, wait=False)

    async def story() -> list[str]:
        with pytest.raises(TimeoutError, match=f"run {handle.run} is still running"):
            await handle.wait_async(0.01)
        seen = []
        async for progress in handle.follow_async(0.05):
            seen.append(progress.status)
            if len(seen) == 3:
                await asyncio.to_thread(handle.cancel)
        with pytest.raises(client.RunFailed, match="was cancelled"):
            await handle.wait_async()
        return seen

    seen = asyncio.run(story())
    assert seen[:3] == ["running"] * 3 and seen[-1] == "cancelled"


def test_any_call_is_awaited_and_its_statement_ends_with_the_task(trained: Trained) -> None:
    cerebro = trained.cerebro

    async def story() -> None:
        runs, boards = await asyncio.gather(
            client.in_thread(cerebro.runs), client.in_thread(cerebro.leaderboard, trained.run)
        )
        assert trained.run in [run.run for run in runs] and len(boards) == 3
        with pytest.raises(client.NoSuchRun):
            await client.in_thread(cerebro.run, 10**9)
        marked = "SELECT pg_sleep(600), 'awaited by test_async'"
        sleeping = asyncio.create_task(client.in_thread(cerebro.rows, marked))
        count = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = %s"
        while (await client.in_thread(cerebro.rows, count, (marked,)))[0][0] == 0:
            await asyncio.sleep(0.01)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        assert (await client.in_thread(cerebro.rows, count, (marked,))) == [(0,)]

    asyncio.run(story())


def test_a_call_of_a_cancelled_task_begins_no_other_statement(trained: Trained) -> None:
    cerebro, said = trained.cerebro, []

    def several() -> None:
        cerebro.rows("SELECT 1")
        said.append("first")
        time.sleep(0.3)
        cerebro.rows("SELECT 2")
        said.append("second")

    async def story() -> None:
        task = asyncio.create_task(client.in_thread(several))
        while not said:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert said == ["first"]


def test_many_cancelled_calls_end_at_once(trained: Trained) -> None:
    """More than the event loop has threads: none waits for a statement of another."""

    async def story() -> float:
        calls = [client.in_thread(trained.cerebro.rows, f"SELECT pg_sleep(600), {number}") for number in range(8)]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in found), found
        return time.monotonic() - began

    assert asyncio.run(story()) < 60


def test_calls_of_several_statements_end_with_the_task(
    trained: Trained, fresh_output: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    handle = trained.cerebro.fit("packed", fresh_output(), "alone", epochs=100_000, wait=False)
    try:
        for call in (handle.watch, lambda: list(handle.follow(0.01)), handle.wait):

            async def story(call: Callable[[], object] = call) -> None:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.in_thread(call), 0.5)

            asyncio.run(story())
        assert not handle.done
    finally:
        handle.cancel()


def test_a_statement_that_waits_for_a_lock_ends_with_the_task(trained: Trained) -> None:
    with trained.cerebro.transaction() as other:
        other.rows("LOCK TABLE cerebro.run IN ACCESS EXCLUSIVE MODE")

        async def story() -> None:
            for call in (trained.cerebro.runs, lambda: trained.cerebro.track(trained.run)):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.in_thread(call), 0.5)

        asyncio.run(story())


def test_an_error_while_cancelling_is_not_told(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    from cerebro_db.client import interrupts

    class Broken:
        def cancel(self) -> None:
            raise psycopg2.OperationalError("the server is gone")

    call = interrupts._AwaitedCall()
    call.begins(Broken())
    call.cancel()
    call.ended()
    call.cancel()
