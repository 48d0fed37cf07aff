"""The ring of segments: which segments a model visits, in which order, as a pure function of the run's seed."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Container, Mapping
from typing import Any


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def power_of_two(most: int) -> int:
    """The largest power of two that is at most ``most``."""
    return 1 << (most.bit_length() - 1)


def visit_order(seed: int, position: int, segments: int) -> list[int]:
    """All segments, in the order in which a model with this ring position visits them in every epoch.

    A run has one random ring of segments. Each model starts at its own ring position and goes round
    once per epoch. Models of equal cost therefore never want the same segment at the same time, and models
    of mixed cost rarely do. A new ring per epoch, or an own random order per model, leaves segments
    idle (docs/scheduling.md has the numbers). The rows of each visit are shuffled again, so the order
    of the rows still differs between epochs.
    """
    ring = _ring(seed, segments)
    return [ring[(position + step) % segments] for step in range(segments)]


@functools.lru_cache(maxsize=8)
def _ring(seed: int, segments: int) -> list[int]:
    """The ring of a run, which has one for all its models."""
    ring = list(range(segments))
    random.Random(derived_seed(seed, "ring")).shuffle(ring)
    return ring


def ring_positions(costs: Mapping[int, Any], taken: Container[int] = ()) -> dict[int, int]:
    """The ring position of each model: the most expensive models get the first positions that are not taken.

    Models of one cost thus begin on as many different segments as possible. If all expensive models
    began on the same segment, they would wait for each other.
    """
    most_expensive_first = sorted(costs, key=lambda model: costs[model], reverse=True)
    return dict(zip(most_expensive_first, (position for position in itertools.count() if position not in taken)))
