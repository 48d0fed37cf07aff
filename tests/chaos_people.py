"""What people do to a run while chaos.py disturbs it: they wait for it, steer it, hand it out, cancel and forget it.

They hold locks, too.  Forgetting the run is rolled back, so that the run must not notice; runs beside it are forgotten
in earnest.  An event returns True; a surprise is an error that a user could not expect.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg2

from tests.sql.lab import Lab, run

# The run is in use or being claimed, has no model yet, or the statement waited too long for the lock of somebody else.
# On Greenplum (58M01), its session has lost a segment.
IN_USE = "55006"
EXPECTED = (IN_USE, "55000", "55P03", "58M01")
CONFIGURATIONS = 4  # of chaos.py; copies that people make have larger numbers
STATUSES = ("created", "running", "finished", "failed", "cancelled", "interrupted")
HELD_FOR = 1.5  # seconds
FORGOTTEN_WITHIN = 120.0  # seconds


class People:
    def __init__(self, lab: Lab, surprises: list[str]) -> None:
        self.lab, self.surprises = lab, surprises
        self.holders: list[threading.Thread] = []

    def events(
        self, under_way: Callable[[], tuple[int, int]]
    ) -> list[tuple[int, str, Callable[[random.Random], bool]]]:
        """(weight, name, event); ``under_way`` gives the number of a run and how many models it began with."""

        def number() -> int:
            return under_way()[0]

        def rolled_back(statement: str) -> Callable[[random.Random], bool]:
            return lambda chance: self.say(number(), statement, commit=False)

        return [
            (2, "wait", lambda chance: self.wait(number())),
            (2, "wait in a transaction", lambda chance: self.wait_in_transaction(number(), chance)),
            (3, "a model is stopped", lambda chance: self.steer(*under_way(), "stop_model", chance)),
            (2, "a stopped model goes on", lambda chance: self.steer(*under_way(), "go_on", chance)),
            (1, "a model is cloned", lambda chance: self.steer(*under_way(), "clone_model", chance)),
            (2, "materialize", lambda chance: self.materialize(number(), chance)),
            (1, "materialize and roll back", rolled_back("SELECT materialize(%s, 'undone')")),
            (2, "forget and roll back", rolled_back("SELECT forget(%s)")),
            (1, "cancel and roll back", rolled_back("SELECT cancel(%s)")),
            (2, "cancel in a transaction", lambda chance: self.say(
                number(), "SELECT status FROM runs; SELECT pg_sleep(0.3); SELECT cancel(%s)", commit=True)),
            (3, "another run is forgotten", self.forget_another),
            (2, "somebody reads the states", lambda chance: self.hold(self.state_table(number(), chance))),
            (1, "somebody reads the log", lambda chance: self.hold("SELECT count(*) FROM hop, event")),
            (1, "somebody locks the run", lambda chance: self.hold(
                f"SELECT pg_advisory_xact_lock(hashtextextended('cerebro_db run {number()}', 0))")),
            (1, "somebody locks the owner's runs", lambda chance: self.hold(
                "SELECT pg_advisory_xact_lock(hashtextextended('cerebro_db owner ' || current_user, 0))")),
            (1, "somebody locks the rows", lambda chance: self.hold("LOCK TABLE train IN ACCESS EXCLUSIVE MODE")),
            (1, "somebody alters the user", lambda chance: self.hold(
                "SELECT FROM pg_authid WHERE rolname = current_user FOR UPDATE")),
        ]  # fmt: skip

    def say(self, number: int, statement: str, *, commit: bool) -> bool:
        """Say something in a transaction of a session of its own."""
        try:
            with contextlib.closing(self.lab.connect()) as connection:
                connection.autocommit = False
                run(connection, statement, number)
                (connection.commit if commit else connection.rollback)()
        except psycopg2.Error as error:
            self._judge(number, statement, error)
        return True

    def steer(self, number: int, models: int, function: str, chance: random.Random) -> bool:
        changed = """, changes => '{"lr": 0.001}'""" if function == "clone_model" else ""
        return self.say(number, f"SELECT {function}(%s, model => {chance.randint(1, models)}{changed})", commit=True)

    def wait(self, number: int) -> bool:
        with contextlib.suppress(psycopg2.OperationalError), contextlib.closing(self.lab.connect()) as connection:
            found = run(connection, "SELECT wait(%s, 0.5)", number)[0][0]
            if found not in STATUSES:
                self.surprises.append(f"run {number}: wait says {found}")
        return True

    def wait_in_transaction(self, number: int, chance: random.Random) -> bool:
        """In a transaction that has seen the sessions of a moment ago; many clients begin transactions unasked."""
        status = "SELECT status FROM runs WHERE run = %s"
        with (
            contextlib.suppress(psycopg2.OperationalError),
            contextlib.closing(self.lab.connect()) as inside,
            contextlib.closing(self.lab.connect()) as outside,
        ):
            inside.autocommit = False
            run(inside, f"SELECT count(*) FROM pg_stat_activity; {status}", number)
            time.sleep(chance.random())
            before = run(outside, status, number)
            found = run(inside, "SELECT wait(%s, 0.2)", number)
            after = run(outside, status, number)
            # A finished run is called running until it has made its tables.
            if before == after and found not in (before, [("running",)] if before == [("finished",)] else before):
                self.surprises.append(f"run {number}: wait says {found} in a transaction, and is {before} outside")
        return True

    def forget_another(self, chance: random.Random) -> bool:
        """Somebody forgets a run that has just been submitted, again and again until it is gone; nothing may remain."""
        name = f"beside_{chance.randrange(1 << 30)}"
        number, storage = 0, "none"
        deadline = time.monotonic() + FORGOTTEN_WITHIN
        while time.monotonic() < deadline:
            try:
                with contextlib.closing(self.lab.connect()) as connection:
                    found = run(connection, "SELECT run, storage FROM run WHERE model_table LIKE %s", f"%{name}")
                    if found:
                        number, storage = found[0]
                        time.sleep(chance.random())
                        run(connection, "SELECT forget(%s)", number)
                        break
                    if number:
                        break  # an earlier attempt has forgotten it, and was ended before it could say so
                    run(connection, f"SELECT fit('train', '{name}', 'mst', epochs => 2, wait => false)")
            except psycopg2.Error as error:
                self._judge(number, "forget", error)
                if error.pgcode == IN_USE and chance.random() < 0.5:
                    self.say(number, "SELECT cancel(%s)", commit=True)
                time.sleep(0.2)
        else:
            self.surprises.append(f"run {number} could not be forgotten")
        self._require_nothing_of(number, storage)
        self.say(number, f"SELECT %s; DROP TABLE IF EXISTS {name}, {name}_info, {name}_summary", commit=True)
        return True

    def _require_nothing_of(self, number: int, storage: str) -> None:
        """No row of the log, and no state table, is left of a run that was forgotten."""
        tables = (
            "run", "event", "model", "configuration", "attempt", "hop", "evaluation", "decision", "heartbeat",
            "request",
        )  # fmt: skip
        rows = " UNION ALL ".join(f"SELECT '{table}' FROM {table} WHERE run = {number}" for table in tables)
        with contextlib.suppress(psycopg2.OperationalError), contextlib.closing(self.lab.connect()) as connection:
            left = run(connection, f"{rows} UNION ALL SELECT relname FROM pg_class WHERE starts_with(relname::text, %s)"
                       " AND relkind = 'r'", storage)  # fmt: skip
            if left:
                self.surprises.append(f"run {number} was forgotten and left {sorted({name for (name,) in left})}")

    def materialize(self, number: int, chance: random.Random) -> bool:
        name = f"early_{chance.randrange(1 << 30)}"
        self.say(number, f"SELECT materialize(%s, '{name}')", commit=True)
        self.say(number, f"SELECT %s; DROP TABLE IF EXISTS {name}, {name}_info, {name}_summary", commit=True)
        return True

    def state_table(self, number: int, chance: random.Random) -> str | None:
        """A statement that keeps a state table from being truncated, as a dump does."""
        found: list[Any] = []
        with contextlib.suppress(psycopg2.Error), contextlib.closing(self.lab.connect()) as connection:
            found = run(
                connection,
                "SELECT c.oid::regclass::text FROM run r JOIN pg_class c ON starts_with(c.relname::text, r.storage)"
                " WHERE r.run = %s AND c.relkind = 'r'",
                number,
            )
        return f"LOCK TABLE {chance.choice(found)[0]} IN ACCESS SHARE MODE" if found else None

    def hold(self, statement: str | None) -> bool:
        """Have a session hold the locks of a statement for a while."""
        if statement is None:
            return False

        def holding() -> None:
            with contextlib.suppress(psycopg2.Error), contextlib.closing(self.lab.connect()) as connection:
                connection.autocommit = False
                run(connection, statement)
                time.sleep(HELD_FOR)

        self.holders.append(threading.Thread(target=holding, daemon=True))
        self.holders[-1].start()
        return True

    def go(self) -> None:
        """Wait until nobody holds a lock any more."""
        for holder in self.holders:
            holder.join(30)
        self.holders.clear()

    def _judge(self, number: int, statement: str, error: psycopg2.Error) -> None:
        # Without an SQLSTATE, or with one of class 57P, another event has ended the session or the server.
        code = error.pgcode or "57P"
        if not code.startswith("57P") and code not in EXPECTED:
            self.surprises.append(f"run {number}: {statement}: {code} {str(error).splitlines()[0]}")
