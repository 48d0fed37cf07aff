# ruff: noqa: UP007, UP045  (get_type_hints evaluates the annotations, on Python 3.9 too)
"""A new run is put on record, and a run is read as far as its log goes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, Optional

from cerebro_db.core import codec, run_options
from cerebro_db.core.codec import Identifier, OneOf, Whole, Within
from cerebro_db.core.documents import decoded
from cerebro_db.core.engines import ENGINES
from cerebro_db.core.errors import BadData, WrongState
from cerebro_db.core.events import Event, HopKind, Initial
from cerebro_db.core.names import DATA_SCHEMA, STATE_SCHEMA, Name
from cerebro_db.core.packing.layout import MOST_PARTITIONS, DataSet, Layout
from cerebro_db.core.records import dataclass
from cerebro_db.core.search.decision import Variant
from cerebro_db.core.sql import Sql, identifier, joined, literal, sql
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.trainers.sharding import ModelMemory

from ....sessions.session import Rows, Session, Statement
from .. import state_tables
from ..groups import visits_of
from ..run import AskedModel, Model, Replica, Run, no_such_run, require_countable
from .base import ME, OWN, OWN_IN_VIEW, Part, as_written, counted_states, listed
from .drivers import session_of
from .states import CHECKSUM, States

# The columns of cerebro.model that a new run fills.
MODEL_COLUMNS = {
    "model": "integer",
    "configuration": "integer",
    "visits": "integer[]",
    "seed": "bigint",
    "initial": "text",
    "initial_sha256": "text",
    "parent": "integer",
    "parent_hop": "integer",
    "fold": "integer",
    "fold_rows": "bigint",
    "group_number": "integer",
    "group_value": "text",
    "group_rows": "bigint",
    "validation_rows": "bigint",
}


Count = Annotated[int, Within(1, 2**31 - 1)]
Keys = Annotated[list[Annotated[int, Within(-(2**31), 2**31 - 1)]], Within(1, MOST_PARTITIONS)]
Visits = Annotated[tuple[Annotated[int, Within(0, 2**31 - 1)], ...], Within(1, MOST_PARTITIONS)]


@dataclass(frozen=True)
class BuiltModel:
    """What the event of a model that was built says."""

    state_bytes: Whole
    engine: Annotated[str, OneOf(*ENGINES)]
    position: Optional[Annotated[int, Within(0, 2**31 - 1)]] = None  # in the ring
    parameters: Optional[Whole] = None  # their number
    frozen_bytes: Whole = 0  # that never change
    memory: ModelMemory = codec.beside(ModelMemory())
    lenient = True


class PlanRow(NamedTuple):
    """What the view cerebro.run_plan says of a run."""

    owner: str
    source: str
    layout: str
    validation: str | None
    validation_layout: str | None
    model_table: str
    epochs: int
    evaluate_every: int
    seed: int
    dist_keys: Any
    storage: str
    options: str


class PlanLog(Part):
    """The run as it was planned, and as it stands."""

    def create(
        self,
        recorder: Session,
        values: dict[str, Any],
        architectures: Iterable[dict[str, Any]],
        configurations: Iterable[dict[str, Any]],
        models: Iterable[dict[str, Any]],
    ) -> None:
        """Put a new run on record, within the recorder's transaction."""
        statements = [self._insert("run", values)]
        for table, rows in (("architecture", architectures), ("configuration", configurations)):
            statements += [self._insert(table, row) for row in rows]
        statements += self.add_models([*models])
        # Until a session drives the run it belongs to its creator: without that one nobody would ever begin it.
        statements.append(self._insert("event", {"event": Event.CREATED.value, "detail": session_of(recorder)}))
        recorder.run_statement(Statement.joined(statements))

    def add_models(self, models: list[dict[str, Any]]) -> list[Statement]:
        """One statement for all models: with groups there may be thousands.  A search begins without models."""
        if not models:
            return []
        used = {name: kind for name, kind in MODEL_COLUMNS.items() if any(name in model for model in models)}
        columns = joined(", ", map(identifier, used))
        types = joined(
            ", ",
            (sql("{name} {kind}", name=identifier(name), kind=SqlType(kind).sql) for name, kind in used.items()),
        )
        insert = sql(
            "INSERT INTO cerebro.model (run, {columns})"
            " SELECT {run}, {columns} FROM pg_catalog.jsonb_to_recordset({}) AS m ({types})",
            columns=columns,
            run=self.run,
            types=types,
        )
        return [Statement(insert, [json.dumps(models)])]

    def load(self) -> Run:
        """The run of the recorder's user, as far as its log goes.  Needs a recorder session."""
        found = self._all(
            sql(
                "SELECT owner::text, packed_table, layout::text AS layout, validation_table,"
                " validation_layout::text AS validation_layout, model_table, epochs, evaluate_every, seed, dist_keys,"
                " storage, options::text AS options FROM cerebro.run_plan WHERE {own_in_view}",
                own_in_view=OWN_IN_VIEW,
            )
        )
        if not found:
            raise no_such_run(self.run)
        with as_written(self.run):
            run = self._run(PlanRow(*found[0]))
            self._load_models(run)
            self._load_progress(run)
        return run

    def require_own_rows(self, run: Run) -> None:
        """Others may make tables in the schema of packed rows that nobody has named, of names that are free again."""
        owned = sql(
            "SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = {} AND c.relname = {} AND c.relowner = {me} AND c.relkind IN ('r', 'p')",
            me=ME,
        )
        for name in [Name.parse(data.table) for data in (run.source, run.validation) if data is not None]:
            if name.schema == DATA_SCHEMA and self.ask(owned, (name.schema, name.table)) != [(1,)]:
                raise WrongState(
                    f"run {self.run} was trained on the packed rows in {name}, and you have no such table any more.",
                    hint="They go with the last model that was trained on them. Train again.",
                )

    def _run(self, plan: PlanRow) -> Run:
        where = f"run {self.run}"
        options = decoded(plan.options, f"{where}: options")
        validation = plan.validation and self._data(
            plan.validation, plan.validation_layout, f"{where}: validation_layout"
        )
        run = Run(
            id=self.run,
            owner=plan.owner,
            source=self._data(plan.source, plan.layout, f"{where}: layout"),
            validation=validation or None,
            model_table=str(Name.parse(plan.model_table, f"{where}: model_table")),
            epochs=plan.epochs,
            evaluate_every=plan.evaluate_every,
            seed=plan.seed,
            dist_keys=codec.read(Keys, plan.dist_keys, f"{where}: dist_keys"),
            storage=codec.read(Identifier, plan.storage, f"{where}: storage"),
            options=run_options.read(options, f"{where}: options"),
        )
        gpus = run.options.gpus
        if [one.key for one in run.source.partitions] != run.dist_keys or (gpus and len(gpus) != run.segments):
            raise BadData(f"{where}: dist_keys has to have the keys of the segments in the layout.")
        require_countable(plan.epochs, run.segments)
        return run

    def _data(self, table: str, layout: str | None, where: str) -> DataSet:
        found = Layout.parse(layout, where)
        if not found.partitions:
            raise BadData(f"{where} has no partitions.")
        return DataSet(Name.parse(table, where).quoted, found)

    def _load_models(self, run: Run) -> None:
        run.architectures = {
            model_id: self._json(text, f"architecture {model_id}")
            for model_id, text in self._all(
                sql(
                    "SELECT model_id, architecture::text AS architecture FROM cerebro.architecture WHERE {own}", own=OWN
                )
            )
        }
        starts = States(self.ask, self.run).starts(run.dist_keys)
        configurations = self._configurations(run)
        for number, key, seed, initial, sha256, visits, parent, hop, fold, group_number in self._all(
            sql(
                "SELECT m.model, m.configuration, m.seed, m.initial, m.initial_sha256, m.visits, m.parent,"
                " m.parent_hop, m.fold,"
                " m.group_number"
                " FROM cerebro.model m WHERE {own} ORDER BY 1",
                own=OWN,
            )
        ):
            if key not in configurations:
                continue  # a row by hand: no model without a configuration is of this run
            asked = replace(
                configurations[key],
                number=number,
                seed=seed,
                initial=Initial(initial),
                visits=self._checked_visits(
                    run, number, visits, Variant.of(fold, group_number), configurations[key].home
                ),
                parent=parent,
                parent_hop=hop,
                adopts=parent is not None and run.models[parent].key != key,
                fold=fold,
                group_number=group_number,
                start=starts.get(number),
            )
            # A given initial state is put on the first segment.
            run.models[number] = model = Model(asked, sha256, run.dist_keys[0])
            if asked.initial == Initial.WEIGHTS and asked.start is None:
                model.given = sha256

    def _configurations(self, run: Run) -> dict[int, AskedModel]:
        """What the models of each configuration have in common, by its number."""
        found = {}
        for key, place, model_id, compiled, fitted, compile_, fit, chosen, parameters in self._all(
            sql(
                "SELECT configuration, place, model_id, compile_params, fit_params, compile::text AS compile,"
                " fit::text AS fit, chosen::text AS chosen, parameters::text AS parameters"
                " FROM cerebro.configuration WHERE {own}",
                own=OWN,
            )
        ):
            configuration = f"configuration {key}"
            definition = {
                "architecture": run.architectures.get(model_id, {}),
                "compile": self._json(compile_, configuration),
                "fit": self._json(fit, configuration),
            }
            found[key] = AskedModel(
                number=0, key=key, place=place, model_id=model_id, compile_params=compiled, fit_params=fitted,
                definition=definition, seed=0, initial=Initial.RANDOM, parameters=self._json(parameters, configuration),
                chosen=None if chosen is None else self._json(chosen, configuration),
                refused=None if definition["compile"] else "its configuration cannot be trained",
            )  # fmt: skip
            self._require_sound(found[key])
        return found

    def _json(self, text: str, what: str) -> dict[str, Any]:
        """An object of a row, as the code that made it wrote it."""
        where = f"{what} of run {self.run}"
        document: dict[str, Any] = codec.read(dict[str, Any], decoded(text, where), where)
        return document

    def _checked_visits(
        self, run: Run, number: int, given: Any, variant: Variant | None, home: int | None
    ) -> tuple[int, ...] | None:
        """The segments of a model; an error for a model that the run cannot have: its row may be one of a user."""
        where = f"model {number} of run {self.run}"
        fold, group_number = (None, None) if variant is None else (variant.fold, variant.group_number)
        visits: tuple[int, ...] | None = codec.read(Optional[Visits], given, f"{where}: visits")
        if visits is not None and max(visits) >= run.segments:
            raise BadData(f"{where}: visits has segment {max(visits)}, and the run has {run.segments}.")
        if fold is not None and fold > run.folds:
            raise BadData(f"{where} has fold {fold}, and the run has {run.folds}.")
        if group_number is not None and group_number not in run.source.pieces:
            raise BadData(f"{where} has group {group_number}, and the rows have none of that number.")
        jointly = run.options.adds_gradients
        of_rows = group_number is not None or jointly or home is not None
        if of_rows and visits != visits_of(run.source, variant, jointly, home):
            whose = "this model" if group_number is None else f"group {group_number}"
            raise BadData(f"{where}: visits has to have the segments of {whose}.")
        return visits

    def _require_sound(self, asked: AskedModel) -> None:
        """An error for a configuration that the run cannot have."""
        where = f"configuration {asked.key} of run {self.run}"
        for name in ("batch_size", "epochs", "steps_per_epoch"):
            codec.read(Optional[Count], asked.definition["fit"].get(name), f"{where}: fit.{name}")
        if not 0 <= asked.place < 2**31:
            raise BadData(f"{where} has a negative place.")

    def _built(self) -> dict[int, BuiltModel]:
        found = {}
        for number, text in self._all(
            sql(
                # A model that goes on with another engine has another event.
                "SELECT model, detail::text AS detail FROM cerebro.event WHERE {own} AND event = {built}"
                " AND {of_models} ORDER BY event_id",
                own=OWN,
                of_models=self._of_models(),
                built=literal(Event.BUILT),
            )
        ):
            where = f"event '{Event.BUILT}' of model {number} of run {self.run}"
            found[number] = codec.decode(BuiltModel, decoded(text, where), where, BadData)
        return found

    def _load_progress(self, run: Run) -> None:
        for number, built in self._built().items():
            model = run.models[number]
            build = model.build
            build.done, build.engine, build.position = True, built.engine, built.position
            build.parameters, build.memory = built.parameters, built.memory
            model.state_bytes, model.frozen_bytes = built.state_bytes, min(built.frozen_bytes, built.state_bytes)
        for number, group in self._all(
            sql(
                "SELECT model, detail ->> 'group' FROM cerebro.event WHERE {own} AND event = {fused} AND {of_models}",
                own=OWN,
                of_models=self._of_models(),
                fused=literal(Event.FUSED),
            )
        ):
            run.models[number].build.group = group
        for last in States(self.ask, self.run).last_states():
            model = run.models[last.model]
            self._require_hop(run, model, last.hop, last.epoch, last.segment)
            model.hops, model.sha256, model.state_bytes = last.hop, last.state_sha256, last.state_bytes
            model.frozen = last.frozen
            model.dist_key = run.dist_keys[last.segment]
        for number, hop, epoch, segment, counted in self._all(
            sql(
                "SELECT DISTINCT ON (model) model, hop, epoch, segment, metric_states FROM cerebro.hop WHERE {own}"
                " ORDER BY model, hop DESC",
                own=OWN,
            )
        ):
            if number in run.models:
                self._require_hop(run, run.models[number], hop, epoch, segment)
                run.models[number].epoch, run.models[number].metric_states = epoch, counted_states(counted)

        for model in run.models.values() if run.averages else ():
            for hop, segment, rows, sha256, counted, state_bytes in self._all(
                sql(
                    "SELECT hop, segment, rows, {checksum} AS state_sha256, metric_states, state_bytes"
                    " FROM cerebro.hop h WHERE {own} AND model = {} AND hop > {} AND kind = {train_replica}"
                    " ORDER BY hop",
                    checksum=CHECKSUM,
                    own=OWN,
                    train_replica=literal(HopKind.TRAIN_REPLICA),
                ),
                model.number,
                model.hops,
            ):
                model.replicas[hop] = Replica(rows, sha256, run.dist_keys[segment], counted_states(counted))
                model.state_bytes = state_bytes
            if model.replicas and not state_tables.is_small(model.state_bytes):
                parts = States(self.ask, self.run).frozen_parts([(model.number, hop) for hop in model.replicas])
                for (_, hop), part in parts.items():
                    model.replicas[hop].frozen = part
        self._load_large_starts(run)
        begun = any(one.hops or one.replicas or one.asked.initial != Initial.RANDOM for one in run.models.values())
        run.shared.filled = [begun, begun]

    def _load_large_starts(self, run: Run) -> None:
        """Which given initial states are too large for the tables that all models share: they have one of their own."""
        given = {
            state_tables.table_name(run.storage, number, 0).table: model
            for number, model in run.models.items()
            if model.asked.initial != Initial.RANDOM and model.given is None
        }
        if given:
            for (name,) in self.ask(
                sql(
                    # Others can make things of these names, too, also views that run code.
                    "SELECT relname::text FROM pg_catalog.pg_class WHERE relnamespace ="
                    " pg_catalog.to_regnamespace({}) AND relname = ANY ({}::pg_catalog.name[])"
                    " AND relkind = 'r' AND relowner = {me}::pg_catalog.oid",
                    me=ME,
                ),
                (STATE_SCHEMA, list(given)),
            ):
                given[name].large_start = True
        self._load_frozen_starts(run)

    def _load_frozen_starts(self, run: Run) -> None:
        """Which copies start from a state whose frozen part is in a table of its own."""
        copies = {
            number: model for number, model in sorted(run.models.items()) if model.large_start and model.asked.parent
        }
        if not copies:
            return
        hops: dict[int, int] = dict(
            self._all(sql("SELECT model, parent_hop FROM cerebro.model WHERE {own} AND parent > 0", own=OWN))
        )
        states = {number: (model.asked.parent or 0, hops.get(number) or 0) for number, model in copies.items()}
        parts = States(self.ask, self.run).frozen_parts([state for state in states.values() if state[1]])
        for number, (parent, hop) in states.items():
            run.models[number].start_frozen = parts.get((parent, hop)) if hop else run.models[parent].start_frozen

    def _require_hop(self, run: Run, model: Model, hop: int, epoch: int, segment: int) -> None:
        """An error for a hop that the model cannot have: the row may be one of a user."""
        if not (1 <= hop <= run.hops_of(model) and 1 <= epoch <= run.epochs and 0 <= segment < run.segments):
            raise BadData(
                f"hop {hop} of model {model.number} of run {self.run} cannot be in epoch {epoch} on segment {segment}."
            )

    def given_architectures(self) -> dict[int, str]:
        """The run's architectures as they were loaded, those with parameters included; by model_id."""
        return dict(
            self._all(sql("SELECT model_id, given::text FROM cerebro.architecture WHERE {own}", own=OWN))  # type: ignore[arg-type]
        )

    def planned_configurations(self) -> int:
        """How many configurations the run had when it was created."""
        return int(self._value(sql("SELECT configurations FROM cerebro.run WHERE {own}", own=OWN)))

    def built(self) -> dict[int, tuple[str, int | None]]:
        """Model -> its engine and its ring position, for a replay."""
        return {model: (built.engine, built.position) for model, built in self._built().items()}

    def cut_models(self) -> set[int]:
        """The models that were cut into shards."""
        found = self._events(sql("DISTINCT model, detail ->> 'shards'"), Event.BUILT)
        return {model for model, shards in found if shards is not None}

    def fusion(self) -> dict[str, dict[str, Any]]:
        """Fusion group -> what its rehearsal found, for a replay.  Needs a recorder session."""
        columns = sql("DISTINCT ON (detail ->> 'group') detail ->> 'group', detail - 'group'")
        return dict(self._events(columns, Event.FUSED, Event.NOT_FUSED))  # type: ignore[arg-type]

    def _events(self, columns: Sql, *events: Event) -> Rows:
        return self._all(
            sql(
                "SELECT {columns} FROM cerebro.event WHERE {own} AND event IN ({listed})",
                columns=columns,
                own=OWN,
                listed=listed(events),
            )
        )
