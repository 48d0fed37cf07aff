"""What earlier runs have measured of models like those of a run, and what this run has measured of them itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from statistics import median

from cerebro_db.core.events import DataSetName
from cerebro_db.core.planning.model_shapes import ModelShapes
from cerebro_db.core.planning.speed_profile import (
    MeasuredSpeed,
    ModelPrice,
    ProfileKey,
    SpeedProfile,
    TrainerSetting,
)
from cerebro_db.core.scheduling.remaining import RunPace

from ...platform import machine
from .log import RunLog, read_profile
from .log.profiles import ModelMeasured
from .run import Figures, Model, Run

LEAST_MEASURED = 0.1  # seconds of training: what took less says little


class RunSpeeds:
    """Of one run, whose models may become more."""

    def __init__(self, run: Run, log: RunLog) -> None:
        self.run, self.log = run, log
        self.cores, self.machine = machine.cores(), machine.described(bool(run.options.gpus))
        self._shapes = ModelShapes(run.source.for_trainer)
        self._of_key: dict[int, str] = {}  # by configuration
        known = {self.shapes(model) for model in run.models.values()} if run.options.space is None else set()
        read = known or run.options.space is not None
        self.profile = read_profile(log.ask, self.machine, self.cores, known) if read else SpeedProfile()
        self.trials: dict[int, Figures] = {}  # of models, in this run
        self.rehearsals: dict[int, tuple[int, float, float]] = {}  # of models: members, seconds of a batch alone, fused

    def shapes(self, model: Model) -> str:
        if model.key not in self._of_key:
            self._of_key[model.key] = self._shapes.of(model.asked.definition)
        return self._of_key[model.key]

    def key(self, model: Model, engine: str) -> ProfileKey:
        return ProfileKey(engine, self.shapes(model), model.asked.batch_size, self.run.options.parallel)

    @property
    def threads(self) -> int:
        return self.run.options.trainer.threads or 1

    @property
    def trainers(self) -> int:
        """That work at the same time."""
        run = self.run
        if run.options.in_session:
            return 1
        return run.segments if run.options.adds_gradients else max(1, min(run.segments, len(run.models)))

    def price(self, model: Model) -> ModelPrice | None:
        """What a model takes with its engine; None: nothing alike was measured."""
        if not self.profile or not model.build.engine:
            return None
        key = self.key(model, model.build.engine)
        setting = TrainerSetting(self.threads, self.trainers, self.cores)
        return self.profile.price(key, setting)

    def visit_seconds(self, model: Model) -> float:
        """What a visit of a model is expected to take; 0: not known."""
        price = self.price(model)
        return 0.0 if price is None else price.visit(self.run.rows_of(model) / self.run.hops_per_epoch(model))

    def evaluation_seconds(self, model: Model) -> float:
        """What evaluating a model on one part of the rows for validation is expected to take; 0: not known."""
        price, run = self.price(model), self.run
        parts = run.parts(DataSetName.VALIDATION) if run.validation is not None else []
        if price is None or not parts or run.validation is None:
            return 0.0
        rows = sum(run.validation.partitions[part].rows for part in parts) / len(parts)
        return price.evaluation(rows * run.share_of_sample(model, 1))

    def expected_pace(self) -> RunPace:
        """What the units of the run are expected to take, before any of them has ended."""
        models = [model for model in self.run.models.values() if self.price(model) is not None]
        if not models:
            return RunPace()
        building = {
            self.key(model, model.build.engine): price.build
            for model in models
            if (price := self.price(model)) is not None
        }
        evaluation = sum(map(self.evaluation_seconds, models)) / len(models)
        whole = sum(building.values()) * self.trainers if len(models) == len(self.run.models) else None
        return RunPace(expected_evaluation=evaluation, expected_building=whole)

    def engine_figures(self, model: Model) -> tuple[Figures, int] | None:
        """What each engine that may train a model takes, and a run that has measured it; None: not all are known.

        What visits took is not compared with what trials took, nor trainers with other numbers of threads.
        """
        keys = {engine: self.key(model, engine) for engine in self.run.options.among}
        others = {threads for key in keys.values() for threads in self.profile.threads(key)} - {self.threads}
        for threads, measured in itertools.product((self.threads, *sorted(others)), (True, False)):
            found = {engine: self.profile.tried(key, threads, measured) for engine, key in keys.items()}
            known = {engine: one for engine, one in found.items() if one is not None}
            if known and len(known) == len(found):
                figures = {
                    engine: {"build": one.build or 0.0, "compile": 0.0, "batch": one.train_row * one.key.batch_size}
                    for engine, one in known.items()
                }
                return figures, max(one.run for one in known.values())
        return None

    # -- what this run has measured --------------------------------------------------------------------------------

    def store(self) -> None:
        """Put on record what the run has measured of its models."""
        run = self.run
        if run.averages or run.options.in_session:
            return
        of_models = self.log.profiles.measured()
        alike: dict[ProfileKey, list[Model]] = {}
        for model in run.models.values():
            if model.build.engine and model.asked.home is None:
                alike.setdefault(self.key(model, model.build.engine), []).append(model)
        found = [one for key, models in alike.items() for one in self._measured(key, models, of_models)]
        self.log.profiles.store(found, self.machine)

    def _measured(
        self, key: ProfileKey, models: list[Model], of_models: Mapping[int, ModelMeasured]
    ) -> list[MeasuredSpeed]:
        """Of models that are alike."""
        memory = max((model.build.memory.needed_mb for model in models), default=0) or None
        size = max((model.state_bytes for model in models), default=0) or None

        def one(key: ProfileKey, visits: int, train_row: float, **more: float | None) -> MeasuredSpeed:
            return MeasuredSpeed(
                key, self.run.id, self.threads, self.trainers, visits, round(train_row, 12),
                state_bytes=size, memory_mb=memory, **more,  # type: ignore[arg-type]
            )  # fmt: skip

        found = []
        for model in models:
            for engine, figures in self.trials.pop(model.number, {}).items():
                row = figures["batch"] / key.batch_size
                building = figures["build"] + figures["compile"]
                found.append(one(self.key(model, engine), 0, row, build=round(building, 6)))
            if model.number in self.rehearsals:
                members, alone, fused = self.rehearsals.pop(model.number)
                share = round(fused / alone, 6) if alone > 0 else None
                found.append(one(key, 0, alone / key.batch_size, fused=members, fused_share=share))
        # What a fused visit takes depends on the models that are trained beside it.
        done = [of_models[model.number] for model in models if model.number in of_models and not model.build.group]
        done = [each for each in done if each.visits and each.rows]
        if sum(each.train for each in done) >= LEAST_MEASURED:
            evaluated = [each for each in done if each.evaluated_rows]
            found.append(
                one(
                    key,
                    sum(each.visits for each in done),
                    median(each.train / each.rows for each in done),
                    evaluate_row=round(median(each.evaluate / each.evaluated_rows for each in evaluated), 12)
                    if evaluated
                    else None,
                    build=round(sum(each.build for each in done) / self.trainers, 6),
                    hop=round(median(each.beside / each.visits for each in done), 6),
                )
            )
        return [each for each in found if each.train_row > 0]
