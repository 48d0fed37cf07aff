"""Which engine trains a configuration: the one that is named, the one that a run which is replayed had, what an
earlier trial of something alike says, or what a trial now will."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cerebro_db.core.engines import AUTO, NAMES, cheapest
from cerebro_db.core.errors import CerebroError

from .db import Database
from .runs import Configuration, Run
from .sessions import Session
from .team import Team

DEFAULT_BATCH = 32  # Keras'
Figures = dict[str, dict[str, float]]  # of a trial, by engine: seconds to build, compile and train a batch


def choose(run: Run, recorder: Session) -> None:
    """Before any trainer is started: the engine of each configuration for which there need be no trial now."""
    if run.options["engine"] != AUTO:
        for configuration in run.configurations.values():
            configuration.engine = run.options["engine"]
        return
    fresh = [configuration for configuration in run.configurations.values() if not configuration.built]
    if fresh and "replay" in run.options:
        chosen = engines_of(recorder, run.options["replay"])
        for configuration in fresh:
            configuration.engine = chosen.get(configuration.place, "")
    elif fresh:
        recall(run, recorder, fresh)
    open_with(run.options, run)


def open_with(options: dict[str, Any], run: Run) -> None:
    """Have trainers start with the engines that are needed, once they are known."""
    used = Counter(configuration.engine for configuration in run.configurations.values())
    if "" not in used:
        options["among"] = [engine for engine, _ in used.most_common()]


def engines_of(recorder: Session, run_id: int) -> dict[int, str]:
    """By place; none where a configuration was never built."""
    return dict(
        recorder.run(
            "SELECT c.place, e.detail ->> 'engine' FROM cerebro.event e"
            " JOIN cerebro.configuration c USING (run, owner, mst_key)"
            " WHERE run = %s AND owner = current_user AND event = 'built'",
            (run_id,),
        )
    )


def recall(run: Run, recorder: Session, fresh: Sequence[Configuration]) -> None:
    """Choose by what trials of the same user's runs have found; nothing where there was none."""
    forms: dict[str, list[Configuration]] = {}
    for configuration in fresh:
        forms.setdefault(form_of(run, configuration), []).append(configuration)
    earlier = recorder.run(
        "SELECT DISTINCT ON (detail ->> 'form') detail ->> 'form', detail ->> 'program', detail ->> 'tried', run"
        " FROM cerebro.event"
        " WHERE owner = current_user AND event = 'built' AND detail ->> 'form' = ANY (%s)"
        " ORDER BY detail ->> 'form', event_id DESC",
        (list(forms),),
    )
    alike: dict[str, list[Configuration]] = {}  # of one program, which is compiled once for all of them
    for form, program, _, _ in earlier:
        alike.setdefault(program, []).extend(forms[form])
    for form, program, tried, run_id in earlier:
        # An engine may have been installed since. And users can write events of their own.
        with contextlib.suppress(LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
            figures = json.loads(tried)
            if set(figures) == set(run.options["among"]):
                trial = weighed(run, alike[program], figures)
                json.dumps(trial, allow_nan=False)
                for configuration in forms[form]:
                    configuration.engine, configuration.trial = next(iter(trial)), {"trial": trial, "of_run": run_id}


def form_of(run: Run, configuration: Configuration) -> str:
    """The same for configurations that are built alike and as fast: they differ in the optimizer's numbers at most."""
    compiled = configuration.definition["compile"]
    optimizer = {**compiled["optimizer"], "config": sorted(compiled["optimizer"].get("config") or {})}
    layout = {side: run.source.layout[side] for side in ("inputs", "outputs")}
    machine = [run.options["threads"], bool(run.options.get("gpus"))]
    form = [configuration.definition["architecture"], {**compiled, "optimizer": optimizer}, layout, machine]
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()[:32]


def chosen(run: Run, alike: Sequence[Configuration], answers: dict[str, list[Any]]) -> tuple[str, dict[str, Any]]:
    """The engine that will train configurations of one program, after their trials, and why if there was a choice."""
    able = {engine: found for engine, found in answers.items() if not any(isinstance(f, CerebroError) for f in found)}
    if len(able) < 2:
        return next(iter(able or answers)), {}
    figures = {
        engine: {name: max(one[name] for one in found) for name in ("build", "compile", "batch")}
        for engine, found in able.items()
    }
    trial = weighed(run, alike, figures)
    return next(iter(trial)), {"trial": trial, "tried": figures}


def weighed(run: Run, alike: Sequence[Configuration], figures: Figures) -> dict[str, float]:
    """What each engine would take for all that a segment has to do with these configurations; the best first."""
    rows = [run.rows_of(one) * run.epochs / run.segments for one in alike]
    batches = sum(mine / batch_size(one) for mine, one in zip(rows, alike))
    return cheapest(figures, map(batch_size, alike), batches, run.segments)


def batch_size(configuration: Configuration) -> int:
    return configuration.definition["fit"].get("batch_size") or DEFAULT_BATCH


def typical_first(alike: Sequence[Configuration]) -> list[Configuration]:
    """First who has a batch size with which, if all had it, there would be as many batches as there are."""
    typical = len(alike) / sum(1 / batch_size(one) for one in alike)
    return sorted(alike, key=lambda one: abs(math.log(batch_size(one) / typical)))


def tell(db: Database, run: Run, team: Team) -> None:
    """Once all are built: say what was chosen, and end the trainers that nobody needs."""
    used = Counter(c.engine for c in run.configurations.values() if c.engine)
    dismissal = {"work": "dismiss", "but": list(used)}
    team.run_all({seat.segment: team.order(seat, dismissal) for seat in team.seats})
    open_with(team.options, run)
    shares = [f"{number} with {NAMES[engine]}" for engine, number in used.most_common()]
    db.notice(f"run {run.id}: of {len(run.configurations)} configurations, {' and '.join(shares)}")
