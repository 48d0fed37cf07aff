"""The ring positions of a run's own models do not depend on models that were requested before the run was built."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cerebro_db.core.events import Initial
from cerebro_db.core.packing.layout import DataSet, Layout, Partition
from cerebro_db.core.run_options import RecordedSpace, RunOptions
from cerebro_plpy.runs.preflight.preflight import Built, settle_positions
from cerebro_plpy.runs.record.log import RunLog
from cerebro_plpy.runs.record.run import AskedModel, Model, Run

PARAMETERS = {1: 50, 2: 900, 3: 50}
SPACE = RecordedSpace({}, 3, 2)


def run_of(*requested: dict[str, Any], **options: Any) -> Run:
    rows = DataSet("t", Layout((), (), 20, tuple(Partition(key, 10, 1, 100, "a" * 64) for key in (0, 1))))
    run = Run(1, "me", rows, None, "models", 9, 1, 1, [0, 1], "run_0", RunOptions(**options))
    for number, known in {**dict.fromkeys(PARAMETERS, {}), **dict(enumerate(requested, 4))}.items():
        asked = AskedModel(number, number, 0, 1, "", "", {"fit": {}}, 1, Initial.RANDOM, **known)
        run.models[number] = Model(asked, None)
    return run


def settled(run: Run) -> dict[int, int | None]:
    described = {number: SimpleNamespace(parameters=PARAMETERS.get(number, 5000)) for number in run.models}
    built = {number: Built(cast(Any, one), "jax", None) for number, one in described.items()}
    settle_positions(run, cast(RunLog, None), built)
    return {number: model.build.position for number, model in run.models.items()}


@pytest.mark.parametrize("requested", [{"parent": 2}, {"chosen": {"learning_rate": 0.1}}, {"parent": 1, "chosen": {}}])
def test_requested_models_come_last(requested: dict[str, Any]) -> None:
    alone = settled(run_of())
    assert alone == {2: 0, 1: 1, 3: 2}
    assert settled(run_of(requested, requested)) == {**alone, 4: 3, 5: 4}


def test_the_proposals_of_a_search_are_its_own_models() -> None:
    assert settled(run_of({"chosen": {"learning_rate": 0.1}}, space=SPACE)) == {
        4: 0,
        2: 1,
        1: 2,
        3: 3,
    }
