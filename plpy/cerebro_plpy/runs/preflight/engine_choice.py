"""Which engine trains a model: the one that the user names, the one that a replayed run had, or the faster one.

The faster engine is known from an earlier trial of something alike, or a trial now finds it.  A run begins with the
engine that is expected to be faster.  It tries another only where there is enough to do for that to pay: starting a
second framework takes longer than many a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cerebro_db.core.engines import (
    AUTO,
    NEVER_SHARD,
    estimated_seconds,
    expected_faster,
    known_faster,
)
from cerebro_db.core.events import Initial

from ...sessions.team_options import TeamOptions
from ..record.log import RunLog
from ..record.run import EarlierTrial, Figures, Model, Run
from ..record.speeds import RunSpeeds


def choose(run: Run, log: RunLog, speeds: RunSpeeds) -> Sequence[str]:
    """Before any trainer is started: the engine of each model for which no trial is needed now.

    Returns the engines that trainers start with, that of most models first.
    """
    if run.options.engine != AUTO:
        for model in run.models.values():
            model.build.engine = run.options.engine
        return [run.options.engine]
    fresh = [model for model in run.models.values() if not model.build.done]
    if fresh and run.options.replay is not None:
        earlier = RunLog(log.ask, run.options.replay).plan.built()
        for model in fresh:
            model.build.engine, _ = earlier.get(model.number, ("", None))
    elif fresh:
        recall(run, log, fresh)
        recall_alike(run, speeds, [model for model in fresh if not model.build.engine])
        settle_convolutions(run, [model for model in fresh if not model.build.engine])
    first = first_tried(run)
    # A search may have no models yet.
    wanted = Counter(model.build.engine or first for model in run.models.values()) or Counter([first])
    return [engine for engine, _ in wanted.most_common()]


def team_options(run: Run, engines: Sequence[str]) -> TeamOptions:
    """What the run's team is started with."""
    options = run.options
    trainer = options.trainer if run.why_whole is None else replace(options.trainer, shard=NEVER_SHARD)
    return TeamOptions(tuple(engines), trainer, options.gpus, options.synchronous_commit)


def first_tried(run: Run) -> str:
    """The engine that is tried first with the models for which none is chosen yet.

    A run with convolutions needs TensorFlow, so other models are tried with that, too: to start another engine takes
    seconds.
    """
    architectures = {model.asked.model_id: model.asked.definition["architecture"] for model in run.models.values()}
    return expected_faster(architectures.values(), bool(run.options.gpus))


def settle_convolutions(run: Run, undecided: Sequence[Model]) -> None:
    """Where the answer is known, a trial would only cost time."""
    known: dict[int, str | None] = {}  # by architecture: thousands of models may share one
    for model in undecided:
        if model.asked.model_id not in known:
            known[model.asked.model_id] = known_faster(model.asked.definition["architecture"], bool(run.options.gpus))
        if engine := known[model.asked.model_id]:
            others = [other for other in run.options.among if other != engine]
            model.build.engine = engine
            model.build.trial = {
                "untried": {other: "on processors it takes longer for convolutions" for other in others}
            }


def of_added(run: Run, model: Model) -> str:
    """The engine of a model that is added while the run goes on, and is like no other: nothing is tried any more.

    The engine that has built most of the run's models is likely to build this one, too.
    """
    if run.options.engine != AUTO:
        return run.options.engine
    architecture, gpus = model.asked.definition["architecture"], bool(run.options.gpus)
    built = Counter(one.build.engine for one in run.models.values() if one.build.done and one.build.engine)
    common = [engine for engine, _ in built.most_common(1)]
    return known_faster(architecture, gpus) or (common or [expected_faster([architecture], gpus)])[0]


def instead(run: Run, model: Model) -> str | None:
    """Another engine for a model that its engine cannot build; None if there is none, or if the user chose it."""
    if run.options.engine != AUTO or model.hops or model.asked.initial == Initial.FULL:
        return None
    model.build.unable.add(model.build.engine)
    return next((engine for engine in run.options.among if engine not in model.build.unable), None)


def recall(run: Run, log: RunLog, fresh: Sequence[Model]) -> None:
    """Choose by what trials of the same user's earlier runs found."""
    forms = by_form(run, fresh)
    earlier = log.events.earlier_trials(list(forms))
    by_program: dict[str, list[Model]] = {}  # a program is compiled once for all of its models
    for form, program, *_ in earlier:
        by_program.setdefault(program, []).extend(forms[form])
    for form, program, tried, refused, run_id in earlier:
        # An engine may have been installed since.  And users can write events of their own, with any content.
        with contextlib.suppress(LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError):
            told, said = json.loads(tried), json.loads(refused or "{}")
            figures = {engine: told[engine] for engine in run.options.among if engine in told}
            refusals = {engine: said[engine] for engine in run.options.among if engine in said}
            trial = weighed(run, by_program[program], figures)
            json.dumps([trial, refusals], allow_nan=False)
            for model in forms[form]:
                if figures and {*figures, *refusals} == {*run.options.among}:
                    model.build.engine, model.build.trial = next(iter(trial)), {"trial": trial, "of_run": run_id}
                    model.build.trial.update({"refused": refusals} if refusals else {})
                elif figures:
                    model.build.earlier = EarlierTrial(run_id, figures, program)


def recall_alike(run: Run, speeds: RunSpeeds, undecided: Sequence[Model]) -> None:
    """Choose by what was measured of models of the same shapes, where that is known of all engines."""
    for alike in by_form(run, undecided).values():
        found = speeds.engine_figures(alike[0])
        if found is None:
            continue
        figures, run_id = found
        trial = weighed(run, alike, figures)
        for model in alike:
            model.build.engine, model.build.trial = next(iter(trial)), {"trial": trial, "of_run": run_id}


def by_form(run: Run, models: Sequence[Model]) -> dict[str, list[Model]]:
    """The models of each form.  Those of one configuration, which may be thousands, have one form."""
    forms: dict[str, list[Model]] = {}
    of_key: dict[int, str] = {}
    for model in models:
        if model.key not in of_key:
            of_key[model.key] = form_of(run, model)
        forms.setdefault(of_key[model.key], []).append(model)
    return forms


def form_of(run: Run, model: Model) -> str:
    """Equal for models that are built alike and equally fast: they differ at most in the optimizer's numbers."""
    compiled = model.asked.definition["compile"]
    optimizer = {**compiled["optimizer"], "config": sorted(compiled["optimizer"].get("config") or {})}
    machine = [run.options.trainer.threads, bool(run.options.gpus)]
    form = [
        model.asked.definition["architecture"],
        {**compiled, "optimizer": optimizer},
        run.source.for_trainer,
        machine,
    ]
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()[:32]


def weighed(run: Run, alike: Sequence[Model], figures: Figures) -> dict[str, float]:
    """What each engine would take for all that a segment has to do with these models, the best engine first."""
    rows = [run.rows_of(model) * run.epochs / run.segments for model in alike]
    batches = sum(mine / model.asked.batch_size for mine, model in zip(rows, alike))
    return estimated_seconds(figures, [model.asked.batch_size for model in alike], batches, run.segments)
