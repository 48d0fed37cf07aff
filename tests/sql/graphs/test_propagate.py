"""cerebro.propagate equals NumPy, and what it appends equals computing everything again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from psycopg2 import errors

from tests.sql.lab import Lab
from tests.sql.users import Town, town

NODES = 60


def matrix(
    nodes: int,
    edges: list[tuple[int, int, float]],
    *,
    weighted: bool,
    normalization: str,
    undirected: bool,
    self_loops: bool,
) -> np.ndarray:
    """The normalised adjacency matrix; row t has what passes into node t."""
    found = np.zeros((nodes, nodes))
    for source, target, weight in edges:
        if weighted:
            found[target, source] += weight
        else:
            found[target, source] = 1.0
        if undirected and source != target:
            if weighted:
                found[source, target] += weight
            else:
                found[source, target] = 1.0
    if self_loops:
        empty = found.diagonal() == 0
        found[np.diag_indices(nodes)] += empty
    into, out = found.sum(axis=1), found.sum(axis=0)
    with np.errstate(divide="ignore"):
        if normalization == "row":
            return np.where(into > 0, 1 / into, 0)[:, None] * found
        by_row, by_column = (np.where(one > 0, 1 / np.sqrt(one), 0) for one in (into, out))
        return by_row[:, None] * found * by_column[None, :]


def graph_of(lab: Lab, name: str, seed: int) -> tuple[np.ndarray, list[tuple[int, int, float]]]:
    """Tables NAME (id, kind, x, y, many) and NAME_edges; node 0 has no edge, some edges are there twice."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(NODES, 2 + 130))
    ends = random.integers(1, NODES, size=(150, 2))
    edges = [(int(a), int(b), round(float(w), 3)) for (a, b), w in zip(ends, random.uniform(0.1, 3, size=150))]
    edges += [(5, 5, 2.0), *edges[:5], (edges[6][1], edges[6][0], 1.5)]
    lab.table(name, {"id": "integer", "kind": "text", "x": "real", "y": "numeric", "many": "double precision[]"},
              [(i, f"k{i % 3}", float(np.float32(row[0])), float(row[1]), row[2:].tolist())
               for i, row in enumerate(values)])  # fmt: skip
    lab.table(f"{name}_edges", {"source": "bigint", "target": "integer", "weight": "real"}, edges)
    values[:, 0] = values[:, 0].astype("f4")
    return values, [(a, b, float(np.float32(w))) for a, b, w in edges]


def propagated(lab: Lab, table: str, hop: int) -> np.ndarray:
    rows = lab(f"SELECT x_hop_{hop}, y_hop_{hop}, many_hop_{hop} FROM {table} ORDER BY id")
    return np.array([[x, y, *many] for x, y, many in rows], dtype=float)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalization", ["symmetric", "row"])
@pytest.mark.parametrize(("undirected", "self_loops"), [(True, True), (False, True), (True, False), (False, False)])
def test_it_equals_numpy(lab: Lab, weighted: bool, normalization: str, undirected: bool, self_loops: bool) -> None:
    name = f"g_{weighted}_{normalization}_{undirected}_{self_loops}".lower()
    values, edges = graph_of(lab, name, 3)
    rules: dict[str, Any] = {"normalization": normalization, "undirected": undirected, "self_loops": self_loops}
    rows = lab.value(
        f"SELECT propagate('{name}', '{name}_edges', '{name}_out', hops => 3, normalization => %s, undirected => %s,"
        " self_loops => %s, edge_weight => %s)", *rules.values(), "weight" if weighted else None)  # fmt: skip
    assert rows == NODES
    by = matrix(NODES, edges, weighted=weighted, **rules)
    expected = values
    for hop in (1, 2, 3):
        expected = by @ expected
        np.testing.assert_allclose(propagated(lab, f"{name}_out", hop), expected, rtol=1e-11, atol=1e-13)
    assert not self_loops or propagated(lab, f"{name}_out", 3)[0] == pytest.approx(values[0])
    assert self_loops or not propagated(lab, f"{name}_out", 1)[0].any()  # no neighbours at all
    assert lab(f"SELECT id, kind, x, y, many FROM {name}_out EXCEPT SELECT id, kind, x, y, many FROM {name}") == []


CHANGES = {
    "nothing": "SELECT",
    "a node with edges": "INSERT INTO {g} SELECT 100, 'new', 9, 8, many FROM {g} WHERE id = 1;"
                         " INSERT INTO {g}_edges VALUES (100, 3, 1), (4, 100, 2)",
    "a node without edges": "INSERT INTO {g} SELECT 100, 'new', 9, 8, many FROM {g} WHERE id = 1",
    "an edge": "INSERT INTO {g}_edges VALUES (0, 7, 1.5)",
    "an edge less": "DELETE FROM {g}_edges WHERE (source, target) ="
    " (SELECT source, target FROM {g}_edges WHERE source <> target ORDER BY 1, 2 LIMIT 1)",
    "a weight": "UPDATE {g}_edges SET weight = weight * 2 WHERE source = 5 AND target = 5",
    "a value": "UPDATE {g} SET x = x + 1 WHERE id = 11",
    "another column": "UPDATE {g} SET kind = NULL WHERE id = 12",
    "a node less": "DELETE FROM {g}_edges WHERE 9 IN (source, target); DELETE FROM {g} WHERE id = 9",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("undirected", [True, False])
def test_appending_equals_computing_everything_again(lab: Lab, change: str, undirected: bool) -> None:
    name = f"a{list(CHANGES).index(change)}_{undirected}".lower()
    graph_of(lab, name, 4)
    call = (f"SELECT propagate('{name}', '{name}_edges', '%s', edge_weight => 'weight', undirected => {undirected},"
            " append => %s)")  # fmt: skip
    lab(call % (f"{name}_out", False))
    for one in CHANGES[change].format(g=name).split(";"):
        lab(one)
    lab.db.notices.clear()
    written = lab.value(call % (f"{name}_out", True))
    assert "computed again" in "".join(lab.db.notices)
    lab(call % (f"{name}_all", False))
    for hop in (1, 2):
        np.testing.assert_allclose(
            propagated(lab, f"{name}_out", hop), propagated(lab, f"{name}_all", hop), rtol=1e-11, atol=1e-13
        )
    assert lab(f"SELECT id, kind, x, y, many FROM {name}_out EXCEPT SELECT id, kind, x, y, many FROM {name}") == []
    assert lab.value(f"SELECT count(*) FROM {name}_out") == lab.value(f"SELECT count(*) FROM {name}")
    assert lab.value(call % (f"{name}_out", True)) == 0  # nothing is left to do
    assert written < NODES
    assert (written == 0) == (change == "nothing") and (written == 1 or "another" not in change)


def test_only_rows_within_the_hops_are_written(lab: Lab) -> None:
    lab("CREATE TABLE line AS SELECT 'n' || i AS name, i::real AS x FROM generate_series(1, 50) i")
    lab("CREATE TABLE steps AS SELECT 'n' || i AS a, 'n' || i + 1 AS b FROM generate_series(1, 49) i")
    call = "SELECT propagate('line', 'steps', 'line_out', key => 'name', edge_source => 'a', edge_target => 'b'%s)"
    lab(call % "")
    rows = "SELECT name, xmin::text FROM line_out"
    before = dict(lab(rows))
    lab("INSERT INTO line VALUES ('n51', 51)")
    lab("INSERT INTO steps VALUES ('n50', 'n51')")
    written = lab.value(call % ", append => true")
    # The new edge changes the sum of the weights at n50, and so the factors of the edges of n49.
    assert written == 4
    assert {name for name, made in lab(rows) if before.get(name) != made} == {"n51", "n50", "n49", "n48"}


@pytest.fixture(scope="module")
def few(lab: Lab) -> Lab:
    lab("CREATE TABLE few AS SELECT i AS id, i::real AS x, i AS kind, ARRAY[i, 2] AS pair FROM generate_series(1, 4) i")
    lab("CREATE TABLE few_edges AS SELECT 1 AS source, 2 AS target, 1.0 AS weight")
    for name, rows in {
        "no_x": "SELECT id, NULLIF(x, 3) AS x FROM few",
        "infinite": "SELECT id, CASE WHEN id = 2 THEN 'NaN' ELSE x END AS x FROM few",
        "twice": "SELECT 1 AS id, x FROM few WHERE id < 3",
        "unnamed": "SELECT NULLIF(id, 3) AS id, x FROM few",
        "ragged": "SELECT id, CASE WHEN id = 1 THEN pair ELSE pair || 1 END AS pair FROM few",
        "holes": "SELECT id, ARRAY[id, NULL] AS pair FROM few",
        "taken": "SELECT id, x, x AS x_hop_1 FROM few",
        "plain": "SELECT id, kind FROM few",
        "texts": "SELECT id::text AS id, x FROM few",
        "stray": "SELECT 1 AS source, 77 AS target",
        "open": "SELECT 1 AS source, NULL::integer AS target",
        "negative": "SELECT 1 AS source, 2 AS target, -1.0 AS weight",
    }.items():
        lab(f"CREATE VIEW {name} AS {rows}")
    return lab


ERRORS = {
    "'few', 'stray', 'o'": ("edges_table: 1 edge of 'stray' .* source = 1, target = 77", "22000"),
    "'few', 'open', 'o'": ("edges_table: .* target = NULL", "22000"),
    "'few', 'negative', 'o', edge_weight => 'weight'": ("edge_weight: 'weight' .* negative", "22000"),
    "'no_x', 'few_edges', 'o'": ("columns: 'x' of 'no_x' is NULL .* 1 row, .* id = 3", "22000"),
    "'infinite', 'few_edges', 'o'": ("columns: 'x' .* not finite .* id = 2", "22000"),
    "'twice', 'few_edges', 'o'": ("several rows with the key 'id' = 1", "22000"),
    "'unnamed', 'few_edges', 'o'": ("the key 'id' .* NULL in 1 row", "22000"),
    "'ragged', 'few_edges', 'o'": ("'pair' in 'ragged' have 2 to 3 elements", "22000"),
    "'holes', 'few_edges', 'o'": ("'pair' .* element that is NULL", "22000"),
    "'taken', 'few_edges', 'o', columns => 'x'": ("two columns 'x_hop_1'", "22023"),
    "'plain', 'few_edges', 'o'": ("columns is NULL, and 'plain' has no", "22023"),
    "'texts', 'few_edges', 'o'": ("edge_source: 'source' has the type integer, and the key 'id' has text", "22023"),
    "'few', 'few_edges', 'o', columns => 'x, kind', target => 'kind'": ("'kind' is a target", "22023"),
    "'few', 'few_edges', 'o', columns => 'none'": ("'few' has no column 'none'", "42703"),
    "'few', 'few_edges', 'o', edge_source => 'a'": ("'few_edges' has no column 'a'. .*edge_source", "42703"),
    "'few', 'few_edges', 'o', key => 'id, x'": ("key names 2 columns", "22023"),
    "'few', 'few_edges', 'o', hops => 0": ("hops is 0; .* from 1 to 10", "22023"),
    "'few', 'few_edges', 'o', normalization => 'rows'": ("normalization is 'rows'", "22023"),
    "'few', 'few_edges', 'o', undirected => NULL": ("undirected is NULL", "22023"),
    "'few', 'few_edges', 'few'": ("'few' already exists", "42P07"),
    "'few', 'nowhere', 'o'": ("edges_table: there is no table 'nowhere'", "42P01"),
    "'few', 'few_edges', 'few', append => true": ("append: 'few' has no tables _summary and _neighbours", "42P01"),
    "'few', 'few_edges', 'o', append => true": ("output_table: there is no table 'o'", "42P01"),
}  # fmt: skip


@pytest.mark.parametrize("call", ERRORS)
def test_errors_say_what_is_wrong_and_change_nothing(few: Lab, call: str) -> None:
    text, state = ERRORS[call]
    before = few.tables()
    with pytest.raises(errors.Error, match=f"cerebro.propagate: .*{text}") as caught:
        few(f"SELECT propagate({call})")
    assert caught.value.pgcode == state
    assert few.tables() == before


def test_append_needs_the_same_arguments_and_columns(few: Lab) -> None:
    few("SELECT propagate('few', 'few_edges', 'kept')")
    with pytest.raises(errors.InvalidParameterValue, match="made with hops = 2, and this call has 3"):
        few("SELECT propagate('few', 'few_edges', 'kept', hops => 3, append => true)")
    few("ALTER TABLE few ADD COLUMN more integer")
    try:
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="the columns of 'few' are not those"):
            few("SELECT propagate('few', 'few_edges', 'kept', append => true)")
    finally:
        few("ALTER TABLE few DROP COLUMN more")


def test_integers_and_the_target_are_left_out_unless_named(few: Lab) -> None:
    few.db.notices.clear()
    few("SELECT propagate('few', 'few_edges', 'usual', target => 'x')")
    assert "the columns pair are propagated" in "".join(few.db.notices)
    assert [name for name, _ in few.columns("usual")] == ["id", "x", "kind", "pair", "pair_hop_1", "pair_hop_2"]
    few("SELECT propagate('few', 'few_edges', 'codes', columns => 'kind', hops => 1)")
    assert [hop for (hop,) in few("SELECT kind_hop_1 FROM codes ORDER BY id")] == pytest.approx([1.5, 1.5, 3, 4])


@pytest.fixture
def people(server: str) -> Iterator[Town]:
    with town(server) as made:
        yield made


def test_the_tables_of_others_need_their_rights(people: Town) -> None:
    alice, bob = people.user("alice", "cerebro_user"), people.user("bob", "cerebro_user")
    alice("CREATE TABLE people AS SELECT i AS id, i::real AS x, i AS secret FROM generate_series(1, 4) i")
    alice("CREATE TABLE friends AS SELECT 1 AS source, 2 AS target")
    call = f"SELECT cerebro.propagate('{alice.name}.people', '{alice.name}.friends', 'mine', columns => 'x')"
    bob.refused(call)
    alice(f"GRANT USAGE ON SCHEMA {alice.name} TO {bob.name}")
    alice(f"GRANT SELECT ON friends TO {bob.name}")
    alice(f"GRANT SELECT (id, x) ON people TO {bob.name}")
    assert "secret" in str(bob.refused(call))  # all columns are copied
    alice(f"GRANT SELECT ON people TO {bob.name}")
    assert bob(call) == [4]
    alice("CREATE TABLE closed AS SELECT 1 AS source, 2 AS target")
    bob.refused(f"SELECT cerebro.propagate('{alice.name}.people', '{alice.name}.closed', 'more')")


def test_only_the_owner_brings_a_table_up_to_date(people: Town) -> None:
    """The triggers of a table would run with the rights of whoever writes into it."""
    alice, bob = people.user("alice", "cerebro_user"), people.user("bob", "cerebro_user")
    alice("CREATE TABLE people AS SELECT i AS id, i::real AS x FROM generate_series(1, 4) i")
    alice("CREATE TABLE friends AS SELECT 1 AS source, 2 AS target")
    call = "SELECT cerebro.propagate('{0}.people', '{0}.friends', '{0}.made', columns => 'x'{1})".format
    assert alice(call(alice.name, "")) == [4]
    alice(f"GRANT USAGE ON SCHEMA {alice.name} TO {bob.name}")
    alice(f"GRANT ALL ON ALL TABLES IN SCHEMA {alice.name} TO {bob.name}")
    assert f"belongs to {alice.name}" in str(bob.refused(call(alice.name, ", append => true")))
    assert alice(call(alice.name, ", append => true")) == [0]


def test_a_model_learns_the_blocks_from_propagated_features(lab: Lab) -> None:
    """A stochastic block model of 3,000 nodes: the values of a node say little, those of its neighbours much."""
    blocks, size, rows = 4, 8, 3000
    random = np.random.default_rng(1)
    block = random.integers(0, blocks, rows)
    centres = random.normal(size=(blocks, size))
    values = 0.35 * centres[block] + random.normal(size=(rows, size))
    members = [np.flatnonzero(block == one) for one in range(blocks)]
    ends = []
    for node in range(rows):
        for _ in range(5):
            near = random.random() < 0.8
            ends.append((node, int(random.choice(members[block[node]])) if near else int(random.integers(rows))))
    columns = {f"x{i}": "real" for i in range(size)}
    lab.table("blocks", {"id": "integer", "block": "text", **columns},
              [(i, f"b{block[i]}", *map(float, values[i])) for i in range(rows)])  # fmt: skip
    lab.table("links", {"source": "integer", "target": "integer"}, ends)
    lab("SELECT propagate('blocks', 'links', 'blocks_near', target => 'block')")
    reached = {}
    for table in ("blocks", "blocks_near"):
        configurations = json.dumps([{"architecture": "mlp", "units": 32, "batch_size": 64}])
        lab(f"SELECT fit('{table}', '{table}_models', %s, target => 'block', epochs => 6, segments => 1,"
            " options => '{\"seed\": 1}')", configurations)  # fmt: skip
        reached[table] = lab.value(f"SELECT validation_metric FROM {table}_models_info")
    print(reached)
    assert reached["blocks_near"] > reached["blocks"] + 0.2 and reached["blocks_near"] > 0.85
