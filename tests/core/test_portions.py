"""Which rows a visit takes with the option visit_rows, and on how many rows models are evaluated."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cerebro_db.core.events import Initial
from cerebro_db.core.packing.layout import DataSet, Layout, Partition
from cerebro_db.core.protocol import RowPortion
from cerebro_db.core.run_options import RunOptions
from cerebro_plpy.runs.record.run import GROWS, LEAST_SAMPLE, AskedModel, Model, Run


def data(*rows: int) -> DataSet:
    return DataSet(
        "t", Layout((), (), sum(rows), tuple(Partition(n, one, 1, 1, "a" * 64) for n, one in enumerate(rows)))
    )


def run_of(visit_rows: int | None, rows: tuple[int, ...] = (100, 40), validation: int = 10 * LEAST_SAMPLE) -> Run:
    run = Run(
        1, "me", data(*rows), data(validation), "models", 9, 1, 1, [0, 1], "run_0", RunOptions(visit_rows=visit_rows)
    )
    asked = AskedModel(1, 1, 0, 1, "", "", {"fit": {}}, 1, Initial.RANDOM)
    run.models[1] = Model(asked, None)
    # Model 2 goes on from model 1 after its third epoch, 3 from 2 after its first one; 4 only has a parent's weights.
    for number, parent, hop, initial in ((2, 1, 6, Initial.FULL), (3, 2, 2, Initial.FULL), (4, 1, 6, Initial.WEIGHTS)):
        run.models[number] = Model(replace(asked, number=number, parent=parent, parent_hop=hop, initial=initial), None)
    return run


def test_without_the_option_visits_and_evaluations_are_of_all_rows() -> None:
    run = run_of(None)
    assert run.portion(run.models[1], 1) is None and run.sampled(run.models[1], "validation", 0, 1) is None
    assert run.rows_of(run.models[1]) == 140


def test_the_largest_segment_says_how_many_portions_there_are() -> None:
    run = run_of(30)
    assert [run.portion(run.models[1], epoch) for epoch in (1, 2, 5)] == [
        RowPortion(0, 4),
        RowPortion(1, 4),
        RowPortion(4, 4),
    ]
    assert run.rows_of(run.models[1]) == 25 + 10


def test_a_model_that_goes_on_from_another_takes_the_rows_that_follow() -> None:
    run = run_of(30)
    numbers = {model: run.portion(run.models[model], 1) for model in (1, 2, 3, 4)}
    assert numbers == {1: RowPortion(0, 4), 2: RowPortion(3, 4), 3: RowPortion(4, 4), 4: RowPortion(0, 4)}
    # It has trained four epochs after its first one.
    assert run.sampled(run.models[2], "validation", 0, 1) == run.sampled(run.models[1], "validation", 0, 4)


@given(st.integers(1, 200), st.integers(1, 500))
def test_samples_grow_with_the_rungs_up_to_all_rows(portions: int, epoch: int) -> None:
    validation = 10 * LEAST_SAMPLE
    run = run_of(1000, (1000 * portions,), validation)
    first, now, later = (run.sampled(run.models[1], "validation", 0, one) for one in (1, epoch, epoch * GROWS))
    if portions == 1:
        assert first is now is later is None
        return
    assert first == max(LEAST_SAMPLE, -(-validation // portions))
    if now is None:
        assert later is None
    else:
        assert later is None or later in (2 * now, 2 * now - 1)
