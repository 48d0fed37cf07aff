"""How much the tests try: ``CEREBRO_THOROUGH=5`` (``make test-thorough``) tries five times as much at random.

It also runs the tests that are marked thorough, such as variants of other tests.  Each try follows from its number, so
a longer run begins with the tries of a shorter one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

TIMES = float(os.environ.get("CEREBRO_THOROUGH", "1"))


def tries(at_a_landing: int) -> int:
    return max(1, round(at_a_landing * TIMES))


def landing(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """The cases as parameters of a test; a tuple has several. Cases that are not in ``kept`` are marked thorough."""
    known = list(cases)
    assert all(one in known for one in kept), "a case that is kept is gone"
    return [one if one in kept else pytest.param(*_several(one), marks=pytest.mark.thorough) for one in known]


def _several(one: Any) -> tuple[Any, ...]:
    return one if isinstance(one, tuple) else (one,)
