"""The contract of trackers: they write a run while it goes on and again later, with any names and values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ..client.trackers import TRACKERS
from ..client.trackers.tracked import TrackedModel, TrackedRun

CURVES = {"loss": {1: 0.9, 2: 0.5}, "validation loss": {1: 1.0, 2: 0.6}}
MODEL = TrackedModel(
    model=1,
    configuration=1,
    status="finished",
    parameters={"learning_rate": 0.1, "optimizer": "Adam", "units": 8, "shuffle": True},
    value=0.6,
    curves=CURVES,
    times={1: 1.7e9, 2: 1.7e9 + 1},
    engine="tensorflow",
    reason=None,
)
RUN = TrackedRun(
    run=12,
    owner="anna",
    name="irises",
    status="finished",
    ended=True,
    started_at=1.7e9,
    ended_at=1.7e9 + 2,
    objective="val_loss",
    objective_curve="validation loss",
    direction="min",
    about={"model table": "models"},
    models=(MODEL, replace(MODEL, model=2, configuration=2, parameters={"learning_rate": 0.2})),
)


class TrackerContract:
    """The tests of a tracker.  A subclass has its name, and overrides ``place`` if it does not write into a folder."""

    tracker: str

    def place(self, folder: Path) -> str:
        return str(folder / "runs")

    def test_a_run_is_written_while_it_goes_on_and_again_at_its_end(self, tmp_path: Path) -> None:
        write = TRACKERS[self.tracker]
        curves = {name: {1: values[1]} for name, values in CURVES.items()}
        first = replace(MODEL, status="training", value=None, curves=curves, times={1: 1.7e9})
        write(
            replace(RUN, status="running", ended=False, ended_at=None, models=(first,)), self.place(tmp_path), "irises"
        )
        for _ in range(2):
            write(RUN, self.place(tmp_path), "irises")

    def test_any_names_and_values(self, tmp_path: Path) -> None:
        odd = replace(
            MODEL,
            status="failed",
            value=None,
            parameters={"../a b": "ü" * 500, "": 1e300, "<x>": -(2**40)},
            curves={"a/b": {1: math.nan, 2: math.inf, 3: -math.inf}, "no values": {}},
            times={},
            engine=None,
            reason="\n'",
        )
        TRACKERS[self.tracker](replace(RUN, name="../'x", models=(odd,)), self.place(tmp_path), "../odd")
        TRACKERS[self.tracker](replace(RUN, models=()), self.place(tmp_path), "empty")
