"""Rules in SQL: the option ``stop_when``, a query that says which models of a run stop, and why.

    SELECT configuration, 'worse than the median' FROM … WHERE run = $1 AND …

The rows are read here; a session of the user runs the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ..errors import BadData, InvalidArgument

Objections = dict[tuple[str, int], str]  # (model or configuration, its number) -> why it stops
RUN = "$1"
KEYS = ("model", "configuration")
INTEGERS = (20, 21, 23)  # the numbers of PostgreSQL's types smallint, integer and bigint
FORM = (
    "It must be a query with two columns: configuration or model, and the reason as a text. $1 is the number of the"
    " run:"
    " SELECT configuration, 'no better than chance' FROM cerebro.learning_curve WHERE run = $1 AND …"
)
_RUN = re.compile(r"\$1(?![0-9])")
LONGEST_REASON = 10_000  # characters


def plain(query: str) -> str:
    """The query as it can stand in brackets.  An error says what every rule needs."""
    query = query.strip().rstrip(";").rstrip()
    if not query:
        raise InvalidArgument("stop_when is empty.", hint=FORM)
    if not _RUN.search(query):
        raise InvalidArgument(f"stop_when lacks {RUN}, which stands for the number of the run.", hint=FORM)
    return query


def without_run(query: str) -> str:
    """The query with a number that no run has."""
    return _RUN.sub("0::bigint", query)


def require_columns(columns: Sequence[tuple[str, int]]) -> None:
    """Raise an error unless a rule can have these columns: their names, and the numbers of their types."""
    keys = [kind for name, kind in columns if name in KEYS]
    if len(columns) != 2 or len(keys) != 1:
        names = ", ".join(name for name, _ in columns)
        raise InvalidArgument(f"stop_when has the columns {names or '(none)'}.", hint=FORM)
    if keys[0] not in INTEGERS:
        raise InvalidArgument(f"the column {' or '.join(KEYS)} of stop_when must be a whole number.", hint=FORM)


def objections(rows: Iterable[str]) -> Objections:
    """The objections in the rows of a rule, which are JSON texts.  The first row about a model counts."""
    found: Objections = {}
    for row in rows:
        pairs = json.loads(row, object_pairs_hook=list)
        keys = [pair for pair in pairs if pair[0] in KEYS]
        if len(pairs) != 2 or len(keys) != 1:
            raise BadData(f"the columns of the rule are {', '.join(name for name, _ in pairs)}", hint=FORM)
        ((name, number),) = keys
        reason = next(value for other, value in pairs if other != name)
        if number is None:
            continue
        if type(number) is not int:
            raise BadData(
                f"the rule returned {json.dumps(number)[:40]} as {name}, which must be a whole number", hint=FORM
            )
        text = reason if isinstance(reason, str) else "" if reason is None else json.dumps(reason)
        found.setdefault((name, number), text.strip()[:LONGEST_REASON] or "the rule gave no reason")
    return found


def reason_for(found: Objections, model: int, key: int) -> str | None:
    """Why the rule stops a model; None: it does not."""
    return found.get(("model", model)) or found.get(("configuration", key))
