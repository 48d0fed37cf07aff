"""Before the first hop: a trainer builds every configuration once, and the run says what it will need."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import psycopg2

from cerebro_db.core import codec, protocol
from cerebro_db.core.engines import ALL_REUSE, AUTO, AUTO_REUSE
from cerebro_db.core.errors import CerebroError, GpuMissing, RowsLost, TrainerFailed, TrainerKilled, Unsupported
from cerebro_db.core.events import DataSetName, Event, Initial
from cerebro_db.core.names import STATE_SCHEMA
from cerebro_db.core.packing.layout import DataSet
from cerebro_db.core.protocol import Described
from cerebro_db.core.records import dataclass, field
from cerebro_db.core.scheduling.ring import ring_positions
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted
from cerebro_db.core.trainers import frozen_feature_plan
from cerebro_db.core.trainers.frozen_feature_plan import FeaturePlan, FeatureUse, WantedFeatures
from cerebro_db.core.trainers.sharding import ModelMemory

from ...database.access import Database
from ...models.weights import LARGEST_VALUE
from ...platform.machine import cores, megabytes, memory_available, memory_of_trainers, room
from ...sessions import limits
from ...sessions.failures import Refused, failure_of, session_was_lost
from ...sessions.session import Session
from ...sessions.team import Team, Worker
from ..record import state_tables
from ..record.log import RunLog
from ..record.run import Model, Run
from ..record.speeds import RunSpeeds
from . import cutting, engine_choice, engine_trials

MOST_TRIES = 3

Answer = Union[Described, CerebroError]
Task = tuple[str, str]  # (form, engine)


@dataclass
class Built:
    """What a trainer said of a model."""

    described: Described
    engine: str
    fusion_key: str | None
    why: dict[str, Any] = field(default_factory=dict)  # the trial that the engine was chosen by

    @property
    def memory(self) -> ModelMemory:
        return ModelMemory.of(self.described)

    def on_record(self) -> dict[str, Any]:
        return {
            "parameters": self.described.parameters,
            "state_bytes": self.described.state_bytes,
            "engine": self.engine,
            **({"frozen_bytes": self.described.frozen_bytes} if self.described.frozen_bytes else {}),
            **codec.encode_fields(self.memory),
            **self._of_features(),
            **self.why,
        }

    def _of_features(self) -> dict[str, int]:
        layers, size = self.described.frozen_layers, self.described.feature_bytes
        return {"frozen_layers": layers, "feature_bytes": size} if size else {}


def build_models(
    db: Database,
    run: Run,
    team: Team,
    recorder: Session,
    log: RunLog,
    speeds: RunSpeeds,
    *,
    may_all_fail: bool = False,
) -> FeaturePlan | None:
    """Have the trainers build every model that was never built, before any model trains.

    A model that cannot be built, or does not fit the rows, fails here and alone.  The others say how much memory and
    disk the run will need.  ``may_all_fail``: others may be proposed then.  Returns what features are expected to
    cost, if it has built models that have some.
    """
    planned = None
    figures = limits.answered(recorder.run)
    run.trainer_mb = cutting.memory_of_trainer(figures, run)
    fresh = [model for model in run.models.values() if not model.build.done and model.asked.refused is None]
    if fresh:
        failed: dict[int, CerebroError] = {}
        built: dict[int, Built] = {}
        answers = _of_each(run, fresh, described_for_sure(team, run, _representatives(fresh)))
        cutting.offer(run, answers)
        for number, found in answers.items():
            model = run.models[number]
            if run.source.has_groups and isinstance(found, Built) and found.described.state_bytes > LARGEST_VALUE:
                found = Unsupported(
                    f"its state has {megabytes(found.described.state_bytes)}; in a run with groups, the limit is"
                    f" {megabytes(LARGEST_VALUE)}",
                    hint="Choose a smaller architecture, or pack the rows without group_by.",
                )
            if isinstance(found, Built):
                found = cutting.refused(run, found.memory, found.engine) or found
            if isinstance(found, CerebroError):
                failed[number] = found
                log.events.note(Event.MODEL_FAILED, number, reason=found.message)
            else:
                model.build.memory = found.memory
                model.state_bytes, model.build.engine = found.described.state_bytes, found.engine
                model.build.parameters, model.frozen_bytes = found.described.parameters, found.described.frozen_bytes
                alone = found.memory.is_cut or model.asked.home is not None or run.options.copies_rows
                group = None if alone else found.fusion_key
                model.build.group = _fusion_group(model, group)  # fusion.settle decides whether it is used
                built[number] = found
                if "tried" in found.why:
                    speeds.trials[number] = found.why["tried"]
        if built:
            settle_positions(run, log, built)
            log.events.note_each(
                Event.BUILT,
                {
                    number: {
                        **one.on_record(),
                        **run.models[number].build.trial,
                        "position": run.models[number].build.position,
                    }
                    for number, one in built.items()
                },
            )
        if len(failed) == len(run.models) and not may_all_fail:
            number, error = next(iter(failed.items()))
            error.message = f"configuration {run.models[number].key}: {error.message}"
            raise error
        # The models of a configuration with folds or groups fail alike.
        told = {(run.models[number].key, error.message): error.hint for number, error in failed.items()}
        for (configuration, message), hint in told.items():
            db.warning(f"configuration {configuration} failed: {message}", hint=hint)
        if run.options.engine == AUTO:
            engine_trials.tell(db, run, team)
        planned = say_features(db, run, built)
        cutting.say(db, run, built)
    require_room(figures, recorder, run)
    say_needs(db, run)
    return planned


def _fusion_group(model: Model, key: str | None) -> str | None:
    """Models of other folds have other rows.  Those of groups train alone: each group would need a rehearsal."""
    if key is None or model.asked.group_number is not None:
        return None
    return key if model.asked.fold is None else f"{key}/{model.asked.fold}"


def _representatives(models: Sequence[Model]) -> list[Model]:
    """Of the models of groups, one for each configuration: the others are built alike."""
    known: set[int] = set()
    found = []
    for model in sorted(models, key=lambda model: model.asked.group_number or 0):
        if model.asked.group_number is None or model.key not in known:
            found.append(model)
            known.add(model.key)
    return found


def _of_each(
    run: Run, models: Sequence[Model], found: Mapping[int, Built | CerebroError]
) -> dict[int, Built | CerebroError]:
    """What is known of each model, from what its representative was found to be."""
    of_key = {run.models[number].key: number for number in found}
    known: dict[int, Built | CerebroError] = {}
    for model in models:
        number = model.number if model.number in found else of_key[model.key]
        known[model.number] = found[number]
        model.build.trial = run.models[number].build.trial
    return known


def settle_positions(run: Run, log: RunLog, built: dict[int, Built]) -> None:
    """Give the models that were built just now their ring positions; the positions of others do not change.

    A run that is resumed before its models were built may have got more models by requests.  Those come last, so that
    the run's own models have the positions that they would have had without the interruption.
    """
    earlier = RunLog(log.ask, run.options.replay).plan.built() if run.options.replay is not None else {}
    own: dict[int, tuple[int, float]] = {}
    requested = []
    for number, one in built.items():
        model = run.models[number]
        if number in earlier:
            _, model.build.position = earlier[number]
        elif model.asked.parent is not None or (model.asked.chosen is not None and run.options.space is None):
            requested.append(number)
        else:
            # Of two models with equal parameters the one with more batches takes longer.
            own[number] = one.described.parameters, run.rows_of(model) / model.asked.batch_size
    for costs in (own, dict.fromkeys(sorted(requested), 0)):
        taken = {model.build.position for model in run.models.values() if model.build.position is not None}
        for number, position in ring_positions(costs, taken).items():
            run.models[number].build.position = position


def described_for_sure(team: Team, run: Run, models: Sequence[Model]) -> dict[int, Built | CerebroError]:
    """As ``described``, tried again where a trainer or a session died: that says little about a model.

    Both are counted, but apart: a model is given up only for crashes of its own trainer.
    """
    answers: dict[int, Built | CerebroError] = {}
    crashes: Counter[int] = Counter()
    lost = 0
    while missing := [model for model in models if model.number not in answers]:
        try:
            found = described(team, run, missing)
        except psycopg2.Error as error:
            lost += 1
            run.segments_lost |= team.platform.lost_a_segment(error)
            if lost >= MOST_TRIES or not session_was_lost(error, team.platform):
                raise failure_of("a worker session", error, team.platform) from error
            team.reopen()
            continue
        for number, answer in found.items():
            if isinstance(answer, (TrainerFailed, RowsLost)):
                crashes[number] += 1
                if crashes[number] < MOST_TRIES:
                    continue
                text = f"gave up after {MOST_TRIES} attempts: {answer.message}"
                kind = TrainerKilled if isinstance(answer, TrainerKilled) else TrainerFailed
                answer = kind(text, hint=answer.hint, detail=answer.detail)
            answers[number] = answer
    return answers


def described(team: Team, run: Run, models: Sequence[Model]) -> dict[int, Built | CerebroError]:
    """For each model what a trainer says of it, or the error why it cannot be built."""
    forms = engine_choice.by_form(run, models)
    # An engine trial takes the first model of a form.  Forms may share a program, and trainers that try it at the same
    # time should not all compile it for the same batch size: what one compiles, the others load.
    forms = {
        form: engine_trials.typical_first(alike, number % len(team.workers))
        for number, (form, alike) in enumerate(forms.items())
    }
    engines = {form: alike[0].build.engine for form, alike in forms.items() if alike[0].build.engine}
    ahead = _built_ahead(team, run, forms)
    answers: dict[Task, Answer] = {}

    async def look_at(worker: Worker, tasks: list[Task]) -> dict[Task, Answer]:
        found: dict[Task, Answer] = {}
        # If a trainer dies here, the visits will deal with it. A missing GPU is met again, here or by a visit.
        with contextlib.suppress(Refused, GpuMissing):
            await team.read(worker, run.source, worker.segment)  # while the framework is imported
        if not tasks and worker.segment in ahead:
            with contextlib.suppress(Refused, GpuMissing):
                await team.order(worker, ahead[worker.segment])
        for form, engine in tasks:
            try:
                found[form, engine] = await describe(worker, form, engine)
            except Refused as refused:
                found[form, engine] = refused.error
            except GpuMissing as missing:
                if form in engines:
                    raise
                found[form, engine] = missing  # another engine may find it
        return found

    async def describe(worker: Worker, form: str, engine: str) -> Described:
        one, *others = forms[form]
        definitions = [other.asked.definition for other in others]
        if form in engines:
            return await team.order(
                worker,
                protocol.Describe(
                    configuration=one.asked.definition,
                    layout=run.source.for_trainer,
                    others=definitions,
                    engine=engine,
                    seed=one.asked.seed,
                ),
            )
        handle, _ = await team.read(worker, run.source, worker.segment)
        return await team.order(
            worker,
            protocol.TryEngine(configuration=one.asked.definition, handle=handle, others=definitions, engine=engine),
        )

    def ask(tasks: list[Task]) -> None:
        if not tasks:
            return
        shares: dict[int, list[Task]] = {worker.segment: [] for worker in team.workers}
        for engine in {engine: None for _, engine in tasks}:
            # Prefer the segments whose trainers have started with that engine: others would have to start one more.
            workers = [
                worker for worker in team.workers if team.options.engine(worker.segment) == engine
            ] or team.workers
            for number, task in enumerate(task for task in tasks if task[1] == engine):
                shares[workers[number % len(workers)].segment].append(task)
        # A segment without a task reads its rows meanwhile, and builds what it is going to train.
        work = {
            segment: look_at(team.workers[segment], share)
            for segment, share in shares.items()
            if share or not team.workers[segment].verified
        }
        for found in team.run_all(work).values():
            answers.update(found)

    undecided = {form: alike for form, alike in forms.items() if form not in engines}
    reasons: dict[str, dict[str, Any]] = {}
    first = engine_choice.first_tried(run)
    known = {
        form for form, alike in undecided.items() if alike[0].build.earlier and first in alike[0].build.earlier.figures
    }
    ask([(form, engines.get(form, first)) for form in forms if form not in known])
    ask(engine_trials.still_to_try(run, engine_trials.programs_of(undecided, answers)))
    for form, (engine, why) in engine_trials.chosen(run, engine_trials.programs_of(undecided, answers)).items():
        engines[form], reasons[form] = engine, why
    ask([(form, engine) for form, engine in engines.items() if (form, engine) not in answers])
    result: dict[int, Built | CerebroError] = {}
    for form, engine in engines.items():
        found = answers[form, engine]
        for place, model in enumerate(forms[form]):
            if isinstance(found, CerebroError):
                result[model.number] = found
            else:
                result[model.number] = Built(found, engine, found.fusion_keys[place], reasons.get(form, {}))
    return result


def _built_ahead(team: Team, run: Run, forms: Mapping[str, list[Model]]) -> dict[int, protocol.Describe]:
    """What each segment builds while others describe models: its first visit would have to wait for that.

    Not where a model does not visit all segments, where segments share a process or a processor, or while it is open
    which engine trains.
    """
    if run.source.has_groups or run.options.in_session or len(team.workers) > cores():
        return {}
    if any(alike[0].build.engine is None for alike in forms.values()):
        return {}
    models = [model for alike in forms.values() for model in alike]
    return {
        worker.segment: protocol.Describe(
            configuration=model.asked.definition,
            layout=run.source.for_trainer,
            engine=model.build.engine,
            seed=model.asked.seed,
            compiles=False,
        )
        for worker, model in zip(team.workers, itertools.cycle(models))
    }


def require_room(figures: limits.Figures, recorder: Session, run: Run) -> None:
    if figures["state_bytes"][0] is not None:
        stored = recorder.run(
            sql(
                "SELECT COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n"
                " ON n.oid = c.relnamespace WHERE n.nspname = {} AND {} ~ '^run_[0-9a-f]{{12}}$'"
                " AND starts_with(c.relname::text, {}) AND pg_get_userbyid(c.relowner) = current_user"
            ),
            (STATE_SCHEMA, run.storage, f"{run.storage}_"),
        )[0][0]
        limits.require_states(figures, state_tables.most_bytes(run), stored)


def say_features(db: Database, run: Run, built: Mapping[int, Built]) -> FeaturePlan | None:
    """Say which layers are computed once for each row, and what that takes."""
    found: dict[tuple[int, int], set[int]] = {}
    without: set[int] = set()
    for number, one in built.items():
        if one.described.feature_bytes:
            form = one.described.frozen_layers, one.described.feature_bytes
            found.setdefault(form, set()).add(run.models[number].key)
        else:
            without.add(run.models[number].key)
    if without and run.options.trainer.reuse in (AUTO_REUSE, ALL_REUSE):
        db.notice(
            f"the option reuse keeps nothing for {counted(len(without), 'configuration')}: no frozen layers at the"
            " beginning of the model give features that can be kept",
            "The features end before the first layer that trains, or that depends on chance, such as Dropout, or on the"
            " batch. docs/experts.md says more.",
        )
    rows = rows_of(run.source)
    for (layers, size), keys in found.items():
        where = "" if run.options.trainer.reuse == ALL_REUSE else ", where that is faster"
        db.detail(
            f"{counted(len(keys), 'configuration')} with {counted(layers, 'frozen layer')}: the outputs of these are"
            f" computed once for each row{where} ({megabytes(size * rows)} for each set of frozen weights)"
        )
    if not found:
        return None
    limit = (run.options.trainer.features_mb << 20) * run.segments
    planned = frozen_feature_plan.plan(
        _wanted_features(run, built), limit, all_pay=run.options.trainer.reuse == ALL_REUSE
    )
    db.detail(
        f"features: {_megabytes(planned.bytes)} are kept; computing them takes about {planned.computing:.1f} s of the"
        f" segments' time, and computing them in each pass would take about {planned.without:.1f} s"
    )
    return planned


def _wanted_features(run: Run, built: Mapping[int, Built]) -> list[WantedFeatures]:
    """By data set, and by what gives them: the layers and their weights."""
    rows: dict[str, int] = {DataSetName.TRAINING.value: rows_of(run.source)}
    if run.validation is not None:
        rows[DataSetName.VALIDATION.value] = rows_of(run.validation)
    visited: Counter[tuple[str, str, int]] = Counter()
    of_key: dict[tuple[str, str, int], Described] = {}
    for number, one in built.items():
        model = run.models[number]
        if not one.described.features:
            continue
        # Random weights differ from configuration to configuration.
        seed = model.asked.seed if model.asked.initial is Initial.RANDOM else 0
        for dataset in rows:
            key = dataset, one.described.features, seed
            of_key[key] = one.described
            if dataset == DataSetName.TRAINING.value:
                visited[key] += run.epochs * run.rows_of(model)
            else:
                visited[key] += -(-run.epochs // run.evaluate_every) * rows[dataset]
    return [
        WantedFeatures(rows[key[0]], its.feature_bytes, its.feature_seconds, visited[key])
        for key, its in of_key.items()
    ]


def rows_of(data: DataSet) -> int:
    return sum(partition.rows for partition in data.partitions)


def say_features_used(db: Database, used: FeatureUse, planned: FeaturePlan | None) -> None:
    expected = ""
    if planned is not None:
        expected = f" (expected: {planned.computing:.1f} s, and {planned.saved:.1f} s)"
    db.detail(
        f"features: {_megabytes(used.bytes)} were kept; computing them took {used.computing:.1f} s of the segments'"
        f" time, and keeping them saved about {used.saved:.1f} s{expected}"
    )


def _megabytes(size: int) -> str:
    return megabytes(size) if size else "none"


def say_needs(db: Database, run: Run) -> None:
    """Say what the run will take of the machine, and warn where it has less."""
    disk = state_tables.most_bytes(run)
    largest_part = max(partition.bytes for partition in run.source.partitions)
    models = run.models.values()
    largest_state = max((model.state_bytes for model in models if not model.build.memory.is_cut), default=0)
    cut = max((model.build.memory.needed_mb << 20 for model in models if model.build.memory.is_cut), default=0)
    memory = max(
        memory_of_trainers(run.segments, largest_state, largest_part),
        memory_of_trainers(run.segments, 0, largest_part) + run.segments * cut,
    )
    db.detail(
        f"up to {megabytes(disk)} of disk for model states and about {megabytes(memory)} of memory"
        f" for {counted(run.segments, 'trainer')}"
    )
    free_disk, free_memory = room(Path.cwd()), memory_available()
    if free_disk is not None and disk > free_disk:
        db.warning(
            f"only {megabytes(free_disk)} of disk are free",
            hint="Train fewer or smaller configurations at once, or make room: a run can be resumed.",
        )
    if free_memory is not None and memory > free_memory:
        db.warning(
            f"only {megabytes(free_memory)} of memory are available",
            hint="Pack into fewer segments: cerebro.pack_plain(..., segments => 1).",
        )
