"""What happens in a run: events, requests of people, decisions, and the models that they add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core import codec
from cerebro_db.core.documents import decoded
from cerebro_db.core.errors import BadData
from cerebro_db.core.events import ENDINGS, Action, Decider, Event
from cerebro_db.core.scheduling.fair_queue import QueueEntry
from cerebro_db.core.search.policy import Decision
from cerebro_db.core.search.request import Request
from cerebro_db.core.sql import Sql, identifier, joined, literal, quoting, sql, with_constants
from cerebro_db.core.texts import shortened

from ....database import locks
from ....database.polling import LISTEN_EVERY
from ....sessions.failures import first_line
from ....sessions.session import Rows, Session, Statement
from ..run import Model
from .base import LONGEST_TEXT, ME, OWN, Part, listed, recordable_detail

DECISION = ("model", "epoch", "decision", "reason", "policy", "request", "detail")  # columns; detail as text


class Events(Part):
    """Records what happens, and tells what has."""

    def note(self, event: Event, model: int | None = None, **detail: Any) -> None:
        self.note_each(event, {model: detail})

    def event(self, event: Event, model: int | None = None, **detail: Any) -> Statement:
        """Records an event, within a transaction of the caller's."""
        return self._insert("event", {"event": event.value, "model": model, "detail": recordable_detail(detail)})

    def note_each(self, event: Event, details: Mapping[Any, dict[str, Any]]) -> None:
        """The same event of several models: all are on record, or none."""
        noted = self._each(event, details)
        self.ask(noted.sql, noted.parameters or ())

    def built(self, models: Sequence[Model]) -> Statement:
        """Records what is known of models that were not built yet, within a transaction of the caller's."""
        return self._each(Event.BUILT, {model.number: built_of(model) for model in models})

    def _each(self, event: Event, details: Mapping[Any, dict[str, Any]]) -> Statement:
        rows = [{"model": model, "detail": recordable_detail(detail)} for model, detail in details.items()]
        return Statement(
            sql(
                "INSERT INTO cerebro.event (run, event, model, detail) SELECT {run}, {event}, model, detail"
                " FROM pg_catalog.jsonb_to_recordset({}::jsonb) AS e (model integer, detail jsonb)",
                run=self.run,
                event=literal(event),
            ),
            [json.dumps(rows)],
        )

    def last_of(self, *events: Event) -> str | None:
        """The newest of these events."""
        return self._value(
            sql(
                "SELECT event FROM cerebro.event WHERE {own} AND event IN ({listed}) ORDER BY event_id DESC LIMIT 1",
                own=OWN,
                listed=listed(events),
            )
        )

    def note_end(self, recorder: Session, event: Event, error: BaseException, *, begun: bool = True) -> None:
        """Record the end of a run that is under way; its end is recorded once.  ``begun``: or that has not begun."""
        sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        detail = {"message": first_line(error), "sqlstate": sqlstate}
        self._note_after(recorder, Event.STARTED if begun else Event.CREATED, event, detail)

    def note_finished(self, recorder: Session, detail: Mapping[str, Any]) -> bool:
        """Record that a run has finished; False if somebody has requested a cancel before.

        It waits for a request that is not committed yet, but not for ever: anybody can take a lock.
        """
        if recorder.own:  # nobody else can see the run
            self.note(Event.FINISHED, **detail)
            return True
        wait = with_constants(
            sql(
                "FOR attempt IN 1..{attempts} LOOP EXIT WHEN ({lock}); PERFORM pg_catalog.pg_sleep({every}); END LOOP",
                attempts=round(locks.PATIENCE / LISTEN_EVERY),
                lock=locks.attempt(sql("{}")),
                every=LISTEN_EVERY,
            ),
            (locks.of_run(self.run),),
        )
        self._note_after(recorder, Event.STARTED, Event.FINISHED, detail, wait)
        return self.last_of(Event.STARTED, Event.CANCEL_REQUESTED, *ENDINGS) == Event.FINISHED

    def _note_after(
        self, recorder: Session, last: Event, event: Event, detail: Mapping[str, Any], *before: Sql
    ) -> None:
        """Record an event if that was the last one.

        In a DO block, which no resource queue of Greenplum keeps waiting: the cancel of a run must not wait.
        """
        also = (Event.CANCEL_REQUESTED,) if event is Event.FINISHED else ()
        insert = with_constants(
            sql(
                "INSERT INTO cerebro.event (run, event, detail) SELECT {}, {}, {}::jsonb"
                " WHERE (SELECT event FROM cerebro.event WHERE {own}"
                " AND event IN ({listed}) ORDER BY event_id DESC LIMIT 1) = {}",
                own=OWN,
                listed=listed((Event.CREATED, Event.STARTED, *ENDINGS, *also)),
            ),
            (self.run, event.value, json.dumps(recordable_detail(detail)), self.run, last.value),
        )
        block = sql("BEGIN {statements}; END", statements=joined("; ", (*before, insert)))
        recorder.run(sql("DO {block}", block=quoting(block)))

    def followed(self) -> dict[str, dict[str, Any]]:
        """The steps after the training that are done since a session began to drive the run last: what they found."""
        found = self._all(
            sql(
                "SELECT detail::text AS detail FROM cerebro.event WHERE {own} AND event = {followed} AND event_id >"
                " (SELECT max(event_id) FROM cerebro.event WHERE {own} AND event = {started}) ORDER BY event_id",
                own=OWN,
                followed=literal(Event.FOLLOWED),
                started=literal(Event.STARTED),
            ),
            self.run,
        )
        details = [decoded(text, f"what followed run {self.run}") for (text,) in found]
        return {str(detail.get("task")): detail for detail in details if isinstance(detail, dict)}

    def failed(self, *, for_good: bool = True) -> dict[int, str]:
        """Model -> why it failed; models that were revived afterwards are left out.

        ``for_good``: with the models whose configurations cannot be trained at all.
        """
        return {
            model: reason
            for model, event, reason, refused in self._all(
                sql(
                    "SELECT DISTINCT ON (model) model, event, detail ->> 'reason', detail ->> 'refused'"
                    " FROM cerebro.event WHERE {own} AND {of_models}"
                    " AND event IN ({model_failed}, {model_revived}) ORDER BY model, event_id DESC",
                    own=OWN,
                    of_models=self._of_models(),
                    model_failed=literal(Event.MODEL_FAILED),
                    model_revived=literal(Event.MODEL_REVIVED),
                )
            )
            if event == Event.MODEL_FAILED and (for_good or not refused)
        }

    def revive_failed(self) -> None:
        """Give the models that failed another chance."""
        failed = self.failed(for_good=False)
        if failed:
            self.note_each(Event.MODEL_REVIVED, {model: {} for model in failed})

    def cancel_requested(self) -> Statement:
        """Asks whether somebody has requested a cancel since the run was started."""
        return Statement(
            sql(
                "SELECT event = {cancel_requested} FROM cerebro.event WHERE {own}"
                " AND event IN ({listed}) ORDER BY event_id DESC LIMIT 1",
                cancel_requested=literal(Event.CANCEL_REQUESTED),
                own=OWN,
                listed=listed((Event.STARTED, Event.CANCEL_REQUESTED)),
            ),
            (self.run,),
        )

    def request_cancel(self, owner: str) -> None:
        """By the run's owner or an administrator."""
        self.ask(
            sql(
                "INSERT INTO cerebro.event (run, owner, event, detail) VALUES ({},"
                " pg_catalog.quote_ident({})::pg_catalog.regrole, {cancel_requested},"
                " jsonb_build_object('by', current_user))",
                cancel_requested=literal(Event.CANCEL_REQUESTED),
            ),
            (self.run, owner),
        )

    def ask_for(self, owner: str, action: Action, reason: str, detail: Mapping[str, Any]) -> int:
        """Put a request on record, by the run's owner or an administrator; returns its number."""
        # An administrator may not read the row, so its number is known beforehand.
        number = self.ask(sql("SELECT nextval('cerebro.request_id') AS number"), ())[0][0]
        self.ask(
            sql(
                "INSERT INTO cerebro.request (request_id, run, owner, action, reason, detail)"
                " VALUES ({}, {}, pg_catalog.quote_ident({})::pg_catalog.regrole, {}, NULLIF({}, ''), {}::jsonb)"
            ),
            (number, self.run, owner, action.value, reason, json.dumps(detail)),
        )
        return number  # type: ignore[no-any-return]

    def new_requests(self, known: Sequence[int] = ()) -> Statement:
        """Asks for the requests that no decision answers, without the known ones."""
        return Statement(
            sql(
                "SELECT request_id, action, detail::text AS detail, reason FROM cerebro.request r WHERE {own}"
                " AND NOT request_id = ANY ({}::bigint[]) AND NOT EXISTS (SELECT FROM cerebro.decision d"
                " WHERE d.run = r.run AND d.owner = r.owner AND d.request = r.request_id) ORDER BY request_id",
                own=OWN,
            ),
            (self.run, list(known)),
        )

    @staticmethod
    def request_of(row: tuple[Any, ...]) -> Request:
        number, action, detail, reason = row
        try:
            decoded_detail, wrong = decoded(detail, "its detail"), ""
        except BadData as error:  # the request is refused; the run goes on
            decoded_detail, wrong = {}, error.message
        return Request(number, Action(action), decoded_detail, reason or "", wrong)

    def requests(self) -> list[Request]:
        """The requests that no decision answers.  Needs a recorder session."""
        asked = self.new_requests()
        return [self.request_of(row) for row in self.ask(asked.sql, asked.parameters or ())]

    def heartbeat(self, done: int, total: int, left: float | None, standing: QueueEntry | None) -> Statement:
        row = {"rows_done": done, "rows_total": total, "seconds_left": left}
        if standing is not None:
            row["queue"] = codec.encode(standing)
        return self._insert("heartbeat", row)

    def decide(self, decision: Decision, policy: str) -> Statement:
        """Record a decision."""
        who = {"policy": policy} if decision.by is Decider.POLICY else {}
        row = {**decision.to_json(), **who}
        return self._insert("decision", {**row, "reason": shortened(row["reason"], LONGEST_TEXT)})

    def decisions(self) -> list[Decision]:
        """The decisions on record, in the order in which they took effect.  Needs a recorder session."""
        return [
            Decision.from_json(dict(zip(DECISION, row)), f"decision {number} of run {self.run}")
            for number, *row in self._all(
                sql(
                    "SELECT decision_id, {columns}, detail::text AS detail FROM cerebro.decision"
                    " WHERE {own} ORDER BY decision_id",
                    columns=joined(", ", map(identifier, DECISION[:-1])),
                    own=OWN,
                )
            )
        ]

    def add_configuration(self, model: Model, given: str | None, name: str | None) -> list[Statement]:
        """Record the configuration of an added model.

        ``given``: the text of an architecture that the run lacked; it gets the ``name``.
        """
        made = []
        if given is not None:
            architecture = {"given": given, "architecture": json.dumps(model.asked.definition["architecture"])}
            made.append(self._insert("architecture", {"model_id": model.asked.model_id, "name": name, **architecture}))
        row = {
            "configuration": model.key,
            "place": model.asked.place,
            "model_id": model.asked.model_id,
            "compile_params": model.asked.compile_params,
            "fit_params": model.asked.fit_params,
            "compile": model.asked.definition["compile"],
            "fit": model.asked.definition["fit"],
            "parameters": model.asked.parameters,
            "chosen": model.asked.chosen,
        }
        return [*made, self._insert("configuration", row)]

    def earlier_trials(self, forms: Sequence[str]) -> Rows:
        """(form, program, tried, refused, run): the newest engine trial of each form, of any run of this user."""
        return self.ask(
            sql(
                "SELECT DISTINCT ON (detail ->> 'form') detail ->> 'form', detail ->> 'program', detail ->> 'tried',"
                " detail ->> 'refused', run"
                " FROM cerebro.event WHERE owner = {me} AND event = {built}"
                " AND detail ->> 'form' = ANY ({}) ORDER BY detail ->> 'form', event_id DESC",
                me=ME,
                built=literal(Event.BUILT),
            ),
            (list(forms),),
        )


def built_of(model: Model) -> dict[str, Any]:
    """What the event says of a model that is built."""
    told = {"state_bytes": model.state_bytes, "engine": model.build.engine, "position": model.build.position}
    if model.frozen_bytes:
        told["frozen_bytes"] = model.frozen_bytes
    told.update(codec.encode_fields(model.build.memory))
    return told if model.build.parameters is None else {**told, "parameters": model.build.parameters}
