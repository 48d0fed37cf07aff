"""What a dry run says of memory: what a trainer needs for each configuration, and whether that would be cut."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Callable

from cerebro_db.core.architecture import keras_json
from cerebro_db.core.architecture.precision import computed_in
from cerebro_db.core.architecture.sources import Source
from cerebro_db.core.engines import AUTO, AUTO_SHARD, NEVER_SHARD, SHARDING_ENGINES
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.options import GRADIENTS
from cerebro_db.core.packing.layout import DataSet, Layout
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.parameters.custom import Known
from cerebro_db.core.protocol import Describe, TrainerSettings
from cerebro_db.core.search.spaces.space import Label, Space
from cerebro_db.core.texts import counted
from cerebro_db.core.trainers import sharding
from cerebro_db.core.trainers.sharding import ModelMemory

from ...database.access import Database
from ...database.cancellation import listener
from ...segment import current, memory, nursery_connection

Tell = Callable[[dict[str, Any]], str]  # of a configuration: what a trainer needs for it, in words


@contextlib.contextmanager
def told(db: Database, options: dict[str, Any], layout: Layout) -> Iterator[Tell | None]:
    """Within it a trainer of this session describes configurations.

    None if models of any size train as they are: then a dry run starts no trainer.
    """
    limit, shard = options.get("memory_mb"), options.get("shard", AUTO_SHARD)
    allowed = memory.limit_of_trainers(db)
    if limit is None and allowed is None and shard in (AUTO_SHARD, NEVER_SHARD):
        yield None
        return
    engine = options.get("engine")
    if engine in (None, AUTO):
        default = nursery_connection.default_engine(listener(db.plpy))
        engine = next(iter(SHARDING_ENGINES)) if engine == AUTO else default
    for_trainer = DataSet("", layout).for_trainer
    mine = current.mine(db)
    whole = sharding.why_whole(jointly=options.get("parallel") == GRADIENTS, averages=False) is not None
    settings = TrainerSettings(engine=engine, threads=1, shard=NEVER_SHARD if whole else shard, memory_mb=limit)
    mine.start(settings, allowed)

    def tell(definition: dict[str, Any]) -> str:
        try:
            needs = ModelMemory.of(mine.obey(Describe(configuration=definition, layout=for_trainer, others=[])))
        except CerebroError as error:
            return f"fails: {error.message}"
        uncut = f"a trainer needs about {needs.uncut_mb:,} MB"
        if needs.is_cut:
            shards = counted(needs.shards, "shard")
            return f"{uncut}, so it would be cut into {shards}, with about {needs.needed_mb:,} MB{needs.cost}"
        least = min((one for one in (limit, allowed) if one is not None), default=None)
        if least is None or needs.uncut_mb <= least:
            return uncut
        fails = "it fails" if shard in (NEVER_SHARD, 1) else "it may fail"  # else it is tried
        return f"{uncut}, and may use {least:,} MB: {fails}"

    try:
        yield tell
    finally:
        current.close_mine()


def tell_of_space(
    db: Database, options: dict[str, Any], layout: Layout, space: Space, sources: Mapping[Label, Source], known: Known
) -> None:
    """Say what a trainer needs for the largest configuration of each architecture, which ``sources`` has."""
    with told(db, options, layout) as tell:
        if tell is None:
            return
        for label, source in sources.items():
            drawn = space.configuration(point := space.largest(label))
            architecture = keras_json.architecture(drawn.architecture or json.dumps(source))
            if options.get("precision") is not None:
                architecture = computed_in(architecture, options["precision"])
            compiled = keras_json.for_outputs(params.compile_params(drawn.compile_params, known), architecture)
            definition = {"architecture": architecture, "compile": compiled, "fit": params.fit_params(drawn.fit_params)}
            numbers = {name: value for name, value in point.items() if name != flat.ARCHITECTURE}
            db.notice(f"the largest {label}, {json.dumps(numbers)}: {tell(definition)}")
