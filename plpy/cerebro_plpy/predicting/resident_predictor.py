"""``cerebro.predict`` for few rows, by a trainer that another session has left: a resident predictor.

Importing all that reads and prepares a model takes a new session ten times as long as predicting a row.  So the session
that leaves a trainer also leaves a recipe: the statements that its calls ran, and the mark of the model's rows
(model_cache.py).  This module knows nothing else.  It asks the nursery for a trainer with a recipe for the same role
and arguments, and follows the recipe as long as each step finds what the recipe says.  At the first difference it goes
on with streaming.py, which knows all cases and all errors; a query that has begun is handed over and not begun again.

It imports next to nothing: no typing, pathlib, dataclasses or hashlib.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from binascii import a2b_base64, b2a_base64

from cerebro_db import __version__

from ..segment import nursery_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Answer = tuple[int, int | None, bytes | None, bytes]

GREENPLUMS_FILE = "internal.auto.conf"  # as in database/cancellation.py
LONGEST_QUERY = 100_000  # characters
LONGEST_RECIPE = 8 << 20  # bytes
FEW_ROWS, FEW_BYTES = 50, 64 << 10  # as in segment/prediction.py
WELCOMES_WITHIN = 0.5  # seconds
LISTEN_EVERY = 100  # milliseconds
ANSWERS_WITHIN = 60  # seconds; then the call goes on with a trainer that is looked after
LARGEST_ANSWER = 64 << 20  # bytes, as in cerebro_db/core/trainers/frames.py
RESTS, BUSY = b"\1", b"\0"  # as in cerebro_db/core/trainers/nursery_messages.py
DESCRIPTOR = 4  # bytes
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
HEADER = 4  # bytes before a frame: its length
FACTS = (
    "SELECT pg_catalog.quote_ident(current_user)::pg_catalog.regrole::pg_catalog.oid::pg_catalog.int8 AS role,"
    " (SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d"
    " WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) AS database,"
    " cerebro_internal._trainer_limit(current_user, session_user) AS trainer_mb, l.waiting_seconds AS seconds,"
    # No column of this name before ALTER EXTENSION.
    " COALESCE(pg_catalog.jsonb_extract_path_text(pg_catalog.to_jsonb(l), 'predictors')::pg_catalog.int4, 0)"
    " AS predictors,"
    " pg_catalog.array_to_json(pg_catalog.current_schemas(false))::pg_catalog.text AS schemas"
    " FROM cerebro_internal._own_limits l"
)
LIMITS = ("trainer_mb", "seconds", "predictors")

_plans: dict[str, Any] = {}  # of the statements here, which are the same for every role and model
_mine: Predictor | None = None
busy = False  # its rows are being read: the query may call functions of ours


class HandedOver:
    """A query that has begun: the name of its cursor, its first chunk of rows, and the mark of the model."""

    def __init__(self, cursor: str, first: dict[str, Any], mark: str) -> None:
        self.cursor, self.first, self.mark = cursor, first, mark


def begun(plpy: Any, given: dict[str, Any]) -> list[dict[str, Any]] | HandedOver | None:
    """The rows of the answer, or the query that somebody else goes on with; None: nothing has begun."""
    if not _may_be_resident(given):
        if not busy:
            let_go()
        return None
    try:
        found = _by_recipe(plpy, given)
    except plpy.SPIError as error:
        let_go()
        from ..database.entry import failed

        failed(plpy, "cerebro.predict", error)
    except BaseException:
        let_go(end=True)
        raise
    if not isinstance(found, list):
        let_go()
    return found


def _may_be_resident(given: dict[str, Any]) -> bool:
    model, query = given["model_table"], given["query"]
    if not model or not query or len(model) + len(query) > LONGEST_QUERY or busy:
        return False
    here = sys.modules.get("cerebro_plpy.segment.current")
    if ";" in query.rstrip(" \t\r\n;"):
        return False  # it may be several statements, which streaming.py refuses
    return (here is None or here.is_unused()) and not os.path.exists(GREENPLUMS_FILE)


def key(role: int, database: int, schemas: str, given: dict[str, Any]) -> str:
    """Equal for calls that one recipe serves: all but the query is the same, and names have the same meaning."""
    others = {name: value for name, value in given.items() if name != "query"}
    made_of = [__version__, nursery_place.server_started(), role, database, schemas, others]
    return nursery_place.digest(json.dumps(made_of))


def _by_recipe(plpy: Any, given: dict[str, Any]) -> list[dict[str, Any]] | HandedOver | None:
    """The rows of the answer; None: there is no recipe that serves."""
    global _mine, busy
    (facts,) = _run(plpy, FACTS)
    try:
        wanted = key(facts["role"], facts["database"], facts["schemas"], given)
    except OSError:
        return None
    if _mine is not None and not _mine.rests():
        let_go(end=True)
    if _mine is None or _mine.key != wanted:
        let_go()
        _mine = _asked_for(wanted)
    mine = _mine
    if mine is None:
        return None
    if not mine.rests():
        let_go(end=True)
        return None
    recipe, query = mine.recipe, given["query"].rstrip(" \t\r\n;")  # as relations.of_query
    if any(recipe[name] != facts[name] for name in LIMITS):
        let_go(end=True)  # the limits have changed
        return None
    try:
        plpy.execute(recipe["hold"])
        if [*_run(plpy, recipe["question"], mine.plans)[0].values()] != [recipe["mark"]]:
            let_go(end=True)  # the model has changed
            return None
        if re.fullmatch(r"\s*[\w$.]+", query):  # the name of a table; streaming.py knows those with quotes, too
            query = f"SELECT * FROM {query}"
        described = plpy.execute(f"SELECT * FROM ({query}\n) AS q LIMIT 0")
    except plpy.SPIError as error:
        if error.sqlstate.startswith("42"):  # who reads the model and the rows says what is wrong
            return None
        raise
    # The planner runs functions of the query, and these may have predicted with another predictor.
    if _mine is not mine or [*map(list, zip(described.colnames(), described.coltypes()))] != recipe["columns"]:
        return None
    cursor = f"cerebro_{os.urandom(6).hex()}"
    before, after = recipe["query"]
    busy = True
    try:
        plpy.execute(f'DECLARE "{cursor}" NO SCROLL CURSOR FOR {before}({query}\n){after}')
        found = plpy.execute(f'FETCH 1 FROM "{cursor}"')
    finally:
        busy = False
    rows: list[dict[str, Any]] = []
    if len(found):
        first = found[0]
        chosen = _key_of(recipe, first)
        if chosen is None:
            return HandedOver(cursor, first, recipe["model"])
        answers = mine.predict(plpy, first["rows"], first["variables"], facts["seconds"])
        if answers is None:
            let_go(end=True)
            return HandedOver(cursor, first, recipe["model"])
        rows = [{"ids": chosen, "outputs": recipe["outputs"], "answers": answers}]
    plpy.execute(_planned(plpy, "SELECT cerebro_internal._close_cursor($1)", ["text"]), [cursor])
    return rows


def _key_of(recipe: dict[str, Any], chunk: dict[str, Any]) -> list[str] | None:
    """The keys of the rows; None if there is more to say about these rows, or too much to predict here."""
    odd = [f"n{place}" for place in range(recipe["filled"])] + [f"s{place}" for place in range(recipe["news"])]
    ids: list[str] = chunk["ids0"]
    if (
        chunk["rows"] >= recipe["chunk"]
        or any(chunk[name] for name in odd)
        or chunk["rows"] > FEW_ROWS
        or any(payload is None for payload in chunk["variables"])
        or sum(map(len, chunk["variables"])) > FEW_BYTES
        or None in ids
        or recipe["keys"] > 1
        and len(set(ids)) < len(ids)
    ):
        return None
    return ids


def _run(plpy: Any, statement: str, plans: dict[str, Any] = _plans) -> Any:
    return plpy.execute(_planned(plpy, statement, [], plans), [])


def _planned(plpy: Any, statement: str, types: list[str], plans: dict[str, Any] = _plans) -> Any:
    if statement not in plans:
        plans[statement] = plpy.prepare(statement, types)
    return plans[statement]


# -- the predictor ---------------------------------------------------------------------------------------------


class Predictor:
    """A trainer that another session has left, with its recipe."""

    def __init__(self, wanted: str, nursery: socket.socket, streams: list[int], recipe: dict[str, Any]) -> None:
        self.key, self.nursery, self.recipe = wanted, nursery, recipe
        self.orders, self.answers, self.mark = streams
        self.plans: dict[str, Any] = {}  # of its own statement
        os.pwrite(self.mark, RESTS, 0)
        self._wait = select.poll()
        self._wait.register(self.answers, select.POLLIN)

    def rests(self) -> bool:
        """Whether it still waits for an order: then it says nothing, and its pipe is open."""
        return not self._wait.poll(0)

    def predict(self, plpy: Any, rows: int, variables: list[bytes], seconds: int) -> list[Answer] | None:
        """The answers as _prediction has them; None if there are none."""
        values = [b2a_base64(payload, newline=False).decode() for payload in variables]
        order = json.dumps({**self.recipe["sent"], "rows": rows, "values": values, "rest": seconds})
        os.pwrite(self.mark, BUSY, 0)
        try:
            left = memoryview(len(order).to_bytes(HEADER, "big") + order.encode())
            while left:
                try:
                    left = left[os.write(self.orders, left) :]
                except BlockingIOError:
                    _listen(plpy)
                    select.select([], [self.orders], [], 0.1)
            reply = json.loads(self._reply(plpy))["ok"]
            answers = [
                answer
                for number, (output, its) in enumerate(zip(reply["outputs"], reply["values"]))
                for answer in _answers(number, output.get("ranks"), a2b_base64(its), rows)
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # it has ended, or has another answer
            return None
        os.pwrite(self.mark, RESTS, 0)
        return answers

    def _reply(self, plpy: Any) -> bytes:
        found, size = bytearray(), HEADER
        started = listened = time.monotonic()
        while len(found) < size:
            readable = self._wait.poll(LISTEN_EVERY)
            now = time.monotonic()
            if now - listened >= LISTEN_EVERY / 1000:
                _listen(plpy)
                listened = now
            if now - started > ANSWERS_WITHIN:
                raise OSError("no answer")
            if not readable:
                continue
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise OSError("it has ended")
            found += piece
            if len(found) >= HEADER:
                size = HEADER + int.from_bytes(found[:HEADER], "big")
            if max(size, len(found)) > LARGEST_ANSWER:
                raise ValueError("too large an answer")
        if len(found) > size:
            raise ValueError("more than one answer")
        return bytes(found[HEADER:])


def _answers(number: int, ranks: int | None, payload: bytes, rows: int) -> list[Answer]:
    if ranks is None:
        return [(number, None, None, payload)]
    lines = [payload[start : start + 4 * rows] for start in range(0, len(payload), 4 * rows)]
    if len(lines) != 2 * ranks:
        raise ValueError("other ranks than it says")
    return [(number, rank + 1, lines[rank], lines[ranks + rank]) for rank in range(ranks)]


def _listen(plpy: Any) -> None:
    _run(plpy, "SELECT 1")


def _asked_for(wanted: str) -> Predictor | None:
    """The nursery's predictor for the key, if it has one now."""
    try:
        nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        return None
    streams: list[int] = []
    try:
        nursery.settimeout(WELCOMES_WITHIN)
        with open(os.path.join(nursery_place.INSTALLATION, "install.json")) as file:
            sources = nursery_place.sources_of(nursery_place.INSTALLATION, json.load(file)["trainer_python"])
        place = nursery_place.folder(nursery_place.version(nursery_place.looks(sources)))
        nursery.connect(os.path.join(place, "socket"))
        nursery.recv(1 << 16)  # a welcome
        nursery.send(json.dumps(["Recall", {"key": wanted}]).encode())
        # recv_fds() would leave the descriptors to programs that the server starts.
        answer, controls, _, _ = nursery.recvmsg(1 << 16, socket.CMSG_SPACE(3 * DESCRIPTOR), CLOSE_ON_EXEC)
        for level, kind, packed in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = range(0, len(packed) - len(packed) % DESCRIPTOR, DESCRIPTOR)
                streams += [int.from_bytes(packed[at : at + DESCRIPTOR], sys.byteorder) for at in whole]
        name, _ = json.loads(answer)
        if name == "Started" and len(streams) == 3:
            recipe = os.pread(streams[2], LONGEST_RECIPE, 1)
            return Predictor(wanted, nursery, streams, json.loads(recipe))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for stream in streams:
        os.close(stream)
    nursery.close()
    return None


def let_go(*, end: bool = False) -> None:
    """Give the predictor back to the nursery, which keeps it if it rests.  ``end``: end it."""
    global _mine
    mine, _mine = _mine, None
    if mine is None:
        return
    if end:
        import contextlib  # only now: few sessions need it

        with contextlib.suppress(OSError):
            os.pwrite(mine.mark, BUSY, 0)  # should the nursery not get the message
        with contextlib.suppress(OSError):
            mine.nursery.send(b'["Kill", {}]')
    for stream in (mine.orders, mine.answers, mine.mark):
        os.close(stream)
    mine.nursery.close()
