"""The record of a run: what was asked for, what its log says has happened, and where its states lie."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro_db.core.errors import InUse, InvalidArgument, UndefinedObject, WrongState
from cerebro_db.core.names import Name
from cerebro_db.core.schedule import Plan, Schedule, derived_seed

from . import limits
from .dialect import Dialect
from .sessions import Session

STATES = "cerebro_state"
MOST_HOPS = 2**31 - 1  # of one configuration
TRAINING, VALIDATION = "training", "validation"
# Bytes of a model's state per row, and what has a row of them stay in one piece in its page: of 100 MB that takes half
# the time to store that rows of 256 kB take, which are cut up and indexed. (Larger rows still are.)
ROW = 8096
WHOLE_PAGES = "WITH (toast_tuple_target = 8160)"
# Users may write events of their own, of configurations that there are not.
EVENT_OF_CONFIGURATION = "cerebro.event e JOIN cerebro.configuration c USING (run, owner, mst_key)"
MOST_TOGETHER = 16  # configurations in one pass over the rows


Figures = dict[str, dict[str, float]]  # of a trial, by engine: seconds to build, compile and train a batch


@dataclass(frozen=True)
class Earlier:
    """What an earlier run has found out of something built alike."""

    run: int
    figures: Figures
    program: str


@dataclass
class Configuration:
    """One configuration of a run, and how far it is."""

    key: int
    place: int
    model_id: int
    compile_params: str
    fit_params: str
    definition: dict[str, Any]  # architecture, compile, fit
    seed: int
    initial: str  # random | weights | full
    sha256: str | None  # of the last state; before the first hop, of the whole state it begins with
    hops: int = 0
    state_bytes: int = 0
    built: bool = False  # whether a trainer has built it once and found it fit for the data
    dist_key: int = 0  # where its state was written
    engine: str = ""  # that trains it; if the run leaves it open, chosen when it is built at the latest
    trial: dict[str, Any] = field(default_factory=dict)  # an earlier one that it was chosen by
    earlier: Earlier | None = None  # trials of some engines only; what they are worth shows when the run is built
    enters: int | None = None  # where on the ring; settled when it is built, for its visits follow from it
    alike: str | None = None  # the same as of those with which it trains together


@dataclass(frozen=True)
class DataSet:
    """A packed table: where it is (as SQL) and what lies in each of its partitions."""

    table: str
    layout: dict[str, Any]

    @property
    def partitions(self) -> list[dict[str, Any]]:
        return self.layout["partitions"]

    def partition(self, number: int) -> dict[str, Any]:
        return self.partitions[number]

    @property
    def variables(self) -> list[str]:
        return [variable["name"] for variable in self.layout["inputs"] + self.layout["outputs"]]


@dataclass
class Run:
    """A run as its tables tell it; a new one and one that is taken up again look the same."""

    id: int
    owner: str
    source: DataSet
    validation: DataSet | None
    model_table: str
    epochs: int
    evaluate_every: int
    seed: int
    dist_keys: list[int]
    storage: str
    options: dict[str, Any]
    configurations: dict[int, Configuration] = field(default_factory=dict)
    segments_lost: bool = False  # while it was driven: on Greenplum the driver's own session is then of no use

    @property
    def segments(self) -> int:
        return len(self.dist_keys)

    def data(self, dataset: str) -> DataSet:
        if dataset == TRAINING:
            return self.source
        assert self.validation is not None
        return self.validation

    def plan(self) -> Plan:
        evaluations = {}
        if self.validation is not None:
            # On Greenplum a part can only be evaluated where it lies; on PostgreSQL anywhere.
            place = {key: segment for segment, key in enumerate(self.dist_keys)}
            evaluations[VALIDATION] = {
                number: place.get(part["key"], number % self.segments)
                for number, part in enumerate(self.validation.partitions)
                if part["rows"] > 0
            }
        ordered = sorted(self.configurations.values(), key=lambda c: c.place)
        return Plan(
            seed=self.seed,
            configurations=tuple(c.key for c in ordered),
            segments=self.segments,
            epochs=self.epochs,
            evaluations=evaluations,
            evaluate_every=self.evaluate_every,
            enters={c.key: c.enters for c in ordered if c.enters is not None},
            alike={c.key: c.alike for c in ordered if c.alike is not None},
            most_together=MOST_TOGETHER,
        )

    def rows_of(self, configuration: Configuration) -> int:
        """How many rows one epoch of a configuration trains on."""
        fit = configuration.definition["fit"]
        rows = 0
        for partition in self.source.partitions:
            once = partition["rows"]
            if fit.get("steps_per_epoch"):
                once = min(once, fit["steps_per_epoch"] * fit["batch_size"])
            rows += once * fit.get("epochs", 1)
        return rows

    # -- where states lie --------------------------------------------------------------------------

    def leaf(self, configuration: Configuration, hop: int) -> str:
        """The table that holds a configuration's state after a hop.

        Two tables take turns: the old state stays until the new one is committed, and is freed by
        TRUNCATE, which a snapshot of the waiting caller does not keep from happening.
        """
        return leaf_name(self.storage, configuration.key, hop).sql

    def empty_leaf_sql(self, dialect: Dialect, configuration: Configuration, hop: int) -> str:
        """Makes the table for a hop's state, or empties it."""
        table = self.leaf(configuration, hop)
        first_use = hop <= 1 or (hop == 2 and configuration.initial == "random")
        return create_leaf_sql(dialect, table) if first_use else emptied_sql([table], f"DELETE FROM {table}")


def leaf_name(storage: str, key: int, hop: int) -> Name:
    return Name(STATES, f"{storage}_{key}_{hop % 2}")


def emptied_sql(tables: Sequence[str], otherwise: str = "NULL") -> str:
    """Gives the space of tables back; where somebody reads them (pg_dump, for hours maybe) does something else."""
    return (
        f"DO $empty$BEGIN SET LOCAL lock_timeout = '2s'; TRUNCATE {', '.join(tables)};"
        f" EXCEPTION WHEN lock_not_available THEN {otherwise}; END$empty$;"
    )


def create_leaf_sql(dialect: Dialect, table: str) -> str:
    return (
        f"CREATE TABLE {table} (__dist_key__ integer NOT NULL, hop integer NOT NULL, start bigint NOT NULL,"
        f" payload bytea NOT NULL) {WHOLE_PAGES} {dialect.distributed_by('__dist_key__')};"
        f" ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL;"
    )


def shuffle_seed(run: Run, configuration: Configuration, hop: int) -> int:
    return derived_seed(run.seed, "rows", configuration.place, hop)


# -- the tables ----------------------------------------------------------------------------------------


def create(
    recorder: Session,
    values: dict[str, Any],
    architectures: Iterable[dict[str, Any]],
    configurations: Iterable[dict[str, Any]],
) -> int:
    """Put a new run on record; what follows survives whatever becomes of the caller."""
    run = recorder.run("SELECT nextval('cerebro.run_id')")[0][0]
    statements = ["BEGIN"]
    parameters: list[Any] = []

    def insert(table: str, row: dict[str, Any]) -> None:
        marks = ", ".join(["%s"] * len(row))
        statements.append(f"INSERT INTO cerebro.{table} ({', '.join(row)}) VALUES ({marks})")
        parameters.extend(json.dumps(value) if isinstance(value, dict) else value for value in row.values())

    insert("run", {"run": run, **values})
    for architecture in architectures:
        insert("architecture", {"run": run, **architecture})
    for configuration in configurations:
        insert("configuration", {"run": run, **configuration})
    insert("event", {"run": run, "event": "created"})
    statements.append("COMMIT")
    recorder.run("; ".join(statements), parameters)
    return run


def load(recorder: Session, run_id: int) -> Run:
    """A run of the recorder's user, as far as its log goes."""
    found = recorder.run(
        "SELECT owner::text, source_table, layout, validation_table, validation_layout, model_table, epochs,"
        " evaluate_every, seed, dist_keys, storage, options FROM cerebro.run_plan"
        " WHERE run = %s AND owner = current_user",
        (run_id,),
    )
    if not found:
        raise no_such_run(run_id)
    owner, source, layout, validation, validation_layout, model_table, *rest = found[0]
    run = Run(
        run_id,
        owner,
        DataSet(Name.parse(source).sql, layout),
        DataSet(Name.parse(validation).sql, validation_layout) if validation else None,
        model_table,
        *rest,
    )
    architectures: dict[int, dict[str, Any]] = dict(
        recorder.run(
            "SELECT model_id, architecture FROM cerebro.architecture WHERE run = %s AND owner = current_user", (run_id,)
        )
    )
    for key, place, model_id, compiled, fitted, compile_, fit, *more in recorder.run(
        "SELECT mst_key, place, model_id, compile_params, fit_params, compile, fit, seed, initial,"
        " initial_sha256 FROM cerebro.configuration WHERE run = %s AND owner = current_user ORDER BY place",
        (run_id,),
    ):
        definition = {"architecture": architectures[model_id], "compile": compile_, "fit": fit}
        run.configurations[key] = Configuration(key, place, model_id, compiled, fitted, definition, *more)
    for key, state_bytes, engine, enters in recorder.run(
        "SELECT mst_key, (detail ->> 'state_bytes')::bigint, detail ->> 'engine', (detail ->> 'enters')::integer"
        f" FROM {EVENT_OF_CONFIGURATION} WHERE run = %s AND owner = current_user AND event = 'built'",
        (run_id,),
    ):
        configuration = run.configurations[key]
        configuration.built, configuration.state_bytes, configuration.engine = True, state_bytes, engine
        # Runs of earlier versions have no such record: in them a configuration entered at its place.
        configuration.enters = configuration.place if enters is None else enters
    for key, alike in recorder.run(
        f"SELECT mst_key, detail ->> 'alike' FROM {EVENT_OF_CONFIGURATION}"
        " WHERE run = %s AND owner = current_user AND event = 'trains together'",
        (run_id,),
    ):
        run.configurations[key].alike = alike
    for configuration in run.configurations.values():
        configuration.dist_key = run.dist_keys[0]  # an initial state is put on the first segment
    for key, hops, sha256, state_bytes, segment in recorder.run(
        "SELECT DISTINCT ON (mst_key) mst_key, hop, state_sha256, state_bytes, segment FROM cerebro.hop"
        " WHERE run = %s AND owner = current_user ORDER BY mst_key, hop DESC",
        (run_id,),
    ):
        configuration = run.configurations[key]
        configuration.hops, configuration.sha256, configuration.state_bytes = hops, sha256, state_bytes
        configuration.dist_key = run.dist_keys[segment]
    return run


def built_in(recorder: Session, run_id: int) -> dict[int, tuple[str, int]]:
    """By place: the engine that a configuration was built with, and where it enters the ring."""
    found = recorder.run(
        "SELECT c.place, e.detail ->> 'engine', COALESCE((e.detail ->> 'enters')::integer, c.place)"
        f" FROM {EVENT_OF_CONFIGURATION}"
        " WHERE run = %s AND owner = current_user AND event = 'built'",
        (run_id,),
    )
    return {place: (engine, enters) for place, engine, enters in found}


def schedule_of(recorder: Session, run: Run) -> Schedule:
    """The schedule with everything that the log says is done."""
    schedule = Schedule(run.plan())
    evaluated: dict[int, list[tuple[int, str, int]]] = {}
    for key, epoch, dataset, part in recorder.run(
        "SELECT mst_key, epoch, dataset, part FROM cerebro.evaluation WHERE run = %s AND owner = current_user",
        (run.id,),
    ):
        evaluated.setdefault(key, []).append((epoch, dataset, part))
    for key, configuration in run.configurations.items():
        schedule.restore(key, configuration.hops, evaluated.get(key, ()))
    for key, event, reason in recorder.run(
        f"SELECT DISTINCT ON (mst_key) mst_key, event, detail ->> 'reason' FROM {EVENT_OF_CONFIGURATION}"
        " WHERE run = %s AND owner = current_user"
        " AND event IN ('configuration failed', 'configuration revived') ORDER BY mst_key, event_id DESC",
        (run.id,),
    ):
        if event == "configuration failed":
            schedule.give_up(key, reason)
    return schedule


def claim(recorder: Session, run_id: int, pid: int, epochs: int | None = None, retry_failed: bool = False) -> None:
    """Become the one session that drives a run, or say who does."""
    # Between the claim and the first place that records an end there must be nothing that can raise.
    listen, recorder.listen = recorder.listen, lambda: None
    try:
        _claim(recorder, run_id, pid, epochs, retry_failed)
    finally:
        recorder.listen = listen


def _claim(recorder: Session, run_id: int, pid: int, epochs: int | None, retry_failed: bool) -> None:
    recorder.run("BEGIN")
    try:
        # Two who claim at once queue here; the second then sees what the first wrote.
        recorder.run(
            "SELECT pg_advisory_xact_lock(pg_catalog.hashtextextended(%s, 0::bigint))", (f"cerebro_db run {run_id}",)
        )
        for _ in range(2):
            found = recorder.run(
                "SELECT status, driver_pid, epochs, segments FROM cerebro.runs WHERE run = %s AND owner = current_user",
                (run_id,),
            )
            if not found:
                raise no_such_run(run_id)
            if found[0][0] != "interrupted":  # else its last word may have come while that statement ran
                break
        status, driver, planned, segments = found[0]
        # We drive nothing, or we were not here: a full disk may have kept us from writing how our last try ended.
        if status == "running" and driver != pid:
            raise InUse(
                f"run {run_id} is being driven by the session with process id {driver}",
                hint=f"Follow it in cerebro.run_progress, or end it with SELECT cerebro.cancel({run_id}).",
            )
        if epochs is not None and epochs < planned:
            raise InvalidArgument(
                f"run {run_id} is planned for {planned} epochs; epochs cannot be {epochs}",
                hint="epochs is the new total, those that are done included.",
            )
        if epochs is not None:
            require_countable(epochs, segments)
        again = retry_failed and recorder.run(
            "SELECT 1 FROM cerebro.leaderboard WHERE run = %s AND owner = current_user AND status = 'failed' LIMIT 1",
            (run_id,),
        )
        if status == "finished" and not again and (epochs is None or epochs == planned):
            raise WrongState(
                f"run {run_id} is finished",
                hint=f"SELECT cerebro.resume({run_id}, epochs => {planned + 1}) would extend it.",
            )
        # Runs of one owner are counted one after the other, or two that start at once would not see each other.
        recorder.run("SELECT pg_advisory_xact_lock(hashtextextended('cerebro_db owner ' || current_user, 0))")
        limits.require_run(limits.of_session(recorder), segments)
        if epochs is not None:
            note(recorder, run_id, "extended", epochs=epochs)
        # As JSON has it: any session's DateStyle reads it back.
        began = recorder.run("SELECT to_jsonb(backend_start) FROM cerebro._sessions() WHERE pid = %s", (pid,))[0][0]
        note(recorder, run_id, "started", pid=pid, backend_start=began)
    except BaseException:
        recorder.run("ROLLBACK")
        raise
    recorder.run("COMMIT")


def require_countable(epochs: int, segments: int) -> None:
    if epochs * segments > MOST_HOPS:
        raise InvalidArgument(
            f"{epochs:,} iterations over {segments} segments are more hops than can be counted",
            hint=f"At most {MOST_HOPS // segments:,} iterations.",
        )


def revive(recorder: Session, run_id: int) -> None:
    """Give the configurations that failed another chance."""
    recorder.run(
        "INSERT INTO cerebro.event (run, event, mst_key) SELECT run, 'configuration revived', mst_key"
        " FROM cerebro.leaderboard WHERE run = %s AND owner = current_user AND status = 'failed'",
        (run_id,),
    )


def no_such_run(run_id: int | None) -> UndefinedObject:
    return UndefinedObject(
        f"there is no run {'NULL' if run_id is None else run_id} of yours",
        hint="SELECT run, name, status FROM cerebro.runs lists your runs.",
    )


def note(recorder: Session, run_id: int, event: str, key: int | None = None, **detail: Any) -> None:
    note_each(recorder, run_id, event, {key: detail})


def note_each(recorder: Session, run_id: int, event: str, details: Mapping[Any, dict[str, Any]]) -> None:
    """The same event of several configurations: all of them are on record, or none."""
    recorder.run(
        "INSERT INTO cerebro.event (run, event, mst_key, detail) VALUES "
        + ", ".join(["(%s, %s, %s, %s)"] * len(details)),
        [value for key, detail in details.items() for value in (run_id, event, key, json.dumps(detail))],
    )
