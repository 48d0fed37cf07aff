"""The log of runs: every SQL statement that reads or writes its tables, by name.

Longer than 350 lines because nothing else spells the log's SQL (tests/core/test_structure.py checks that).

``RunLog`` asks through any session of the run's owner: the recorder session, or the caller's own through ``asking``.
The records of a visit are ``Statement`` objects: a worker session stores them in the transaction that stores the state.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable

from cerebro_db.core import metrics as metric_values
from cerebro_db.core.errors import CorruptState, InUse, InvalidArgument, WrongState
from cerebro_db.core.events import ENDINGS, Action, DataSetName, Decider, Event, Initial, RunStatus
from cerebro_db.core.layout import DataSet
from cerebro_db.core.names import Name
from cerebro_db.core.options import BEST, LAST
from cerebro_db.core.protocol import EvaluatedModel, MetricStates, TrainedMember, codec
from cerebro_db.core.scheduling.schedule import Evaluate, Train
from cerebro_db.core.search.policy import Decision, Objective
from cerebro_db.core.search.request import Request
from cerebro_db.core.search.steering import Standing

from ..database import locks
from ..database.access import Database
from ..database.polling import LISTEN_EVERY
from ..sessions import limits
from ..sessions.session import Rows, Session, Statement
from .run import Model, Run, no_such_run, require_countable

Ask = Callable[[str, Sequence[Any]], Rows]

# The tables have the number of a row's owner, and the views show the name.
ME = "pg_catalog.quote_ident(current_user)::pg_catalog.regrole"
OWN = f"run = %s AND owner = {ME}"
OWN_IN_VIEW = "run = %s AND owner = current_user"
# Users may write events of their own, also for models that do not exist: only those of real models count.
MODEL_EVENTS = "cerebro.event e JOIN cerebro.model m USING (run, owner, model)"
PLPY_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "bigint"), (float, "double precision"))


def asking(db: Database) -> Ask:
    """Asks through the caller's own session.  JSON comes back as text there."""

    def ask(sql: str, parameters: Sequence[Any] = ()) -> Rows:
        pieces = sql.split("%s")
        numbered = pieces[0] + "".join(f"${place}{piece}" for place, piece in enumerate(pieces[1:], 1))
        types = [next((name for kind, name in PLPY_TYPES if isinstance(value, kind)), "text") for value in parameters]
        return [tuple(row.values()) for row in db.rows(numbered, types, *parameters)]

    return ask


# What the model tables say of each configuration, by its best model ($1: run, $2: its start, $3: evaluate_every,
# $4: epochs, $5: {mst_key: {"metrics": names or null, "loss": name, "which": best or last, "epoch": of that state}},
# and for MADlib's AutoML "epochs": those that it counts, "s" and "i": bracket and round), and the architecture of one
# ($1: mst_key, $2: run).  They are sources of INSERTs in the caller's session.
MODEL_INFO = f"""
WITH best AS (
    SELECT DISTINCT ON (mst_key) *
      FROM cerebro.leaderboard
     WHERE run = $1 AND owner = current_user
     ORDER BY mst_key, rank, model
), evaluated AS (
    -- Of MADlib's functions: on the training table after an epoch, once all of its parts are evaluated.
    SELECT e.model, e.epoch, sum(e.loss * e.rows) / NULLIF(sum(e.rows), 0) AS loss, max(e.metric) AS metric
      FROM cerebro.evaluation e
     WHERE e.run = $1 AND e.owner = {ME} AND e.dataset = '{DataSetName.TRAINING.value}'
     GROUP BY e.model, e.epoch
    HAVING sum(e.rows) >= (SELECT (r.layout ->> 'rows')::bigint FROM cerebro.run r WHERE r.run = $1 AND r.owner = {ME})
), named AS (
    SELECT n.mst_key::integer AS mst_key, n.told ->> 'loss' AS loss, n.told ->> 'which' AS which,
           (n.told ->> 'epoch')::integer AS epoch, n.told -> 'epochs' AS epochs,
           (n.told ->> 's')::integer AS s, (n.told ->> 'i')::integer AS i,
           array_agg(m.metric ORDER BY m.place) FILTER (WHERE m.metric IS NOT NULL) AS metrics
      FROM jsonb_each($5::jsonb) AS n (mst_key, told)
      LEFT JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(n.told -> 'metrics')
                                                       WHEN 'array' THEN n.told -> 'metrics'
                                                       ELSE '[]'
                                                  END) WITH ORDINALITY AS m (metric, place) ON true
     GROUP BY 1, 2, 3, 4, 5, 6, 7
), told AS (
    SELECT l.model,
           array_agg(extract(epoch FROM l.trained_at - $2::timestamptz)::double precision ORDER BY l.epoch)
               AS elapsed,
           array_agg(COALESCE(e.metric, l.training_metric) ORDER BY l.epoch) AS training_metrics,
           array_agg(COALESCE(e.loss, l.training_loss) ORDER BY l.epoch) AS training_loss,
           array_agg(l.validation_metric ORDER BY l.epoch) AS validation_metrics,
           array_agg(l.validation_loss ORDER BY l.epoch) AS validation_loss,
           array_agg(l.epoch ORDER BY l.epoch) AS iterations
      FROM cerebro.learning_curve l
      LEFT JOIN named n ON n.mst_key = l.mst_key
      LEFT JOIN evaluated e ON e.model = l.model AND e.epoch = l.epoch
     WHERE l.run = $1 AND l.owner = current_user
       AND CASE WHEN n.epochs IS NULL THEN l.epoch % $3 = 0 OR l.epoch = $4
                ELSE n.epochs @> to_jsonb(l.epoch) END
     GROUP BY l.model
), final AS (
    -- The figures of the epoch whose state the model table has: the best one, or the latest.
    SELECT b.mst_key, n.which, n.epoch,
           COALESCE(e.metric, CASE WHEN n.which = 'best' THEN l.training_metric ELSE b.training_metric END)
               AS training_metric,
           COALESCE(e.loss, CASE WHEN n.which = 'best' THEN l.training_loss ELSE b.training_loss END) AS training_loss,
           CASE WHEN n.which = 'best' THEN l.validation_metric ELSE b.validation_metric END AS validation_metric,
           CASE WHEN n.which = 'best' THEN l.validation_loss ELSE b.validation_loss END AS validation_loss
      FROM best b
      LEFT JOIN named n ON n.mst_key = b.mst_key
      LEFT JOIN cerebro.learning_curve l
        ON l.run = b.run AND l.owner = b.owner AND l.model = b.model AND l.epoch = n.epoch
      LEFT JOIN evaluated e ON e.model = b.model AND e.epoch = n.epoch
)
SELECT c.mst_key, c.model_id, c.compile_params, c.fit_params, 'madlib_keras' AS model_type,
       (SELECT h.weights_bytes / 1024.0 FROM cerebro.hop h
         WHERE h.run = c.run AND h.owner = c.owner AND h.model = b.model ORDER BY h.hop DESC LIMIT 1) AS model_size,
       t.elapsed AS metrics_elapsed_time,
       n.metrics AS metrics_type, n.loss AS loss_type,
       f.training_metric AS training_metrics_final, f.training_loss AS training_loss_final,
       CASE WHEN b.training_metric IS NOT NULL THEN t.training_metrics END AS training_metrics,
       t.training_loss,
       f.validation_metric AS validation_metrics_final, f.validation_loss AS validation_loss_final,
       CASE WHEN b.validation_metric IS NOT NULL THEN t.validation_metrics END AS validation_metrics,
       CASE WHEN b.validation_loss IS NOT NULL THEN t.validation_loss END AS validation_loss,
       t.iterations AS metrics_iters, n.s, n.i, b.status, b.reason, f.which, f.epoch, o.value AS objective_value
  FROM cerebro.configuration c
  JOIN best b USING (run, mst_key)
  LEFT JOIN final f ON f.mst_key = c.mst_key
  LEFT JOIN told t ON t.model = b.model
  LEFT JOIN named n ON n.mst_key = c.mst_key
  LEFT JOIN cerebro.objective o ON o.run = c.run AND o.owner = c.owner AND o.model = b.model AND o.epoch = f.epoch
 WHERE c.run = $1 AND c.owner = {ME}
"""
ARCHITECTURE = (
    "SELECT architecture FROM cerebro.architecture JOIN cerebro.configuration USING (run, owner, model_id)"
    f" WHERE run = $2 AND owner = {ME} AND mst_key = $1"
)


@dataclass(frozen=True)
class StateOnRecord:
    """A state of a model, its last or its best: where it is, and what is known of it."""

    which: str
    model: int
    mst_key: int
    hop: int
    epoch: int
    segment: int
    state_bytes: int
    state_sha256: str
    weights_offset: int
    weights_bytes: int


@dataclass(frozen=True)
class EarlierModel:
    """A model of an earlier run, for a warm start."""

    states: list[StateOnRecord]  # the best one, if it is kept, and the last
    storage: str
    dist_keys: list[int]
    compile: str
    architecture: str


MOST_EARLIER_RUNS = 100


def earlier_runs(db: Database) -> list[dict[str, Any]]:
    """The caller's runs, the latest first."""
    return db.rows(
        f"SELECT run, source_table, layout::text AS layout FROM cerebro.run WHERE owner = {ME}"
        f" ORDER BY run DESC LIMIT {MOST_EARLIER_RUNS}"
    )


def earlier_configurations(db: Database, run: int, objective: Objective) -> list[dict[str, Any]]:
    """The configurations of a run of the caller's that have a value of the objective, with the best one."""
    return db.rows(
        "SELECT c.mst_key, c.chosen::text AS chosen, a.architecture::text AS architecture, c.compile::text AS compile,"
        f" c.fit::text AS fit, {objective.direction}(v.value) AS value, max(v.epoch) AS epochs"
        "  FROM cerebro.configuration c JOIN cerebro.architecture a USING (run, owner, model_id)"
        "  JOIN cerebro.metric v ON v.run = c.run AND v.mst_key = c.mst_key AND v.owner = current_user"
        f" WHERE c.run = $1 AND c.owner = {ME} AND v.dataset = $2 AND v.metric = $3 AND v.value IS NOT NULL"
        " GROUP BY c.mst_key, c.chosen::text, a.architecture::text, c.compile::text, c.fit::text ORDER BY c.mst_key",
        ("bigint", "text", "text"),
        run,
        objective.dataset or DataSetName.TRAINING.value,
        objective.metric,
    )


class RunLog:
    """The log of one run, through one session."""

    def __init__(self, ask: Ask, run: int) -> None:
        self.ask = ask
        self.run = run

    @classmethod
    def of(cls, recorder: Session, run: int) -> RunLog:
        return cls(recorder.run, run)

    @classmethod
    def of_caller(cls, db: Database, run: int | None) -> RunLog:
        if run is None:
            raise no_such_run(run)
        return cls(asking(db), run)

    def _all(self, sql: str, *parameters: Any) -> Rows:
        return self.ask(sql, (self.run, *parameters))

    def _value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self._all(sql, *parameters)
        return rows[0][0] if rows else None

    # -- a new run ----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        recorder: Session,
        values: dict[str, Any],
        architectures: Iterable[dict[str, Any]],
        configurations: Iterable[dict[str, Any]],
        models: Iterable[dict[str, Any]],
    ) -> RunLog:
        """Put a new run on record, within the recorder's transaction."""
        log = cls.of(recorder, recorder.run("SELECT nextval('cerebro.run_id')")[0][0])
        statements = [log._insert("run", values)]
        for table, rows in (("architecture", architectures), ("configuration", configurations), ("model", models)):
            statements += [log._insert(table, row) for row in rows]
        # Until a session drives the run it belongs to its creator: without that one nobody would ever begin it.
        statements.append(log._insert("event", {"event": Event.CREATED.value, "detail": session_of(recorder)}))
        together = Statement.joined(statements)
        recorder.run(together.sql, together.parameters)
        return log

    # -- the run as it stands -------------------------------------------------------------------------

    def load(self) -> Run:
        """The run of the recorder's user, as far as its log goes.  Needs a recorder session."""
        found = self._all(
            "SELECT owner::text, source_table, layout, validation_table, validation_layout, model_table, epochs,"
            f" evaluate_every, seed, dist_keys, storage, options FROM cerebro.run_plan WHERE {OWN_IN_VIEW}"
        )
        if not found:
            raise no_such_run(self.run)
        owner, source, layout, validation, validation_layout, model_table, *rest = found[0]
        run = Run(
            self.run,
            owner,
            DataSet(Name.parse(source).sql, layout),
            DataSet(Name.parse(validation).sql, validation_layout) if validation else None,
            model_table,
            *rest,
        )
        self._load_models(run)
        self._load_progress(run)
        return run

    def given_architectures(self) -> dict[int, str]:
        """The run's architectures as they were loaded, those with parameters included; by model_id."""
        return dict(
            self._all(f"SELECT model_id, given::text FROM cerebro.architecture WHERE {OWN}")  # type: ignore[arg-type]
        )

    def planned_configurations(self) -> int:
        """How many configurations the run had when it was created."""
        return int(self._value(f"SELECT configurations FROM cerebro.run WHERE {OWN}"))

    def _load_models(self, run: Run) -> None:
        run.architectures = dict(
            self._all(f"SELECT model_id, architecture FROM cerebro.architecture WHERE {OWN}")  # type: ignore[arg-type]
        )
        for (
            number,
            key,
            place,
            model_id,
            compiled,
            fitted,
            compile_,
            fit,
            seed,
            initial,
            sha256,
            visits,
            *more,
        ) in self._all(
            "SELECT m.model, m.mst_key, c.place, c.model_id, c.compile_params, c.fit_params, c.compile, c.fit, m.seed,"
            " m.initial, m.initial_sha256, m.visits, m.parent, c.chosen"
            f" FROM cerebro.model m JOIN cerebro.configuration c USING (run, owner, mst_key) WHERE {OWN} ORDER BY 1"
        ):
            definition = {"architecture": run.architectures.get(model_id, {}), "compile": compile_, "fit": fit}
            model = run.models[number] = Model(
                number, key, place, model_id, compiled, fitted, definition, seed, Initial(initial), sha256, visits
            )
            model.parent, model.chosen = more
            model.adopts = model.parent is not None and run.models[model.parent].mst_key != key
            model.refused = None if compile_ else "its configuration cannot be trained"
            # A given initial state is put on the first segment.
            model.dist_key = run.dist_keys[0]

    def _load_progress(self, run: Run) -> None:
        for number, state_bytes, engine, position, parameters in self._all(
            "SELECT model, (detail ->> 'state_bytes')::bigint, detail ->> 'engine', (detail ->> 'position')::integer,"
            " (detail ->> 'parameters')::bigint"
            f" FROM {MODEL_EVENTS} WHERE {OWN} AND event = '{Event.BUILT}'"
        ):
            model = run.models[number]
            model.built, model.state_bytes, model.engine, model.position = True, state_bytes, engine, position
            model.parameters = parameters
        for number, group in self._all(
            f"SELECT model, detail ->> 'group' FROM {MODEL_EVENTS} WHERE {OWN} AND event = '{Event.FUSED}'"
        ):
            run.models[number].group = group
        for last in self.last_states():
            model = run.models[last.model]
            model.hops, model.sha256, model.state_bytes = last.hop, last.state_sha256, last.state_bytes
            model.dist_key = run.dist_keys[last.segment]
        for number, epoch, counted in self._all(
            f"SELECT DISTINCT ON (model) model, epoch, metric_states FROM cerebro.hop WHERE {OWN}"
            " ORDER BY model, hop DESC"
        ):
            if number in run.models:
                run.models[number].epoch, run.models[number].metric_states = epoch, _counted(counted)

    def last_states(self, mst_key: int | None = None) -> list[StateOnRecord]:
        """The state after the last committed hop of each model, or of the models of one configuration."""
        return self._states(LAST, "", mst_key)

    def best_states(self, mst_key: int | None = None) -> list[StateOnRecord]:
        """The state that is kept as the best of each model, or of the models of one configuration."""
        best = (
            "JOIN cerebro.objective o ON o.kept AND (o.run, o.owner, o.model, o.hop) = (h.run, h.owner, h.model, h.hop)"
        )
        return self._states(BEST, best, mst_key)

    def _states(self, which: str, among: str, mst_key: int | None) -> list[StateOnRecord]:
        found = self._all(
            "SELECT DISTINCT ON (m.model) m.model, m.mst_key, h.hop, h.epoch, h.segment, h.state_bytes, h.state_sha256,"
            " h.weights_offset, h.weights_bytes FROM cerebro.model m JOIN cerebro.hop h USING (run, owner, model)"
            f" {among} WHERE m.run = %s AND m.owner = {ME}{'' if mst_key is None else ' AND m.mst_key = %s'}"
            " ORDER BY m.model, h.hop DESC",
            *([] if mst_key is None else [mst_key]),
        )
        return [StateOnRecord(which, *row) for row in found]

    def states_of_best_models(self, which: str, mst_key: int | None = None) -> list[StateOnRecord]:
        """What the model tables get: of the best model of each configuration, or of one, the best or the last state.

        A model of which no epoch was the best has its last state.
        """
        found = self._all(
            f"SELECT DISTINCT ON (mst_key) model FROM cerebro.leaderboard WHERE {OWN_IN_VIEW}"
            " ORDER BY mst_key, rank, model"
        )
        best = {model for (model,) in found}
        states = {state.model: state for state in self.last_states(mst_key) if state.model in best}
        if which == BEST:
            states.update({state.model: state for state in self.best_states(mst_key) if state.model in states})
        return list(states.values())

    def earlier_model(self, mst_key: int) -> EarlierModel | None:
        """The best model of a configuration, to the run's owner in the caller's session."""
        found = self._all(
            "SELECT r.storage, r.dist_keys, c.compile::text, a.architecture::text"
            " FROM cerebro.run r JOIN cerebro.configuration c USING (run, owner)"
            f" JOIN cerebro.architecture a USING (run, owner, model_id) WHERE {OWN} AND mst_key = %s",
            mst_key,
        )
        states = {state.hop: state for which in (LAST, BEST) for state in self.states_of_best_models(which, mst_key)}
        return EarlierModel(list(states.values()), *found[0]) if found and states else None

    def evaluated(self) -> dict[int, list[tuple[int, str, int]]]:
        """Model -> the (epoch, dataset, part) that were evaluated."""
        done: dict[int, list[tuple[int, str, int]]] = {}
        for model, *evaluation in self._all(f"SELECT model, epoch, dataset, part FROM cerebro.evaluation WHERE {OWN}"):
            done.setdefault(model, []).append(tuple(evaluation))  # type: ignore[arg-type]
        return done

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

    def decisions(self) -> list[Decision]:
        """The decisions on record, in the order in which they took effect.  Needs a recorder session."""
        return [
            Decision.from_json(dict(zip(("model", "epoch", "decision", "reason", "policy", "request", "detail"), row)))
            for row in self._all(
                "SELECT model, epoch, decision, reason, policy, request, detail FROM cerebro.decision"
                f" WHERE {OWN} ORDER BY decision_id"
            )
        ]

    def hops(self) -> Rows:
        """(model, epoch, hop, rows, loss, metrics) of every hop.  Needs a recorder session."""
        return self._all(
            f"SELECT model, epoch, hop, rows, loss, metrics FROM cerebro.hop WHERE {OWN} ORDER BY model, hop"
        )

    def evaluations(self) -> Rows:
        """(model, epoch, dataset, part, rows, loss, metrics) of every evaluation.  Needs a recorder session."""
        return self._all(
            f"SELECT model, epoch, dataset, part, rows, loss, metrics FROM cerebro.evaluation WHERE {OWN}"
            " ORDER BY model, epoch, dataset, part"
        )

    def built(self) -> dict[int, tuple[str, int]]:
        """Model -> its engine and its ring position, for a replay."""
        found = self._all(
            "SELECT model, detail ->> 'engine', (detail ->> 'position')::integer"
            f" FROM {MODEL_EVENTS} WHERE {OWN} AND event = '{Event.BUILT}'"
        )
        return {model: (engine, position) for model, engine, position in found}

    def fusion(self) -> dict[str, dict[str, Any]]:
        """Fusion group -> what its rehearsal found, for a replay.  Needs a recorder session."""
        found = self._all(
            "SELECT DISTINCT ON (detail ->> 'group') detail ->> 'group', detail - 'group' FROM cerebro.event"
            f" WHERE {OWN} AND event IN ('{Event.FUSED}', '{Event.NOT_FUSED}')"
        )
        return dict(found)  # type: ignore[arg-type]

    def earlier_trials(self, forms: Sequence[str]) -> Rows:
        """(form, program, tried, refused, run): the newest engine trial of each form, of any run of this user."""
        return self.ask(
            "SELECT DISTINCT ON (detail ->> 'form') detail ->> 'form', detail ->> 'program', detail ->> 'tried',"
            " detail ->> 'refused', run"
            f" FROM cerebro.event WHERE owner = {ME} AND event = '{Event.BUILT}'"
            " AND detail ->> 'form' = ANY (%s) ORDER BY detail ->> 'form', event_id DESC",
            (list(forms),),
        )

    # -- events -----------------------------------------------------------------------------------------

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
            f"SELECT event FROM cerebro.event WHERE {OWN} AND event IN ({_listed(events)})"
            " ORDER BY event_id DESC LIMIT 1"
        )

    def note_end(self, recorder: Session, event: Event, message: str) -> None:
        """Record the end of a run that is under way; its end is recorded once.

        In a DO block, which no resource queue of Greenplum keeps waiting: the cancel of a run must not wait.
        """
        insert = recorder.literal(
            "INSERT INTO cerebro.event (run, event, detail) SELECT %s, %s, %s::jsonb"
            f" WHERE (SELECT event FROM cerebro.event WHERE {OWN}"
            f" AND event IN ({_listed((Event.STARTED, *ENDINGS))}) ORDER BY event_id DESC LIMIT 1) = %s",
            (self.run, event.value, json.dumps({"message": message}), self.run, Event.STARTED.value),
        )
        recorder.run("DO %s", (f"BEGIN {insert}; END",))

    def revive_failed(self) -> None:
        """Give the models that failed another chance."""
        failed = self.failed(for_good=False)
        if failed:
            self.note_each(Event.MODEL_REVIVED, {model: {} for model in failed})

    def cancel_requested(self) -> Statement:
        """Asks whether somebody has requested a cancel since the run was started."""
        return Statement(
            f"SELECT event = '{Event.CANCEL_REQUESTED}' FROM cerebro.event WHERE {OWN}"
            f" AND event IN ({_listed((Event.STARTED, Event.CANCEL_REQUESTED))}) ORDER BY event_id DESC LIMIT 1",
            (self.run,),
        )

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

    def add_model(self, model: Model, parent: int | None, parent_hop: int | None) -> Statement:
        """Record a model that a decision adds."""
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
            },
        )

    def _insert(self, table: str, row: dict[str, Any]) -> Statement:
        row = {"run": self.run, **row}
        values = [json.dumps(value) if isinstance(value, dict) else value for value in row.values()]
        marks = ", ".join(["%s"] * len(row))
        return Statement(f"INSERT INTO cerebro.{table} ({', '.join(row)}) VALUES ({marks})", values)

    # -- visits and evaluations ---------------------------------------------------------------------------

    def attempts(self, visits: Sequence[Train], worker_pid: int, began: datetime | None = None) -> Statement:
        """Record that visits begin; returns when, if that is not given."""
        began_sql = "clock_timestamp()" if began is None else "%s"
        marks = ", ".join([f"(%s, %s, %s, %s, %s, {began_sql})"] * len(visits))
        values: list[Any] = []
        for visit in visits:
            values += [self.run, visit.model, visit.hop, visit.segment, worker_pid, *([] if began is None else [began])]
        insert = f"INSERT INTO cerebro.attempt (run, model, hop, segment, worker_pid, started_at) VALUES {marks}"
        return Statement(insert if began is not None else f"{insert} RETURNING started_at", values)

    def hop(
        self,
        visit: Train,
        trained: TrainedMember,
        *,
        began: datetime,
        slice_of_time: tuple[float, float],
        worker_pid: int,
        trainer_pid: int,
        seconds: Mapping[str, Any],
        shared_by: int,
        behind: datetime | None,
        saving: datetime | None = None,
    ) -> Statement:
        """Record a hop, in the transaction that stores its state.

        ``began`` is when its order began, and ``slice_of_time`` which part of the time since then was this visit's, as
        fractions.  The time since the transaction began, or since ``saving`` if it is given, counts as saving, divided
        among the ``shared_by`` visits of the order.  If the state is stored ``behind`` (the trainer has worked on the
        next unit since that moment, or has been free for it), the order's time ends at that moment, and each visit's
        share of the time since then follows its slice.
        """
        seconds = dict(seconds)
        saved, moment = seconds.pop("save", 0.0), behind or saving
        since = "now()" if moment is None else "%s"
        join = "+" if behind is None else ", 'behind',"
        return Statement(
            "INSERT INTO cerebro.hop (run, model, hop, epoch, segment, worker_pid, trainer_pid, rows, steps,"
            "  loss, metric_name, metric, metrics, metric_states, state_bytes, state_sha256, weights_offset,"
            "  weights_bytes, seconds, started_at, finished_at)"
            f" SELECT {', '.join(['%s'] * 18)}, %s::jsonb"
            f"  || jsonb_build_object('save', %s {join} extract(epoch FROM clock.now - {since}) / %s),"
            "  clock.began + (clock.done - clock.began) * %s,"
            "  clock.began + (clock.done - clock.began) * %s + (clock.now - clock.done) / %s"
            " FROM (SELECT t.*, coalesce(%s::timestamptz, t.now) AS done"
            "         FROM (SELECT %s::timestamptz AS began, clock_timestamp() AS now) t) clock",
            [
                self.run,
                visit.model,
                visit.hop,
                visit.epoch,
                visit.segment,
                worker_pid,
                trainer_pid,
                trained.rows,
                trained.steps,
                metric_values.loggable(trained.loss),
                *metric_values.first(trained.metrics),
                metric_values.to_json(trained.metrics),
                _recordable(trained.metric_states),
                trained.state.bytes,
                trained.state.sha256,
                trained.state.weights_offset,
                trained.state.weights_bytes,
                json.dumps(seconds),
                saved,
                *([] if moment is None else [moment]),
                shared_by,
                *slice_of_time,
                shared_by,
                behind,
                began,
            ],
        )

    def evaluation(
        self,
        unit: Evaluate,
        evaluated: EvaluatedModel,
        metrics: Mapping[str, Any],
        *,
        began: datetime,
        slice_of_time: tuple[float, float],
        worker_pid: int,
        seconds: Mapping[str, float],
    ) -> Statement:
        """Record an evaluation of a part.  ``metrics`` are those of all parts if it is the last, else empty.

        ``began`` and ``slice_of_time`` are as in ``hop``.
        """
        return Statement(
            "INSERT INTO cerebro.evaluation (run, model, epoch, dataset, part, segment, worker_pid,"
            " rows, loss, metric_name, metric, metrics, metric_states, seconds, started_at, finished_at)"
            f" SELECT {', '.join(['%s'] * 13)}, %s::jsonb,"
            "  clock.began + (clock.now - clock.began) * %s, clock.began + (clock.now - clock.began) * %s"
            " FROM (SELECT %s::timestamptz AS began, clock_timestamp() AS now) clock",
            (
                self.run,
                unit.model,
                unit.epoch,
                unit.dataset,
                unit.part,
                unit.segment,
                worker_pid,
                evaluated.rows,
                metric_values.loggable(evaluated.loss),
                *metric_values.first(metrics),
                metric_values.to_json(metrics),
                _recordable(evaluated.metric_states),
                json.dumps(seconds),
                *slice_of_time,
                began,
            ),
        )

    def objective(self, model: int, epoch: int, hop: int, value: float, kept: bool) -> Statement:
        """Record the objective of a complete epoch.  ``kept``: the same transaction keeps the state."""
        return self._insert("objective", {"model": model, "epoch": epoch, "hop": hop, "value": value, "kept": kept})

    def objectives(self, model: int | None = None) -> Rows:
        """(model, epoch, value, kept) of all epochs on record, or of one model's, in order."""
        return self._all(
            f"SELECT model, epoch, value, kept FROM cerebro.objective WHERE {OWN}"
            f"{'' if model is None else ' AND model = %s'} ORDER BY model, epoch",
            *([] if model is None else [model]),
        )

    def counted_by_part(self) -> dict[tuple[int, int, str], dict[int, MetricStates]]:
        """Model, epoch, data set -> by part, what the metrics have counted, where no part has the metrics of all."""
        found: dict[tuple[int, int, str], dict[int, MetricStates]] = {}
        for model, epoch, dataset, part, counted in self._all(
            "SELECT model, epoch, dataset, part, metric_states FROM (SELECT e.*,"
            "  bool_or(metrics <> '{}') OVER (PARTITION BY model, epoch, dataset) AS merged"
            f" FROM cerebro.evaluation e WHERE {OWN}) e WHERE NOT merged"
        ):
            states = _counted(counted)
            if states is not None:
                found.setdefault((model, epoch, dataset), {})[part] = states
        return found

    def evaluation_on_record(self, unit: Evaluate) -> tuple[int, float, dict[str, Any]] | None:
        """(rows, loss, metrics) of an evaluation, if it is committed."""
        found = self._all(
            f"SELECT rows, loss, metrics FROM cerebro.evaluation WHERE {OWN} AND model = %s AND epoch = %s"
            " AND dataset = %s AND part = %s",
            unit.model,
            unit.epoch,
            unit.dataset,
            unit.part,
        )
        return found[0] if found else None  # type: ignore[return-value]

    def hop_on_record(self, unit: Train) -> tuple[int, float, dict[str, Any], int, str, MetricStates | None] | None:
        """(rows, loss, metrics, state_bytes, state_sha256, metric states) of a hop, if it is committed."""
        found = self._all(
            "SELECT rows, loss, metrics, state_bytes, state_sha256, metric_states FROM cerebro.hop"
            f" WHERE {OWN} AND model = %s AND hop = %s",
            unit.model,
            unit.hop,
        )
        if not found:
            return None
        *figures, counted = found[0]
        return (*figures, _counted(counted))  # type: ignore[return-value]

    def state_after(self, model: int, hop: int) -> tuple[str | None, int]:
        """The checksum of a model's state after a hop, and the segment on which it was stored."""
        if hop == 0:
            return self._value(f"SELECT initial_sha256 FROM cerebro.model WHERE {OWN} AND model = %s", model), 0
        where = f"WHERE {OWN} AND model = %s AND hop = %s"
        ((sha256, segment),) = self._all(f"SELECT state_sha256, segment FROM cerebro.hop {where}", model, hop)
        return sha256, segment

    # -- what the run has used of its budget -----------------------------------------------------------------

    def driven_seconds(self) -> float:
        """How long sessions have driven the run, before the one that asks."""
        marks = self._all(
            "SELECT event, extract(epoch FROM at)::double precision AS at FROM cerebro.event"
            f" WHERE {OWN} AND event IN ({_listed((Event.STARTED, *ENDINGS))}) ORDER BY event_id"
        )
        seconds = 0.0
        for (event, began), (following, at) in zip(marks, marks[1:]):
            if event == Event.STARTED:
                # A session that was killed has no end on record: then its last heartbeat counts.
                ended = at if following != Event.STARTED else self._last_beat(began, at)
                seconds += max(0.0, ended - began)
        return seconds

    def _last_beat(self, since: float, until: float) -> float:
        last = self._value(
            "SELECT extract(epoch FROM max(at))::double precision AS at FROM cerebro.heartbeat"
            f" WHERE {OWN} AND at BETWEEN to_timestamp(%s) AND to_timestamp(%s)",
            since,
            until,
        )
        return since if last is None else float(last)

    def unit_seconds(self) -> float:
        """How long the visits and evaluations on record have taken, in all."""
        took = "extract(epoch FROM finished_at - started_at)"
        return float(
            self.ask(
                f"SELECT (COALESCE((SELECT sum({took}) FROM cerebro.hop WHERE {OWN}), 0)"
                f" + COALESCE((SELECT sum({took}) FROM cerebro.evaluation WHERE {OWN}), 0))::double precision AS took",
                (self.run, self.run),
            )[0][0]
        )

    # -- whose turn it is: the claim, and the status --------------------------------------------------------

    def status(self, owner: str | None = None) -> RunStatus:
        """The run's status, to its owner, a monitor or an administrator."""
        return self.standing(owner)[0]

    def standing(self, owner: str | None = None) -> tuple[RunStatus, bool, str | None]:
        """The run's status, whether nobody drives it or makes its model tables any more, and the view's message."""
        whose = owner or self.whose()
        for _ in range(2):
            found = self._all("SELECT status, ended, message FROM cerebro.runs WHERE run = %s AND owner = %s", whose)
            # The driver may have ended while the statement ran and recorded that after the statement's snapshot; the
            # next statement sees it.
            if found and found[0][0] != RunStatus.INTERRUPTED and found[0][2] is None:
                break
        if not found:
            raise no_such_run(self.run)
        status, ended, message = found[0]
        return RunStatus(status), ended, message

    def whose(self, owner: str | None = None) -> str:
        """The owner of the run that the current user means: the one it names, or itself, or the only one."""
        owners = [
            found
            for (found,) in self._all(
                "SELECT owner::pg_catalog.text AS owner FROM cerebro.run_plan WHERE run = %s"
                " ORDER BY owner = current_user DESC, owner"
            )
        ]
        mine = self.ask("SELECT current_user::pg_catalog.text AS me", ())[0][0]
        if owner is not None:
            owners = [found for found in owners if found == owner]
        if not owners:
            raise no_such_run(self.run)
        if len(owners) > 1 and owners[0] != mine:
            raise WrongState(
                f"several users have a run {self.run}: {', '.join(owners)}",
                hint=f"Say whose run it is: cerebro.cancel({self.run}, owner => '{owners[0]}'), for example.",
            )
        return owners[0]

    def seconds_left(self) -> float | None:
        """The estimate of the view; None as long as there is none."""
        return self._value(f"SELECT seconds_left FROM cerebro.run_progress WHERE {OWN_IN_VIEW}")

    def require_own(self) -> None:
        if not self._all(f"SELECT 1 FROM cerebro.run WHERE {OWN}"):
            raise no_such_run(self.run)

    def claim(self, recorder: Session, epochs: int | None, retry_failed: bool, submitted: bool = False) -> None:
        """Become the one session that drives the run, or say which session does.  Submitted: nobody waits for it."""
        listen = recorder.listen
        recorder.run("BEGIN")
        try:
            self._lock(recorder)
            self._claim(recorder, epochs, retry_failed, submitted)
            # Between the claim and the code that records an end, nothing may raise: not even a cancel.
            recorder.listen = lambda: None
            recorder.run("COMMIT")
        except BaseException:
            recorder.settle()
            recorder.run("ROLLBACK")
            raise
        finally:
            recorder.listen = listen

    def _lock(self, recorder: Session) -> None:
        """Of two sessions that claim or forget a run at once the second waits, and then sees what the first did.

        The runs of one owner are counted one after the other: two that start at once would not see each other.  But the
        caller's own transaction would keep all other runs waiting for its end.
        """
        owner = recorder.run("SELECT current_user::text")[0][0]
        names = [(locks.of_run(self.run), f"run {self.run}"), (locks.of_owner(owner), f"the runs of {owner}")]
        for name, what in names[:1] if recorder.own else names:
            deadline = time.monotonic() + locks.PATIENCE
            while not recorder.run(f"SELECT {locks.TRY.format('%s')}", (name,))[0][0]:
                if time.monotonic() > deadline:
                    raise locks.in_use(what)
                time.sleep(LISTEN_EVERY)

    def _claim(self, recorder: Session, epochs: int | None, retry_failed: bool, submitted: bool) -> None:
        for _ in range(2):
            found = self._all(f"SELECT status, driver_pid, epochs, segments FROM cerebro.runs WHERE {OWN_IN_VIEW}")
            if not found:
                raise no_such_run(self.run)
            if found[0][0] != RunStatus.INTERRUPTED:  # as in ``status``
                break
        status, driver, planned, segments = found[0]
        # If this very session drove the run, a full disk may have kept it from recording how that ended.
        if status == RunStatus.RUNNING and driver != os.getpid():
            raise InUse(
                f"run {self.run} is being driven by the session with process id {driver}",
                hint=f"Follow it in cerebro.run_progress, or end it with SELECT cerebro.cancel({self.run}).",
            )
        if epochs is not None and epochs < planned:
            raise InvalidArgument(
                f"run {self.run} is planned for {planned} epochs; epochs cannot be {epochs}",
                hint="epochs is the new total and includes the epochs that are done.",
            )
        if epochs is not None:
            require_countable(epochs, segments)
        if (
            status == RunStatus.FINISHED
            and (epochs is None or epochs == planned)
            and not (retry_failed and self.failed(for_good=False))
            and not self.requests()
        ):
            raise WrongState(
                f"run {self.run} is finished",
                hint=f"SELECT cerebro.resume({self.run}, epochs => {planned + 1}) would extend it.",
            )
        limits.require_run(limits.of_session(recorder), segments)
        if epochs is not None:
            self.note(Event.EXTENDED, epochs=epochs)
        if submitted and self.last_of(Event.SUBMITTED, Event.STARTED) != Event.SUBMITTED:
            self.note(Event.SUBMITTED)
        self.note(Event.STARTED, **session_of(recorder))

    def starts(self) -> int:
        """How often a session has begun to drive the run."""
        return int(self._value(f"SELECT count(*) FROM cerebro.event WHERE {OWN} AND event = '{Event.STARTED}'"))

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

    def standings(self, owner: str) -> list[Standing]:
        """The models of a run that the caller may see."""
        found = self._all(
            "SELECT model, mst_key, status, model_id, compile_params, fit_params FROM cerebro.leaderboard"
            " WHERE run = %s AND owner = %s ORDER BY model",
            owner,
        )
        return [Standing(*row) for row in found]

    def size(self, owner: str) -> tuple[int, int]:
        """The planned epochs and the segments of a run that the caller may see."""
        ((epochs, segments),) = self._all(
            "SELECT epochs, segments FROM cerebro.run_plan WHERE run = %s AND owner = %s", owner
        )
        return epochs, segments

    def arch_table(self, owner: str) -> str:
        """The table of architectures that a run was made from."""
        return str(self._value("SELECT arch_table FROM cerebro.run_plan WHERE run = %s AND owner = %s", owner))

    def options(self) -> dict[str, Any] | None:
        """The options of a run of the caller's."""
        found = self._value(f"SELECT options::text FROM cerebro.run WHERE {OWN}")
        return None if found is None else json.loads(found)

    def fingerprints(self) -> list[str]:
        """The checksums of the packed rows that a run of the caller's trains on, segment by segment."""
        layout = json.loads(self._value(f"SELECT layout::text FROM cerebro.run WHERE {OWN}"))
        return [partition["sha256"] for partition in layout["partitions"]]

    def configurations(self, *, added: bool = True) -> dict[int, list[Any]]:
        """mst_key -> architecture, compile and fit of a run of the caller's.  ``added``: also what decisions added."""
        return {
            key: [json.loads(text) for text in texts]  # type: ignore[arg-type]
            for key, *texts in self._all(
                "SELECT mst_key, a.architecture::text AS architecture, compile::text AS compile, fit::text AS fit"
                f" FROM cerebro.configuration JOIN cerebro.architecture a USING (run, owner, model_id) WHERE {OWN}"
                f" AND compile <> '{{}}'{'' if added else ' AND chosen IS NULL'}"
            )
        }

    def compile_params(self) -> dict[int, str]:
        """mst_key -> the compile parameters as they were given."""
        return dict(self._all(f"SELECT mst_key, compile_params FROM cerebro.configuration WHERE {OWN}"))  # type: ignore[arg-type]

    def compile_texts(self) -> str:
        """The compile parameters of all configurations, as text."""
        return " ".join(
            text for (text,) in self._all(f"SELECT compile::text AS compile FROM cerebro.configuration WHERE {OWN}")
        )


def session_of(recorder: Session) -> dict[str, Any]:
    """The session that this function runs in, as the log names it: a process id alone may be used again."""
    # JSON's format of a timestamp is read back the same under every DateStyle.
    began = "SELECT to_jsonb(backend_start) FROM cerebro._sessions() WHERE pid = %s"
    return {"pid": os.getpid(), "backend_start": recorder.run(began, (os.getpid(),))[0][0]}


def _recordable(counted: MetricStates) -> str:
    """The states as text: jsonb has no NaN."""
    return codec.to_json(codec.encode(counted))


def _counted(text: str | None) -> MetricStates | None:
    """The states on record; None where a user has written a row by hand."""
    if text is None:
        return None
    try:
        return codec.decode(MetricStates, codec.from_json(text), "the state")
    except InvalidArgument as error:
        raise CorruptState(
            f"the metric states on record are not those that were written: {error.message}",
            hint="Rows of cerebro.hop or cerebro.evaluation were changed or added by hand.",
        ) from error


def _listed(events: Iterable[Event]) -> str:
    return ", ".join(f"'{event}'" for event in events)
