"""How a function of ours learns that its statement is cancelled, or its session terminated.

PostgreSQL handles these signals only while the function runs SQL, so a function that waits runs ``SELECT 1`` again and
again.  Greenplum does more, and some of it is unsound.  It raises a KeyboardInterrupt between any two lines of Python.
It also begins and ends, on all segments, the subtransaction that PL/Python puts around each statement; a cancel there
is an error that leaves Python's frames behind, and the next function of the session crashes the server.  Therefore, on
Greenplum:

* both signals are blocked while Python runs, statements included;
* we look for blocked signals where we listen, and before each statement;
* a statement that may take long is run by PL/pgSQL (``scan``, ``patiently`` and ``perform``), which unblocks the
  signals while the statement runs and blocks them again before the subtransaction ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

Listen = Callable[[], None]

CANCELLED = "canceling statement due to user request"
CANCEL, TERMINATE = signal.SIGINT, signal.SIGTERM

Prepare = Callable[[str, tuple[str, ...]], Any]  # a statement and the types of its parameters -> a plan

GREENPLUMS_FILE = "internal.auto.conf"  # in the data folder, our working directory

_greenplum: bool | None = None  # not known yet
_admitted = False
_on_segment = False  # of Greenplum
_scanning = False
_get_user_id: Any = None


def on_greenplum(plpy: Any) -> bool:
    """For this module and ``platform.of`` only: all others use the methods of the Platform."""
    global _greenplum, _on_segment
    if _greenplum is None:
        if os.path.exists(GREENPLUMS_FILE):
            # A cancel may have come while the interpreter started, and must not meet a statement.  Writing to the log
            # raises it as an exception.
            plpy.log("cerebro_db is used in this session")
        # Greenplum and its forks have this setting.  The text of version() names the fork alone.
        (here,) = plpy.execute("SELECT pg_catalog.current_setting('gp_role', true) AS role")
        _on_segment = here["role"] == "execute"
        _greenplum = here["role"] is not None
    return _greenplum


def shares_plans(plpy: Any) -> bool:
    """Whether a plan may serve the next call of the session, too."""
    return not on_greenplum(plpy)


def is_dispatching(_plpy: Any = None) -> bool:
    """On Greenplum's coordinator: whether processes of segments work for this session, on a query or a cursor.

    Then a statement may be impossible, and even its error unsound (sql/api/95_greenplum_calls.sql).  So this asks the
    server's own C function.
    """
    if _greenplum is False or _on_segment or not os.path.exists(GREENPLUMS_FILE):
        return False
    import ctypes  # takes long to import

    try:
        asked = ctypes.CDLL(None).cdbcomponent_activeQEsExist
    except AttributeError:  # another version of Greenplum
        return False
    asked.restype = ctypes.c_bool
    return bool(asked())


def admit(_plpy: Any = None) -> None:
    """Let the next function run statements although processes of segments work: only a cursor is open."""
    global _admitted
    _admitted = True


def was_admitted() -> bool:
    global _admitted
    admitted, _admitted = _admitted, False
    return admitted


def current_user_id() -> int:
    """The OID of the role that this function runs as, without a statement."""
    global _get_user_id
    if _get_user_id is None:
        import ctypes  # takes long to import

        _get_user_id = ctypes.CDLL(None).GetUserId  # the server's own function
        _get_user_id.restype = ctypes.c_uint32
    return int(_get_user_id())


def expect_coordinator() -> None:
    """Tell this module that it is on Greenplum's coordinator, where no statement may ask."""
    global _greenplum, _on_segment
    _greenplum, _on_segment = True, False


@contextlib.contextmanager
def held_back(plpy: Any) -> Iterator[None]:
    """Around the whole body of a function: on Greenplum, blocks the signals."""
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
    """On Greenplum: raises if a blocked signal is pending, or the client is gone."""
    pending = signal.sigpending()
    if TERMINATE in pending:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {TERMINATE})
        plpy.log("cerebro_db is terminated in this session")  # ends this process
    if CANCEL in pending:
        raise KeyboardInterrupt(let_in(plpy))
    if client is not None and is_closed(client):
        raise KeyboardInterrupt("connection to client lost")


def let_in(plpy: Any) -> str:
    """Receive the pending cancel, and return the database's message, which says why it came."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {CANCEL})
    signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL})
    try:
        plpy.log("cerebro_db is cancelled in this session")  # raises the cancel as an exception
    except plpy.Error as error:
        return str(error)
    return CANCELLED


def is_closed(connection: int) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def listener(plpy: Any) -> Listen:
    """A function to call again and again while waiting.  It raises when the session we run in is to stop."""
    if not on_greenplum(plpy) or _on_segment:
        return listener_in_between(plpy)
    (settings,) = plpy.execute("SELECT pg_catalog.current_setting('client_connection_check_interval') AS checks")
    client = client_socket() if settings["checks"] != "0" else None
    return lambda: look(plpy, client)


def listener_in_between(plpy: Any) -> Listen:
    """As ``listener``, for a function that may compute for long before it is heard.

    On Greenplum's coordinator each statement asks all segments, and fails if one of them was lost meanwhile.  A driver
    must outlive that.  So nothing is asked there, and only signals are heard.
    """
    if on_greenplum(plpy) and not _on_segment:
        return lambda: look(plpy)
    plan = plpy.prepare("SELECT 1")
    if _on_segment:  # there statements are as harmless as on PostgreSQL
        return lambda: execute(plpy, plan, []) and None
    return lambda: plan.execute([], 1) and None


def client_socket() -> int | None:
    """The file descriptor of the connection that this process serves."""
    port = Path("postmaster.pid").read_text().splitlines()[3]  # the data folder is our working directory
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            here = connection.getsockname()
            if str(here[1]) == port if isinstance(here, tuple) else here.endswith(f".s.PGSQL.{port}"):
                return int(name)
    return None


def execute(plpy: Any, *statement: Any) -> Any:
    """The result of a statement: a text, or a plan and the list of its values.

    On Greenplum it can be terminated, which does no harm there, but not cancelled.
    """
    if not on_greenplum(plpy):
        return plpy.execute(*statement)
    look(plpy)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {TERMINATE})
    try:
        return plpy.execute(*statement)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {TERMINATE})


def scan(plpy: Any, prepare: Prepare, sql: str, labels: Sequence[list[Any]]) -> list[dict[str, Any]]:
    """The rows of a query that may take long and can be cancelled.  Its parameters are arrays of text."""
    if not on_greenplum(plpy):
        if not labels:  # PL/Python lets PostgreSQL use parallel workers for a text, but not for a prepared plan
            return list(plpy.execute(sql))
        return list(plpy.execute(prepare(sql, ("text[]",) * len(labels)), list(labels)))
    plan = prepare("SELECT cerebro_internal._scan($1, $2) AS found", ("text", "text[]"))
    return _through_plpgsql(plpy, plan, [sql, *labels] if labels else [sql, None])


def refuse_several(plpy: Any, prepare: Prepare, sql: str) -> None:
    """An error of class 42 if a text is more than one statement; ``plpy.prepare`` and ``plpy.execute`` take several."""
    if on_greenplum(plpy):
        scan(plpy, prepare, sql, [])  # a loop of PL/pgSQL takes one
    else:
        plpy.cursor(sql).close()


def patiently(plpy: Any, prepare: Prepare, sql: str, labels: Sequence[list[Any]]) -> None:
    """Run a statement that may take long and can be cancelled.  Its parameters are arrays of text."""
    if not on_greenplum(plpy):
        plpy.execute(prepare(sql, ("text[]",) * len(labels)), list(labels))
        return
    plan = prepare("SELECT cerebro_internal._await($1, $2) AS found", ("text", "text[]"))
    _through_plpgsql(plpy, plan, [sql, *labels] if labels else [sql, None])


def perform(plpy: Any, prepare: Prepare, sql: str, *, answers: bool) -> list[dict[str, Any]]:
    """Run statements that may take long and can be cancelled.  On Greenplum only, where others cannot be cancelled.

    The first row of the last one if it ``answers``, or no row.  Functions of our own that a statement calls on one
    segment run in the process there that also runs all other statements of the session, and has its trainer: a loop
    over the rows, as in ``scan``, would run them in another process.
    """
    plan = prepare("SELECT cerebro_internal._perform($1, $2) AS found", ("text", "boolean"))
    return _through_plpgsql(plpy, plan, [sql, answers])


def _through_plpgsql(plpy: Any, plan: Any, values: list[Any]) -> list[dict[str, Any]]:
    global _scanning
    look(plpy)
    _scanning = True
    try:
        return [json.loads(row["found"]) for row in plpy.execute(plan, _Unblocking(values))]
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL, TERMINATE})
        _scanning = False


class _Unblocking(list):  # type: ignore[type-arg]
    """The values of a statement.  PL/Python reads them when it is ready to turn an error into an exception."""

    def __getitem__(self, place: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {CANCEL, TERMINATE})
        return super().__getitem__(place)


def hold(plpy: Any) -> None:
    """The last step of ``cerebro_internal._scan``, ``cerebro_internal._await`` and ``cerebro_internal._perform``."""
    with contextlib.suppress(KeyboardInterrupt):  # the database knows of the cancel, too, and will raise it
        if _scanning:
            signal.pthread_sigmask(signal.SIG_BLOCK, {CANCEL})
