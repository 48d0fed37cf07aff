"""A new run is put on record, and a run is read as far as its log goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from cerebro_db.core.events import Event, HopKind, Initial
from cerebro_db.core.layout import DataSet
from cerebro_db.core.names import Name

from ...sessions.session import Rows, Session, Statement
from ..run import Model, Replica, Run, no_such_run
from .base import MODEL_EVENTS, OWN, OWN_IN_VIEW, counted_states
from .drivers import session_of
from .states import States

L = TypeVar("L", bound="Loading")


class Loading(States):
    """The run as it was planned, and as it stands."""

    @classmethod
    def create(
        cls: type[L],
        recorder: Session,
        values: dict[str, Any],
        architectures: Iterable[dict[str, Any]],
        configurations: Iterable[dict[str, Any]],
        models: Iterable[dict[str, Any]],
    ) -> L:
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
            " m.initial, m.initial_sha256, m.visits, m.parent, c.chosen, m.fold"
            f" FROM cerebro.model m JOIN cerebro.configuration c USING (run, owner, mst_key) WHERE {OWN} ORDER BY 1"
        ):
            definition = {"architecture": run.architectures.get(model_id, {}), "compile": compile_, "fit": fit}
            model = run.models[number] = Model(
                number, key, place, model_id, compiled, fitted, definition, seed, Initial(initial), sha256, visits
            )
            model.parent, model.chosen, model.fold = more
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
                run.models[number].epoch, run.models[number].metric_states = epoch, counted_states(counted)

        for model in run.models.values() if run.averages else ():
            model.replicas = {
                hop: Replica(rows, sha256, run.dist_keys[segment], counted_states(counted))
                for hop, segment, rows, sha256, counted in self._all(
                    "SELECT hop, segment, rows, state_sha256, metric_states FROM cerebro.hop"
                    f" WHERE {OWN} AND model = %s AND hop > %s AND kind = '{HopKind.TRAIN_REPLICA}' ORDER BY hop",
                    model.number,
                    model.hops,
                )
            }

    def given_architectures(self) -> dict[int, str]:
        """The run's architectures as they were loaded, those with parameters included; by model_id."""
        return dict(
            self._all(f"SELECT model_id, given::text FROM cerebro.architecture WHERE {OWN}")  # type: ignore[arg-type]
        )

    def planned_configurations(self) -> int:
        """How many configurations the run had when it was created."""
        return int(self._value(f"SELECT configurations FROM cerebro.run WHERE {OWN}"))

    def evaluated(self) -> dict[int, list[tuple[int, str, int]]]:
        """Model -> the (epoch, dataset, part) that were evaluated."""
        done: dict[int, list[tuple[int, str, int]]] = {}
        for model, *evaluation in self._all(f"SELECT model, epoch, dataset, part FROM cerebro.evaluation WHERE {OWN}"):
            done.setdefault(model, []).append(tuple(evaluation))  # type: ignore[arg-type]
        return done

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
