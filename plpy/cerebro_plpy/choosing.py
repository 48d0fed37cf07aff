"""Which engine trains a configuration: the one that is named, the one that a run which is replayed had, what an
earlier trial of something alike says, or what a trial now will.

A run begins with the engine that is the likelier one for it, and tries another only where there is enough to do for
that to pay: to start a second framework takes longer than many a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro_db.core.engines import AUTO, FINDING_OUT, NAMES, cheapest, likelier
from cerebro_db.core.errors import CerebroError, DiskFull, OutOfResources, TrainerFailed

from .db import Database
from .runs import Configuration, Earlier, Figures, Run, built_in
from .sessions import Session
from .team import Team

DEFAULT_BATCH = 32  # Keras'
PASSING = (TrainerFailed, OutOfResources, DiskFull)  # what says little about a configuration


def choose(run: Run, recorder: Session) -> None:
    """Before any trainer is started: the engine of each configuration for which there need be no trial now."""
    if run.options["engine"] != AUTO:
        for configuration in run.configurations.values():
            configuration.engine = run.options["engine"]
        return
    fresh = [configuration for configuration in run.configurations.values() if not configuration.built]
    if fresh and "replay" in run.options:
        earlier = built_in(recorder, run.options["replay"])
        for configuration in fresh:
            configuration.engine, _ = earlier.get(configuration.place, ("", None))
    elif fresh:
        recall(run, recorder, fresh)
    first = first_tried(run)
    start_with(run.options, Counter(configuration.engine or first for configuration in run.configurations.values()))


def start_with(options: dict[str, Any], engines: Counter[str]) -> None:
    """The engines of trainers that are opened from now on."""
    options["start_with"] = [engine for engine, _ in engines.most_common()]


def first_tried(run: Run) -> str:
    """The engine that is tried first with the configurations for which none is chosen yet."""
    undecided = [one.definition["architecture"] for one in run.configurations.values() if not one.engine]
    return likelier(undecided, bool(run.options.get("gpus")))


def recall(run: Run, recorder: Session, fresh: Sequence[Configuration]) -> None:
    """Choose by what trials of the same user's runs have found; nothing where there was none."""
    forms: dict[str, list[Configuration]] = {}
    for configuration in fresh:
        forms.setdefault(form_of(run, configuration), []).append(configuration)
    earlier = recorder.run(
        "SELECT DISTINCT ON (detail ->> 'form') detail ->> 'form', detail ->> 'program', detail ->> 'tried',"
        " detail ->> 'refused', run"
        " FROM cerebro.event"
        " WHERE owner = current_user AND event = 'built' AND detail ->> 'form' = ANY (%s)"
        " ORDER BY detail ->> 'form', event_id DESC",
        (list(forms),),
    )
    alike: dict[str, list[Configuration]] = {}  # of one program, which is compiled once for all of them
    for form, program, *_ in earlier:
        alike.setdefault(program, []).extend(forms[form])
    for form, program, tried, refused, run_id in earlier:
        # An engine may have been installed since. And users can write events of their own.
        with contextlib.suppress(LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError):
            told, said = json.loads(tried), json.loads(refused or "{}")
            figures = {engine: told[engine] for engine in run.options["among"] if engine in told}
            refusals = {engine: said[engine] for engine in run.options["among"] if engine in said}
            trial = weighed(run, alike[program], figures)
            json.dumps([trial, refusals], allow_nan=False)
            for configuration in forms[form]:
                if figures and {*figures, *refusals} == {*run.options["among"]}:
                    configuration.engine, configuration.trial = next(iter(trial)), {"trial": trial, "of_run": run_id}
                    configuration.trial.update({"refused": refusals} if refusals else {})
                elif figures:
                    configuration.earlier = Earlier(run_id, figures, program)


def form_of(run: Run, configuration: Configuration) -> str:
    """The same for configurations that are built alike and as fast: they differ in the optimizer's numbers at most."""
    compiled = configuration.definition["compile"]
    optimizer = {**compiled["optimizer"], "config": sorted(compiled["optimizer"].get("config") or {})}
    layout = {side: run.source.layout[side] for side in ("inputs", "outputs")}
    machine = [run.options["threads"], bool(run.options.get("gpus"))]
    form = [configuration.definition["architecture"], {**compiled, "optimizer": optimizer}, layout, machine]
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class Program:
    """Configurations of some kinds that are compiled once for all of them, and what trials say of the engines."""

    name: str
    kinds: list[str] = field(default_factory=list)
    alike: list[Configuration] = field(default_factory=list)
    figures: Figures = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)  # by engine, why it cannot
    crashes: dict[str, str] = field(default_factory=dict)  # by engine, how it failed now: another time it may not
    tried: bool = False  # now, not by an earlier run alone

    def add(self, kind: str, alike: Sequence[Configuration], answers: Mapping[str, Any]) -> None:
        self.kinds.append(kind)
        self.alike += alike
        self.tried |= bool(answers)
        earlier = alike[0].earlier
        for engine, answer in {**(earlier.figures if earlier else {}), **answers}.items():
            if isinstance(answer, PASSING):
                self.crashes[engine] = answer.message
            elif isinstance(answer, CerebroError):
                self.refusals[engine] = answer.message
            else:
                worst = self.figures.setdefault(engine, dict.fromkeys(("build", "compile", "batch"), 0.0))
                worst.update({name: max(seconds, answer[name]) for name, seconds in worst.items()})

    def weighed(self, run: Run) -> dict[str, float]:
        able = {engine: figures for engine, figures in self.figures.items() if engine not in self.unable}
        return weighed(run, self.alike, able)

    @property
    def unable(self) -> dict[str, str]:
        """Now; first those that may do better another time."""
        return {**self.crashes, **self.refusals}

    def left(self, run: Run) -> float:
        """Seconds for which a segment has to train it, with the best engine so far."""
        trial = self.weighed(run)
        best = next(iter(trial), None)
        return 0.0 if best is None else trial[best] - self.figures[best]["build"] - self.figures[best]["compile"]


def programs_of(
    run: Run, kinds: Mapping[str, Sequence[Configuration]], answers: Mapping[tuple[str, str], Any]
) -> list[Program]:
    """What is known of configurations, kind by kind, after these answers to trials, by kind and engine."""
    programs: dict[str, Program] = {}
    for kind, alike in kinds.items():
        mine = {engine: answer for (its, engine), answer in answers.items() if its == kind}
        names = [answer["program"] for answer in mine.values() if not isinstance(answer, CerebroError)]
        earlier = alike[0].earlier
        name = names[0] if names else earlier.program if earlier else kind
        programs.setdefault(name, Program(name)).add(kind, alike, mine)
    return list(programs.values())


def still_to_try(run: Run, programs: Sequence[Program]) -> list[tuple[str, str]]:
    """The engines that were not tried, kind by kind: where there is enough to do, or none could do it yet."""
    pays = sum(program.left(run) for program in programs) > FINDING_OUT
    return [
        (kind, engine)
        for program in programs
        if pays or not program.weighed(run)
        for engine in run.options["among"]
        if engine not in {*program.figures, *program.unable}
        for kind in program.kinds
    ]


def chosen(run: Run, programs: Sequence[Program]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By kind the engine that will train it, and why."""
    left = sum(program.left(run) for program in programs)
    too_little = f"a segment has {left:.1f} s of training to do; finding out pays from {FINDING_OUT:.0f} s on"
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for program in programs:
        trial = program.weighed(run)
        for kind in program.kinds:
            if not trial:
                found[kind] = next(iter(program.unable)), {}
                continue
            why: dict[str, Any] = {"trial": trial}
            if program.refusals:
                why["refused"] = program.refusals
            untried = {*run.options["among"]} - {*trial, *program.refusals}
            if untried:
                why["untried"] = {engine: program.crashes.get(engine, too_little) for engine in untried}
            if program.tried:
                why.update(tried={e: program.figures[e] for e in trial}, form=kind, program=program.name)
            else:
                why["of_run"] = program.alike[0].earlier.run  # type: ignore[union-attr]
            found[kind] = next(iter(trial)), why
    return found


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
    start_with(team.options, used)
    shares = [f"{number} with {NAMES[engine]}" for engine, number in used.most_common()]
    db.notice(f"run {run.id}: of {len(run.configurations)} configurations, {' and '.join(shares)}")
