"""The arguments of the three verbs reach their names, in the order of today's SQL functions and of those of 0.1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cerebro_plpy.runs.request.given import FIT, SEARCH, TRAIN, names, of_call
from tests import freeze

ROOT = Path(__file__).parents[2]
VERBS = pytest.mark.parametrize("verb", [TRAIN, SEARCH, FIT])


def arguments(verb: str, script: str) -> list[str]:
    """Those of the SQL function in a script, in their order."""
    (head,) = re.findall(rf"CREATE OR REPLACE FUNCTION {re.escape(verb)}\(\n(.*?)\n\) RETURNS", script, re.DOTALL)
    return [line.split()[0] for line in head.splitlines()]


@VERBS
def test_each_value_reaches_its_name(verb: str) -> None:
    files = (ROOT / "sql" / "api").glob("*.sql")
    today = arguments(verb, "\n".join(path.read_text() for path in files))
    assert today == list(names(verb))
    released = arguments(verb, freeze.script("cerebro_db--0.1.0.sql"))
    assert released != today[: len(released)]
    for listed in (today, released):  # functions of 0.1 call this code until ALTER EXTENSION
        given = of_call(verb, listed)
        assert {name: getattr(given, name) for name in listed} == {name: name for name in listed}
