"""What a session keeps for its next calls: each value serves the role that it was made for, and no other.

A session changes its role by SET ROLE, in a function that runs as its owner, and when a connection pooler hands it on.
What was found out for one role can be wrong for the next one: a cast that is harmless for the owner of a type runs the
owner's code with the rights of anybody else.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from .cancellation import current_user_id

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeptByRole(Generic[K, V]):
    """Values by keys and by the current role.  The ``most`` that were used last stay."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[tuple[int, K], V] = {}  # the one that was used last at the end

    def get(self, key: K) -> V | None:
        asked = (current_user_id(), key)
        found = self._values.pop(asked, None)
        if found is not None:
            self._values[asked] = found
        return found

    def put(self, key: K, value: V) -> None:
        self._values[current_user_id(), key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]

    def drop(self, key: K) -> None:
        self._values.pop((current_user_id(), key), None)
