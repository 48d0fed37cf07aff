"""Waiting for file descriptors in short steps, so that a function can listen for a cancel between two steps."""

from __future__ import annotations

import select
from collections.abc import Sequence

LISTEN_EVERY = 0.1  # seconds; the longest time between two looks for a cancel


def wait_for(descriptors: Sequence[int], event: int, seconds: float) -> bool:
    """Whether one of the descriptors can be read (POLLIN) or written (POLLOUT) within so many seconds.

    By poll() and not by select(), which takes no descriptor above 1023: a backend with many open files has such.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, event)
    return bool(poll.poll(1000 * seconds))


def is_hung_up(descriptor: int) -> bool:
    """Whether the other end of a pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
