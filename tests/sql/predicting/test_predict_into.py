"""cerebro.predict_into: the table has the rows that cerebro.predict returns."""

from __future__ import annotations

import json
import re

import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, flower_model, verb

FLATS = """
CREATE TABLE flats AS SELECT i AS id, (i * 37 % 91)::real AS size,
  CASE WHEN i % 11 > 0 THEN (ARRAY['Rome', 'Bonn', 'Lyon'])[1 + i % 3] END AS city,
  ((i * 37 % 91) * 40 + i * 7 % 10)::real AS rent, CASE WHEN i * 37 % 91 > 45 THEN 'large' ELSE 'small' END AS kind
FROM generate_series(1, 300) i;
CREATE TABLE steps AS SELECT who, at, sin(at * (1 + who % 2)) AS x, who % 2 = 0 AS even
FROM generate_series(1, 24) who, generate_series(0, 39) at;
"""
FEW = {"configurations": [{"architecture": "mlp"}], "epochs": 2, "segments": 1, "options": {"seed": 1}}
WINDOWS = {"by": "who", "order": "at", "length": 8, "step": 4}
DOUBLE = "double precision"


@pytest.fixture(scope="module")
def flats(lab: Lab) -> Lab:
    lab(FLATS)
    for model, target, source, more in (
        ("rents", "rent", "flats", {}),
        ("both", "kind, rent", "flats", {}),
        ("evens", "even", "steps", {"sequence": WINDOWS}),
    ):
        given = {**FEW, "inputs": "size, city" if source == "flats" else "x", **more}
        values = [json.dumps(one) if isinstance(one, (dict, list)) else one for one in given.values()]
        lab(f"SELECT cerebro.fit(%s, %s, target => %s, {', '.join(f'{name} => %s' for name in given)})",
            source, model, target, *values)  # fmt: skip
    lab.iris(segments=1)
    arch = lab.architecture(flower_model())
    rows = [(arch, f"optimizer='SGD(lr={rate})', {CROSS}", "batch_size=8") for rate in (1e-6, 0.05)]
    lab.fit("train", "irises", lab.selection("mst", rows), 2)
    return lab


def written(lab: Lab, model: str, source: str, more: str = "") -> int:
    lab("DROP TABLE IF EXISTS said")
    return lab.value(f"SELECT cerebro.predict_into(%s, %s, 'said'{more})", model, source)


def same(lab: Lab, model: str, query: str, target: str, more: str = "", keys: str = "id") -> None:
    """What is written is what cerebro.predict returns."""
    present = [name for name, _ in lab.columns("said")]
    several = f"{target}_" if f"{target}_probability" in present else ""
    likely = f"{several}probability" if f"{several}probability" in present else f"NULL::{DOUBLE}"
    rank = "rank" if "rank" in present else "1"
    key = f"concat_ws(', ', {keys})"
    mine = lab(f"SELECT {key}, predicted_{target}::text, {likely}, {rank} FROM said"
               f' ORDER BY {key} COLLATE "C", 4')  # fmt: skip
    wanted = lab(
        "SELECT key_value, COALESCE(class, value::text), probability, COALESCE(rank, 1)"
        f' FROM cerebro.predict(%s, %s{more}) WHERE target = %s ORDER BY key_value COLLATE "C", 4',
        model, query, target,
    )  # fmt: skip
    assert [(row[0], row[3]) for row in mine] == [(row[0], row[3]) for row in wanted]
    for own, other in zip(mine, wanted):
        if own[2] is None:
            assert other[2] is None and float(own[1]) == pytest.approx(float(other[1]), rel=1e-5, abs=1e-6)
        else:
            assert own[1] == other[1] and own[2] == pytest.approx(other[2], rel=1e-5, abs=1e-6)


RENT, KIND = ("predicted_rent", DOUBLE), ("predicted_kind", "text")
CLASS = [("predicted_species", "text"), ("probability", DOUBLE)]


@pytest.mark.parametrize(
    ("model", "source", "more", "rows", "columns"),
    [
        ("rents", "flats", "", 300, [RENT]),
        ("both", "flats", ", key => 'id'", 300, [KIND, ("kind_probability", DOUBLE), RENT]),
        ("irises", "garden", "", 30, CLASS),
        ("irises", "garden", ", configuration => 1, top => 3", 30, [*CLASS, ("rank", "integer")]),
        ("evens", "steps", "", 24 * 9, [("predicted_even", "boolean"), ("probability", DOUBLE)]),
    ],
)
def test_the_same_rows_as_predict(
    flats: Lab, model: str, source: str, more: str, rows: int, columns: list[tuple[str, str]]
) -> None:
    """In columns of their own types, and none that would be empty."""
    assert written(flats, model, source, more) == rows
    keys = [("who", "integer"), ("at", "integer")] if source == "steps" else [("id", "integer")]
    assert flats.columns("said") == [*keys, *columns]
    assert flats.value("SELECT count(*) FROM said") == rows * (3 if "top" in more else 1)
    for name, _ in columns:
        if name.startswith("predicted_"):
            same(flats, model, f"SELECT * FROM {source}", name[10:], more, ", ".join(name for name, _ in keys))


def test_columns_of_the_rows_are_kept_as_they_are(flats: Lab) -> None:
    flats(
        'CREATE TABLE odd AS SELECT id, size, city, kind, id % 7 = 0 AS "select", \'a,"b\' || id AS "Na,me",'
        " 1.10::numeric(9, 2) * id AS price, ARRAY[id, NULL] AS list, now() AS at, NULL::date AS never,"
        " json_build_object('a', id) AS document FROM flats"
    )
    assert written(flats, "both", "odd", ", keep => '*'") == 300
    names = [name for name, _ in flats.columns("odd")]
    assert flats.columns("said")[: len(names)] == flats.columns("odd")
    listed = ", ".join(f'"{name}"{"::text" if name == "document" else ""}' for name in names)
    assert not flats(f"SELECT {listed} FROM odd EXCEPT SELECT {listed} FROM said")
    written(flats, "both", "odd", """, key => 'id', keep => '"Na,me", city, id'""")
    assert [name for name, _ in flats.columns("said")][:3] == ["id", "Na,me", "city"]
    flats("CREATE TABLE bare_rows AS SELECT size, city, rent FROM flats")
    assert written(flats, "rents", "bare_rows", ", keep => '*'") == 300, "without a key"
    kept = "SELECT size, city, rent, count(*) FROM {} GROUP BY 1, 2, 3"
    assert not flats(f"{kept.format('said')} EXCEPT {kept.format('bare_rows')}")
    flats("CREATE VIEW clash AS SELECT id, size, city, 0 AS predicted_rent FROM flats")
    for arguments, says in (
        ("keep => '*'", "two columns 'predicted_rent'"),
        ("keep => 'size, nobody'", "'clash' has no column 'nobody'"),
        ("keep => ''", "keep must not be NULL or empty"),
        ("probability_of => 'large'", "predicts a number"),
    ):
        with pytest.raises(psycopg2.Error, match=says) as error:
            written(flats, "rents", "clash", f", {arguments}")
        assert error.value.diag.message_hint or "empty" in says


def test_the_probabilities_of_named_classes(flats: Lab) -> None:
    written(flats, "irises", "garden", ", probability_of => '*'")
    classes = [one for (one,) in flats("SELECT DISTINCT species FROM garden ORDER BY 1")]
    assert [name for name, _ in flats.columns("said")][3:] == [f"probability_{one}" for one in classes]
    listed = ", ".join(f'"probability_{one}"' for one in classes)
    for row in flats(f"SELECT predicted_species, probability, {listed} FROM said"):
        assert sum(row[2:]) == pytest.approx(1, abs=1e-5)
        assert row[1] == max(row[2:]) == row[2 + classes.index(row[0])]
    one, other = classes[:2]
    wanted = dict(flats(f'SELECT id::text, "probability_{one}" FROM said'))
    rows = "SELECT key_value, class, probability FROM cerebro.predict('irises', 'garden', probability_of => %s)"
    assert {key: value for key, _, value in flats(rows, one)} == pytest.approx(wanted, rel=1e-5)
    assert len(flats(rows, f"{one},{other}")) == 60 and {two for _, two, _ in flats(rows, one)} == {one}
    both = flats("SELECT target, class FROM cerebro.predict('both', 'flats', probability_of => 'small')")
    assert set(both) == {("kind", "small"), ("rent", None)} and len(both) == 600
    written(flats, "both", "flats", ", probability_of => 'small'")
    assert ("kind_probability_small", DOUBLE) in flats.columns("said")
    for arguments, says in (
        ("probability_of => 'roses'", "no class 'roses'"),
        (f"probability_of => '{one}', top => 2", "cannot be used together"),
    ):
        with pytest.raises(psycopg2.Error, match=says) as error:
            flats(f"SELECT * FROM cerebro.predict('irises', 'garden', {arguments})")
        assert error.value.diag.message_hint


def test_the_probability_of_a_class_that_begins_with_a_space(flats: Lab) -> None:
    flats("CREATE TABLE padded AS SELECT id, size, (ARRAY[' a', 'b'])[1 + id % 2] AS kind FROM flats")
    flats(*verb("fit", "padded", "pads", [{"architecture": "mlp"}], target="kind", inputs="size", epochs=1))
    rows = "SELECT DISTINCT class FROM cerebro.predict('pads', 'padded', probability_of => %s)"
    assert flats(rows, " a") == [(" a",)] and len(flats(rows, "b,b")) == 1


def test_the_best_model_is_the_default(flats: Lab) -> None:
    written(flats, "irises", "garden", ", top => 3")
    same(flats, "irises", "SELECT * FROM garden", "species", ", top => 3")
    (best,) = flats("SELECT mst_key FROM irises_info ORDER BY training_loss_final LIMIT 1")
    same(flats, "irises", "SELECT * FROM garden", "species", f", configuration => {best[0]}, top => 3")


def test_all_segments_predict_a_large_table(flats: Lab) -> None:
    """Above 4 MB, worker sessions share the rows; a view and the caller's own session find the same."""
    flats("CREATE TABLE many AS SELECT i AS id, size, city, repeat('x', 40) AS filling"
          " FROM flats, generate_series(1, 60000) i WHERE flats.id = 1 + i % 300")  # fmt: skip
    assert flats.value("SELECT pg_total_relation_size('many') > 4 << 20")
    assert written(flats, "both", "many") == 60_000
    assert flats.value("SELECT count(DISTINCT id) FROM said") == 60_000
    same(flats, "both", "SELECT * FROM many", "kind")
    flats("CREATE VIEW a_part AS SELECT * FROM many WHERE id <= 500")
    assert written(flats, "both", "a_part") == 500
    same(flats, "both", "SELECT * FROM a_part", "rent")
    assert written(flats, "both", "many", ", keep => '*'") == 60_000
    assert not flats("SELECT id, size, city, filling FROM many EXCEPT SELECT id, size, city, filling FROM said")
    assert not flats(
        "SELECT relname FROM pg_class WHERE relname LIKE 'predict_%%' OR relname LIKE 'cerebro_predict_%%'"
    )


def test_a_temporary_table_and_an_empty_one(flats: Lab) -> None:
    flats("CREATE TEMP TABLE mine AS SELECT * FROM flats WHERE id < 10; CREATE TABLE nothing (LIKE flats)")
    assert written(flats, "rents", "mine") == 9
    assert written(flats, "rents", "nothing") == 0 and flats("SELECT * FROM said") == []
    assert flats.value("SELECT cerebro.predict_into('rents', 'mine', 'pg_temp.said_here')") == 9


def test_keys_keep_their_types(flats: Lab) -> None:
    flats(
        "CREATE TABLE dated AS SELECT *, 1.0::double precision / id AS part, date '2020-01-31' + id AS day,"
        " id::bit(12) AS bits, ARRAY[id::bit(12)] AS several FROM flats"
    )
    for key in ("part", "day", "bits", "several"):
        flats("SET datestyle = 'German'")
        written(flats, "rents", "dated", f", key => '{key}'")
        flats("RESET datestyle")
        assert flats.value(f"SELECT count(*) FROM said JOIN dated USING ({key})") == 300


@pytest.mark.parametrize("call", ["predict_into('rents', '{}', 'never')", "predict('rents', 'TABLE {}')"])
def test_the_rows_that_are_predicted_cannot_predict(flats: Lab, call: str) -> None:
    """A view may call any function.  It would take the trainer away from the statement that reads the view."""
    asks = {
        "predict_into": "cerebro.predict_into('irises', 'garden', 'pg_temp.inner_' || i)",
        "predict": "count(*) FROM cerebro.predict('irises', 'TABLE garden')",
        "evaluate": "count(*) FROM cerebro.evaluate('irises', 'TABLE garden')",
    }
    for name, ask in asks.items():
        flats(f"CREATE OR REPLACE FUNCTION ask_{name}(i integer) RETURNS real LANGUAGE plpgsql AS"
              f" $$ BEGIN PERFORM {ask}; RETURN i; END $$")  # fmt: skip
        flats(f"CREATE OR REPLACE VIEW asks_{name} AS SELECT id, ask_{name}(id) AS size, city FROM flats WHERE id < 3")
        # The segments of Greenplum, which read the view, let no function read other tables.
        refused, why = (
            (psycopg2.errors.FeatureNotSupported, r"It cannot run \w+ there|cannot execute on a QE slice")
            if flats.greenplum
            else (psycopg2.errors.ObjectInUse, "cannot call it")
        )
        with pytest.raises(refused, match=why):
            flats(f"SELECT * FROM cerebro.{call.format(f'asks_{name}')}")
    assert "never" not in flats.tables() and written(flats, "rents", "flats") == 300


def test_a_view_runs_as_in_predict(flats: Lab) -> None:
    """In the caller's own session, with its rights and its process; on Greenplum in the processes of the segments."""
    flats("CREATE FUNCTION who(i integer) RETURNS real LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'as % of % in %',"
          " current_user, session_user, pg_backend_pid(); RETURN i; END $$;"
          " CREATE VIEW whose AS SELECT id, who(id) AS size, city FROM flats WHERE id < 3")  # fmt: skip
    heard = []
    for call in ("predict_into('rents', 'whose', 'heard')", "predict('rents', 'TABLE whose')"):
        flats.told()
        flats(f"SELECT * FROM cerebro.{call}")
        heard.append(
            {re.sub(r" in \d+.*", "", one) if flats.greenplum else one for one in flats.told() if " of " in one}
        )
    assert heard[0] == heard[1] and len(heard[0]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'rents', 'flats', 'flats'", "'flats' already exists"),
        ("'rents', 'flats', NULL", "output_table must not be NULL or empty"),
        ("'rents', 'nowhere', 'new'", "source_table: there is no table 'nowhere'"),
        ("'flats', 'flats', 'new'", "is not a table of trained models"),
        ("'rents', 'flats', 'new', 'nobody'", "key must be one column of 'flats'"),
        ("'rents', 'flats', 'new', configuration => 9", "'rents' has no configuration 9"),
        ("'rents', 'flats', 'new', top => 0", "top cannot be 0"),
        ("'both', 'flats', 'new', top => 2", "the model has 2 targets"),
        ("'rents', 'garden', 'new'", "'garden' does not have the inputs size, city"),
        ("'rents', 'bare', 'new'", "'bare' has no column for the key"),
        ("'rents', 'holes', 'new'", "'holes' has no column for the key"),
        ("'rents', 'holes', 'new', 'id'", "1 rows of 'holes' have a NULL in id"),
    ],
)
def test_errors_say_what_is_wrong(flats: Lab, arguments: str, says: str) -> None:
    flats("CREATE TABLE IF NOT EXISTS bare AS SELECT size, city, rent FROM flats")
    flats("CREATE TABLE IF NOT EXISTS holes AS SELECT NULLIF(id, 7) AS id, size, city FROM flats")
    with pytest.raises(psycopg2.Error) as error:
        flats(f"SELECT cerebro.predict_into({arguments})")
    assert says in str(error.value) and error.value.diag.message_hint
    assert "new" not in flats.tables()


# -- the key of rows for which none is named -----------------------------------------------------------------

NEW = "SELECT now() AS loaded, 7 AS batch, f.* FROM flats f"


@pytest.mark.parametrize(
    ("query", "key", "says"),
    [
        ("TABLE flats", "id", ""),
        (NEW, "id", "key_value is the column 'id': the column batch has NULLs or long values, or the same value in"),
        ("SELECT *, now() + id * interval '1 s' AS loaded FROM flats", "id", ""),
        (
            "SELECT 'july' AS batch, size, city, now() + id * interval '1 s' AS loaded FROM flats",
            "loaded",
            "column 'loaded'",
        ),
        ("SELECT size, city FROM flats", None, ""),
        ("SELECT 'july' AS batch, true AS new, size, city FROM flats", None, "the columns batch, new have NULLs"),
        ("SELECT NULLIF(id, 7) AS id, size, city FROM flats", None, "key_value is the number of the row"),
        ("SELECT ARRAY[id] AS ids, to_json(id) AS j, 'n' || id AS name, size, city FROM flats", "name", ""),
        ("SELECT repeat(md5(id::text), 20) AS body, 'n' || id AS name, size, city FROM flats", "name", "column body"),
    ],
)
def test_a_key_tells_the_rows_of_a_query_apart(flats: Lab, query: str, key: str | None, says: str) -> None:
    flats.told()
    found = [one for (one,) in flats("SELECT key_value FROM cerebro.predict('rents', %s)", query)]
    told = "".join(flats.told())
    assert says in told if says else "key_value" not in told
    assert len(set(found)) == 300
    if key not in ("loaded", "name"):
        assert sorted(map(int, found)) == list(range(1, 301))
    if key == "id":  # as predict_into decides
        flats(f"CREATE OR REPLACE VIEW new_ones AS {query}")
        flats.told()
        written(flats, "rents", "new_ones")
        assert {one for (one,) in flats("SELECT id::text FROM said")} == set(found)
        assert says in "".join(flats.told())
        flats("DROP VIEW new_ones")


def test_the_key_of_a_table_is_its_primary_key(flats: Lab) -> None:
    flats("CREATE TABLE keyed (part int, serial int, place int, size real, city text, PRIMARY KEY (part, place))")
    flats("INSERT INTO keyed SELECT id % 20, id, id / 20, size, city FROM flats")
    written(flats, "rents", "keyed")
    assert [name for name, _ in flats.columns("said")] == ["part", "place", "predicted_rent"]
    assert sorted(flats("SELECT part, place FROM said")) == sorted(flats("SELECT part, place FROM keyed"))


def test_kept_columns_need_rights_on_columns_and_types(flats: Lab) -> None:
    flats("CREATE SCHEMA closed; CREATE TYPE closed.mood AS ENUM ('good'); CREATE TYPE view_of AS ENUM ('sea')")
    flats("CREATE TABLE moods AS SELECT id, size, city, 'good'::closed.mood AS mood, 'sea'::view_of AS sight,"
          " 'secret' AS note FROM flats; REVOKE USAGE ON TYPE view_of FROM public; CREATE ROLE keeper LOGIN;"
          " GRANT cerebro_user TO keeper; CREATE SCHEMA kept; ALTER SCHEMA kept OWNER TO keeper;"
          " GRANT SELECT (id, size, city, mood, sight) ON moods TO keeper;"
          " GRANT SELECT ON rents, rents_info, rents_summary TO keeper")  # fmt: skip
    flats(f"GRANT USAGE ON SCHEMA {flats.schema} TO keeper; SET ROLE keeper")
    try:
        with pytest.raises(psycopg2.Error, match="read the column note of 'moods'") as error:
            flats("SELECT cerebro.predict_into('rents', 'moods', 'kept.never', 'id', keep => 'note')")
        assert 'GRANT SELECT ("note")' in error.value.diag.message_hint
        assert flats.value("SELECT cerebro.predict_into('rents', 'moods', 'kept.moods', 'id', keep => '*')") == 300
        assert flats("SELECT DISTINCT mood, sight, pg_typeof(mood)::text, pg_typeof(sight)::text FROM kept.moods") == [
            ("good", "sea", "text", "text")
        ], "types that the caller may not use"
    finally:
        flats("RESET ROLE; DROP OWNED BY keeper; DROP ROLE keeper; DROP TABLE moods; DROP TYPE view_of")
        flats("DROP SCHEMA closed CASCADE")


def test_a_class_with_a_comma_is_named_alone(flats: Lab) -> None:
    flats("CREATE TABLE answers AS SELECT id, size, CASE WHEN id % 2 = 0 THEN 'yes, often' ELSE 'no' END AS answer"
          " FROM flats")  # fmt: skip
    flats("SELECT cerebro.fit('answers', 'answered', '[{\"architecture\": \"mlp\"}]', 'answer', inputs => 'size',"
          " epochs => 1)")  # fmt: skip
    call = "SELECT DISTINCT class FROM cerebro.predict('answered', 'answers', probability_of => %s)"
    assert flats(call, "yes, often") == [("yes, often",)]
    with pytest.raises(psycopg2.Error, match="no class 'yes'") as error:
        flats(call, "yes, often, no")
    assert "name it alone" in error.value.diag.message_hint
