"""Waiting for runs beside other tasks of an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from small_run import Trained

from cerebro_db import client


def test_two_runs_are_awaited_while_the_loop_goes_on(trained: Trained, fresh_output: Callable[[], str]) -> None:
    handles = [trained.cerebro.fit("packed", fresh_output(), "mst", epochs=2, wait=False) for _ in range(2)]
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
    assert [len(handle.leaderboard()) for handle in handles] == [3, 3]


def test_following_timeouts_and_failures(trained: Trained, fresh_output: Callable[[], str]) -> None:
    handle = trained.cerebro.fit("packed", fresh_output(), "mst", epochs=100_000, wait=False)

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
