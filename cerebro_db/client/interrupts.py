"""Cancels a running statement after Ctrl-C, or when the task that awaits the call is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, ParamSpec, TypeVar

import psycopg2
from sqlalchemy import event
from sqlalchemy.engine import Engine

from .errors import Cancelled

AGAIN = 0.5  # seconds between two requests to cancel; the first may come before the statement has begun
P = ParamSpec("P")
T = TypeVar("T")


def cancelling(connection: Any, run: Callable[[], None]) -> None:
    """Run a statement of a psycopg2 connection; Ctrl-C cancels it. libpq itself does not react to Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # Python interrupts the main thread only
        with _awaited_statement(connection):
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
    """A call in a thread of its own, whose statements another thread can cancel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Any = None  # of the statement that runs
        self.abandoned = False

    def begins(self, connection: Any) -> None:
        with self._lock:
            if self.abandoned:
                raise Cancelled("the task that awaited this call was cancelled", None, None, None)
            self._connection = connection

    def ended(self) -> None:
        with self._lock:
            self._connection = None

    def cancel(self) -> None:
        with self._lock, contextlib.suppress(psycopg2.Error):  # the statement may have ended with its connection
            if self._connection is not None:
                self._connection.cancel()


_awaited: contextvars.ContextVar[_AwaitedCall | None] = contextvars.ContextVar("awaited", default=None)


@contextlib.contextmanager
def _awaited_statement(connection: Any) -> Iterator[None]:
    awaited = _awaited.get()
    if awaited is None:
        yield
        return
    awaited.begins(connection)
    try:
        yield
    finally:
        awaited.ended()


def observe(engine: Engine) -> Engine:
    """Makes calls through this engine cancellable, too: those of SQLAlchemy itself."""

    def begins(connection: Any, *_: Any) -> None:
        if (awaited := _awaited.get()) is not None:
            awaited.begins(connection.connection.driver_connection)

    def ended(*_: Any) -> None:
        if (awaited := _awaited.get()) is not None:
            awaited.ended()

    event.listen(engine, "before_cursor_execute", begins)
    event.listen(engine, "after_cursor_execute", ended)
    event.listen(engine, "handle_error", ended)
    return engine


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Awaits a method of the client, while other tasks of the event loop go on, as in
    ``await in_thread(cerebro.predict, "people_models", "SELECT * FROM new_people")``.

    If the task is cancelled, so is the statement that the call waits for. A run that has begun goes on.
    """
    awaited, context = _AwaitedCall(), contextvars.copy_context()
    context.run(_awaited.set, awaited)
    working = _begun(lambda: context.run(call, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        awaited.abandoned = True
        while not working.done():
            await _begun(awaited.cancel)
            await asyncio.wait([working], timeout=AGAIN)
        if not working.cancelled():
            working.exception()  # it is known: the statement was cancelled
        raise


def _begun(call: Callable[[], T]) -> asyncio.Future[T]:
    """Starts a call in a new thread. The threads of the event loop may all be busy with other calls."""
    thread = ThreadPoolExecutor(1, "cerebro_db call")
    future = thread.submit(call)
    thread.shutdown(wait=False)  # it ends with the call
    return asyncio.wrap_future(future)
