"""Packing on a real server: the buffers contain the rows of the table, and errors leave nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading

import numpy as np
import psycopg2
import pytest
from psycopg2 import errors

from cerebro_plpy.platform import machine

DTYPES = {"uint8": "u1", "int16": "<i2", "int32": "<i4", "float32": "<f4"}


@pytest.fixture
def db(one_session):
    with one_session.schema() as connection:
        yield connection


@pytest.fixture
def greenplum(sql):
    return sql("SELECT current_setting('gp_role', true)") != [(None,)]


@pytest.fixture
def flowers(sql):
    """150 distinguishable rows: the first attribute is the id, which determines the class."""
    sql(
        "CREATE TABLE flowers AS SELECT i AS id, ARRAY[i, i % 7, -i / 3.0, 0.25]::real[] AS attributes, "
        "(ARRAY['setosa','Virginica','don''t \\ \"know\"'])[1 + i % 3]::varchar AS kind FROM generate_series(1, 150) i"
    )


def pack(sql, source="flowers", output="packed", dependent="kind", independent="attributes", **more):
    tables = {"source_table": source, "output_table": output}
    arguments = {**tables, "target": dependent, "inputs": independent, **more}
    function = "pack_like" if "packed_table" in more else "pack_plain"
    named = ", ".join(f"{name} => %s" for name in arguments)
    sql(f"SELECT cerebro.{function}({named})", *arguments.values())


def layout(sql, table="packed"):
    return sql(f"SELECT layout FROM {table}_summary")[0][0]


def read(sql, table="packed"):
    """For each partition and variable, an array of the rows, after a check of everything in the layout."""
    told = layout(sql, table)
    variables = told["inputs"] + told["outputs"]
    found = []
    for partition in told["partitions"]:
        names = ", ".join(f'"{v["name"]}", "{v["name"]}_shape"' for v in variables)
        buffers = sql(f"SELECT {names} FROM {table} WHERE __dist_key__ = {partition['key']} ORDER BY buffer_id")
        digest, size, columns = hashlib.sha256(), 0, [[] for _ in variables]
        for buffer in buffers:
            for place, variable in enumerate(variables):
                payload, shape = bytes(buffer[2 * place]), buffer[2 * place + 1]
                assert shape[1:] == variable["shape"]
                columns[place].append(np.frombuffer(payload, DTYPES[variable["dtype"]]).reshape(shape))
                digest.update(payload)
                size += len(payload)
        arrays = [np.concatenate(column) for column in columns]
        assert partition == {
            "key": partition["key"],
            "rows": len(arrays[0]),
            "buffers": len(buffers),
            "bytes": size,
            "sha256": digest.hexdigest(),
        }
        found.append(arrays)
    assert sum(len(arrays[0]) for arrays in found) == told["rows"]
    assert sql(f"SELECT count(*), min(buffer_id), max(buffer_id) + 1 FROM {table}")[0] == (
        sum(p["buffers"] for p in told["partitions"]),
        0,
        sum(p["buffers"] for p in told["partitions"]),
    )
    return found


def rows_of(sql, table="packed"):
    """The rows of all segments: a list with one array for each variable."""
    return [np.concatenate(column) for column in zip(*read(sql, table))]


def tables_in(sql):
    return {name for (name,) in sql("SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace")}


# -- packed rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("segments", "buffer_size"), [(1, None), (3, None), (4, 7), (2, 1000), (7, 1), (150, None)])
def test_the_buffers_hold_each_row_once_with_its_own_label(sql, flowers, segments, buffer_size):
    pack(sql, segments=segments, buffer_size=buffer_size)
    x, y = rows_of(sql)
    expected = sql("SELECT id, attributes, kind FROM flowers ORDER BY id")
    assert sorted(x[:, 0].tolist()) == list(range(1, 151))
    order = np.argsort(x[:, 0])
    assert np.array_equal(x[order], np.asarray([row[1] for row in expected], "f4"))
    classes = sql("SELECT kind_labels FROM packed_summary")[0][0]
    assert classes == [row[0] for row in sql("SELECT DISTINCT kind FROM flowers ORDER BY 1")]
    assert y.sum(axis=1).tolist() == [1] * 150
    assert [classes[k] for k in y[order].argmax(axis=1)] == [row[2] for row in expected]
    counts = [p["rows"] for p in layout(sql)["partitions"]]
    assert len(counts) == segments and max(counts) - min(counts) <= 1
    assert max(shape[0] for (shape,) in sql("SELECT attributes_shape FROM packed")) <= (buffer_size or 150)


def test_rows_are_shuffled_by_the_seed_and_only_by_it(sql, flowers):
    hashes = []
    for number, seed in enumerate([5, 5, 6, None, None]):
        pack(sql, output=f"packed{number}", segments=2, seed=seed)
        hashes.append([p["sha256"] for p in layout(sql, f"packed{number}")["partitions"]])
    assert hashes[0] == hashes[1]
    assert len({tuple(h) for h in hashes}) == 4
    (drawn,) = sql("SELECT seed FROM packed3_summary")[0]
    pack(sql, output="again", segments=2, seed=drawn)
    assert [p["sha256"] for p in layout(sql, "again")["partitions"]] == hashes[3]
    first = read(sql, "packed0")[0][0][:, 0].tolist()
    assert first != sorted(first)


def test_setseed_is_obeyed_as_it_is_by_madlib(sql, flowers):
    for name in ("one", "two"):
        sql("SELECT setseed(0.5)")
        pack(sql, output=name, segments=2)
    assert sql("SELECT seed FROM one_summary") == sql("SELECT seed FROM two_summary")


def test_the_summary_says_what_was_packed_and_how(sql, flowers):
    pack(sql, segments=2, buffer_size=10, seed=1, divide_by=4)
    found = sql(
        "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = 'packed_summary'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert found == [
        ("source_table", "text"),
        ("packed_table", "text"),
        ("target", "text"),
        ("inputs", "text"),
        ("target_types", "text[]"),
        ("kind_labels", "character varying[]"),
        ("buffer_size", "integer"),
        ("divide_by", "real"),
        ("classes", "integer[]"),
        ("rows", "bigint"),
        ("segments", "integer"),
        ("seed", "bigint"),
        ("layout", "jsonb"),
    ]
    with sql.db.cursor() as cursor:
        cursor.execute("SELECT * FROM packed_summary")
        row = dict(zip([column.name for column in cursor.description], cursor.fetchone()))
    assert row["source_table"].endswith(".flowers") and row["packed_table"].endswith(".packed")
    assert row["target_types"] == ["character varying"] and row["classes"] == [3]
    assert row["buffer_size"] == 10 and row["divide_by"] == 4 and row["rows"] == 150
    assert row["segments"] == 2 and row["seed"] == 1


def test_the_packed_table_has_madlibs_columns_and_a_partition_per_segment(sql, flowers, greenplum):
    pack(sql, segments=2)
    found = sql(
        "SELECT attname::text, format_type(atttypid, NULL), attstorage::text FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        "packed" if greenplum else "packed_seg1",
    )
    assert found == [
        ("__dist_key__", "integer", "p"),
        ("attributes", "bytea", "e"),
        ("kind", "bytea", "e"),
        ("attributes_shape", "integer[]", "x"),
        ("kind_shape", "integer[]", "x"),
        ("buffer_id", "integer", "p"),
    ]
    if greenplum:
        places = sql("SELECT DISTINCT gp_segment_id, __dist_key__ FROM packed ORDER BY 1")
        assert places == [(place, partition["key"]) for place, partition in enumerate(layout(sql)["partitions"])]
        return
    assert sql("SELECT DISTINCT tableoid::regclass::text, __dist_key__ FROM packed ORDER BY 2") == [
        ("packed_seg0", 0),
        ("packed_seg1", 1),
    ]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ("ARRAY[i, 255]::smallint[]", "uint8"),
        ("ARRAY[i % 2 = 0, true]", "uint8"),
        ("ARRAY[i, -1]::integer[]", "int16"),
        ("ARRAY[i, CASE WHEN i = 149 THEN 256 ELSE 0 END]", "int16"),
        ("ARRAY[i, CASE WHEN i = 149 THEN -32769 ELSE 0 END]", "int32"),
        ("ARRAY[i, 2147483647, -2147483648]::integer[]", "int32"),
        ("ARRAY[i, 1]::bigint[]", "float32"),
        ("ARRAY[i, 1.5]::numeric[]", "float32"),
        ("ARRAY[[i, 1.5], [0.1, -2]]::float8[]", "float32"),
        ("ARRAY[[[i], [1]]]::integer[]", "uint8"),
    ],
)
def test_arrays_keep_the_narrowest_integer_or_become_float32(sql, values, dtype):
    sql(f"CREATE TABLE t AS SELECT {values} AS x, i::bigint AS id FROM generate_series(1, 150) i")
    pack(sql, "t", dependent="id", independent="x", segments=3, divide_by=2, buffer_size=20)
    (told,) = layout(sql)["inputs"]
    assert (told["dtype"], told["scale"]) == (dtype, 1.0 if dtype == "float32" else 2.0)
    x, y = rows_of(sql)
    as_floats = "integer[]::real[]" if "true" in values else "real[]"
    expected = np.asarray([row[0] for row in sql(f"SELECT x::{as_floats} FROM t ORDER BY id")], "f4")
    expected = expected * np.float32(0.5) if dtype == "float32" else expected
    assert np.array_equal(x[y.argmax(axis=1).argsort()].astype("f4"), expected)


def test_however_an_array_is_stored_it_is_packed_alike(sql):
    """Arrays with other lower bounds, an empty NULL bitmap, compression, TOAST or another type give the same bytes."""
    numbers = "(SELECT array_agg(j * i % 251 ORDER BY j) FROM generate_series(1, 3000) j)::real[]"
    sql(f"CREATE TABLE plain AS SELECT i AS y, {numbers} AS x FROM generate_series(1, 30) i")
    sql("ALTER TABLE plain ALTER x SET STORAGE external")
    sql(f"CREATE TABLE odd AS SELECT i AS y, {numbers} AS x FROM generate_series(1, 30) i")
    sql("UPDATE odd SET x[7] = NULL WHERE y % 3 = 0")
    sql("UPDATE odd SET x[7] = 7 * y % 251 WHERE y % 3 = 0")
    sql("UPDATE odd SET x = ('[-1:2998]=' || x::text)::real[] WHERE y % 3 = 1")
    sql("CREATE TABLE wide AS SELECT y, x::float8[] FROM odd")
    hashes = []
    for table in ("plain", "odd", "wide"):
        pack(sql, table, f"{table}_packed", dependent="y", independent="x", segments=2, seed=4)
        x, y = rows_of(sql, f"{table}_packed")
        order = y.argmax(axis=1).argsort()
        hashes.append(hashlib.sha256(x[order].tobytes()).digest())
    expected = np.asarray([row[0] for row in sql("SELECT x FROM plain ORDER BY y")], "f4")
    assert hashes == [hashlib.sha256(expected.tobytes()).digest()] * 3


def test_a_divide_byant_divides_as_float32(sql):
    sql("CREATE TABLE t AS SELECT ARRAY[i, i / 7.0]::real[] AS x, i AS y FROM generate_series(0, 99) i")
    pack(sql, "t", dependent="y", independent="x", segments=1, divide_by=255)
    x, y = rows_of(sql)
    source = np.asarray([row[0] for row in sql("SELECT x FROM t ORDER BY y")], "f4")
    assert np.array_equal(x[y.argmax(axis=1).argsort()], source * np.float32(1 / 255))


def test_plain_number_columns_make_one_input_and_arrays_one_each(sql):
    sql(
        "CREATE TABLE t AS SELECT i AS a, i * 0.5 AS b, i % 2 = 0 AS c, ARRAY[i, i]::int[] AS picture, "
        "ARRAY[i]::real[] AS sound, i::real AS y FROM generate_series(1, 20) i"
    )
    pack(sql, "t", dependent="y", independent="picture, a, sound, b, c", segments=2)
    told = layout(sql)
    assert [v["name"] for v in told["inputs"]] == ["picture", "features", "sound"]
    assert told["inputs"][1]["columns"] == ["a", "b", "c"] and told["inputs"][1]["dtype"] == "float32"
    picture, features, sound, y = rows_of(sql)
    assert np.array_equal(picture[:, 0], y[:, 0]) and np.array_equal(sound, y)
    assert np.array_equal(features, np.stack([y[:, 0], y[:, 0] / 2, y[:, 0] % 2 == 0], axis=1))
    assert sql("SELECT inputs FROM packed_summary")[0][0] == "picture, a, sound, b, c"


def test_integer_columns_stay_integers(sql):
    sql("CREATE TABLE t AS SELECT i AS a, i::smallint AS b, i % 2 = 0 AS c, i AS y FROM generate_series(1, 20) i")
    pack(sql, "t", dependent="y", independent="a, b, c", segments=1)
    assert layout(sql)["inputs"][0]["dtype"] == "uint8"


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "shape"),
    [
        ("i::real", "real", "float32", [1]),
        ("i / 4.0", "real", "float32", [1]),
        ("ARRAY[i, i / 4.0]::float8[]", "real", "float32", [2]),
        ("ARRAY[i, -i]", "encoded", "int16", [2]),
        ("ARRAY[i, 32767]::bigint[]", "encoded", "int16", [2]),
    ],
)
def test_outputs_that_are_numbers_are_taken_as_they_are(sql, values, kind, dtype, shape):
    sql(f"CREATE TABLE t AS SELECT ARRAY[i]::int[] AS x, {values} AS y FROM generate_series(1, 20) i")
    pack(sql, "t", dependent="y", independent="x", segments=2)
    (told,) = layout(sql)["outputs"]
    assert (told["kind"], told["dtype"], told["shape"]) == (kind, dtype, shape)
    x, y = rows_of(sql)
    found = sql("SELECT y FROM t ORDER BY x")
    assert np.array_equal(y[x[:, 0].argsort()], np.asarray([row[0] for row in found], "f8").reshape(-1, *shape))
    assert sql("SELECT y_labels, classes FROM packed_summary") == [(None, [])]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ("i % 3", "integer"),
        ("(i % 3)::bigint", "bigint"),
        ("i % 3 = 0", "boolean"),
        ("date '2020-02-29' + i % 3", "date"),
        ("(i % 3 || 'é\"''{,}\\ ')::text", "text"),
        ("(i % 3)::text::char(5)", "character"),
        ('(i % 3)::text::"char"', '"char"'),
        ("(ARRAY['low','mid','high'])[1 + i % 3]::level", "level"),
        ("(ARRAY['10','9','8'])[1 + i % 3]::digit", "digit"),
        ("CASE WHEN i % 3 = 0 THEN '' WHEN i % 3 = 1 THEN 'NULL' ELSE ' ' END", "text"),
    ],
)
def test_labels_of_any_type_are_sorted_as_the_database_sorts_them(sql, values, kind):
    sql("CREATE TYPE level AS ENUM ('low', 'mid', 'high'); CREATE DOMAIN digit AS integer")
    sql(f"CREATE TABLE t AS SELECT ARRAY[i]::int[] AS x, {values} AS y FROM generate_series(1, 30) i")
    pack(sql, "t", dependent="y", independent="x", segments=2)
    assert sql("SELECT target_types FROM packed_summary")[0][0] == [kind]
    x, y = rows_of(sql)
    for row, label in zip(x[:, 0].tolist(), y.argmax(axis=1).tolist()):
        query = f"SELECT s.y_labels[{label + 1}] = t.y FROM packed_summary s, t WHERE t.x[1] = {row}"
        assert sql(query) == [(True,)]
    assert sql(
        "SELECT cardinality(y_labels) = (SELECT count(DISTINCT y) FROM t), "
        "y_labels = ARRAY(SELECT unnest(y_labels) ORDER BY 1) FROM packed_summary"
    ) == [(True, True)]


def test_spellings_that_a_collation_takes_for_equal_are_one_class(sql):
    if not sql("SELECT 1 FROM pg_collation WHERE collprovider = 'i' LIMIT 1"):
        pytest.skip("this server was built without ICU")
    sql("CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    sql("CREATE TABLE t (x int[], y text COLLATE anycase)")
    sql("INSERT INTO t SELECT ARRAY[i], (ARRAY['Yes','yes','YES','no'])[1 + i % 4] FROM generate_series(1, 40) i")
    pack(sql, "t", dependent="y", independent="x", segments=1)
    x, y = rows_of(sql)
    assert y.shape == (40, 2) and np.array_equal(y[:, 0], x[:, 0] % 4 == 3)


def test_several_outputs(sql):
    sql(
        "CREATE TABLE t AS SELECT ARRAY[i]::int[] AS x, i % 2 AS a, i::real AS b, 'k' || i % 5 AS c "
        "FROM generate_series(1, 40) i"
    )
    pack(sql, "t", dependent="a, b, c", independent="x", segments=2)
    x, a, b, c = rows_of(sql)
    assert np.array_equal(a.argmax(axis=1), x[:, 0] % 2) and np.array_equal(b[:, 0], x[:, 0])
    assert np.array_equal(c.argmax(axis=1), x[:, 0] % 5)
    assert sql("SELECT classes, b_labels FROM packed_summary") == [([2, 5], None)]


def test_declared_classes_leave_room(sql, flowers):
    pack(sql, classes=[5], segments=2)
    assert layout(sql)["outputs"][0]["shape"] == [5]
    values, numbers = sql("SELECT kind_labels, classes FROM packed_summary")[0]
    assert values[3:] == [None, None] and None not in values[:3] and numbers == [5]
    with pytest.raises(psycopg2.Error, match=r"equal to or greater than distinct class values found in table \(3\)"):
        pack(sql, output="other", classes=[2])
    with pytest.raises(errors.InvalidParameterValue, match="classes has 2 elements for 1"):
        pack(sql, output="other", classes=[3, 3])


def test_views_and_partitioned_and_temporary_tables_are_read(sql, flowers):
    sql("CREATE VIEW v AS SELECT attributes, upper(kind) AS kind FROM flowers WHERE id <= 100")
    sql("CREATE TABLE p (LIKE flowers) PARTITION BY RANGE (id)")
    sql("CREATE TABLE p1 PARTITION OF p DEFAULT; INSERT INTO p SELECT * FROM flowers")
    sql("CREATE TEMP TABLE temporary AS TABLE flowers; CREATE UNLOGGED TABLE unlogged AS TABLE flowers")
    for source, rows in (("v", 100), ("p", 150), ("temporary", 150), ("unlogged", 150)):
        pack(sql, source, output=f"packed_{source}")
        assert len(rows_of(sql, f"packed_{source}")[0]) == rows


@pytest.mark.parametrize(
    "name", ['My "Table"', "größe", "select", "a.b", "x'; DROP TABLE flowers; --", "ж" * 27, "t%s$1"]
)
def test_hostile_names(sql, name):
    quoted = '"' + name.replace('"', '""') + '"'
    label = '"' + ("y" + name)[:24].replace('"', '""') + '"'
    doubled = quoted.replace("%", "%%")
    with sql.db.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {quoted} AS SELECT ARRAY[i]::int[] AS {quoted}, i % 2 AS {label} "
            "FROM generate_series(1, 20) i"
        )
    output = '"' + ("p" + name)[:24].replace('"', '""') + '"'
    pack(sql, quoted, output, label, quoted, segments=2)
    with sql.db.cursor() as cursor:
        cursor.execute(f"SELECT {quoted}, {label}, length({quoted}) FROM {output}")
        assert sum(row[2] for row in cursor.fetchall()) == 20
    assert doubled


def test_capitals_fold_unless_quoted_and_schemas_are_obeyed(sql, flowers):
    pack(sql, source="FLOWERS", output="Packed", dependent="KIND", independent='"attributes"')
    assert "packed" in tables_in(sql)
    schema = sql("SELECT current_schema()")[0][0]
    sql("SET search_path = pg_catalog")
    pack(sql, source=f"{schema}.flowers", output=f"{schema}.other")
    assert sql(f"SELECT count(*) > 0 FROM {schema}.other") == [(True,)]


def test_settings_are_as_before(sql, flowers):
    sql("DO LANGUAGE plpython3u 'pass'; DO 'BEGIN END'")  # Loading a language adds its own settings.
    ours = "SELECT name, setting FROM pg_settings WHERE name NOT IN ('search_path', 'gp_command_count')"
    before = sql(ours)
    pack(sql)
    assert sql(ours) == before


def test_how_many_segments(sql, flowers, greenplum):
    if greenplum:
        ((most,),) = sql("SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0")
    else:
        most = machine.gpus() or len(os.sched_getaffinity(0))
    sql(f"CREATE TABLE many AS SELECT i AS id, i::real AS x, i % 3 AS y FROM generate_series(1, {500 * most}) i")
    pack(sql, "many", output="many_packed", dependent="y", independent="x")
    pack(sql, output="few_packed")  # 150 rows
    assert sql("SELECT segments FROM many_packed_summary") == [(most,)]
    assert sql("SELECT segments FROM few_packed_summary") == [(most if greenplum else 1,)]
    sql("SET cerebro.segments = 5")
    pack(sql, output="by_setting")
    pack(sql, output="by_argument", segments=3)
    assert sql("SELECT segments FROM by_setting_summary") == [(5,)]
    assert sql("SELECT segments FROM by_argument_summary") == [(3,)]
    sql("SET cerebro.segments = 'many'")
    with pytest.raises(errors.InvalidParameterValue, match="cerebro.segments is 'many'"):
        pack(sql)


def test_one_row_is_enough(sql, flowers):
    sql("DELETE FROM flowers WHERE id > 1")
    pack(sql)
    assert len(rows_of(sql)[0]) == 1


def test_the_notice_says_what_was_done_and_rules_are_ignored(sql, flowers, greenplum):
    sql.db.notices.clear()
    # Greenplum does not ignore them; see tests/sql/server/test_greenplum.py.
    pack(sql, segments=2, distribution_rules="all_segments" if greenplum else "gpu_segments")
    assert greenplum or "distribution_rules is ignored" in sql.db.notices[0]
    assert "150 rows in 2 buffers on 2 segments" in sql.db.notices[-1]


def test_the_number_of_segments_suits_the_rows(sql, flowers, greenplum):
    """Segments that the rows do not repay are not chosen, and advised against."""
    if greenplum:
        pytest.skip("on Greenplum the segments are those of the cluster")
    sql.db.notices.clear()
    pack(sql)
    chosen = sql("SELECT count(DISTINCT __dist_key__) FROM packed")[0][0]
    assert chosen == 1
    assert (machine.gpus() or machine.cores()) == 1 or "1 segment, because 150 rows would not repay" in sql.db.notices[
        0
    ]
    for number, advised in ((2, False), (8, True)):
        sql("DROP TABLE packed, packed_summary")
        sql.db.notices.clear()
        pack(sql, segments=number)
        told = [text for text in sql.db.notices if "segments => 1 is likely to be faster" in text]
        assert bool(told) == advised, sql.db.notices
        assert sql("SELECT count(DISTINCT __dist_key__) FROM packed") == [(number,)]


def test_rows_added_meanwhile_are_all_in_or_all_out(sql, flowers, server):
    """Another session commits rows between our statements.  All packed rows must be of one moment."""
    sql(
        "CREATE TABLE seen (n int); CREATE FUNCTION slow(r real[]) RETURNS real[] LANGUAGE plpgsql VOLATILE AS "
        "$$BEGIN PERFORM pg_sleep(0.002); RETURN r; END$$; "
        "CREATE VIEW slowly AS SELECT slow(attributes) AS attributes, kind FROM flowers"
    )
    schema = sql("SELECT current_schema()")[0][0]

    def add():
        with contextlib.closing(psycopg2.connect(server)) as other:
            other.autocommit = True
            with other.cursor() as cursor:
                for number in range(10):
                    cursor.execute(f"INSERT INTO {schema}.flowers VALUES (0, '{{1000,0,0,0}}', 'new{number}')")

    writer = threading.Thread(target=add)
    writer.start()
    try:
        pack(sql, source="slowly", segments=2)
    except errors.ObjectInUse:
        pass  # The rows changed for too long, and the packing was refused.
    else:
        x, y = rows_of(sql)
        assert len(x) == sql("SELECT rows FROM packed_summary")[0][0] == 150 + int((x[:, 0] == 1000).sum())
    finally:
        writer.join()


# -- validation ----------------------------------------------------------------------------------------


def test_validation_takes_all_from_training(sql, flowers):
    pack(sql, segments=3, classes=[4], divide_by=2)
    sql("CREATE TABLE other AS SELECT id, attributes AS a, kind::text AS k FROM flowers WHERE kind <> 'setosa'")
    pack(sql, "other", "val", "k", "a", packed_table="packed", buffer_size=9)
    told, trained = layout(sql, "val"), layout(sql)
    assert [v["name"] for v in told["inputs"] + told["outputs"]] == ["a", "k"]
    assert told["outputs"][0]["shape"] == [4] and len(told["partitions"]) == 3
    assert told["inputs"][0]["dtype"] == trained["inputs"][0]["dtype"]
    x, y = rows_of(sql, "val")
    classes = sql("SELECT kind_labels FROM packed_summary")[0][0]
    for row, label in zip(x, y.argmax(axis=1)):
        assert sql("SELECT k FROM other WHERE id = %s", int(row[0] * 2)) == [(classes[label],)]
    same = "classes, divide_by, segments"
    assert sql(f"SELECT {same}, kind_labels FROM packed_summary") == sql(f"SELECT {same}, k_labels FROM val_summary")


def test_validation_keeps_the_order_of_the_rows(sql, flowers, greenplum):
    if greenplum:
        pytest.skip("rows have no order on Greenplum")
    pack(sql, segments=1)
    pack(sql, output="val", packed_table="packed")
    assert rows_of(sql, "val")[0][:, 0].tolist() == list(range(1, 151))


def test_validation_labels_must_be_known(sql, flowers):
    pack(sql)
    sql("INSERT INTO flowers VALUES (151, '{1,2,3,4}', 'unheard of')")
    with pytest.raises(psycopg2.Error, match=r"cerebro.pack_like: the class values in flowers \(\[.*\]\) "
                       r"should be a subset of class values in packed \(\[.*\]\)"):  # fmt: skip
        pack(sql, output="val", packed_table="packed")


def test_validation_labels_are_cast_to_the_training_type(sql):
    sql("CREATE TABLE t AS SELECT ARRAY[i]::int[] AS x, i % 3 AS y FROM generate_series(1, 30) i")
    sql("CREATE TABLE u AS SELECT x, y::text AS y FROM t")
    pack(sql, "t", dependent="y", independent="x", segments=2)
    pack(sql, "u", "val", "y", "x", packed_table="packed")
    x, y = rows_of(sql, "val")
    assert np.array_equal(y.argmax(axis=1), x[:, 0] % 3)
    sql("UPDATE u SET y = 'two' WHERE y = '2'")
    with pytest.raises(errors.InvalidParameterValue, match="column 'y' of type text cannot be read as integer"):
        pack(sql, "u", "val2", "y", "x", packed_table="packed")


def test_validation_values_may_be_wider_or_of_another_number_type(sql):
    sql("CREATE TABLE t AS SELECT ARRAY[i]::int[] AS x, i % 3 AS y FROM generate_series(1, 30) i")
    pack(sql, "t", dependent="y", independent="x", segments=2, divide_by=10)
    sql(
        "CREATE TABLE u AS SELECT ARRAY[i * 100]::int[] AS x, ARRAY[i / 2.0]::real[] AS r, i % 3 AS y "
        "FROM generate_series(1, 30) i"
    )
    pack(sql, "u", "wide", "y", "x", packed_table="packed")
    pack(sql, "u", "real", "y", "r", packed_table="packed")
    assert (layout(sql, "wide")["inputs"][0]["dtype"], layout(sql, "wide")["inputs"][0]["scale"]) == ("int16", 10.0)
    assert (layout(sql, "real")["inputs"][0]["dtype"], layout(sql, "real")["inputs"][0]["scale"]) == ("float32", 1.0)
    assert np.allclose(np.sort(rows_of(sql, "real")[0][:, 0]), np.arange(1, 31) / 20)


def test_validation_shapes_and_numbers_of_variables_must_match(sql, flowers):
    pack(sql)
    sql("CREATE TABLE u AS SELECT attributes[1:3] AS attributes, kind, attributes AS more FROM flowers")
    with pytest.raises(errors.DataException, match=r"has shape \[3\]; 'attributes' of table packed has \[4\]"):
        pack(sql, "u", "val", packed_table="packed")
    with pytest.raises(errors.InvalidParameterValue, match="makes 2 variables; table packed has 1"):
        pack(sql, "u", "val", independent="attributes, more", packed_table="packed")
    with pytest.raises(errors.InvalidParameterValue, match="does not fit the training table's 'kind'"):
        pack(sql, "u", "val", dependent="more", packed_table="packed")


def test_validation_may_have_fewer_rows_than_segments(sql, flowers):
    pack(sql, segments=5)
    sql("CREATE TABLE few AS SELECT * FROM flowers LIMIT 2")
    pack(sql, "few", "val", packed_table="packed")
    assert len(rows_of(sql, "val")[0]) == 2


def test_validation_needs_a_packed_training_table(sql, flowers):
    for table, message in (
        ("nothing", "there is no table 'nothing'. Please ensure that table 'nothing' has been packed"),
        (
            "flowers",
            "_summary' does not exist. Please ensure that table 'flowers' has been packed",
        ),
        (None, "packed_table must not be NULL or empty"),
    ):
        with pytest.raises(psycopg2.Error, match=message):
            pack(sql, output="val", packed_table=table)


def test_labels_put_into_the_summary_by_hand_count(sql, flowers):
    pack(sql, classes=[4])
    sql("UPDATE packed_summary SET kind_labels[4] = 'late'")
    sql("UPDATE flowers SET kind = 'late' WHERE id = 7")
    pack(sql, output="val", packed_table="packed")
    x, y = rows_of(sql, "val")
    assert y[x[:, 0] == 7].tolist() == [[0, 0, 0, 1]]


# -- errors --------------------------------------------------------------------------------------------

WRONG = [
    ({"source_table": None}, "42602", "cerebro.pack_plain: source_table must not be NULL or empty."),
    ({"source_table": " "}, "42602", "source_table must not be NULL or empty."),
    ({"source_table": "nix"}, "42P01", "source_table: there is no table 'nix'"),
    ({"source_table": "no_schema.nix"}, "42P01", "source_table: there is no table 'no_schema.nix'"),
    ({"source_table": "My Table"}, "42602", "not an identifier"),
    ({"source_table": "empty"}, "22000", "source_table: 'empty' has no rows."),
    ({"source_table": "flowers_id_seq"}, "0A000", "is not a table or view"),
    ({"output_table": None}, "42602", "output_table must not be NULL or empty."),
    ({"output_table": "null"}, "42602", "output_table must not be NULL or empty."),
    ({"output_table": "1st"}, "42602", "output_table"),
    ({"output_table": "empty"}, "42P07", "'empty' already exists."),
    ({"output_table": "half"}, "42P07", "half_summary' already exists."),
    ({"output_table": "part"}, "42P07", "part_seg0' already exists."),
    ({"output_table": "x" * 56}, "42602", "has 64 bytes"),
    ({"output_table": "no_schema.t"}, "42704", "schema 'no_schema' does not exist"),
    ({"target": None}, "42602", "target must not be NULL or empty"),
    ({"target": "kind, kind"}, "42602", "listed twice"),
    ({"target": "nix"}, "42703", r"invalid target ('nix') for source table (flowers)"),
    ({"inputs": "id + 1"}, "42602", "not an identifier"),
    ({"inputs": "nix"}, "42703", "invalid inputs ('nix')"),
    (
        {"inputs": "kind", "target": "id"},
        "22023",
        "invalid inputs ('kind'): its type is character varying",
    ),
    (
        {"inputs": "attributes, id", "target": "kind, id"},
        "22023",
        "the column 'id' is in both target and inputs",
    ),
    ({"inputs": "attributes, kind", "target": "id"}, "22023", "its type is character"),
    (
        {"inputs": "attributes", "target": "attributes"},
        "22023",
        "the column 'attributes' is in both",
    ),
    ({"target": "words"}, "0A000", "its type is text[]"),
    ({"target": "place"}, "22023", "labels of type point cannot be sorted"),
    (
        {"buffer_size": 0},
        "22023",
        "cerebro.pack_plain: buffer_size must be at least 1, or NULL.",
    ),
    ({"divide_by": 0}, "22023", "divide_by must be a positive number, or NULL."),
    ({"divide_by": -1}, "22023", "divide_by must be a positive number, or NULL."),
    ({"divide_by": "NaN"}, "22023", "divide_by must be a positive number, or NULL."),
    ({"divide_by": 1e-45}, "22023", "divide_by must be a positive number, or NULL."),
    ({"classes": [2**31 - 1]}, "22023", "a variable has at most 10000 classes"),
    ({"segments": 0}, "22023", "segments is 0"),
    ({"segments": 151}, "22023", "151 segments are too many for 150 rows"),
]


@pytest.mark.parametrize(("change", "sqlstate", "message"), WRONG)
def test_a_wrong_argument_is_named_and_nothing_is_made(sql, flowers, change, sqlstate, message):
    sql("CREATE SEQUENCE flowers_id_seq; CREATE TABLE empty (LIKE flowers)")
    sql("CREATE TABLE half_summary (); CREATE TABLE part_seg0 ()")
    sql("ALTER TABLE flowers ADD words text[] DEFAULT '{a}', ADD place point DEFAULT '(1,2)'")
    before = tables_in(sql)
    arguments = {"source_table": "flowers", "output_table": "packed", "target": "kind", "inputs": "attributes",
                 **change}  # fmt: skip
    named = ", ".join(f"{name} => %s" for name in arguments)
    with pytest.raises(psycopg2.Error) as error:
        sql(f"SELECT cerebro.pack_plain({named})", *arguments.values())
    assert error.value.pgcode == sqlstate and message in error.value.diag.message_primary
    assert tables_in(sql) == before


ROWS = [
    (
        "UPDATE flowers SET attributes = NULL WHERE id IN (3, 4)",
        "column 'attributes' of table flowers is NULL in 2 of 150",
    ),
    ("UPDATE flowers SET kind = NULL", "the target 'kind' is NULL in all 150 rows"),
    (
        "UPDATE flowers SET attributes[2] = NULL WHERE id = 3",
        "'attributes' of table flowers has arrays with NULL elements",
    ),
    ("UPDATE flowers SET attributes = '{1,2}' WHERE id = 3", "has arrays of different shapes"),
    ("UPDATE flowers SET attributes = '{{1,2,3,4}}' WHERE id = 149", "has arrays of different shapes"),
    ("UPDATE flowers SET attributes = '{}' WHERE id = 149", "has arrays of different shapes"),
    ("UPDATE flowers SET attributes = '{}'", "'attributes' of table flowers has empty arrays"),
    ("UPDATE flowers SET attributes[1] = 'NaN' WHERE id = 149", "has values that are NaN or infinite"),
    ("ALTER TABLE flowers ALTER attributes TYPE float8[]; UPDATE flowers SET attributes[1] = 1e300", "is too large"),
]


@pytest.mark.parametrize(("change", "message"), ROWS)
def test_rows_that_cannot_be_packed_are_counted_and_nothing_is_made(sql, flowers, change, message):
    sql(change)
    before = tables_in(sql)
    with pytest.raises(errors.DataException, match=message) as error:
        pack(sql)
    assert error.value.diag.message_hint
    assert tables_in(sql) == before
    hint = error.value.diag.message_hint
    if hint.startswith("Find them with: "):
        assert f"{len(sql(hint[len('Find them with: ') :]))} of 150" in error.value.diag.message_detail


def test_encoded_values_must_fit_their_type(sql):
    sql("CREATE TABLE t AS SELECT ARRAY[i]::int[] AS x, ARRAY[i * 10000] AS y FROM generate_series(1, 5) i")
    with pytest.raises(errors.DataException, match="column 'y' of table t has values outside of -32768 to 32767"):
        pack(sql, "t", dependent="y", independent="x")


def test_a_table_of_another_needs_a_grant(sql, flowers):
    schema = sql("SELECT current_schema()")[0][0]
    role = schema + "_reader"
    sql(f"CREATE ROLE {role}; GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}; GRANT cerebro_user TO {role}")
    try:
        sql(f"SET ROLE {role}")
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied to read 'flowers'") as error:
            pack(sql)
        assert "GRANT SELECT" in error.value.diag.message_hint
        sql("RESET ROLE")
        sql(f"GRANT SELECT (attributes, kind) ON flowers TO {role}; SET ROLE {role}")
        pack(sql)
        assert sql("SELECT relowner::regrole::text FROM pg_class WHERE oid = 'packed'::regclass") == [(role,)]
        with pytest.raises(errors.InsufficientPrivilege):
            pack(sql, output="other", dependent="id")
    finally:
        sql("RESET ROLE")
        sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_cancel_is_heard(sql, flowers):
    sql("INSERT INTO flowers SELECT i, ARRAY[i, 1, 2, 3]::real[], 'setosa' FROM generate_series(1, 300000) i")
    sql("SET statement_timeout = '50ms'")
    with pytest.raises(errors.QueryCanceled):
        pack(sql)
    sql("RESET statement_timeout")
    assert "packed" not in tables_in(sql)
    pack(sql)


# -- MADlib's helpers ----------------------------------------------------------------------------------


def test_packed_bytes_can_be_read_and_made_in_sql(sql, flowers):
    pack(sql, segments=1)
    ((values, labels),) = sql(
        "SELECT madlib.convert_bytea_to_real_array(attributes), madlib.convert_bytea_to_smallint_array(kind)"
        " FROM packed"
    )
    x, y = rows_of(sql)
    assert values == [float(str(value)) for value in x.ravel()] and labels == y.ravel().tolist()
    assert sql(
        "SELECT madlib.convert_array_to_bytea(madlib.convert_bytea_to_real_array(attributes)) = attributes, "
        "madlib.convert_array_to_bytea(madlib.convert_bytea_to_smallint_array(kind)) = kind, "
        "madlib.convert_array_to_bytea(ARRAY[[1, 2], [3, -4]]::smallint[]), madlib.convert_array_to_bytea(NULL::real[])"
        " FROM packed"
    )[0][:2] == (True, True)
    with pytest.raises(errors.DataException, match="not a whole number of values"):
        sql("SELECT madlib.convert_bytea_to_real_array('\\x010203')")
    with pytest.raises(errors.NullValueNotAllowed, match="an element is NULL"):
        sql("SELECT madlib.convert_array_to_bytea('{1,NULL}'::real[])")


def test_a_key_among_the_inputs_is_told(sql, greenplum):
    """It is accepted: a table may have but one column, and it may be a key."""
    sql("CREATE TABLE keyed (id int, a real, b int, y real, PRIMARY KEY (id))")
    if not greenplum:  # there a unique index contains the key of distribution
        sql("CREATE UNIQUE INDEX ON keyed (b)")
        sql("CREATE UNIQUE INDEX ON keyed (a) WHERE a > 1")
        sql("CREATE UNIQUE INDEX ON keyed ((a + 1))")
        sql("CREATE UNIQUE INDEX ON keyed (a, y)")
    sql("INSERT INTO keyed SELECT i, i, i, i FROM generate_series(1, 20) i")
    sql.db.notices.clear()
    pack(sql, "keyed", dependent="y", independent="id, a, b")
    told = [notice for notice in sql.db.notices if "is a key" in notice]
    assert [notice.split("'")[1] for notice in sorted(told)] == (["id"] if greenplum else ["b", "id"])
