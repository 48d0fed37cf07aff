"""A server in memory: it understands the statements that a driver sends.

The driver, the units, the queue of tasks, read-ahead and the log run on it as they are; only the wire is another one.
What happens on the way is made of one random number: a session ends before or after its message took effect, a trainer
dies, forgets its rows or a state, a file is gone, the driver is killed or hears a cancel.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, Callable, Optional

import psycopg2
from segment_in_memory import Faults, Trainer

from cerebro_db.core import protocol
from cerebro_db.core.errors import Cancelled
from cerebro_db.core.sql import shown
from cerebro_plpy.platform.base import Platform
from cerebro_plpy.sessions.session import COMMIT, Rows, Session, Statement
from cerebro_plpy.sessions.team import Team

ALWAYS_READABLE = os.open(os.devnull, os.O_RDONLY)
STANDING = ("started", "finished", "failed", "cancelled")
MOST_LOOKS = 20_000  # at the sessions of a driver, until it is stuck for sure
Row = dict[str, Any]
Stored = tuple[Optional[int], Optional[int], int, str]  # key, model (of a table that all share), hop, state


class Crash(BaseException):
    """The driver is gone: kill -9, or a power cut."""


class Ended(psycopg2.OperationalError):
    """The connection broke, and the server said nothing."""

    diag = SimpleNamespace(message_primary="gone", message_detail=None, message_hint=None)  # type: ignore[assignment]


# -- the server -----------------------------------------------------------------------------------------------


class Server:
    """The log, the tables of states, and the files of the segments."""

    def __init__(self, platform: Platform, faults: Faults, places: Sequence[str], state_bytes: int) -> None:
        self.platform, self.faults, self.places, self.state_bytes = platform, faults, list(places), state_bytes
        self.expected_bytes = state_bytes  # before the first visit
        self.merges = False  # whether metrics are no means, so that trainers merge them
        self.log: dict[str, list[Row]] = defaultdict(list)
        self.states: dict[str, list[Stored]] = {}  # by table
        self.files: dict[tuple[str, str], str] = {}
        self.hops: dict[str, int] = {}  # state -> how many hops have led to it
        self.sessions: list[MemorySession] = []
        self.cancels_at: set[int] = set()  # at which looks somebody calls cerebro.cancel()
        self.asked_at: dict[int, tuple[str, dict[str, Any]]] = {}  # at which look somebody asks for what
        self.answers = self.looks = 0
        self.seconds = 1000.0
        self.gone = False  # the driver
        self._pid = 100
        self._files: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.others = random.Random(len(places))
        self._handlers = [(re.compile(pattern, re.S), getattr(self, handler)) for pattern, handler in HANDLERS]

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def next_file(self, place: str) -> str:
        """A path.  Another machine may have another file of this name."""
        self._files[place] += 1
        return str(self._files[place])

    def clock(self) -> float:
        """The time.  It passes whenever somebody looks."""
        self.seconds += self.faults.chance.random() / 1000
        return self.seconds

    def listen(self) -> None:
        self.looks += 1
        if self.looks in self.asked_at:
            self.ask(*self.asked_at.pop(self.looks))
        if self.looks in self.cancels_at and self.standing() == "started":
            self.faults.happened += 1
            self.note("cancel requested")
        assert self.looks < MOST_LOOKS, "the driver is stuck"
        if self.looks == self.faults.cancel_at:
            self.faults.happened += 1
            raise Cancelled("canceling statement due to user request")

    def answered(self) -> None:
        """Between two answers the driver may be gone; then the server still does what it was sent, or does not."""
        if self.gone:
            raise Crash
        self.answers += 1
        if self.answers == self.faults.crash_at:
            self.faults.happened += 1
            self.gone = True
            for session in self.sessions:
                session.orphaned()
            raise Crash

    def execute(self, session: MemorySession, statement: Statement) -> Rows:
        """The rows of a message, which takes effect as a whole or not at all."""
        rows: Rows = []
        for part in statement.parts:
            text = shown(part.sql)
            if part.bounds:
                session.bound(text)
                continue
            rows = self._one(session, text, list(part.parameters or ()))
        if not session.in_transaction:
            session.undo.clear()
        return rows

    def _one(self, session: MemorySession, text: str, values: list[Any]) -> Rows:
        for pattern, handler in self._handlers:
            found = pattern.match(text)
            if found:
                return handler(session, found, values) or []
        raise AssertionError(f"the server in memory does not know: {text!r}")

    # -- changes -----------------------------------------------------------------------------------------------

    def _insert(self, session: MemorySession, table: str, row: Row) -> None:
        row = {"at": len(self.log["order"]), **row}
        self.log["order"].append(row)
        self._require_possible(table, row)
        self.log[table].append(row)
        session.undo.append(lambda: self.log[table].remove(row))

    def _require_possible(self, table: str, row: Row) -> None:
        """The constraints of the tables, and the order in which their rows must come."""
        keys = {
            "hop": ("model", "hop"), "evaluation": ("model", "epoch", "dataset", "part"),
            "objective": ("model", "epoch"), "model": ("model",),
        }.get(table)  # fmt: skip
        if keys is not None:
            same = [one for one in self.log[table] if all(one[key] == row[key] for key in keys)]
            assert not same, f"a second row of {table}: {row}"
        if table == "hop":
            tried = [one for one in self.log["attempt"] if (one["model"], one["hop"]) == (row["model"], row["hop"])]
            before = [one for one in self.log["hop"] if (one["model"], one["hop"]) == (row["model"], row["hop"] - 1)]
            follows = bool(before) and before[0]["state_sha256"] is None  # in the same order
            assert tried or follows, f"a hop without an attempt: {row}"

    def insert(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        table, text = found[1], found[2]
        columns = [name.strip(' "') for name in text.split(",")]
        moment = datetime.now(timezone.utc)
        if "jsonb_to_recordset" in found.string:
            # The processes come first, and the rows last.
            processes = dict(zip((name for name in columns if name.endswith("_pid")), values))
            event = re.search(r"SELECT \d+, \W+([a-z ]+)'", found.string)
            for row in json.loads(values[-1]):
                if table == "event":
                    assert event is not None, found.string
                    row.update(event=event[1], detail=json.dumps(row["detail"]))
                loss = {} if "loss" not in row else {"loss": float(row["loss"])}
                self._insert(session, table, {**dict.fromkeys(columns), **row, **processes, **loss})
            return []
        rows, width = [], len(columns)
        if table == "attempt" and "clock_timestamp" in found.string:
            width -= 1
        assert len(values) % width == 0, (table, columns, values)
        for start in range(0, len(values), width):
            row = dict(zip(columns, values[start : start + width]))
            row.setdefault("started_at", moment)
            self._insert(session, table, row)
            rows.append((row["started_at"],))
        return rows if "RETURNING" in found.string else []

    def end(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        """A DO block records the end of a run that is under way."""
        event = re.search(r"SELECT \d+, \W+([a-z]+)", found.string)
        assert event is not None, found.string
        asks = ("cancel requested",) if "cancel requested" in found.string else ()
        if self.latest(*STANDING, *asks) == "started":
            self.note(event[1])

    def note(self, event: str, model: int | None = None, detail: dict[str, Any] | None = None) -> None:
        """Put an event on record, as another session would."""
        row = {"event": event, "model": model, "detail": json.dumps(detail or {}), "at": len(self.log["order"])}
        self.log["order"].append(row)
        self.log["event"].append(row)

    def ask(self, action: str, detail: dict[str, Any]) -> None:
        """Put a request on record, as another session would."""
        number = len(self.log["request"]) + 1
        row = {"request_id": number, "action": action, "detail": json.dumps(detail), "reason": None}
        self.log["request"].append(row)

    def standing(self) -> str | None:
        """How the run stands."""
        return self.latest(*STANDING)

    def latest(self, *events: str) -> str | None:
        """The newest of these events."""
        return next((row["event"] for row in reversed(self.log["event"]) if row["event"] in events), None)

    def create(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        table = found[1]
        assert table not in self.states, f"the table {table} is there already"
        self.states[table] = []
        session.undo.append(lambda: self.states.pop(table))

    def empty(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        for table in found[1].split(", "):
            before = self.states[table]
            self.states[table] = []
            session.undo.append(lambda table=table, before=before: self.states.update({table: before}))

    def move(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        """Needed states leave a shared table, and all others are gone; unless somebody reads the table."""
        source, target, models, hops = found.groups()
        wanted = set(zip(*([int(one) for one in text.split(",") if one] for text in (models, hops))))
        newest: dict[int | None, int] = {}
        for model, hop in wanted:
            newest[model] = max(hop, newest.get(model, 0))
        for other in self.sessions:
            stores = [
                text for text in other.under_way if text.startswith(f"INSERT INTO {source}") and "_state_out" in text
            ]
            assert other is session or not stores, (
                f"a table is emptied while another session may append to it: {stores}"
            )
        if self.faults.chance.random() < self.faults.readers:
            self.seen["tables that were not emptied"] += 1
            return
        self.seen["tables that were emptied"] += 1
        rows = self.states[source]
        self._set(session, source, [])
        for row in rows:
            if (row[1], row[2]) in wanted or row[2] >= newest.get(row[1], 0):
                self._put(session, target, row)

    def _set(self, session: MemorySession, table: str, rows: list[Stored]) -> None:
        before = self.states[table]
        self.states[table] = rows
        session.undo.append(lambda: self.states.update({table: before}))

    def _put(self, session: MemorySession, table: str, row: Stored) -> None:
        self._set(session, table, [*self.states[table], row])

    def store(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        table, hop, made = found[1], int(found[2]), found[3]
        out = re.search(r"_state_out\((\d+), (\d+)\)", made)
        assert out is not None, made
        self._store(session, table, made, (int(out[1]), int(out[2])), (None, hop))

    def store_shared(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        """A state each on Greenplum, all of an order on PostgreSQL."""
        table, made = found[1], found[2]
        one = re.search(r"(\d+) AS model, (\d+) AS hop, .*_state_out\((\d+), (\d+)\)", made)
        if one is not None:
            model, hop, visit, index = map(int, one.groups())
            self._store(session, table, made, (visit, index), (model, hop))
            return
        several = re.search(r"_state_out\((\d+), index\) AS made FROM \(VALUES (.*)\) v \(index, model, hop\)", made)
        assert several is not None, made
        for left in re.findall(r"\((\d+), (\d+), (\d+)\)", several[2]):
            index, model, hop = map(int, left)
            self._store(session, table, made, (int(several[1]), index), (model, hop))

    def _store(
        self, session: MemorySession, table: str, made: str, left: tuple[int, int], of: tuple[int | None, int]
    ) -> None:
        """``left``: the number of the visit, and the place of the state.  ``of``: its model and its hop."""
        key = re.search(r"SELECT (\d+) AS|__dist_key__ = (\d+)", made)
        assert key is not None, made
        state = session.trainer.out[left[0]][left[1]]
        assert state, "the state of a visit that failed is stored"
        self._put(session, table, (int(key[1] or key[2]), *of, state))

    def copy(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        """Rows of tables of states go into another, or into the same for another segment."""
        table, columns, chosen, source, which, there = found.groups()
        to = dict(zip(columns.split(", "), chosen.split(", ")))
        rows = [
            row for name in re.findall(r'"[^ ;()]+', source) for row in self.states[name]
            if row[0] == int(there) and (row[1], row[2]) in _states(which)
        ]  # fmt: skip
        assert len({row[1:3] for row in rows}) == len(rows), "a state is stored twice"
        for row in rows:
            old = dict(zip(("__dist_key__", "model", "hop"), row))
            key, model, hop = (
                None if name not in to else old[name] if to[name] == name else int(to[name]) for name in old
            )
            self._put(session, table, (key, model, hop, row[3]))
        return [(1,)] * len(rows)

    # -- segments ----------------------------------------------------------------------------------------------

    def opened(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        trainer = session.trainer = Trainer(self, session.segment)
        opened = protocol.WorkerOpened(trainer.pid, trainer.worker_pid, trainer.place)
        return [(json.loads(json.dumps(protocol.encode_answer(opened))),)]

    def closed(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        pass

    def work(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        order = protocol.order_from_driver(values[0])
        return [(protocol.reply_json(session.trainer.obey(order)),)]

    def state_in(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        shared, table, which, key = found.groups()
        for model, hop in _states(which):
            # A segment may have got several copies: their bytes go to the same place.
            rows = [row for row in self.states[table] if row[1:3] == (model, hop) and key in (None, str(row[0]))]
            assert len({row[3] for row in rows}) <= 1, (
                f"{len(rows)} states after hop {hop} in {table}, for segment {key}"
            )
            for row in rows[:1]:
                session.trainer.received[f"{values[0]}{model}/{hop}" if shared else values[0]] = row[3]
        return [(1,)]

    def tables(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        """Which of these tables there are."""
        there = {name.split(".")[1].strip('"') for name in self.states}
        return [(name,) for name in values[1] if name in there]

    def data_in(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> None:
        session.trainer.streamed.update(values[::2])

    def versions(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(1, 1, 1)]

    # -- questions ---------------------------------------------------------------------------------------------

    def _events(self, *wanted: str, of_models: bool = False) -> list[Row]:
        return [
            row for row in self.log["event"]
            if row["event"] in wanted and (row.get("model") is not None or not of_models)
        ]  # fmt: skip

    def _last(self, rows: Sequence[Row], *order: str) -> list[Row]:
        """The last row of each model."""
        found: dict[int, Row] = {}
        for row in sorted(rows, key=lambda row: [row[name] for name in order]):
            found[row["model"]] = row
        return [found[model] for model in sorted(found)]

    def run_plan(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [self.log["run"][0]["plan"]]

    def architectures(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(row["model_id"], row["architecture"]) for row in self.log["architecture"]]

    def models(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = ("model", "configuration", "seed", "initial", "initial_sha256", "visits", "parent")
        return [
            (*(row[name] for name in names), row.get("parent_hop"), row.get("fold"), row.get("group_number"))
            for row in sorted(self.log["model"], key=lambda row: row["model"])
        ]

    def configurations(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = (
            "configuration", "place", "model_id", "compile_params", "fit_params", "compile", "fit", "chosen",
            "parameters",
        )  # fmt: skip
        return [tuple(row[name] for name in names) for row in self.log["configuration"]]

    def built(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(row["model"], row["detail"]) for row in self._events("built", of_models=True)]

    def fused(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(row["model"], json.loads(row["detail"])["group"]) for row in self._events("fused", of_models=True)]

    def last_states(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        own = [row for row in self.log["hop"] if row["kind"] != "train replica"]
        names = ("model", "hop", "epoch", "segment", "state_bytes", "state_sha256", "weights_offset", "weights_bytes")
        return [tuple(row[name] for name in names) for row in self._last(own, "hop")]

    def configurations_of_models(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(row["model"], row["configuration"]) for row in self.log["model"]]

    def last_hops(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = ("model", "hop", "epoch", "segment", "metric_states")
        return [tuple(row[name] for name in names) for row in self._last(self.log["hop"], "hop")]

    def replicas(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        _, model, hop = values
        names = ("hop", "segment", "rows", "state_sha256", "metric_states", "state_bytes")
        rows = [
            tuple(row[name] for name in names) for row in self.log["hop"]
            if row["model"] == model and row["hop"] > hop and row["kind"] == "train replica"
        ]  # fmt: skip
        return sorted(rows)

    def hops_on_record(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = ("model", "epoch", "hop", "rows", "loss")
        rows = [(*(row[name] for name in names), json.loads(row["metrics"])) for row in self.log["hop"]]
        return sorted(rows, key=lambda row: (row[0], row[2]))

    def evaluated(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(row["model"], row["epoch"], row["dataset"], row["part"]) for row in self.log["evaluation"]]

    def evaluations(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = ("model", "epoch", "dataset", "part")
        rows = [
            (*(row[name] for name in names), row.get("weight", row["rows"]), row["loss"], json.loads(row["metrics"]))
            for row in self.log["evaluation"]
        ]
        return sorted(rows, key=lambda row: row[:4])

    def counted(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        rows = self.log["evaluation"]
        merged = {(row["model"], row["epoch"], row["dataset"]) for row in rows if row["metrics"] != "{}"}
        names = ("model", "epoch", "dataset", "part", "metric_states")
        return [
            tuple(row[name] for name in names) for row in rows
            if (row["model"], row["epoch"], row["dataset"]) not in merged
        ]  # fmt: skip

    def hop_on_record(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = ("rows", "loss")
        more = ("state_bytes", "state_sha256", "metric_states")
        return [
            (*(row[name] for name in names), json.loads(row["metrics"]), *(row[name] for name in more))
            for row in self.log["hop"] if [row["model"], row["hop"]] == values[1:]
        ]  # fmt: skip

    def evaluation_on_record(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [
            (row.get("weight", row["rows"]), row["loss"], json.loads(row["metrics"])) for row in self.log["evaluation"]
            if [row["model"], row["epoch"], row["dataset"], row["part"]] == values[1:]
        ]  # fmt: skip

    def objectives(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        rows = [
            (row["model"], row["epoch"], row["value"], row["kept"]) for row in self.log["objective"]
            if len(values) == 1 or row["model"] == values[1]
        ]  # fmt: skip
        return sorted(rows)

    def failed(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        rows = self._events("model failed", "model revived", of_models=True)
        return [
            (row["model"], row["event"], detail.get("reason"), detail.get("refused"))
            for row in self._last(rows, "at") for detail in [json.loads(row["detail"])]
        ]  # fmt: skip

    def decisions(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        names = ("model", "epoch", "decision", "reason", "policy", "request", "detail")
        return [(place, *(row.get(name) for name in names)) for place, row in enumerate(self.log["decision"], 1)]

    def requests(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        answered = {row.get("request") for row in self.log["decision"]}
        return [
            (row["request_id"], row["action"], row["detail"], row["reason"]) for row in self.log["request"]
            if row["request_id"] not in answered and row["request_id"] not in values[1]
        ]  # fmt: skip

    def cancel_requested(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        rows = self._events("started", "cancel requested")
        return [(rows[-1]["event"] == "cancel requested",)] if rows else []

    def last_of(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        event = self.latest(*re.findall(r"'([a-z ]+)'", found[1]))
        return [] if event is None else [(event,)]

    def limits(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [("run_seconds", None, 0), ("state_bytes", None, 0), ("trainer_mb", None, 0)]

    def initial_state(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(row["initial_sha256"],) for row in self.log["model"] if row["model"] == values[1]]

    def state_after(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [
            (row["state_sha256"], row["segment"]) for row in self.log["hop"] if [row["model"], row["hop"]] == values[1:]
        ]

    def hosts(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [("us", 1)]

    def queue(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        """Now and then there is another run, before which this one has to wait."""
        if self.others.random() < 0.5:
            return []
        standing = {"threads": 1000, "wants": 1, "seconds": 0.0, "measured": True, "rows": 0, "served": True,
                    "waits": False}  # fmt: skip
        return [(1, "others", 0.0, json.dumps(standing), 1, None)]

    def nothing(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return []

    def zero(self, session: MemorySession, found: re.Match[str], values: list[Any]) -> Rows:
        return [(0.0,)]


HANDLERS = (
    (r"SELECT pg_catalog\.set_config\(s\.name, wanted, false\)", "nothing"),
    (r"SELECT cerebro_internal\._worker_open\(", "opened"),
    (r"SELECT cerebro_internal\._worker_close\(", "closed"),
    (r"SELECT cerebro_internal\._work\(", "work"),
    (r"SELECT count\(s\.n\) FROM \(SELECT cerebro_internal\._state_in\(\0( \|\| model \|\| '/' \|\| hop)?, start,"
     r" payload\) AS n FROM (\S+) WHERE (.*?)(?: AND __dist_key__ = (\d+))? OFFSET 0\) s$", "state_in"),
    (r"SELECT cerebro_internal\._data_in\(", "data_in"),
    (r"SELECT 1 FROM pg_catalog\.pg_class", "versions"),
    (r"SELECT tableoid, ctid, xmin FROM", "versions"),
    (r"SET LOCAL synchronous_commit", "nothing"),
    (r'INSERT INTO cerebro\."?(\w+)"? \(([^)]*)\)', "insert"),
    (r"DO E?'.*INSERT INTO cerebro\.event", "end"),
    (r"CREATE TABLE (\S+) \(__dist_key__", "create"),
    (r"DO \$alone\$.*IF locked THEN TRUNCATE ([^;]+);", "empty"),
    (r"DO \$alone\$.*LOCK TABLE (\S+) IN ACCESS EXCLUSIVE MODE; .*IF locked THEN INSERT INTO (\S+) .*"
     r"unnest\('\{([\d,]*)\}'::integer\[\], '\{([\d,]*)\}'::integer\[\]\)", "move"),
    (r"INSERT INTO (\S+) \(__dist_key__, hop, start, payload\)"
     r" SELECT s\.__dist_key__, (\d+), .* FROM \((.*)\) s$", "store"),
    (r"INSERT INTO (\S+) \(__dist_key__, model, hop, start, payload\) SELECT s\.__dist_key__, .*? FROM \((.*)\) s$",
     "store_shared"),
    (r"INSERT INTO (\S+) \(([^)]*), start, payload\) SELECT ([^(]*), start, payload FROM (.*)"
     r" WHERE (.*) AND __dist_key__ = (\d+)", "copy"),
    (r"SELECT relname::text FROM pg_catalog\.pg_class", "tables"),
    (r"SELECT owner::text, packed_table", "run_plan"),
    (r"SELECT model_id, architecture::text", "architectures"),
    (r"SELECT m\.model, m\.configuration, m\.seed", "models"),
    (r"SELECT configuration, place, model_id", "configurations"),
    (r"SELECT model, parent, parent_hop", "nothing"),  # models of groups
    (r"SELECT model, detail::text AS detail FROM", "built"),
    (r"SELECT model, detail ->> 'group' FROM", "fused"),
    (r"SELECT model, configuration FROM cerebro\.model", "configurations_of_models"),
    (r"SELECT DISTINCT ON \(model\) model, hop, epoch, segment, state_bytes", "last_states"),
    (r"SELECT DISTINCT ON \(model\) model, hop, epoch, segment, metric_states", "last_hops"),
    (r"SELECT hop, segment, rows, COALESCE\(h\.state_sha256, ''\) AS state_sha256, metric_states", "replicas"),
    (r"SELECT model, epoch, hop, rows, loss, metrics FROM", "hops_on_record"),
    (r"SELECT model, epoch, dataset, part FROM", "evaluated"),
    (r"SELECT model, epoch, dataset, part, COALESCE\(weight, rows\)", "evaluations"),
    (r"SELECT model, epoch, dataset, part, metric_states", "counted"),
    (r"SELECT rows, loss, metrics, state_bytes", "hop_on_record"),
    (r"SELECT COALESCE\(weight, rows\) AS weight, loss, metrics FROM cerebro\.evaluation", "evaluation_on_record"),
    (r"SELECT model, epoch, value, kept", "objectives"),
    (r"SELECT DISTINCT ON \(model\) model, event", "failed"),
    (r"SELECT decision_id", "decisions"),
    (r"SELECT model, hop, frozen::text", "nothing"),  # frozen parts of states
    (r"SELECT model, parent_hop FROM cerebro\.model", "nothing"),
    (r"SELECT initial_sha256 FROM", "initial_state"),
    (r"SELECT COALESCE\(h\.state_sha256, ''\) AS state_sha256, segment FROM", "state_after"),
    (r"SELECT engine, shapes, batch_size, .* FROM cerebro\.profile", "nothing"),
    (r"SELECT model, epoch > 1 AS later, count\(\*\) AS visits", "nothing"),  # what is measured: too short to be kept
    (r"SELECT cerebro_internal\._trim_profile", "nothing"),
    (r"SELECT model, sum\(COALESCE\(sampled, rows\)\)", "nothing"),
    (r"SELECT name, version, kind FROM", "nothing"),  # custom functions
    (r"SELECT request_id", "requests"),
    (r"SELECT event = 'cancel requested'", "cancel_requested"),
    (r"SELECT event FROM cerebro\.event WHERE .* AND event IN \((.*?)\) ORDER BY event_id DESC LIMIT 1", "last_of"),
    (r"SELECT name::pg_catalog\.text AS name, allowed", "limits"),
    (r"SELECT event, extract\(epoch FROM at\)", "nothing"),
    (r"SELECT \(COALESCE\(\(SELECT sum", "zero"),
    (r"SELECT seconds_left", "nothing"),
    (r"SELECT current_user::text AS me, cerebro_internal\._hosts\(\)", "hosts"),
    (r"SELECT run, owner, began, standing, share, processors FROM cerebro_internal\._queue\(\)", "queue"),
)  # fmt: skip


def _states(which: str) -> list[tuple[int | None, int]]:
    """The states that a condition means, as model and hop; a table of a model's own has no column for the model."""
    if (several := re.fullmatch(r"\(model, hop\) IN \((.*)\)", which)) is not None:
        return [(int(model), int(hop)) for model, hop in re.findall(r"\((\d+), (\d+)\)", several[1])]
    one = re.fullmatch(r"(?:model = (\d+) AND )?hop = (\d+)", which)
    assert one is not None, which
    return [(int(one[1]) if one[1] else None, int(one[2]))]


# -- sessions -------------------------------------------------------------------------------------------------


class MemorySession(Session):
    """A session without a wire.  Its message takes effect after a few looks at it."""

    def __init__(self, server: Server, listen: Callable[[], None], segment: int = -1) -> None:
        super().__init__(None, listen)
        self.server, self.segment = server, segment
        self.trainer: Any = None
        self.undo: list[Callable[[], Any]] = []  # of the transaction under way
        self.another = lambda listen: MemorySession(server, listen)
        self._open = self._lost = self._cancelled = False
        self._sent: Statement | None = None
        self._looks = 0  # until the answer is there
        self._rows: Rows = []
        server.sessions.append(self)

    # -- the wire ----------------------------------------------------------------------------------------------

    def _send(self, statement: Statement) -> None:
        self._kept_back = None
        if self.server.gone:
            raise Crash
        if self._lost:
            raise Ended("connection already closed")
        assert self._sent is None, "a session was sent a statement while it ran another one"
        self._sent, self._looks = statement, self.server.faults.chance.randrange(3)

    def _ended(self) -> bool:
        if self._sent is None:
            return True
        if self._looks > 0:
            self._looks -= 1
            return False
        statement, self._sent = self._sent, None
        faults = self.server.faults
        if self._cancelled:
            raise self._end(statement, takes_effect=faults.chance.random() < 0.5)
        if self.segment >= 0 and self.trainer is not None and faults.strikes(0.01):
            raise self._end(statement, takes_effect=faults.chance.random() < 0.5)
        if self.trainer is not None and faults.chance.random() < faults.forgets:
            self.trainer.resident.clear()
        if faults.chance.random() < faults.forgets:
            self.server.files.clear()
        self._rows = self.server.execute(self, statement)
        self.server.answered()
        return True

    def _end(self, statement: Statement, *, takes_effect: bool) -> Ended:
        """The session ends; whether what it was sent took effect, nobody says."""
        self.server.seen["sessions lost"] += 1
        if takes_effect:
            self.server.seen["commits that nobody heard of"] += COMMIT in statement.parts
            self.server.execute(self, statement)
        self._roll_back()
        self._lost = True
        return Ended("server closed the connection unexpectedly")

    @property
    def under_way(self) -> list[str]:
        """The statements that were sent and have not been answered."""
        return [] if self._sent is None else [shown(part.sql) for part in self._sent.parts]

    def orphaned(self) -> None:
        statement, self._sent = self._sent, None
        if statement is not None and not self._lost:
            self._end(statement, takes_effect=self.server.faults.chance.random() < 0.5)
        self._roll_back()
        self._lost = True

    def bound(self, text: str) -> None:
        if text.startswith("BEGIN"):
            assert not self._open, "a transaction within a transaction"
            self._open = True
            self.undo.clear()
        elif text == "COMMIT":
            assert self._open, "nothing to commit"
            self._open = False
            self.undo.clear()
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        self._open = False
        while self.undo:
            self.undo.pop()()

    # -- what a connection is asked otherwise --------------------------------------------------------------------

    def rows(self) -> Rows:
        return self._rows

    def fileno(self) -> int:
        return ALWAYS_READABLE

    @property
    def in_transaction(self) -> bool:
        return self._open

    @property
    def busy(self) -> bool:
        return self._kept_back is not None or self._sent is not None

    @property
    def lost(self) -> bool:
        return self._lost

    @property
    def backend(self) -> int:
        return 1

    def require_life(self) -> None:
        if self.server.faults.strikes(0.005):
            self._roll_back()
            self._lost = True
            raise Ended("terminating connection")

    def cancel(self) -> None:
        self._kept_back = None
        self._cancelled = self._sent is not None

    def close(self) -> None:
        self.work = self._kept_back = self._sent = None
        self._roll_back()
        self._lost = True


class MemoryTeam(Team):
    """Worker sessions of the server in memory."""

    def __init__(self, server: Server, dist_keys: Sequence[int], options: Any, listen: Callable[[], None]) -> None:
        self.db: Any = None
        self.owner: Any = None
        self.dist_keys, self.options = list(dist_keys), options
        self.listen = listen
        self.platform = server.platform
        self.workers = []
        self.server = server

    def _asked(self, segment: int) -> Session:
        session = MemorySession(self.server, self.listen, segment)
        session.lasting = True
        session.send(self.open_trainer(segment))
        return session
