"""Cancels statements for which nobody waits any more: after Ctrl-C, or when a task that awaits a call is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
from collections.abc import Iterator
from typing import Any, Callable, ParamSpec, TypeVar

from .errors import Cancelled

AGAIN = 0.5  # seconds until a statement is cancelled again: it may not have begun
P = ParamSpec("P")
T = TypeVar("T")


def cancelling(connection: Any, run: Callable[[], None]) -> None:
    """Run a statement of a psycopg2 connection; Ctrl-C cancels it. libpq itself does not react to Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # Python interrupts the main thread only
        awaited = _awaited.get()
        with awaited.statement(connection) if awaited is not None else contextlib.nullcontext():
            run()
        return
    failed: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="cerebro_db statement")
    try:
        thread.start()
        while thread.is_alive():
            thread.join(60)
    except KeyboardInterrupt:
        connection.cancel()
        thread.join()
        raise
    if failed:
        raise failed[0]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C within the block raises KeyboardInterrupt only when the block ends."""
    if threading.current_thread() is not threading.main_thread():  # Python interrupts the main thread only
        yield
        return
    received: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if received:
        raise KeyboardInterrupt


# -- calls that tasks of an event loop await --------------------------------------------------------------------


class _AwaitedCall:
    """A call in a thread of its own, whose statements the thread of the event loop can cancel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Any = None  # of the statement that runs
        self._abandoned = False

    @contextlib.contextmanager
    def statement(self, connection: Any) -> Iterator[None]:
        with self._lock:
            if self._abandoned:
                raise Cancelled("the task that awaited this call was cancelled", None, None, None)
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._connection is not None:
                self._connection.cancel()


_awaited: contextvars.ContextVar[_AwaitedCall | None] = contextvars.ContextVar("awaited", default=None)


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Awaits a method of the client, while other tasks of the event loop go on, as in
    ``await in_thread(cerebro.predict, "people_models", "SELECT * FROM new_people")``.

    If the task is cancelled, so is the statement that the call waits for. A run that has begun goes on.
    """
    awaited = _AwaitedCall()
    context = contextvars.copy_context()
    context.run(_awaited.set, awaited)
    working = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(call, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            await asyncio.to_thread(awaited.abandon)
            await asyncio.wait([working], timeout=AGAIN)
        working.exception()  # it is known: the statement was cancelled
        raise
