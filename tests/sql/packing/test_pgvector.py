"""Columns of pgvector's types: they are packed, and predicted, as arrays of the same numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from psycopg2 import errors

from cerebro_db.client import Cerebro
from tests.conftest import connect
from tests.sql.lab import Lab, run
from tests.thorough import landing

SCHEMA = '"Where it is"'  # pgvector may be in any schema, also in one that the search_path does not have
KINDS = ("vector", "halfvec", "sparsevec")
MLP = '{"architecture": "mlp", "units": 4, "layers": 1}'


@pytest.fixture(scope="module")
def types(server: str) -> Iterator[dict[str, str]]:
    """Each type of the installed pgvector with its schema: before version 0.7 there is only vector."""
    with contextlib.closing(connect(server)) as connection:
        if not run(connection, "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            pytest.skip("the server has no pgvector (Debian: postgresql-NN-pgvector)")
        there = run(connection, "SELECT 1 FROM pg_extension WHERE extname = 'vector'")
        if not there:
            run(connection, f"CREATE SCHEMA {SCHEMA}; CREATE EXTENSION vector SCHEMA {SCHEMA}")
        found = run(
            connection,
            "SELECT t.typname, format('%%I.%%I', n.nspname, t.typname) FROM pg_type t JOIN pg_namespace n"
            " ON n.oid = t.typnamespace JOIN pg_extension x ON x.extnamespace = n.oid AND x.extname = 'vector'"
            " WHERE t.typname = ANY (%s)",
            list(KINDS),
        )
        yield dict(found)
        if not there:
            run(connection, f"SET client_min_messages = warning; DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture(scope="module")
def texts(types: dict[str, str], lab: Lab) -> Lab:
    """Sentences with an embedding, whose numbers are the same in all types; of each type a view names it ``e``."""
    numbers = "ARRAY[i % 7 * 0.25, -(i % 5) * 0.5, 0, i % 3]::real[]"
    lab(f"CREATE TABLE texts AS SELECT i AS id, {numbers} AS a, (i % 11)::real AS x, i % 2 = 0 AS yes,"
        " (ARRAY['good', 'bad', 'so so'])[1 + i % 3] AS mood FROM generate_series(1, 300) i")  # fmt: skip
    lab("CREATE VIEW of_array AS SELECT id, a AS e, x, mood FROM texts")
    for name, kind in types.items():
        through = types["vector"]
        lab(f"ALTER TABLE texts ADD {name} {kind}(4); UPDATE texts SET {name} = a::{through}::{kind}")
        lab(f"CREATE VIEW of_{name} AS SELECT id, {name} AS e, x, mood FROM texts")
    lab("ALTER TABLE texts ADD PRIMARY KEY (id)")
    return lab


# The first test packs all types: what reads packed rows finds the same numbers afterwards.
one_kind = pytest.mark.parametrize("kind", landing(KINDS, "sparsevec"), indirect=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, types: dict[str, str]) -> str:
    if request.param not in types:
        pytest.skip(f"this pgvector has no {request.param}: version 0.7 has it")
    return str(request.param)


@pytest.fixture(scope="module")
def trained(texts: Lab) -> Lab:
    """``by_array`` and ``by_vector``: the same model, trained on the two types."""
    for name in ("array", "vector"):
        texts("SELECT cerebro.fit(%s, %s, %s, target => 'mood', inputs => 'e, x', epochs => 2, segments => 1,"
              " options => %s)",
              f"of_{name}", f"by_{name}", MLP, '{"seed": 1, "deterministic": true}')  # fmt: skip
    return texts


def packed(lab: Lab, table: str) -> list[tuple[object, ...]]:
    rows = lab(f"SELECT * FROM {table} ORDER BY __dist_key__, buffer_id")
    return [tuple(bytes(one) if isinstance(one, memoryview) else one for one in row) for row in rows]


# -- packing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["id, e, x, mood", "id, e, x, mood, x + 1 AS x2, x - 1 AS x3"])
def test_a_vector_is_packed_as_the_array_is(texts: Lab, kind: str, columns: str) -> None:
    found = []
    for source in ("array", kind):
        texts(f"CREATE TEMP VIEW here AS SELECT {columns} FROM of_{source}")
        texts("SELECT cerebro.pack('here', 'same', 'mood', segments => 2, seed => 1)")
        found.append((packed(texts, "same"), packed(texts, "same_validation")))
        texts("DROP VIEW here; DROP TABLE same, same_summary, same_validation, same_validation_summary")
    assert found[0] == found[1]
    assert found[0][0] and found[0][1]


@one_kind
def test_two_vectors_beside_numbers(texts: Lab, types: dict[str, str], kind: str) -> None:
    texts(f"CREATE TEMP VIEW two AS SELECT id, {kind} AS title, ({kind}::{types['vector']}::real[])[:2]::{types[kind]}"
          " AS body, x, yes, mood FROM texts")  # fmt: skip
    texts("SELECT cerebro.pack('two', 'two_packed', 'mood')")
    became = dict(texts("SELECT column_name, (prepared_as, width) FROM cerebro.prepared_columns('two_packed')"))
    assert became["title"] == "(as_is,4)" and became["body"] == "(as_is,2)"
    assert set(became) - {"id"} == {"title", "body", "x", "yes", "mood"}
    texts("DROP VIEW two; DROP TABLE two_packed, two_packed_summary, two_packed_validation,"
          " two_packed_validation_summary")  # fmt: skip


@one_kind
def test_vectors_that_arrive_later_are_added_as_arrays_are(texts: Lab, kind: str) -> None:
    found = []
    for source in ("array", kind):
        texts(f"SELECT cerebro.pack('of_{source}', 'grown', 'mood', segments => 2, seed => 1)")
        texts(f"CREATE TEMP VIEW later AS SELECT id + 1000 AS id, e, x, mood FROM of_{source} WHERE id < 50")
        texts("SELECT cerebro.append('grown', 'later')")
        found.append((packed(texts, "grown"), packed(texts, "grown_validation")))
        texts("DROP VIEW later; DROP TABLE grown, grown_summary, grown_validation, grown_validation_summary")
    assert found[0] == found[1]


@one_kind
def test_vectors_are_propagated_as_arrays_are(texts: Lab, kind: str) -> None:
    texts("CREATE TEMP TABLE links AS SELECT id AS source, 1 + (id + 4) % 300 AS target FROM texts")
    texts(f"CREATE TABLE nodes AS SELECT id, {kind} AS e FROM texts")
    texts("SELECT cerebro.propagate('nodes', 'links', 'of_vectors')")
    texts("SELECT cerebro.propagate('of_array', 'links', 'of_arrays', columns => 'e')")
    both = "SELECT e_hop_1, e_hop_2 FROM {} ORDER BY id"
    assert texts(both.format("of_vectors")) == texts(both.format("of_arrays"))
    texts("UPDATE nodes SET e = (SELECT n.e FROM nodes n WHERE n.id = 2) WHERE id = 1")
    assert texts("SELECT cerebro.propagate('nodes', 'links', 'of_vectors', append => true)") == [(5,)]
    for made in ("of_vectors", "of_arrays"):
        texts(f"DROP TABLE {made}, {made}_summary, {made}_neighbours")
    texts("DROP TABLE nodes, links")


def test_a_domain_and_a_column_without_a_dimension(texts: Lab, types: dict[str, str]) -> None:
    texts(f"CREATE DOMAIN embedding AS {types['vector']}(4); CREATE TABLE domains (id int, e embedding,"
          f" free {types['vector']}, y real)")  # fmt: skip
    texts("INSERT INTO domains SELECT id, vector, vector, x FROM texts")
    texts("SELECT cerebro.pack('domains', 'domains_packed', 'y')")
    became = dict(texts("SELECT column_name, (prepared_as, width) FROM cerebro.prepared_columns('domains_packed')"))
    assert became["e"] == became["free"] == "(as_is,4)"


def test_vectors_that_cannot_be_packed(texts: Lab, types: dict[str, str]) -> None:
    texts(f"CREATE TABLE mixed (id int, e {types['vector']}, y real); INSERT INTO mixed"
          " SELECT id, vector, x FROM texts; UPDATE mixed SET e = '[1,2,3]' WHERE id = 7")  # fmt: skip
    with pytest.raises(errors.DataException, match="column 'e' .*arrays of different shapes: .*") as wrong:
        texts("SELECT cerebro.pack('mixed', 'mixed_packed', 'y')")
    query = wrong.value.diag.message_hint.removeprefix("Find them with: ")
    assert [row[0] for row in texts(query)] == [7]
    texts("UPDATE mixed SET e = NULL WHERE id = 7")
    with pytest.raises(errors.DataException, match="column 'e' .* is NULL in 1 of "):
        texts("SELECT cerebro.pack('mixed', 'mixed_packed', 'y')")
    texts(f"CREATE TABLE short AS SELECT id, '[1,2,3]'::{types['vector']} AS e, x AS y FROM texts")
    texts("DELETE FROM mixed WHERE id = 7")
    with pytest.raises(errors.DataException, match=r"shape \[3\]"):
        texts("SELECT cerebro.pack('mixed', 'mixed_packed', 'y', validation_table => 'short')")
    assert not texts(
        "SELECT 1 FROM pg_tables WHERE tablename LIKE 'mixed\\_packed%%' AND schemaname = %s", texts.schema
    )
    with pytest.raises(errors.InvalidParameterValue, match="column 'e' of type .* cannot become category"):
        texts("SELECT cerebro.pack('mixed', 'mixed_packed', 'y', prepare => '{\"e\": \"category\"}')")


def test_a_users_own_type_of_the_name_is_none_of_pgvectors(texts: Lab) -> None:
    texts("CREATE TYPE vector AS ENUM ('up', 'down')")
    texts("CREATE TABLE enums AS SELECT id, (ARRAY['up', 'down'])[1 + id % 2]::vector AS way, x FROM texts")
    texts("SELECT cerebro.pack('enums', 'enums_packed', 'x')")
    assert texts("SELECT prepared_as FROM cerebro.prepared_columns('enums_packed') WHERE column_name = 'way'") == [
        ("category",)
    ]
    texts("DROP TABLE enums; DROP TYPE vector CASCADE")


@one_kind
def test_a_vector_as_target(texts: Lab, kind: str) -> None:
    found = []
    for source in ("array", kind):
        texts(f"SELECT cerebro.pack('of_{source}', 'goal', 'e', inputs => 'x', seed => 1)")
        found.append(packed(texts, "goal"))
        texts("DROP TABLE goal, goal_summary, goal_validation, goal_validation_summary")
    assert found[0] == found[1]


@one_kind
def test_windows_of_vectors(texts: Lab, kind: str) -> None:
    found = []
    for source in ("array", kind):
        texts(f"SELECT cerebro.pack('of_{source}', 'windows', 'x', inputs => 'e', seed => 1,"
              ' sequence => \'{"order": "id", "length": 5}\')')  # fmt: skip
        found.append((packed(texts, "windows"), packed(texts, "windows_validation")))
        texts("DROP TABLE windows, windows_summary, windows_validation, windows_validation_summary")
    assert found[0] == found[1]


def test_rows_with_vectors_are_packed_once(texts: Lab) -> None:
    for model in ("once", "twice"):
        texts("SELECT cerebro.fit('texts', %s, %s, target => 'mood', inputs => 'vector', epochs => 1,"
              " segments => 1)", model, MLP)  # fmt: skip
    assert any("these rows were packed before" in one for one in texts.told())


# -- models --------------------------------------------------------------------------------------------------


def test_training_on_vectors_is_training_on_arrays(trained: Lab) -> None:
    assert trained.losses("by_array") == trained.losses("by_vector")
    assert trained.weights("by_array") == trained.weights("by_vector")


def predicted(lab: Lab, query: str) -> list[tuple[object, ...]]:
    return lab("SELECT key_value, class, probability FROM cerebro.predict('by_vector', %s, 'id') ORDER BY 1", query)


def test_predictions(trained: Lab, kind: str) -> None:
    wanted = predicted(trained, "SELECT * FROM of_array")
    assert len(wanted) == 300
    assert predicted(trained, f"SELECT * FROM of_{kind}") == wanted
    (one,) = predicted(trained, f"SELECT * FROM of_{kind} WHERE id = 17")
    assert one == next(row for row in wanted if row[0] == "17")
    trained(f"SELECT cerebro.predict_into('by_vector', 'of_{kind}', 'written', key => 'id')")
    assert sorted(trained("SELECT id::text, predicted_mood::text FROM written")) == sorted(row[:2] for row in wanted)
    trained("DROP TABLE written")
    with pytest.raises(errors.DataException, match="NULL in column 'e'"):
        predicted(trained, f"SELECT id, CASE WHEN id <> 3 THEN e END AS e, x FROM of_{kind}")


def test_a_predictor_and_a_trigger(trained: Lab, types: dict[str, str]) -> None:
    trained("SELECT cerebro.create_predictor('by_vector', 'mood_of', replace => true)")
    wanted = [row[1] for row in predicted(trained, "SELECT * FROM of_vector WHERE id <= 3")]
    assert [
        row[0] for row in trained("SELECT mood_of(e => vector, x => x) FROM texts WHERE id <= 3 ORDER BY id::text")
    ] == wanted
    trained(f"CREATE TABLE arriving (e {types['vector']}(4), x real, mood text)")
    trained("CREATE FUNCTION guess() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN NEW.mood := mood_of(e => NEW.e, x => NEW.x); RETURN NEW; END'")  # fmt: skip
    trained("CREATE TRIGGER guess BEFORE INSERT ON arriving FOR EACH ROW EXECUTE FUNCTION guess()")
    trained("INSERT INTO arriving SELECT vector, x FROM texts WHERE id <= 3")
    assert [row[0] for row in trained("SELECT mood FROM arriving")] == wanted


@one_kind
def test_functions_that_judge(trained: Lab, kind: str) -> None:
    for call in (
        "SELECT * FROM cerebro.class_metrics('by_vector', %s) ORDER BY 1",
        "SELECT * FROM cerebro.confusion_matrix('by_vector', %s) ORDER BY 1, 2",
        "SELECT * FROM cerebro.drift('by_vector', %s) ORDER BY 1",
        "SELECT * FROM cerebro.importance('by_vector', %s) ORDER BY 1",
    ):
        assert trained(call, f"SELECT * FROM of_{kind}") == trained(call, "SELECT * FROM of_array"), call


@one_kind
def test_madlibs_functions(texts: Lab, kind: str) -> None:
    found = []
    for source in ("array", kind):
        texts(f"SELECT madlib.training_preprocessor_dl('of_{source}', 'prepared', 'mood', 'e')")
        buffers = [bytes(one) for (one,) in texts("SELECT e FROM prepared")]
        found.append(sorted(np.frombuffer(b"".join(buffers), "<f4").reshape(-1, 4).tolist()))
        texts("DROP TABLE prepared, prepared_summary")
    assert found[0] == found[1]
    assert len(found[0]) == 300


@one_kind
def test_an_exported_file_is_compared_on_vectors(trained: Lab, kind: str, tmp_path: Path) -> None:
    with Cerebro(trained.connect()) as cerebro:
        told = cerebro.export("by_vector", tmp_path / "m.keras", sample=f"SELECT * FROM {trained.schema}.of_{kind}")
        assert "100 rows" in str(told) and np.isfinite(told.difference)
