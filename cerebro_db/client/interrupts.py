"""Ctrl-C while a statement runs: it cancels the statement, or is held back if the result must not be lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Callable


def cancelling(connection: Any, run: Callable[[], None]) -> None:
    """Run a statement of a psycopg2 connection; Ctrl-C cancels it. libpq itself does not react to Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # Python interrupts the main thread only
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
