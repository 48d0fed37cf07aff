"""What is told of models that are larger than their trainer's memory."""

from __future__ import annotations

import pytest

from cerebro_db.core import codec
from cerebro_db.core.errors import BadData, CerebroError, OutOfMemory, TrainerFailed, TrainerKilled
from cerebro_db.core.trainers import sharding
from cerebro_db.core.trainers.sharding import ModelMemory

LARGE = ModelMemory(1, 2300, 2300)
CUT = ModelMemory(5, 560, 2300)


def test_what_goes_on_record_is_read_again() -> None:
    for memory in (ModelMemory(), LARGE, CUT, ModelMemory(3), ModelMemory(3, 1, 2, 1.5)):
        assert codec.read(ModelMemory, {"engine": "jax", **codec.encode(memory)}, "event") == memory
    assert codec.encode(ModelMemory()) == {} and CUT.is_cut and not LARGE.is_cut
    for wrong in (
        {"shards": 0},
        {"shards": "3"},
        {"memory_mb": -1},
        {"uncut_memory_mb": 2**31},
        {"slower": -1},
        {"slower": "2"},
    ):
        with pytest.raises(BadData):
            codec.read(ModelMemory, wrong, "event")


def test_how_many_shards_are_offered() -> None:
    assert LARGE.number_to_offer(600) == 14  # 2,000 MB of the model, of which two shards at a time find 300 MB
    assert LARGE.number_to_offer(2200) == 3
    assert CUT.number_to_offer(600) == 10, "it was cut already, and that was not enough"
    assert ModelMemory(900).number_to_offer(None) == 1000
    for limit in (None, 200, 300):
        assert LARGE.number_to_offer(limit) == 2
    assert ModelMemory().number_to_offer(600) == 2, "nothing is known of it"


def test_errors_of_memory_offer_to_cut_the_model() -> None:
    short, killed = OutOfMemory("the trainer ran out of memory"), TrainerKilled("the trainer was killed")
    assert sharding.told(short, LARGE, 600, "tensorflow", "auto") == (
        'the trainer ran out of memory (it may use 600 MB); the options {"shard": 14} cut it into shards that are in'
        " memory one after the other"
    )
    assert sharding.told(killed, CUT, None, "jax", "never") == (
        'the trainer was killed; the options {"engine": "tensorflow", "shard": 10} instead of "shard": "never" cut it'
        " into more shards"
    )
    other = TrainerFailed("the trainer died of signal 11")
    assert sharding.told(other, LARGE, 600, "tensorflow", "auto") == other.message
    assert [sharding.is_short_of_memory(one) for one in (short, killed, other)] == [True, True, False]


def test_a_model_that_is_not_to_be_cut_is_refused() -> None:
    error: CerebroError = sharding.too_large(LARGE, 600, "tensorflow")
    assert error.message == "a trainer needs about 2,300 MB to train it, and may use 600 MB"
    assert '"shard": 14' in (error.hint or "") and '"memory_mb": 2300' in (error.hint or "")


def test_a_model_that_cannot_be_cut_is_told_so() -> None:
    assert sharding.why_whole(jointly=False, averages=False) is None
    jointly, averages = (sharding.why_whole(jointly=one, averages=not one) for one in (True, False))
    assert jointly is not None and averages is not None and jointly != averages
    error = sharding.too_large(LARGE, 600, "tensorflow", jointly)
    assert (error.hint or "").startswith("Models that several segments") and '"shard"' not in (error.hint or "")
    short, other = OutOfMemory("it ran out of memory"), TrainerFailed("it died")
    assert sharding.told_uncut(short, 600, averages) == f"it ran out of memory (it may use 600 MB); {averages}"
    assert sharding.told_uncut(other, 600, averages) == "it died"


def test_how_much_slower_it_is() -> None:
    said = "; a batch takes at least {} times as long as without shards"
    cut = [ModelMemory(5, 560, 2300, slower) for slower in (2.06, 1.3, 0.0, 1.52)]
    assert CUT.cost == sharding.cost_of([]) == "" and cut[0].cost == said.format("2.1")
    assert ModelMemory(5, 560, 2300, 0.9).cost == said.format("1.0"), "the clock is not exact"
    assert sharding.cost_of(cut) == said.format("1.3 to 2.1")
