"""How a function of ours hears that its statement is cancelled, or its session terminated.

PostgreSQL lets the signal wait until the function runs SQL, so it listens by running some.  Greenplum does more than
that, and not all of it is sound: it raises a KeyboardInterrupt between any two lines of Python, and it begins and ends
the subtransaction around each statement of PL/Python on all segments, where the same cancel is an error that leaves
Python's frames behind; the next function of that session then crashes the server.  So on Greenplum

* the signals are held back while Python is in charge, statements included;
* we look for them where we listen, and before each statement;
* a query that may take long is run by PL/pgSQL (``scan``, ``Cursor.wait``), which lets a cancel in while it runs, and
  holds it back again before the subtransaction ends.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any, Callable

from cerebro_db.core.errors import Cancelled

Listen = Callable[[], None]

CANCEL, TERMINATE = signal.SIGINT, signal.SIGTERM

_greenplum: bool | None = None  # not asked yet
_scanning = False


def on_greenplum(plpy: Any) -> bool:
    global _greenplum
    if _greenplum is None:
        _greenplum = "Greenplum" in plpy.execute("SELECT pg_catalog.version() AS version")[0]["version"]
    return _greenplum


@contextlib.contextmanager
def held_back(plpy: Any) -> Iterator[None]:
    """Around all that a function does."""
    if _greenplum is False:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL, TERMINATE})
    try:
        if not on_greenplum(plpy):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def look(plpy: Any) -> None:
    """On Greenplum: raises if a signal is being held back."""
    pending = signal.sigpending()
    if TERMINATE in pending:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {TERMINATE})
        plpy.execute("SELECT 1")  # ends this process
    if CANCEL in pending:
        signal.sigwait({CANCEL})
        raise Cancelled("canceling statement due to user request")


def listener(plpy: Any) -> Listen:
    """What to call again and again while waiting: raises when the session we run in is to stop."""
    if on_greenplum(plpy):
        return lambda: look(plpy)
    plan = plpy.prepare("SELECT 1")
    return lambda: plan.execute([], 1) and None


def scan(plpy: Any, plan: Any, values: list[Any]) -> list[dict[str, Any]]:
    """What a plan that calls ``cerebro._scan`` or ``cerebro._await`` gives, on Greenplum."""
    global _scanning
    look(plpy)
    _scanning = True
    try:
        return [json.loads(row["found"]) for row in plpy.execute(plan, _LettingIn(values))]
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL, TERMINATE})
        _scanning = False


class _LettingIn(list):  # type: ignore[type-arg]
    """The values of a statement: PL/Python asks for them when it is ready to make an exception of an error."""

    def __getitem__(self, place: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {CANCEL, TERMINATE})
        return super().__getitem__(place)


def hold(plpy: Any) -> None:
    """The last that ``cerebro._scan`` and ``cerebro._await`` do."""
    with contextlib.suppress(KeyboardInterrupt):  # the database has the cancel, too, and will raise it
        if _scanning:
            signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL})
