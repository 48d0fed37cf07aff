"""Trials of engines in preflight: what to try next, what the trials say, and which engine will train a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg2

from cerebro_db.core import protocol
from cerebro_db.core.engines import DISPLAY_NAMES, SECOND_TRIAL_SECONDS
from cerebro_db.core.errors import CerebroError, DiskFull, GpuMissing, OutOfResources, TrainerFailed
from cerebro_db.core.protocol import Described, EngineTried
from cerebro_db.core.records import dataclass, field

from ...database.access import Database
from ...sessions.failures import failure_of, session_was_lost
from ...sessions.team import Team
from ..record.run import Figures, Model, Run
from .engine_choice import weighed

PASSING = (TrainerFailed, OutOfResources, DiskFull, GpuMissing)  # errors that say little about a model


@dataclass
class TrialProgram:
    """The models of some forms, which share one compiled program, and what engine trials say of it."""

    name: str
    forms: list[str] = field(default_factory=list)
    alike: list[Model] = field(default_factory=list)
    figures: Figures = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)  # engine -> why it cannot train it
    crashes: dict[str, str] = field(default_factory=dict)  # engine -> how it failed now; later it may not
    tried: bool = False  # now, not by an earlier run alone

    def add(self, form: str, alike: Sequence[Model], answers: Mapping[str, Described | CerebroError]) -> None:
        self.forms.append(form)
        self.alike += alike
        self.tried |= bool(answers)
        earlier = alike[0].build.earlier
        for engine, figures in (earlier.figures if earlier else {}).items():
            if engine not in answers:
                self._worst(engine, figures)
        for engine, answer in answers.items():
            if isinstance(answer, PASSING):
                self.crashes[engine] = answer.message
            elif isinstance(answer, CerebroError):
                self.refusals[engine] = answer.message
            elif isinstance(answer, EngineTried):
                self._worst(engine, {"build": answer.build, "compile": answer.compile, "batch": answer.batch})

    def _worst(self, engine: str, figures: Mapping[str, float]) -> None:
        worst = self.figures.setdefault(engine, dict.fromkeys(("build", "compile", "batch"), 0.0))
        worst.update({name: max(seconds, figures[name]) for name, seconds in worst.items()})

    def weighed(self, run: Run) -> dict[str, float]:
        able = {engine: figures for engine, figures in self.figures.items() if engine not in self.unable}
        return weighed(run, self.alike, able)

    @property
    def unable(self) -> dict[str, str]:
        """The engines that cannot train it now: first those that may do better another time."""
        return {**self.crashes, **self.refusals}

    def left(self, run: Run) -> float:
        """Seconds for which a segment has to train it with the best engine so far."""
        trial = self.weighed(run)
        best = next(iter(trial), None)
        return 0.0 if best is None else trial[best] - self.figures[best]["build"] - self.figures[best]["compile"]


def programs_of(
    forms: Mapping[str, Sequence[Model]], answers: Mapping[tuple[str, str], Described | CerebroError]
) -> list[TrialProgram]:
    """What is known of the models of each form after these answers to trials, by form and engine."""
    programs: dict[str, TrialProgram] = {}
    for form, alike in forms.items():
        mine = {engine: answer for (its, engine), answer in answers.items() if its == form}
        names = [answer.program for answer in mine.values() if isinstance(answer, EngineTried)]
        earlier = alike[0].build.earlier
        name = names[0] if names else earlier.program if earlier else form
        programs.setdefault(name, TrialProgram(name)).add(form, alike, mine)
    return list(programs.values())


def still_to_try(run: Run, programs: Sequence[TrialProgram]) -> list[tuple[str, str]]:
    """The (form, engine) to try next: where there is enough to do, or no engine could train it yet."""
    pays = sum(program.left(run) for program in programs) > SECOND_TRIAL_SECONDS
    return [
        (form, engine)
        for program in programs
        if pays or not program.weighed(run)
        for engine in run.options.among
        if engine not in {*program.figures, *program.unable}
        for form in program.forms
    ]


def chosen(run: Run, programs: Sequence[TrialProgram]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Form -> the engine that will train it, and why."""
    left = sum(program.left(run) for program in programs)
    too_little = f"a segment has {left:.1f} s of training to do; finding out pays from {SECOND_TRIAL_SECONDS:.0f} s on"
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for program in programs:
        trial = program.weighed(run)
        for form in program.forms:
            if not trial:
                found[form] = next(iter(program.unable)), {}
                continue
            why: dict[str, Any] = {"trial": trial}
            if program.refusals:
                why["refused"] = program.refusals
            untried = {*run.options.among} - {*trial, *program.refusals}
            if untried:
                why["untried"] = {engine: program.crashes.get(engine, too_little) for engine in untried}
            if program.tried:
                why.update(tried={e: program.figures[e] for e in trial}, form=form, program=program.name)
            else:
                why["of_run"] = program.alike[0].build.earlier.run  # type: ignore[union-attr]
            found[form] = next(iter(trial)), why
    return found


def typical_first(alike: Sequence[Model], rank: int = 0) -> list[Model]:
    """First the model whose batch size, if all models had it, would make as many batches as there are.

    ``rank``: of the batch sizes, the most typical one (0) comes first, or the next one (1), and so on.  The time of a
    trial's batch stands for all batches, so none comes first that is less than half or more than twice the typical one.
    """
    typical = len(alike) / sum(1 / model.asked.batch_size for model in alike)
    ordered = sorted(alike, key=lambda model: abs(math.log(model.asked.batch_size / typical)))
    sizes = list(dict.fromkeys(model.asked.batch_size for model in ordered))
    near = [size for size in sizes if typical / 2 <= size <= typical * 2] or sizes[:1]
    first = near[rank % len(near)]
    return sorted(ordered, key=lambda model: model.asked.batch_size != first)


def tell(db: Database, run: Run, team: Team) -> None:
    """Say which engines were chosen, and end the trainers of all others."""
    used = Counter(model.build.engine for model in run.models.values() if model.build.engine)
    order = protocol.KeepEngines(list(used))
    team.options = replace(team.options, engines=tuple(engine for engine, _ in used.most_common()))
    try:
        team.run_all({worker.segment: team.order(worker, order) for worker in team.workers})
    except psycopg2.Error as error:
        if not session_was_lost(error, team.platform):
            raise failure_of("a worker session", error, team.platform) from error
        team.reopen()  # with new trainers, of these engines only
    shares = [f"{number} with {DISPLAY_NAMES[engine]}" for engine, number in used.most_common()]
    db.detail(f"run {run.id}: of {len(run.models)} configurations, {' and '.join(shares)}")
