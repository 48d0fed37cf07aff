"""Runs whose segments have copies of all rows, so that models do not hop: the option parallel => copies."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg2 import errors

from tests.sql.lab import CROSS, Lab, eventually, flower_model

SEGMENTS, EPOCHS = 3, 3
RATES = (0.1, 0.05, 0.02, 0.01)
COPIES = {"parallel": "copies"}
COPIED = '{"parallel": "copies"}'
STATES = "SELECT model, hop, loss, state_sha256 FROM hop WHERE run = %s ORDER BY model, hop"
EVALUATED = "SELECT model, epoch, part, loss FROM evaluation WHERE run = %s ORDER BY model, epoch, part"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, f"optimizer='SGD(lr={rate})', {CROSS}", "batch_size=8, epochs=1") for rate in RATES])
    return lab


def fit(place: Lab, output: str, source: str = "train", epochs: int = EPOCHS, **options: Any) -> int:
    more = {} if source == "folded" else {"validation_table": "val"}
    return place.fit(
        source, output, "mst", epochs, metrics_compute_frequency=1,
        options={"deterministic": True, "threads": 1, **options}, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def hopping(place: Lab) -> int:
    return fit(place, "hopping")


def test_the_results_are_those_of_hopping_bit_for_bit(place: Lab, hopping: int) -> None:
    staying = fit(place, "staying", **COPIES)
    assert place(STATES, staying) == place(STATES, hopping)
    assert place(EVALUATED, staying) == place(EVALUATED, hopping)
    where = "SELECT model, count(DISTINCT segment), min(segment) FROM {} WHERE run = %s GROUP BY model ORDER BY model"
    homes = place(where.format("hop"), staying)
    assert [count for _, count, _ in homes] == [1] * len(RATES)
    assert {home for *_, home in homes} == set(range(SEGMENTS))  # all segments have some
    assert place(where.format("evaluation"), staying) == homes
    assert all(count == SEGMENTS for _, count, _ in place(where.format("hop"), hopping))
    rows = "SELECT sum(rows)::int FROM hop WHERE run = %s"
    assert place.value(rows, staying) == place.value(rows, hopping)
    again = place("SELECT cerebro.resume(%s, epochs => %s)", staying, EPOCHS + 1)
    assert again and place.value("SELECT count(*)::int FROM hop WHERE run = %s", staying) == (
        (EPOCHS + 1) * SEGMENTS * len(RATES)
    )


def test_a_cancelled_run_is_resumed_and_a_run_is_replayed(place: Lab, hopping: int) -> None:
    long = place.submit("train", "cut", "mst", 100_000, options={"deterministic": True, "threads": 1, **COPIES})
    done = "SELECT count(*) FROM hop WHERE run = %s"
    eventually(lambda: place.value(done, long) > 3 * SEGMENTS, what="it trains")
    place("SELECT cerebro.cancel(%s)", long)
    assert place("SELECT cerebro.wait(%s, 60)", long) == [("cancelled",)]
    before = place.value(done, long)
    place("SELECT cerebro.resume(%s, wait => false)", long)
    eventually(lambda: place.value(done, long) > before, what="it goes on")
    place("SELECT cerebro.cancel(%s)", long)
    place("SELECT cerebro.wait(%s, 60)", long)
    losses = "SELECT model, hop, loss FROM hop WHERE run = %s AND hop <= %s ORDER BY model, hop"
    most = place.value("SELECT LEAST(min(hops), %s)::int FROM (SELECT max(hop) AS hops FROM hop WHERE run = %s"
                       " GROUP BY model) h", EPOCHS * SEGMENTS, long)  # fmt: skip
    assert place(losses, long, most) == place(losses, hopping, most)
    staying = fit(place, "replayable", method="median", **COPIES)
    replayed = place.fit("train", "replayed", "mst", EPOCHS, validation_table="val", metrics_compute_frequency=1,
                         options={"replay": staying})  # fmt: skip
    assert place(STATES, replayed) == place(STATES, staying)
    assert place.value("SELECT options ->> 'parallel' FROM run_plan WHERE run = %s", replayed) == "copies"


def test_folds_have_the_results_of_hopping(place: Lab) -> None:
    place(
        "SELECT cerebro.pack('flowers', 'folded', target => 'species', folds => 2, segments => %s, seed => 1)", SEGMENTS
    )
    first, second = fit(place, "folds_hop", "folded"), fit(place, "folds_stay", "folded", **COPIES)
    assert place(STATES, second) == place(STATES, first)
    assert place(EVALUATED, second) == place(EVALUATED, first)


def test_what_it_cannot_do_is_refused(place: Lab) -> None:
    place("SELECT cerebro.pack('flowers', 'grouped', target => 'sl', group_by => 'species', segments => 2, seed => 1)")
    with pytest.raises(errors.InvalidParameterValue, match="grouped' is packed with group_by, and the option parallel"):
        place(
            "SELECT cerebro.fit('grouped', 'no', '[{\"architecture\": \"mlp\"}]', epochs => 1, options => %s)", COPIED
        )
    for wrong in ("copy", True):
        with pytest.raises(errors.InvalidParameterValue, match="option 'parallel' cannot be"):
            place.fit("train", "no", "mst", 1, options={"parallel": wrong})
    layout = "jsonb_set(layout::jsonb, '{partitions,0,bytes}', '99999999999999')"
    place(f"CREATE TABLE huge AS TABLE train; CREATE TABLE huge_summary AS TABLE train_summary;"
          f" UPDATE huge_summary SET layout = {layout}")  # fmt: skip
    with pytest.raises(
        errors.InsufficientResources, match="each of 3 segments would have all rows in memory, .* GB each"
    ):
        place.fit("huge", "no", "mst", 1, options=COPIES)
