"""Examples that the tests of a page's own do not run: vectors, the options of a run, and MADlib's custom functions."""

from __future__ import annotations

from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements
from tests.sql.runs.test_refused_calls import GOODS


def test_vectors_beside_other_columns(lab: Lab) -> None:
    """The page trains on a type of pgvector, which may be missing: here it is the array that it stands for."""
    lab(
        "CREATE TABLE sentences AS SELECT i AS id, 'author ' || i % 5 AS author,"
        " date '2024-01-01' + i AS written, (ARRAY['good', 'bad'])[1 + i % 2] AS opinion FROM generate_series(1, 300) i"
    )
    (block,) = [one for one in blocks("docs/prepare.md", "sql", every=True) if "vector(" in one]
    add, train, predict = statements(block)
    lab(add.replace("vector(384)", "real[]"))
    lab("UPDATE sentences SET embedding = (SELECT array_agg(sin(id * n)::real) FROM generate_series(1, 384) n)")
    lab("CREATE TABLE new_sentences AS SELECT * FROM sentences WHERE id <= 7")
    lab(train.replace("'10 minutes'", "'4 seconds'"))
    assert len(lab(predict)) == 7


def test_the_options_of_a_run(lab: Lab) -> None:
    lab(GOODS.format(rows=60).replace("TABLE goods", "TABLE iris").replace(" AS class", " AS species"))
    (block,) = blocks("docs/reference/options.md", "sql")
    (fit,) = statements(block)
    lab(fit.replace("'species',", "'species', epochs => 1,"))
    assert lab("SELECT DISTINCT status FROM leaderboard WHERE model_table LIKE '%%.iris_jax'") == [("finished",)]


def test_a_custom_function_of_madlibs(lab: Lab) -> None:
    (block,) = [one for one in blocks("docs/madlib.md", "sql") if "load_custom_function" in one]
    try:
        lab(*statements(block))
        assert lab("SELECT kind FROM cerebro.custom_functions WHERE name = 'rooted_error'") == [("both",)]
    finally:
        lab("DELETE FROM cerebro.custom_function; DROP TABLE IF EXISTS madlib.custom_functions")
