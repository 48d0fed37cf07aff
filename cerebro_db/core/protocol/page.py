"""The reference page of the protocol, made from the dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from . import answers, orders, parts

COMMENT = re.compile(r"^    (\w+): [^#\n]*  # (.+)$", re.MULTILINE)

BEGINNING = """\
# The protocol between driver, segment and trainer

`python -m cerebro_db.core.protocol` prints this page from the dataclasses in `cerebro_db/core/protocol/`; a test fails
if the page is older than they are.

The driver sends an order to a segment as the argument of `cerebro_internal._work(order text) RETURNS text`. The segment
obeys the order itself, or passes it on to a trainer over a pipe. The other SQL functions of a segment's session:

| function | meaning |
|---|---|
| `cerebro_internal._worker_open(settings jsonb) RETURNS jsonb` | takes `TrainerSettings`, returns `WorkerOpened` |
| `cerebro_internal._data_in(handle text, variable text, payload bytea)` | receives one variable of a buffer of rows |
| `cerebro_internal._state_in(name text, start bigint, payload bytea)` | receives bytes of a state that orders name |
| `cerebro_internal._state_out(visit integer, index integer)` | returns an outgoing state in rows, and deletes it. \
With the index -1 - i: the frozen part of state i, which the rows of the state do not have |
| `cerebro_internal._predict(rows bigint, variables bytea[])` | predicts one chunk of rows, after `begin_prediction` |
| `cerebro_internal._worker_close()` | ends the trainers and deletes all files |

An order is a JSON object: its name as `order`, and its fields. A reply is `{"ok": ANSWER}` or `{"error": FAILURE}`.
Before its reply a trainer may send `{"progress": PROGRESS}`, which the segment raises as a notice. Decoding is strict:
an unknown order, an unknown or missing field, or a value of another type is an `InvalidArgument`. Fields that are
`null` are left out.

Only the segment may fill in the fields marked *by the segment* (paths of files, the source of custom functions, and
the limit of memory). It refuses an order of the driver that has such a field: any user may call `_work`, and
with a path or with source text a user would act as the server's account.
"""


def page() -> str:
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield BEGINNING
    yield "## Orders\n"
    yield "| order | sent | answer | meaning |"
    yield "|---|---|---|---|"
    for order in orders.ORDERS.values():
        link, answer = f"[`{order.name}`](#{order.name})", f"`{order.answer_type.__name__}`"
        yield f"| {link} | {order.route.value} | {answer} | {_meaning(order)} |"
    yield ""
    for order in orders.ORDERS.values():
        yield from _section(order, order.name)
    yield "## Parts of orders\n"
    for kind in _dataclasses(parts):
        yield from _section(kind)
    yield "## Answers\n"
    for kind in [*_dataclasses(answers), orders.Collected]:
        yield from _section(kind)


def _section(kind: Any, name: str | None = None) -> Iterator[str]:
    yield f"### {name or kind.__name__}\n"
    yield (f"`{kind.__name__}`, {kind.route.value}. " if name else "") + _meaning(kind) + "\n"
    fields = dataclasses.fields(kind)
    if fields:
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        classes: list[Any] = [each for each in reversed(kind.__mro__) if dataclasses.is_dataclass(each)]
        comments = dict(pair for each in classes for pair in COMMENT.findall(inspect.getsource(each)))
        for field in fields:
            meaning = comments[field.name].replace("``", "`")
            if field.metadata.get("by_segment"):
                meaning = f"*by the segment*: {meaning}"
            default = "" if field.default in (None, dataclasses.MISSING) else f" = {field.default!r}"
            yield f"| `{field.name}` | `{field.type}{default}` | {meaning} |"
        yield ""
    if name:
        yield f"Answer: `{kind.answer_type.__name__}`.\n"


def _meaning(kind: Any) -> str:
    """The first paragraph of a class's docstring, in one line."""
    found = inspect.getdoc(kind) or ""
    return " ".join(found.partition("\n\n")[0].split()).replace("``", "`")


def _dataclasses(module: Any) -> Iterable[Any]:
    """Those that a module defines, in the order of the file."""
    return [
        kind for kind in vars(module).values() if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    ]
