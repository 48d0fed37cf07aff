"""What the trainers of a team are started with."""

from __future__ import annotations

from cerebro_db.core.engines import AUTO_REUSE, AUTO_SHARD, FEATURES_MB, FLOAT32
from cerebro_db.core.protocol import HANG_AFTER, TrainerSettings
from cerebro_db.core.records import dataclass


@dataclass(frozen=True)
class TrainerOptions:
    """The same for all segments, except that segments take turns with engines and have GPUs of their own."""

    engines: tuple[str, ...]  # that trainers start with
    threads: int
    deterministic: bool = False
    gpus: tuple[int | None, ...] = ()  # of each segment; empty: none
    hang_after: int = HANG_AFTER
    cache_mb: int | None = None
    synchronous_commit: bool | None = None
    reuse: str = AUTO_REUSE
    features_mb: int = FEATURES_MB
    features_type: str = FLOAT32
    shard: str = AUTO_SHARD
    memory_mb: int = 0  # 0: as the role's limit says

    def engine(self, segment: int) -> str:
        return self.engines[segment % len(self.engines)]

    def settings(self, segment: int) -> TrainerSettings:
        return TrainerSettings(
            engine=self.engine(segment),
            threads=self.threads,
            deterministic=self.deterministic,
            gpu=self.gpus[segment] if self.gpus else None,
            hang_after=self.hang_after,
            cache_mb=self.cache_mb,
            reuse=self.reuse,
            features_mb=self.features_mb,
            features_type=self.features_type,
            shard=self.shard,
            memory_mb=self.memory_mb,
        )
