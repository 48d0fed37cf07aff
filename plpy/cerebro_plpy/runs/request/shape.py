"""The plan of a run: in which shape it trains, by what earlier runs have measured of models of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro_db.core.architecture import trees
from cerebro_db.core.engines import AUTO, AUTO_ENGINES, DISPLAY_NAMES
from cerebro_db.core.options import GivenOptions
from cerebro_db.core.planning.model_shapes import ModelShapes
from cerebro_db.core.planning.run_shapes import Possible, RunWork, WorkModel, plan_shapes
from cerebro_db.core.planning.shape_plan import PricedShape, ShapePlan
from cerebro_db.core.planning.speed_profile import SpeedProfile
from cerebro_db.core.run_options import RunOptions
from cerebro_db.core.texts import counted

from ...database.access import Database
from ...packing.packed import Packed
from ...platform import machine
from ..record.log import asking, read_profile
from ..record.run import DEFAULT_BATCH

Definition = Mapping[str, Any]  # of a configuration: architecture, compile and fit parameters


def with_plan(
    db: Database,
    source: Packed,
    validation: Packed | None,
    definitions: Sequence[Definition],
    given: GivenOptions,
    chosen: RunOptions,
    *,
    epochs: int,
    evaluate_every: int,
) -> RunOptions:
    """The options with the plan of the run, and with the threads that it has chosen."""
    possible = _possible(given, chosen)
    if why := _by_the_plain_rules(source, definitions, chosen):
        plain = PricedShape(possible.engine, possible.threads, parallel=possible.parallel, why=why)
        return replace(chosen, plan=ShapePlan(plain))
    models = _models(source, definitions, chosen)
    profile = SpeedProfile(cores=possible.cores)
    if not chosen.trainer.deterministic:  # such a run is the same, whatever was measured
        where = machine.described(bool(chosen.gpus))
        profile = read_profile(asking(db), where, possible.cores, {one.shapes for one in models})
    parts = [part.rows for part in validation.layout.partitions if part.rows] if validation is not None else []
    work = RunWork(
        models=models,
        segments=len(source.layout.partitions),
        epochs=epochs,
        parts=len(parts),
        rows_of_part=sum(parts) / len(parts) if parts else 0.0,
        evaluate_every=evaluate_every,
    )
    plan = plan_shapes(work, possible, profile)
    return replace(chosen, plan=plan, trainer=replace(chosen.trainer, threads=plan.chosen.threads))


def _by_the_plain_rules(source: Packed, definitions: Sequence[Definition], chosen: RunOptions) -> str:
    """Why nothing is compared; empty: shapes are."""
    if chosen.in_session:
        return "the plain rules: the run trains in its caller's session, on one segment after the other"
    if chosen.averaging:
        return "the plain rules: averaging keeps all segments busy"
    if not definitions:
        return "the plain rules: a search keeps all segments busy, and chooses its models later"
    if source.dataset.has_groups:
        return "the plain rules: the models of groups keep all segments busy"
    if any(trees.are_grown(one["architecture"]) for one in definitions):
        return "the plain rules: trees have no profile"
    return ""


def tell(db: Database, plan: ShapePlan, segments: int) -> None:
    """Say what a dry run has planned, if it had a choice."""
    if not plan.models:
        return
    known = f"Known from earlier runs: {plan.measured} of {counted(plan.models, 'model')}."
    db.notice(f"plan: {in_words(plan.chosen, segments)}: {plan.chosen.why}", known)
    for one in plan.others:
        db.notice(f"instead: {in_words(one, segments)}: {one.why}")


def in_words(one: PricedShape, segments: int) -> str:
    engine = one.engine if one.engine == AUTO else DISPLAY_NAMES[one.engine]
    took = f", about {one.seconds:,.1f} s of training" if one.seconds is not None else ""
    return f"{engine}, {counted(one.threads, 'thread')} on each of {counted(segments, 'segment')}, {one.parallel}{took}"


def _possible(given: GivenOptions, chosen: RunOptions) -> Possible:
    fixed = {}
    if chosen.trainer.deterministic:
        fixed["threads"] = "the option deterministic fixes the plan"
    elif chosen.replay is not None:
        fixed["threads"] = f"as in run {chosen.replay}, which is replayed"
    elif "threads" in given:
        fixed["threads"] = "the option threads"
    elif chosen.gpus:
        fixed["threads"] = "trainers compute on GPUs"
    engines = chosen.among if chosen.engine == AUTO else (chosen.engine,)
    if "engine" in given:
        fixed["engine"] = f"the option engine is {given['engine']}"
    return Possible(
        engines=engines,
        threads=chosen.trainer.threads or 1,
        cores=machine.cores(),
        others=() if chosen.trainer.deterministic else tuple(one for one in AUTO_ENGINES if one not in engines),
        fixed=fixed,
        parallel=chosen.parallel,
    )


def _models(source: Packed, definitions: Sequence[Definition], chosen: RunOptions) -> list[WorkModel]:
    """The models of the configurations; with folds, one for each fold, too."""
    rows = [part.rows for part in source.layout.partitions]
    if chosen.visit_rows is not None:
        rows = [min(one, chosen.visit_rows) for one in rows]
    shapes, models = ModelShapes(source.dataset.for_trainer), []
    for one in definitions:
        fit = one["fit"]
        batch_size = fit.get("batch_size") or DEFAULT_BATCH
        most = fit["steps_per_epoch"] * batch_size if fit.get("steps_per_epoch") else None
        trained = sum(rows if most is None else (min(each, most) for each in rows)) * int(fit.get("epochs", 1))
        models.append(WorkModel(shapes.of(one), batch_size, float(trained)))
    folds = source.dataset.folds
    return models + [replace(one, rows=one.rows * (folds - 1) / folds) for one in models for _ in range(folds)]
