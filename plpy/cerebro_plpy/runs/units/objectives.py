"""The objective of each epoch on record, and the states of the best epochs.

Both are written in the transaction of the hop or the evaluation that completes the epoch: a run that ends in between
has neither, and does that unit again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from cerebro_db.core.models.metrics import LOSS, number
from cerebro_db.core.options import BEST
from cerebro_db.core.protocol import EvaluatedModel, TrainedVisit
from cerebro_db.core.records import dataclass
from cerebro_db.core.scheduling.plan import Evaluate, Train, Unit
from cerebro_db.core.search.history import Figures, last_metrics, mean_loss
from cerebro_db.core.sql import sql

from ...platform.base import Platform
from ...sessions.session import Statement
from ..record import state_tables
from ..record.log.unit_rows import UnitRows
from ..record.log.units import UnitLog
from ..record.run import Model, Run


@dataclass(frozen=True)
class Epoch:
    """A complete epoch, on record or in a transaction that is under way."""

    number: int
    hop: int  # the last one of the epoch
    score: float
    kept: bool


class Objectives:
    """What is known of the objective of a run's models; of a run without one, nothing."""

    def __init__(self, run: Run, log: UnitLog, platform: Platform) -> None:
        self.run, self.log, self.platform = run, log, platform
        self.wanted = run.options.objective is not None
        self.objective = run.options.optimised(run.validation is not None)
        self.keeps = run.options.keep == BEST
        # Model, epoch -> by hop or by part, the figures; of epochs that are not on record.
        self._figures: dict[tuple[int, int], dict[int, Figures]] = {}
        self._recorded: set[tuple[int, int]] = set()  # model, epoch
        # Of the state that is kept: the share of the rows that it was evaluated on, as a negative number, and the
        # score. An epoch that was evaluated on more rows is known better.
        self._best: dict[int, tuple[float, float]] = {}
        self._least: float | None = None  # of all scores on record
        self.best: dict[int, int] = {}  # model -> the hop whose state is kept
        # In a run with folds that keeps best states: configuration, group -> the models of its folds; and the scores
        # of these, by model and epoch.
        self._judges: dict[tuple[int, int | None], list[int]] = {}
        self._looked_at = 0  # how many models of the run these were made from
        self._scores: dict[tuple[int, int], float] = {}
        # Model, epoch -> in the transaction of this unit, what will be on record.
        self._under_way: dict[tuple[int, int], tuple[Unit, Epoch]] = {}
        if self.wanted:
            self._load()

    def after_visit(
        self, visit: Train, trained: TrainedVisit, state_bytes: int, dist_key: int, rows: UnitRows
    ) -> list[Statement]:
        """What belongs into the transaction of a visit: a row, and statements after the one that stores its state."""
        if not self.wanted:
            return []
        model = self.run.models[visit.model]
        completes = visit.hop % self.run.hops_per_epoch(model) == 0
        if self.run.is_judged(model):
            value = self._mean_of_folds(model, visit.epoch) if completes else None
            return self._completed(visit, dist_key, state_bytes, rows, value)
        if self.objective.dataset:
            return []
        figures = self._add(visit.model, visit.epoch, visit.hop, trained.rows, trained.loss, trained.metrics)
        return self._completed(visit, dist_key, state_bytes, rows, self._value(figures)) if completes else []

    def after_evaluation(
        self,
        unit: Evaluate,
        evaluated: EvaluatedModel,
        metrics: Mapping[str, Any],
        rows: UnitRows,
        sampled: int | None = None,
    ) -> list[Statement]:
        """What belongs into the transaction of an evaluation.  ``sampled``: how many of the rows; None: all."""
        if not self.wanted or self.objective.dataset != unit.dataset:
            return []
        model = self.run.models[unit.model]
        parts = self._add(unit.model, unit.epoch, unit.part, evaluated.weight(sampled), evaluated.loss, metrics)
        if not parts.keys() >= set(self.run.parts_of(model, unit.dataset)):
            return []
        return self._completed(unit, model.dist_key, model.state_bytes, rows, self._value(parts))

    def committed(self, unit: Unit) -> None:
        """The transaction of a unit is committed."""
        epoch = self._ended(unit)
        if epoch is not None:
            self._on_record(unit.model, epoch)

    def look_up(self, unit: Unit) -> None:
        """The session was lost: the log knows whether the transaction of a unit is committed."""
        if self._ended(unit) is not None:
            self._load_epochs(unit.model)

    @property
    def best_value(self) -> float | None:
        """The best objective of all epochs on record."""
        return self.objective.score(self._least)  # which undoes itself

    def _ended(self, unit: Unit) -> Epoch | None:
        """The epoch in the transaction of a unit, which has ended."""
        found = self._under_way.get((unit.model, unit.epoch))
        if found is None or found[0] != unit:
            return None
        del self._under_way[unit.model, unit.epoch]
        return found[1]

    def _completed(
        self, unit: Unit, dist_key: int, state_bytes: int, rows: UnitRows, value: float | None
    ) -> list[Statement]:
        epoch = (unit.model, unit.epoch)
        # Once all parts are known, a part whose own record was lost is evaluated again.
        elsewhere = epoch in self._under_way and self._under_way[epoch][0] != unit
        if epoch in self._recorded or elsewhere:
            return []
        value = self.objective.recordable(value)
        score = self.objective.score(value)
        if value is None or score is None:
            return []
        kept = self.keeps and self._rank(unit.model, unit.epoch, score) < self._best.get(unit.model, (0.0, 0.0))
        self._under_way[epoch] = unit, Epoch(unit.epoch, unit.hop, score, kept)
        rows.objective(unit.model, unit.epoch, unit.hop, value, kept)
        return self._keep(unit, dist_key, state_bytes) if kept else []

    def _keep(self, unit: Unit, dist_key: int, state_bytes: int) -> list[Statement]:
        """Copy a large state after a hop into the model's table of best states.  A small one stays where it is."""
        model = self.run.models[unit.model]
        if state_tables.is_small(state_bytes):
            return []
        best = state_tables.best_table_name(self.run.storage, model.number).sql
        if unit.model in self.best:
            ready = state_tables.emptied_sql([best], sql("DELETE FROM {best}", best=best))
        else:
            ready = state_tables.create_sql(self.platform, best)
        source = state_tables.own_table_of(self.run, model, unit.hop)
        copy = sql(
            "INSERT INTO {best} (__dist_key__, hop, start, payload) SELECT __dist_key__, hop, start, payload"
            " FROM {source} WHERE hop = {hop} AND __dist_key__ = {dist_key}",
            best=best,
            source=source,
            hop=unit.hop,
            dist_key=dist_key,
        )
        return [Statement(ready), Statement(copy)]

    def _add(
        self, model: int, epoch: int, place: int, weight: float, loss: float | None, metrics: Mapping[str, Any]
    ) -> dict[int, Figures]:
        """The figures of an epoch with those of one more hop or part."""
        its = {name: number(value) for name, value in metrics.items() if name == self.objective.metric}
        figures = self._figures.setdefault((model, epoch), {})
        figures[place] = Figures(weight, number(loss), its)
        return figures

    def _mean_of_folds(self, model: Model, epoch: int) -> float | None:
        """The objective of an epoch of a model on all rows; None: the model of some fold has none on record."""
        for one in itertools.islice(self.run.models.values(), self._looked_at, None):
            if one.asked.fold is not None and not one.asked.is_copy:
                self._judges.setdefault((one.key, one.asked.group_number), []).append(one.number)
        self._looked_at = len(self.run.models)
        judges = self._judges.get((model.key, model.asked.group_number), [])
        scores = [self._scores[judge, epoch] for judge in judges if (judge, epoch) in self._scores]
        if not scores or len(scores) < max(len(judges), self.run.judges(model)):
            return None
        return self.objective.score(math.fsum(scores) / len(scores))  # which undoes itself

    def _rank(self, model: int, epoch: int, score: float) -> tuple[float, float]:
        """Smaller for a better epoch of a model."""
        share = self.run.share_of_sample(self.run.models[model], epoch) if self.objective.dataset else 1.0
        return -share, score

    def _value(self, figures: Mapping[int, Figures]) -> float | None:
        name = self.objective.metric
        return mean_loss(figures.values()) if name == LOSS else last_metrics(figures).get(name)

    def _load(self) -> None:
        self._load_epochs()
        if self.objective.dataset:
            units = [(*row[:2], *row[3:]) for row in self.log.evaluations() if row[2] == self.objective.dataset]
        else:
            units = self.log.hops()
        for model, epoch, *figures in units:
            if (model, epoch) not in self._recorded:
                self._add(model, epoch, *figures)

    def _load_epochs(self, of: int | None = None) -> None:
        for model, epoch, value, kept in self.log.objectives(of):
            score = self.objective.score(value)
            assert score is not None
            if (model, epoch) not in self._recorded:
                hop = epoch * self.run.hops_per_epoch(self.run.models[model])
                self._on_record(model, Epoch(epoch, hop, score, kept))

    def _on_record(self, model: int, epoch: Epoch) -> None:
        self._recorded.add((model, epoch.number))
        if self.keeps and self.run.folds and self.run.models[model].asked.fold is not None:
            self._scores[model, epoch.number] = epoch.score
        self._least = epoch.score if self._least is None else min(self._least, epoch.score)
        self._figures.pop((model, epoch.number), None)
        if epoch.kept:
            self._best[model] = self._rank(model, epoch.number, epoch.score)
            self.best[model] = epoch.hop
