"""Runs the rule of a run in a session of its own: with the owner's rights, read-only and within a time limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import psycopg2

from cerebro_db.core.errors import Cancelled, CerebroError, InvalidArgument
from cerebro_db.core.scheduling.ports import NotYet
from cerebro_db.core.search import rules
from cerebro_db.core.search.policy import Decider, Decision, Verdict
from cerebro_db.core.search.rules import Objections
from cerebro_db.core.sql import Sql, sql, sql_of_user

from ...database.access import Database
from ...database.cancellation import Listen
from ...sessions.failures import cause_of, first_line
from ...sessions.session import ROLLBACK, Rows, Session, Statement
from ..record.log import RunLog
from ..record.run import Run

WITHIN = 5.0  # seconds that the query may take
SLOW = 1.0  # seconds; a query that failed after more is not repeated for REST times as long: the models wait
REST = 20
BEGIN_READING = Statement(sql("BEGIN READ ONLY"), bounds=True)

Epoch = tuple[int, int]  # (model, epoch)


class Rule:
    """Asks the query of the option stop_when which models stop.  A query that fails stops none.

    The driver does not wait for the query.  Each query is for all models that have completed an epoch since the last
    one began.
    """

    def __init__(self, query: str, run: int, recorder: Session, listen: Listen, tell: Callable[[str], None]) -> None:
        self.query, self.run = rules.plain(query), run
        self._recorder, self._listen = recorder, listen
        self._tell = tell  # is called once for each cause of a failure
        self._session: Session | None = None
        self._wanted: set[Epoch] = set()  # for the next query
        self._asked: set[Epoch] = set()  # by the query under way
        self._answers: dict[Epoch, Objections] = {}
        self._began = self._rests_until = 0.0
        self._causes: set[str] = set()

    def objection(self, model: int, key: int, epoch: int) -> str | None:
        """Why the query stops a model after this epoch.  Raises NotYet until it has been asked since the epoch."""
        if (model, epoch) in self._answers:
            return rules.reason_for(self._answers.pop((model, epoch)), model, key)
        if (model, epoch) not in self._asked:
            self._wanted.add((model, epoch))
        raise NotYet

    def begin(self) -> list[Session]:
        """Begin a query, if one is wanted and none is under way; returns the session to listen to."""
        if self._wanted and not self._asked:
            self._asked, self._wanted, self._began = self._wanted, set(), time.monotonic()
            if self._began < self._rests_until:
                self._answer({})
            else:
                with self._failing():
                    self._opened().begin(self._query())
        return [self._session] if self._asked and self._session is not None else []

    def advance(self) -> None:
        """Hear what the query under way has found, if it has ended."""
        if self._asked and self._session is not None:
            with self._failing():
                over, rows = self._session.advance()
                if over:
                    self._answer(rules.objections(row[0] for row in rows))

    async def _query(self) -> Rows:
        rows = await Statement.joined(
            [BEGIN_READING, Statement(sql("SELECT cerebro_internal._rule({}, {})"), (self.query, self.run))]
        )
        await ROLLBACK
        return rows

    def _answer(self, found: Objections) -> None:
        self._answers.update(dict.fromkeys(self._asked, found))
        self._asked = set()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever fails stops no model; but a cancel ends the run."""
        try:
            yield
        except (psycopg2.Error, CerebroError) as error:
            if isinstance(error, Cancelled):
                raise
            cause, took = cause_of(error), time.monotonic() - self._began
            self._rests_until = self._began + REST * took if took > SLOW else 0.0
            self._end_transaction()
            self._answer({})
            if cause not in self._causes:
                self._causes.add(cause)
                self._tell(cause)

    def require_sound(self) -> None:
        """Raise an error if the query fails without a run, if it writes, or if it has other columns than a rule."""
        try:
            self._columns_of(sql("SELECT cerebro_internal._rule({}, {})"), (self.query, self.run))
            columns = self._columns_of(self._described())
        except psycopg2.Error as error:
            raise InvalidArgument(
                f"stop_when cannot be used: {first_line(error)}",
                detail="The query runs in another session, which is read-only and has your default search_path.",
                hint=rules.FORM,
            ) from error
        rules.require_columns(columns)

    def _described(self) -> Sql:
        """A query that has the rule's columns and no rows."""
        # It runs with the rights of the user whose rule it is, in a session of that user's.
        return sql("SELECT * FROM (\n{query}\n) AS rule LIMIT 0", query=sql_of_user(rules.without_run(self.query)))

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(psycopg2.Error):
                self._session.close()
            self._session = None

    def _columns_of(self, statement: Sql, parameters: Sequence[Any] | None = None) -> list[tuple[str, int]]:
        """The columns of a statement that the caller waits for."""
        session = self._opened()
        begun = Statement.joined([BEGIN_READING, Statement(statement, parameters)])
        try:
            session.run_statement(begun)
            return session.columns()
        finally:
            self._end_transaction()

    def _end_transaction(self) -> None:
        """Make the session ready for the next query, or forget it."""
        session = self._session
        if session is None:
            return
        session.work = None
        try:
            session.run_statement(ROLLBACK)
        except psycopg2.Error:
            self.close()

    def _opened(self) -> Session:
        if self._session is None:
            assert self._recorder.another is not None
            session = self._recorder.another(self._listen)
            session.configure(
                application_name="cerebro_db rule",
                statement_timeout=f"{int(1000 * WITHIN)}", lock_timeout=f"{int(1000 * WITHIN)}",
                default_transaction_read_only="on",
            )  # fmt: skip
            self._session = session
        return self._session


def of_run(db: Database, run: Run, recorder: Session, listen: Listen) -> Rule | None:
    """The rule of a run, if it has one.  What goes wrong with it is on record and told to whoever waits."""
    query = run.options.stop_when
    if query is None:
        return None
    log = RunLog.of(recorder, run.id)

    def tell(cause: str) -> None:
        db.warning(f"stop_when failed and stops nothing: {cause}", hint="Each cause is reported once.")
        failed = f"the rule failed and stopped nothing: {cause}"
        recorder.finish()
        noted = log.events.decide(Decision(None, None, Verdict.REFUSE, failed, by=Decider.RULE), "")
        recorder.run_statement(noted)

    return Rule(query, run.id, recorder, listen, tell)


def require_sound(query: str, recorder: Session) -> None:
    """Refuse a rule that cannot be used, before its run is on record."""
    rule = Rule(query, 0, recorder, recorder.listen, lambda cause: None)
    try:
        rule.require_sound()
    finally:
        rule.close()
