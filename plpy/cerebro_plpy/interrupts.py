"""How a function of ours hears that its statement is cancelled, or its session terminated.

PostgreSQL lets the signal wait until the function runs SQL, so it listens by running some.  Greenplum does more than
that, and not all of it is sound: it raises a KeyboardInterrupt between any two lines of Python, and it begins and ends
the subtransaction around each statement of PL/Python on all segments, where the same cancel is an error that leaves
Python's frames behind; the next function of that session then crashes the server.  So on Greenplum

* the signals are held back while Python is in charge, statements included;
* we look for them where we listen, and before each statement;
* what may take long is run by PL/pgSQL (``Database.scan`` and ``patiently``), which lets a cancel in while it runs, and
  holds it back again before the subtransaction ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

Listen = Callable[[], None]

CANCELLED = "canceling statement due to user request"
CANCEL, TERMINATE = signal.SIGINT, signal.SIGTERM

_greenplum: bool | None = None  # not asked yet
_scanning = False


def on_greenplum(plpy: Any) -> bool:
    global _greenplum
    if _greenplum is None:
        if os.path.exists("internal.auto.conf"):  # a file of Greenplum's in the data folder, where we are
            # A cancel may have come while the interpreter was made ready, and no statement may meet it. Writing to the
            # log raises it, as an exception.
            plpy.log("cerebro_db is used in this session")
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


def look(plpy: Any, client: int | None = None) -> None:
    """On Greenplum: raises if a signal is being held back, or the client is gone."""
    pending = signal.sigpending()
    if TERMINATE in pending:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {TERMINATE})
        plpy.execute("SELECT 1")  # ends this process
    if CANCEL in pending:
        raise KeyboardInterrupt(let_in(plpy))
    if client is not None and is_closed(client):
        raise KeyboardInterrupt("connection to client lost")


def let_in(plpy: Any) -> str:
    """Take in the cancel that is held back, and tell why it came, in the database's words."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {CANCEL})
    signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL})
    try:
        plpy.log("cerebro_db is cancelled in this session")  # which raises it, as an exception
    except plpy.Error as error:
        return str(error)
    return CANCELLED


def is_closed(connection: int) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def listener(plpy: Any) -> Listen:
    """What to call again and again while waiting: raises when the session we run in is to stop."""
    if not on_greenplum(plpy):
        plan = plpy.prepare("SELECT 1")
        return lambda: plan.execute([], 1) and None
    (settings,) = plpy.execute(
        "SELECT pg_catalog.current_setting('gp_role') AS role,"
        " pg_catalog.current_setting('client_connection_check_interval') AS checks"
    )
    if settings["role"] == "execute":  # a segment's process: there statements are as harmless as on PostgreSQL
        plan = plpy.prepare("SELECT 1")
        return lambda: execute(plpy, plan, []) and None
    client = client_socket() if settings["checks"] != "0" else None
    return lambda: look(plpy, client)


def client_socket() -> int | None:
    """The descriptor of the connection that this process serves."""
    port = Path("postmaster.pid").read_text().splitlines()[3]  # we are in the data folder
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            here = connection.getsockname()
            if str(here[1]) == port if isinstance(here, tuple) else here.endswith(f".s.PGSQL.{port}"):
                return int(name)
    return None


def execute(plpy: Any, plan: Any, values: list[Any]) -> Any:
    """A statement, on Greenplum: it can be terminated, which does no harm there, but not cancelled."""
    look(plpy)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {TERMINATE})
    try:
        return plpy.execute(plan, values)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {TERMINATE})


def scan(plpy: Any, plan: Any, values: list[Any]) -> list[dict[str, Any]]:
    """What a plan that calls ``cerebro._scan`` or ``cerebro._await`` gives, on Greenplum: it can be cancelled."""
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
