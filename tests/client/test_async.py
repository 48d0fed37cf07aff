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
