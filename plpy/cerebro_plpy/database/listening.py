"""Lets every function of ours hear a cancel wherever its Python computes, without a call in each loop.

While a function of ours runs, a timer of the processor time sends this process SIGVTALRM, and Python calls ``_tick``
between two of its instructions: in any loop of ours, of the standard library, or of psycopg2's Python code.  The timer
stands still while the process sleeps, so it interrupts no wait.  A single call of C code (reading JSON, a regular
expression) ends before ``_tick`` is called; limits of sizes bound these calls (``sizes.py``).

So a cancel can be raised at any place, as KeyboardInterrupt is in other programs.  Code that must come to its end runs
``with paused():``.  So does each statement (``access.py``).  It may lead the server to Python code outside of any
function, such as the definition of the next one.  There a statement, ``_tick``'s own too, would crash the server.
"""

from __future__ import annotations

import contextlib
import signal
from types import TracebackType
from typing import Any, Callable, TypeVar

from . import cancellation

R = TypeVar("R")

EVERY = 0.1  # seconds of processor time
AGAIN = 20  # ticks after a cancel was raised; whoever computes for so long is not cleaning up, but has swallowed it
NO_ROOM = ("53", "54")  # classes of errors: no memory, or no room on the stack just now

_calls: list[_Call] = []  # the functions of ours that run: one can call another one through SQL
_paused = False


class _Call:
    """A function of ours that runs."""

    def __init__(self, plpy: Any) -> None:
        self.plpy = plpy
        self.heard: BaseException | None = None  # the cancel
        self._listen: cancellation.Listen | None = None
        self._ticks = 0  # since the cancel was raised

    def tick(self) -> None:
        """Raise the cancel, if there is one.  A session that is terminated ends here."""
        try:
            if self._listen is None:
                self._listen = cancellation.listener_in_between(self.plpy)
            self._listen()
        except BaseException as error:
            if str(getattr(error, "sqlstate", ""))[:2] in NO_ROOM:
                return
            if self.heard is None:
                self.heard = error
                raise
        if self.heard is not None:
            self._ticks += 1
            if self._ticks % AGAIN == 0:
                raise self.heard


def during(plpy: Any, action: Callable[[], R]) -> R:
    """What the action returns.  While it runs, a cancel is raised in it; one that it swallowed is raised at its end."""
    global _paused
    call, depth, paused_before = _Call(plpy), len(_calls), _paused
    try:
        try:
            _calls.append(call)
            _paused = False
            if depth == 0:
                if signal.getsignal(signal.SIGVTALRM) is not _tick:
                    signal.signal(signal.SIGVTALRM, _tick)  # it stays: a late signal would end the process
                    signal.siginterrupt(signal.SIGVTALRM, False)
                signal.setitimer(signal.ITIMER_VIRTUAL, EVERY, EVERY)
            result = action()
        finally:
            _paused = True
    finally:  # also if the last tick came in the lines above
        del _calls[depth:]
        _paused = paused_before
        if depth == 0:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if call.heard is not None:
        raise call.heard
    return result


def _tick(_number: int, _frame: Any) -> None:
    if _calls and not _paused:
        _calls[-1].tick()


class paused(contextlib.ContextDecorator):
    """``with paused(): …`` or ``@paused()`` - no cancel is raised in here, except where the code listens itself."""

    _to = True

    def _recreate_cm(self) -> paused:
        return type(self)()  # a function that is decorated with it can call itself

    def __enter__(self) -> None:
        global _paused
        self._before, _paused = _paused, self._to

    def __exit__(self, _type: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        global _paused
        _paused = self._before


class resumed(paused):
    """``with resumed(): …`` - in a paused part, a part in which a cancel is raised."""

    _to = False
