"""The report on models that are cut into shards."""

from __future__ import annotations

from tests.bench import shards
from tests.bench.meter import Taken
from tests.bench.page import BLOCKS
from tests.bench.stage import Measured


def of(name: str, batch: float, **more: float) -> Measured:
    more_of_runs = {"profile": {"starting": 1.0, "training": 8.0, "waiting": 2.0}, "end": 1.0}
    return Measured(
        name,
        Taken(wall=9.0),
        1.0,
        more={"shards": {"batch": batch, **more}, **(more_of_runs if "ours" in name else {})},
    )


REPEAT = [
    of("trainer alone, whole", 2.0, cpu=2.0),
    of("trainer alone, ahead", 3.0, cpu=3.5, shards=8, read=5 << 20, written=4 << 20),
    of("ours, whole", 4.0, shards=1, trainer=900 << 20, makespan=30.0, models=1),
    of("ours, cut", 5.0, shards=8, trainer=500 << 20, makespan=40.0, models=1),
    of("ours, four models, cut", 6.0, shards=8, trainer=500 << 20, makespan=120.0, models=4),
]


def test_ratios_are_those_of_the_same_way_to_run() -> None:
    rows = {line.split("|")[1].strip(): line for line in shards.table([REPEAT, REPEAT]).splitlines() if "|" in line}
    assert "| 1.50 (1.50–1.50) |" in rows["trainer alone, ahead"].replace("  ", " ").replace("  ", " ")
    assert "1.25" in rows["ours, cut"]
    assert "Four models at once take 0.75 of" in shards.table([REPEAT])


def test_what_is_missing_is_left_out() -> None:
    for left_out in range(len(REPEAT)):
        assert shards.table([[*REPEAT[:left_out], *REPEAT[left_out + 1 :]]])
    assert shards.table([[]]) == ""
    assert BLOCKS["shards"]({"works": {}}) is None
