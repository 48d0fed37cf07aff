"""What the sessions and trainers of a team are started with."""

from __future__ import annotations

from cerebro_db.core.protocol import TrainerOptions, TrainerSettings
from cerebro_db.core.records import dataclass


@dataclass(frozen=True)
class TeamOptions:
    """The options are the same for all segments, but segments alternate between engines and have their own GPUs."""

    engines: tuple[str, ...]  # the engines that trainers start with
    trainer: TrainerOptions
    gpus: tuple[int | None, ...] = ()  # of each segment; empty: none
    synchronous_commit: bool | None = None

    def engine(self, segment: int) -> str:
        return self.engines[segment % len(self.engines)]

    def settings(self, segment: int) -> TrainerSettings:
        gpu = self.gpus[segment] if self.gpus else None
        return TrainerSettings(**vars(self.trainer), engine=self.engine(segment), gpu=gpu)
