"""Which models a trainer cuts into shards, by its settings and by the memory that it may use."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from cerebro_db.core.engines import AUTO_SHARD, NEVER_SHARD, SHARDING_ENGINES
from cerebro_db.core.errors import ConfigurationFailed
from cerebro_db.core.protocol import TrainerSettings
from cerebro_db.nn.engines.base import Engine
from cerebro_db.nn.engines.tensorflow import LARGEST_COPY, TensorFlowEngine
from cerebro_db.nn.fit_parameters import Fit
from cerebro_db.nn.models import build, group_statistics
from cerebro_db.nn.models.dtypes import item_bytes
from cerebro_db.nn.rows.data import MEMORY, predicted_at_once
from cerebro_db.nn.shards import graph, plan
from cerebro_db.nn.shards.plan import MB, Planner, ShardPlan
from cerebro_db.nn.shards.program import ShardedProgram
from cerebro_db.nn.shards.steps import require_optimizer, without_memory

Json = dict[str, Any]

# Bytes of a model's layers. To cut a smaller model saves less than what all of its operations are estimated to need too
# much (plan.RESERVE), and a batch of such layers takes 15 times as long and more.
NOT_WORTH = 32 << 20


class Cutting:
    """The decision for each configuration, and the programs of those that are cut."""

    def __init__(
        self,
        settings: TrainerSettings,
        listen: Callable[[], None] = lambda: None,
        folders: Sequence[str] = (),
        *,
        ahead: bool = True,
    ) -> None:
        """``folders``: in which this process may have files.  ``ahead``: whether shards are read ahead."""
        self._shard, self._listen, self._ahead, self._engine = settings.shard, listen, ahead, settings.engine
        # The limit of private memory does not hold for trainers on a GPU.
        self._limit = settings.memory_mb or (settings.memory_limit_mb if settings.gpu is None else None) or 0
        self._folder = next((one for one in folders if not os.path.join(one, "").startswith(MEMORY)), None)
        # Of the files of states, all but the newest one may be dropped, as kept features may.
        self.files_bytes = settings.features_mb * MB
        self._known: dict[str, bool] = {}

    @functools.cached_property
    def base(self) -> int:
        """Bytes that this process has before it has any model."""
        return plan.used()

    @property
    def room(self) -> int | None:
        """Bytes for a model; None: no limit is known."""
        base = self.base  # also without a limit: later it would have the first model
        return (self._limit * MB) - base if self._limit else None

    def cuts(self, configuration: Json, layout: Json | None, to_train: bool = True) -> bool:
        """Whether the model of a configuration is cut."""
        room, number = self.room, self._number
        if number is not None or self._shard == NEVER_SHARD or room is None or self._engine not in SHARDING_ENGINES:
            return number is not None and number > 1
        fit = Fit.of(configuration).batch_size if to_train else None
        compile_ = configuration.get("compile") if to_train else None
        key = json.dumps([configuration["architecture"], compile_, fit, layout], sort_keys=True)
        if key not in self._known:
            self._known[key] = self._is_too_large(configuration, layout, to_train, room)
        return self._known[key]

    def program(self, engine: Engine, configuration: Json, layout: Json | None, seed: int | None) -> ShardedProgram:
        if not isinstance(engine, TensorFlowEngine):
            raise ConfigurationFailed(
                "a model is cut into shards with TensorFlow only",
                hint='Train it with the engine tensorflow or "auto", or give trainers more memory.',
            )
        base, room = self.base, self.room
        if room is not None:
            plan.give_back_memory()
        return ShardedProgram(
            engine,
            configuration,
            layout,
            seed,
            self._chosen,
            batch_size=Fit.of(configuration).batch_size,
            base=base,
            room=room,
            folder=self._folder,
            listen=self._listen,
            ahead=self._ahead,
        )

    def needed_mb(self, size: int) -> int:
        """Of the process, if its model needs so many bytes."""
        return -(-(self.base + size) // MB)

    @property
    def _number(self) -> int | None:
        return None if self._shard in (AUTO_SHARD, NEVER_SHARD) else int(self._shard)

    def _chosen(self, planner: Planner) -> ShardPlan:
        if self._number is not None:
            return planner.into(self._number)
        assert self.room is not None
        return planner.fitting(self.room)

    def _is_too_large(self, configuration: Json, layout: Json | None, to_train: bool, room: int) -> bool:
        try:
            if to_train:
                require_optimizer(configuration)
            model, slots = build.build_in_pieces(configuration, layout, 0 if to_train else None, without_memory)
            if group_statistics.any_layer(model):
                return False
            planner = Planner(model, graph.pieces(model), slots, Fit.of(configuration).batch_size)
            more = 0 if to_train else _to_predict(planner, model, layout)
        except Exception:  # a model that cannot be cut is trained as a whole, as far as the memory allows
            return False
        if planner.sized + more <= min(NOT_WORTH, room):
            return False
        # If no cut fits only because many operations are estimated to need much, the model is tried as it is.
        return planner.uncut + more > room and (planner.sized + more > room or planner.fits(room))


def _to_predict(planner: Planner, model: Any, layout: Json | None) -> int:
    """Bytes beside the weights: of the rows that are predicted at once, and two copies of a weight that is loaded."""
    inputs = [] if layout is None else layout["inputs"]
    of_row = sum(math.prod(each["shape"]) * item_bytes(each["dtype"]) for each in inputs)
    largest = max(map(graph.bytes_of, model.variables), default=0)
    return planner.to_predict(predicted_at_once(of_row)) + 2 * min(largest, LARGEST_COPY)


def uncut_bytes(program: Any, batch_size: int) -> int:
    """What training needs beside the process, of a program whose model is in memory as a whole."""
    model = program.model
    planner = Planner(model, graph.pieces(model), [], batch_size)
    return planner.uncut + (sum(map(graph.bytes_of, model.optimizer.variables)) if model.compiled else 0)
