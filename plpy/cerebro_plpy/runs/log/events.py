"""What happens in a run: events, requests of people, decisions, and the models that they add."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_db.core.events import ENDINGS, Action, Decider, Event
from cerebro_db.core.search.policy import Decision
from cerebro_db.core.search.request import Request

from ...sessions.session import Rows, Session, Statement
from ..run import Model
from .base import ME, MODEL_EVENTS, OWN, Log, listed


class Events(Log):
    """Records what happens, and tells what has."""

    def note(self, event: Event, model: int | None = None, **detail: Any) -> None:
        self.note_each(event, {model: detail})

    def event(self, event: Event, model: int | None = None, **detail: Any) -> Statement:
        """Records an event, within a transaction of the caller's."""
        return self._insert("event", {"event": event.value, "model": model, "detail": detail})

    def note_each(self, event: Event, details: Mapping[Any, dict[str, Any]]) -> None:
        """The same event of several models: all are on record, or none."""
        marks = ", ".join(["(%s, %s, %s::integer, %s::jsonb)"] * len(details))
        self.ask(
            f"INSERT INTO cerebro.event (run, event, model, detail) VALUES {marks}",
            [
                value
                for model, detail in details.items()
                for value in (self.run, event.value, model, json.dumps(detail))
            ],
        )

    def last_of(self, *events: Event) -> str | None:
        """The newest of these events."""
        return self._value(
            f"SELECT event FROM cerebro.event WHERE {OWN} AND event IN ({listed(events)})"
            " ORDER BY event_id DESC LIMIT 1"
        )

    def note_end(self, recorder: Session, event: Event, message: str) -> None:
        """Record the end of a run that is under way; its end is recorded once.

        In a DO block, which no resource queue of Greenplum keeps waiting: the cancel of a run must not wait.
        """
        insert = recorder.literal(
            "INSERT INTO cerebro.event (run, event, detail) SELECT %s, %s, %s::jsonb"
            f" WHERE (SELECT event FROM cerebro.event WHERE {OWN}"
            f" AND event IN ({listed((Event.STARTED, *ENDINGS))}) ORDER BY event_id DESC LIMIT 1) = %s",
            (self.run, event.value, json.dumps({"message": message}), self.run, Event.STARTED.value),
        )
        recorder.run("DO %s", (f"BEGIN {insert}; END",))

    def failed(self, *, for_good: bool = True) -> dict[int, str]:
        """Model -> why it failed; models that were revived afterwards are left out.

        ``for_good``: with the models whose configurations cannot be trained at all.
        """
        return {
            model: reason
            for model, event, reason, refused in self._all(
                "SELECT DISTINCT ON (model) model, event, detail ->> 'reason', detail ->> 'refused'"
                f" FROM {MODEL_EVENTS} WHERE {OWN}"
                f" AND event IN ('{Event.MODEL_FAILED}', '{Event.MODEL_REVIVED}') ORDER BY model, event_id DESC"
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
            f"SELECT event = '{Event.CANCEL_REQUESTED}' FROM cerebro.event WHERE {OWN}"
            f" AND event IN ({listed((Event.STARTED, Event.CANCEL_REQUESTED))}) ORDER BY event_id DESC LIMIT 1",
            (self.run,),
        )

    def request_cancel(self, owner: str) -> None:
        """By the run's owner or an administrator."""
        self.ask(
            "INSERT INTO cerebro.event (run, owner, event, detail) VALUES (%s,"
            f" pg_catalog.quote_ident(%s)::pg_catalog.regrole, '{Event.CANCEL_REQUESTED}',"
            " jsonb_build_object('by', current_user))",
            (self.run, owner),
        )

    def ask_for(self, owner: str, action: Action, reason: str, detail: Mapping[str, Any]) -> int:
        """Put a request on record, by the run's owner or an administrator; returns its number."""
        # An administrator may not read the row, so its number is known beforehand.
        number = self.ask("SELECT nextval('cerebro.request_id') AS number", ())[0][0]
        self.ask(
            "INSERT INTO cerebro.request (request_id, run, owner, action, reason, detail)"
            " VALUES (%s, %s, pg_catalog.quote_ident(%s)::pg_catalog.regrole, %s, NULLIF(%s, ''), %s::jsonb)",
            (number, self.run, owner, action.value, reason, json.dumps(detail)),
        )
        return number  # type: ignore[no-any-return]

    def new_requests(self, known: Sequence[int] = ()) -> Statement:
        """Asks for the requests that no decision answers, without the known ones."""
        return Statement(
            f"SELECT request_id, action, detail, reason FROM cerebro.request r WHERE {OWN}"
            " AND NOT request_id = ANY (%s::bigint[]) AND NOT EXISTS (SELECT FROM cerebro.decision d"
            " WHERE d.run = r.run AND d.owner = r.owner AND d.request = r.request_id) ORDER BY request_id",
            (self.run, list(known)),
        )

    @staticmethod
    def request_of(row: tuple[Any, ...]) -> Request:
        number, action, detail, reason = row
        return Request(number, Action(action), detail, reason or "")

    def requests(self) -> list[Request]:
        """The requests that no decision answers.  Needs a recorder session."""
        asked = self.new_requests()
        return [self.request_of(row) for row in self.ask(asked.sql, asked.parameters or ())]

    def heartbeat(self, done: int, total: int) -> Statement:
        return Statement(
            "INSERT INTO cerebro.heartbeat (run, rows_done, rows_total) VALUES (%s, %s, %s)", (self.run, done, total)
        )

    def decide(self, decision: Decision, policy: str) -> Statement:
        """Record a decision."""
        who = {"policy": policy} if decision.by is Decider.POLICY else {}
        return self._insert("decision", {**decision.to_json(), **who})

    def decisions(self) -> list[Decision]:
        """The decisions on record, in the order in which they took effect.  Needs a recorder session."""
        return [
            Decision.from_json(dict(zip(("model", "epoch", "decision", "reason", "policy", "request", "detail"), row)))
            for row in self._all(
                "SELECT model, epoch, decision, reason, policy, request, detail FROM cerebro.decision"
                f" WHERE {OWN} ORDER BY decision_id"
            )
        ]

    def add_configuration(self, model: Model, given: str | None) -> list[Statement]:
        """Record the configuration of an added model.  ``given``: the text of an architecture that the run lacked."""
        made = []
        if given is not None:
            architecture = {"given": given, "architecture": json.dumps(model.definition["architecture"])}
            made.append(self._insert("architecture", {"model_id": model.model_id, **architecture}))
        row = {
            "mst_key": model.mst_key,
            "place": model.place,
            "model_id": model.model_id,
            "compile_params": model.compile_params,
            "fit_params": model.fit_params,
            "compile": model.definition["compile"],
            "fit": model.definition["fit"],
            "chosen": model.chosen,
        }
        return [*made, self._insert("configuration", row)]

    def add_model(self, model: Model, parent: int | None, parent_hop: int | None, fold_rows: int | None) -> Statement:
        """Record a model that a decision adds.  ``fold_rows``: the rows of its fold."""
        return self._insert(
            "model",
            {
                "model": model.number,
                "mst_key": model.mst_key,
                "visits": model.visits,
                "seed": model.seed,
                "initial": model.initial.value,
                "initial_sha256": model.sha256,
                "parent": parent,
                "parent_hop": parent_hop,
                "fold": model.fold,
                "fold_rows": fold_rows,
            },
        )

    def earlier_trials(self, forms: Sequence[str]) -> Rows:
        """(form, program, tried, refused, run): the newest engine trial of each form, of any run of this user."""
        return self.ask(
            "SELECT DISTINCT ON (detail ->> 'form') detail ->> 'form', detail ->> 'program', detail ->> 'tried',"
            " detail ->> 'refused', run"
            f" FROM cerebro.event WHERE owner = {ME} AND event = '{Event.BUILT}'"
            " AND detail ->> 'form' = ANY (%s) ORDER BY detail ->> 'form', event_id DESC",
            (list(forms),),
        )
