"""What a run allowed its trainers counts for all later uses of its models, and for runs that go on with them.

The summary of the models has it.  The tests change it there to so little that each function refuses the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.conftest import ENGINE
from tests.sql.lab import Lab, adam_and_sgd, layer, sequential

pytestmark = pytest.mark.skipif(ENGINE != "tensorflow", reason="only TensorFlow trains models that are cut")
PLENTY, TOO_LITTLE = 5000, 100  # MB
OPTIONS = {"engine": "tensorflow", "deterministic": True, "memory_mb": PLENTY}
CONFIGURATIONS = json.dumps([{"architecture": "mlp", "units": units} for units in (8, 4)])
FIT = "SELECT cerebro.fit('train', 'models', %s, epochs => 1, {}options => %s)"
REFUSED = "the operations of"  # take more memory than there is

USES = {
    "predict": "SELECT * FROM cerebro.predict('models', 'SELECT * FROM garden', 'id')",
    "predict into": "SELECT cerebro.predict_into('models', 'garden', 'said', 'id')",
    "evaluate": "SELECT * FROM cerebro.evaluate('models', 'SELECT * FROM garden')",
    "importance": "SELECT * FROM cerebro.importance('models', 'SELECT * FROM garden')",
    "importance of packed rows": "SELECT * FROM cerebro.importance('models', 'val')",
    "calibrate": "SELECT cerebro.calibrate('models', 'SELECT * FROM garden')",
    "ensemble": "SELECT cerebro.ensemble('models', 'together')",
    "MADlib's predict": "SELECT madlib.madlib_keras_predict('theirs', 'garden', 'id', 'sl, sw, pl, pw', 'told',"
    " 'prob', FALSE, 1)",
    "MADlib's evaluate": "SELECT madlib.madlib_keras_evaluate('theirs', 'val', 'judged', FALSE, 1)",
}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(2)
    model = lab.architecture(
        sequential([4], layer("Dense", "in", units=8), layer("Dense", "out", units=3, activation="softmax"))
    )
    lab.selection("mst", adam_and_sgd(model, epochs=2))
    lab(FIT.format("validation_table => 'val', "), CONFIGURATIONS, json.dumps(OPTIONS))
    lab.fit("train", "theirs", "mst", 1, validation_table="val", options=OPTIONS)
    return lab


def summaries(lab: Lab) -> list[Any]:
    return lab("SELECT memory_mb FROM models_summary UNION ALL SELECT memory_mb FROM theirs_summary")


@pytest.fixture
def little(place: Lab) -> Iterator[Lab]:
    for table in ("models", "theirs"):
        place(f"UPDATE {table}_summary SET memory_mb = %s", TOO_LITTLE)
    yield place
    for table in ("models", "theirs"):
        place(f"UPDATE {table}_summary SET memory_mb = %s", PLENTY)


def test_the_summary_has_it(place: Lab) -> None:
    assert summaries(place) == [(PLENTY,), (PLENTY,)]


@pytest.mark.parametrize("use", USES)
def test_each_use_of_the_models_keeps_to_it(little: Lab, use: str) -> None:
    with pytest.raises(psycopg2.Error, match=REFUSED):
        little(USES[use])


def test_with_enough_the_models_are_used(place: Lab) -> None:
    assert len(place(USES["predict"])) == 30
    assert place("SELECT * FROM cerebro.evaluate('models', 'SELECT * FROM garden')")


def test_versions_and_ensembles_remember_it(place: Lab) -> None:
    place("SELECT cerebro.register('of_memory', 'models')")
    assert place.value('SELECT memory_mb FROM cerebro_registry."of_memory@1_summary"') == PLENTY
    place("SELECT cerebro.ensemble('models', 'joined', all_join => true)")
    assert place.value("SELECT memory_mb FROM joined_summary") == PLENTY
    place("UPDATE models_summary SET memory_mb = %s", TOO_LITTLE)
    try:
        place("SELECT cerebro.register('of_memory', 'models')")
        with pytest.raises(psycopg2.Error, match=REFUSED):
            place("SELECT * FROM cerebro.predict('of_memory@2', 'SELECT * FROM garden', 'id')")
        assert len(place("SELECT * FROM cerebro.predict('of_memory@1', 'SELECT * FROM garden', 'id')")) == 30
    finally:
        place("UPDATE models_summary SET memory_mb = %s", PLENTY)


def test_a_warm_start_goes_on_with_it(place: Lab) -> None:
    def memory_of(run: int) -> Any:
        return place.value("SELECT (options ->> 'memory_mb')::int FROM run WHERE run = %s", run)

    own = {name: value for name, value in OPTIONS.items() if name != "memory_mb"}
    call = FIT.format("warm_start => true, ")
    assert memory_of(place.value(call, CONFIGURATIONS, json.dumps(own))) == PLENTY
    assert place("SELECT memory_mb FROM models_summary") == [(PLENTY,)]
    place("SELECT cerebro.set_limits(NULL, max_trainer_mb => %s)", PLENTY - 1000)
    try:
        assert memory_of(place.value(call, CONFIGURATIONS, json.dumps(own))) == PLENTY - 1000, (
            "never above the role's limit"
        )
    finally:
        place("DELETE FROM cerebro.role_limit")
    assert memory_of(place.value(call, CONFIGURATIONS, json.dumps({**own, "memory_mb": 4500}))) == 4500, (
        "the option counts"
    )
    place("UPDATE models_summary SET memory_mb = %s", PLENTY)


def test_no_use_reads_what_is_no_number_of_megabytes(place: Lab) -> None:
    for value in (0, -5):
        place("UPDATE models_summary SET memory_mb = %s", value)
        with pytest.raises(psycopg2.Error, match="memory_mb has to be from 1 to"):
            place(USES["predict"])
    place("ALTER TABLE models_summary DROP COLUMN memory_mb")  # as earlier versions made it
    assert len(place(USES["predict"])) == 30
    place("ALTER TABLE models_summary ADD memory_mb text DEFAULT '600'")
    with pytest.raises(psycopg2.Error, match="memory_mb"):
        place(USES["predict"])
    place("ALTER TABLE models_summary DROP COLUMN memory_mb")
    place("ALTER TABLE models_summary ADD memory_mb integer")
    place("UPDATE models_summary SET memory_mb = %s", PLENTY)
