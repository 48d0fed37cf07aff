"""The frozen weights of a model are stored once, and not with each of its states; whoever reads a state gets all of it.

The models have a frozen body of 4.2 MB and a small head.  Its states without the body are below 100 kB.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psycopg2
import pytest

from cerebro_db.core.protocol import FrozenPart, StateRef, frozen_name
from cerebro_db.core.sql import identifier, sql, text_of
from cerebro_plpy.platform import POSTGRESQL
from cerebro_plpy.runs.record.state_tables import store_frozen_sql
from cerebro_plpy.runs.units.unit import Fetched
from tests.sql.lab import CROSS, Lab, eventually, layer, run, sequential, verb
from tests.sql.users import User, town

EPOCHS, SEGMENTS = 3, 2
OPTIONS = {"deterministic": True, "seed": 6, "threads": 1, "synchronous_commit": True}
HIDDEN = 1024
BODY = 4 * (5 * HIDDEN + (HIDDEN + 1) * HIDDEN)  # bytes
HEAD = 100_000
TABLES = (
    "SELECT relname::text, pg_relation_size(oid) FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace"
    " AND relkind = 'r' AND starts_with(relname, %s) ORDER BY 1"
)


def body(*, norm: bool = False, trainable: bool = False) -> Any:
    middle = [layer("BatchNormalization", "norm", trainable=False)] if norm else []
    return sequential(
        [4],
        layer("Dense", "body_1", units=HIDDEN, activation="relu", trainable=trainable),
        *middle,
        layer("Dense", "body_2", units=HIDDEN, activation="relu", trainable=trainable),
        layer("Dense", "head", units=4, activation="relu"),
        layer("Dense", "out", units=3, activation="softmax"),
    )


def given() -> bytes:
    random = np.random.default_rng(3)
    shapes = [(4, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 4), (4,), (4, 3), (3,)]
    return b"".join(random.normal(0, 0.05, shape).astype("<f4").tobytes() for shape in shapes)


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    arch, random = lab.architecture(body(), given()), lab.architecture(body(norm=True))
    rows = [(arch, f"optimizer='Adam(lr={rate})', {CROSS}", "batch_size=8, epochs=2") for rate in (0.01, 0.003)]
    lab.selection("two", [*rows, (arch, f"optimizer='SGD(lr=0.01)', {CROSS}", "batch_size=8, epochs=2")])
    lab.selection("random", [(random, f"optimizer='Adam(lr=0.01)', {CROSS}", "batch_size=8")])
    return lab


@pytest.fixture(scope="module")
def calm(place: Lab) -> int:
    return place.fit("train", "calm", "two", EPOCHS, validation_table="val", options=OPTIONS)


def storage(lab: Lab, run: int) -> str:
    return lab.value("SELECT storage FROM run WHERE run = %s", run)


def tables(lab: Lab, run: int) -> dict[str, int]:
    """The state tables of a run, by the ends of their names, with the bytes of their rows."""
    name = storage(lab, run)
    found = {}
    for table, _ in lab(TABLES, f"{name}_"):
        rows = lab.value(
            f"SELECT COALESCE(sum(length), 0) FROM (SELECT DISTINCT start, octet_length(payload) AS length"
            f' FROM cerebro_state."{table}") d'
        )
        found[table.removeprefix(f"{name}_")] = int(rows)
    return found


def frozen_tables(lab: Lab, run: int) -> list[str]:
    parts = lab("SELECT DISTINCT frozen ->> 'sha256' FROM hop WHERE run = %s AND frozen IS NOT NULL", run)
    return [f'cerebro_state."{storage(lab, run)}_frozen_{sha256[:16]}"' for (sha256,) in parts]


def hops(lab: Lab, run: int) -> list[Any]:
    return lab("SELECT model, hop, state_sha256 FROM hop WHERE run = %s ORDER BY 1, 2", run)


def stopped_after(lab: Lab, run: int, least: int) -> None:
    eventually(lambda: len(hops(lab, run)) >= least, 120, f"{least} hops")
    lab("SELECT pg_terminate_backend(%s)", lab.value("SELECT driver_pid FROM runs WHERE run = %s", run))
    eventually(lambda: lab.status(run) not in ("running", "created"), 60, "the driver is gone")
    lab.require_no_orphans()


@pytest.fixture
def interrupted(place: Lab, calm: int, request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A run that was ended after some hops, and its output table."""
    output = f"cut_{abs(hash(request.node.name)) % 10**6}"
    run = place.submit("train", output, "two", EPOCHS, validation_table="val", options=OPTIONS)
    stopped_after(place, run, 4)
    assert len(hops(place, run)) < len(hops(place, calm))
    yield run, output
    name = storage(place, run)
    place("SELECT forget(%s)", run)
    assert not place(TABLES, f"{name}_")


def test_a_hop_stores_the_head_alone(place: Lab, calm: int) -> None:
    found = tables(place, calm)
    frozen = [name for name in found if name.startswith("frozen_")]
    assert len(frozen) == 1 and found[frozen[0]] == BODY, "three configurations with one body store it once"
    others = {name: size for name, size in found.items() if name not in frozen and not name.startswith("shared")}
    assert all(size < HEAD for size in others.values()) and sum(others.values()) > 0, others
    assert place.value("SELECT min(state_bytes) FROM hop WHERE run = %s", calm) > BODY, "the log says the whole size"


def test_the_checksum_is_that_of_the_whole_state(place: Lab, calm: int) -> None:
    (table,) = frozen_tables(place, calm)
    for model, hop, sha256, part in place(
        "SELECT DISTINCT ON (model) model, hop, state_sha256, frozen FROM hop WHERE run = %s ORDER BY model, hop DESC",
        calm,
    ):
        own, which = place.stored(storage(place, calm), model, hop)
        rows = f"SELECT start, payload FROM {own} WHERE {which}"
        rows += f" UNION SELECT start + {part['start']}, payload FROM {table}"
        payloads = place(f"SELECT DISTINCT start, payload FROM ({rows}) r ORDER BY start")
        assert hashlib.sha256(b"".join(bytes(payload) for _, payload in payloads)).hexdigest() == sha256


def test_the_model_table_is_whole(place: Lab, calm: int) -> None:
    found = place.weights("calm")
    assert all(weights[:BODY] == given()[:BODY] for weights in found.values())
    assert len({weights[BODY:] for weights in found.values()} | {given()[BODY:]}) == 4


def test_a_run_that_was_ended_has_the_same_bits(place: Lab, calm: int, interrupted: tuple[int, str]) -> None:
    run, output = interrupted
    before, there = hops(place, run), tables(place, run)
    given_tables = [size for name, size in there.items() if name.startswith("given_")]
    assert given_tables == [len(given())], "three configurations start from the same weights"
    assert all(size < HEAD for name, size in there.items() if not name.startswith(("given_", "frozen_"))), there
    place("SELECT resume(%s)", run)
    assert not any(name.startswith("given_") for name in tables(place, run)), "no model starts any more"
    assert place.weights(output) == place.weights("calm")
    assert set(before) <= set(hops(place, run)) and hops(place, run) == hops(place, calm)


def test_a_damaged_part_is_noticed(place: Lab, interrupted: tuple[int, str]) -> None:
    run, output = interrupted
    (table,) = frozen_tables(place, run)
    place(f"CREATE TABLE sound_part AS TABLE {table}")
    place(f"UPDATE {table} SET payload = set_byte(payload, 7, get_byte(payload, 7) # 1) WHERE start = 0")
    with pytest.raises(psycopg2.Error, match="every configuration failed.*frozen part.*checksum"):
        place("SELECT resume(%s)", run)
    place(f"DELETE FROM {table}")
    with pytest.raises(psycopg2.Error, match="frozen part.*is not there"):
        place("SELECT resume(%s, retry_failed => true)", run)
    place(f"INSERT INTO {table} SELECT * FROM sound_part ORDER BY start; DROP TABLE sound_part")
    place("SELECT resume(%s, retry_failed => true)", run)
    assert place.weights(output) == place.weights("calm")


def test_a_part_that_was_dropped_is_noticed(place: Lab, interrupted: tuple[int, str], planter: User) -> None:
    run, _ = interrupted
    (table,) = frozen_tables(place, run)
    place(f"DROP TABLE {table}")
    with pytest.raises(psycopg2.Error, match="frozen part of model states.*is not there") as caught:
        place("SELECT resume(%s)", run)
    assert "dropped by hand" in caught.value.diag.message_hint
    plant(planter, table)  # a view of others in its place is not read
    with pytest.raises(psycopg2.Error, match="frozen part of model states.*is not there"):
        place("SELECT resume(%s)", run)
    uproot(planter, table)


@pytest.fixture(scope="module")
def planter(place: Lab, server: str) -> Iterator[User]:
    """A user who may make things in the schema of the state tables, as all users may."""
    with town(server) as root:
        planter = root.user("planter", "cerebro_user")
        planter(
            f"CREATE SEQUENCE {planter.name}.ran; GRANT ALL ON {planter.name}.ran TO PUBLIC"
        )  # no rollback undoes it
        planter(f"GRANT USAGE ON SCHEMA {planter.name} TO PUBLIC")
        planter(
            f"CREATE FUNCTION {planter.name}.code() RETURNS boolean LANGUAGE sql AS"
            f" 'SELECT pg_catalog.nextval(''{planter.name}.ran'') > 0'"
        )
        yield planter


def plant(planter: User, table: str) -> None:
    """Make a view of this name that runs code as the user who reads it."""
    planter(
        f"CREATE VIEW {table} AS SELECT 0 AS __dist_key__, 0::bigint AS start, ''::bytea AS payload"
        f" WHERE {planter.name}.code()"
    )
    planter(f"GRANT ALL ON {table} TO PUBLIC")


def uproot(planter: User, table: str) -> None:
    assert planter(f"SELECT is_called FROM {planter.name}.ran") == [False]
    planter(f"DROP VIEW {table}")


def test_a_view_of_others_in_the_place_of_a_new_part_is_not_read(place: Lab, planter: User) -> None:
    run = place.submit("train", "planted", "two", 2, options=OPTIONS)
    table = f'cerebro_state."{storage(place, run)}_frozen_{hashlib.sha256(given()[:BODY]).hexdigest()[:16]}"'
    plant(planter, table)  # long before the first hop, which needs TensorFlow
    place("SELECT wait(%s)", run)
    assert place.status(run) == "failed"
    assert "already exists" in place.value("SELECT message FROM runs WHERE run = %s", run)
    uproot(planter, table)
    place("SELECT resume(%s, retry_failed => true)", run)
    assert [name for name in tables(place, run) if name.startswith("frozen_")]


def test_a_view_of_others_in_the_place_of_given_weights_is_left_alone(place: Lab, calm: int, planter: User) -> None:
    run = place.fit("train", "longer", "two", 1, options=OPTIONS)
    given_sha256 = place.value("SELECT DISTINCT initial_sha256 FROM model WHERE run = %s", run)
    table = f'cerebro_state."{storage(place, run)}_given_{given_sha256[:16]}"'
    plant(planter, table)
    place("SELECT resume(%s, epochs => 2)", run)
    assert place.status(run) == "finished"
    uproot(planter, table)


def test_a_model_whose_part_is_gone_gets_no_table(place: Lab, planter: User) -> None:
    run = place.fit("train", "gone", "random", 1, options=OPTIONS)
    (table,) = frozen_tables(place, run)
    place(f"DROP TABLE {table}")
    with pytest.raises(psycopg2.Error, match="not those that were committed"):
        place("SELECT materialize(%s, 'gone_again')", run)
    plant(planter, table)
    with pytest.raises(psycopg2.Error, match="not those that were committed"):
        place("SELECT materialize(%s, 'gone_again')", run)
    place.fit("train", "gone", "random", 1, warm_start=True, options=OPTIONS)
    uproot(planter, table)


def test_best_states_share_the_part(place: Lab) -> None:
    options = {**OPTIONS, "keep": "best", "objective": "val_loss"}
    run = place.fit("train", "kept", "two", EPOCHS, validation_table="val", options=options)
    found = tables(place, run)
    assert len(frozen_tables(place, run)) == 1
    best = {name: size for name, size in found.items() if name.endswith("_best")}
    assert len(best) == 3 and all(0 < size < HEAD for size in best.values())
    place("SELECT materialize(%s, 'last_ones', 'last')", run)
    assert place.weights("last_ones") == place.weights("calm")
    assert all(weights[:BODY] == given()[:BODY] for weights in place.weights("kept").values())


def test_frozen_statistics_are_a_part_and_others_are_not(place: Lab) -> None:
    """A frozen BatchNormalization does not move its averages; what trains is no part."""
    run = place.fit("train", "normed", "random", 2, options=OPTIONS)
    (table,) = frozen_tables(place, run)
    lengths = f"SELECT DISTINCT start, octet_length(payload) AS length FROM {table}"
    assert place.value(f"SELECT sum(length) FROM ({lengths}) d") == BODY + 16 * HIDDEN
    arch = place.architecture(body(norm=True, trainable=True))
    place.selection("trained", [(arch, f"optimizer='SGD(lr=0.01)', {CROSS}", "batch_size=8")])
    run = place.fit("train", "all_of_it", "trained", 1, options=OPTIONS)
    assert not frozen_tables(place, run)


def test_a_copy_shares_the_part(place: Lab) -> None:
    """A model that starts from the state of another one."""
    run = place.fit("train", "parents", "two", 2, options=OPTIONS)
    config = {"compile_params": f"optimizer='Adam(lr=0.001)', {CROSS}", "fit_params": "batch_size=8, epochs=2"}
    new = {"model": 4, "key": 4, "configuration": config, "parent": 1, "parent_hop": SEGMENTS}
    place(
        "INSERT INTO decision (run, model, epoch, decision, policy, detail) VALUES (%s, 1, 1, 'add', 'by hand', %s)",
        run, json.dumps({"added": [new]}),
    )  # fmt: skip
    options = {**OPTIONS, "replay": run}
    again = place.fit("train", "copied", "two", 2, options=options)
    assert place.value("SELECT parent FROM model WHERE run = %s AND model = 4", again) == 1
    found = tables(place, again)
    assert len(frozen_tables(place, again)) == 1
    assert all(size < HEAD for name, size in found.items() if name.startswith("4_")), found
    weights = place.weights("copied")
    assert weights[4][:BODY] == given()[:BODY] and weights[4][BODY:] != weights[1][BODY:]
    assert place.status(again) == "finished"


def test_a_warm_start_has_the_whole_state(place: Lab, calm: int) -> None:
    once = place.fit("train", "warm", "two", 1, options=OPTIONS)
    place.told()
    run = place.fit("train", "warm", "two", 1, warm_start=True, options=OPTIONS)
    assert not [line for line in place.told() if "weights alone" in line]
    assert place("SELECT DISTINCT initial FROM model WHERE run = %s", run) == [("full",)]
    last = {model: sha256 for model, _, sha256 in hops(place, once)}
    assert dict(place("SELECT model, initial_sha256 FROM model WHERE run = %s", run)) == last
    assert all(weights[:BODY] == given()[:BODY] for weights in place.weights("warm").values())


def test_the_average_of_replicas(place: Lab) -> None:
    arch = place.architecture(body(), given(), "single")
    place(
        "SELECT madlib_keras_fit('train', 'averaged', 'single', %s, %s, 'batch_size=8', 2)",
        arch, f"optimizer='Adam(lr=0.01)', {CROSS}",
    )  # fmt: skip
    run = place.value("SELECT max(run) FROM run")
    found = tables(place, run)
    assert len(frozen_tables(place, run)) == 1
    assert all(size < HEAD for name, size in found.items() if name.startswith("1_") and name != "1_0"), found
    (weights,) = place.weights("averaged").values()
    assert weights[:BODY] == given()[:BODY]


@pytest.mark.thorough  # a copy shares the part, above; test_groups_start.py starts groups
def test_groups_start_from_the_weights_of_all_rows(place: Lab) -> None:
    place("CREATE TABLE halves AS SELECT *, CASE WHEN id % 2 = 0 THEN 'even' ELSE 'odd' END AS half FROM flowers")
    place("SELECT add_architecture('frozen_body', %s, %s)", json.dumps(body()), given())
    configuration = {"architecture": "frozen_body", "learning_rate": 0.01}
    options = {**OPTIONS, "groups_start": "all rows"}
    more = {"target": "species", "group_by": "half", "segments": SEGMENTS, "options": options}
    place(*verb("fit", "halves", "grouped", configuration, epochs=2, **more))
    run = place.value("SELECT max(run) FROM run")
    assert len(frozen_tables(place, run)) == 1, tables(place, run)
    rows = place("SELECT weights FROM grouped_groups")
    assert len(rows) == 2 and all(bytes(weights)[:BODY] == given()[:BODY] for (weights,) in rows)


def test_the_models_of_a_search_share_the_given_weights(place: Lab) -> None:
    place("SELECT add_architecture('searched_body', %s, %s)", json.dumps(body()), given())
    space = {"architecture": "searched_body", "learning_rate": {"choice": [0.01, 0.003, 0.001]}}
    run = place.value(*verb("search", "train", "searched", space, epochs=2, method="grid", options=OPTIONS))
    found = tables(place, run)
    assert [size for name, size in found.items() if name.startswith("frozen_")] == [BODY]
    assert all(size < HEAD for name, size in found.items() if not name.startswith("frozen_")), found
    weights = place.weights("searched")
    assert len(weights) == 3 and all(one[:BODY] == given()[:BODY] for one in weights.values())


def test_in_the_callers_own_session(place: Lab) -> None:
    with contextlib.closing(place.connect()) as connection:
        run(connection, "BEGIN")
        run(connection, "SELECT pack_plain('flowers', 'mine', 'species', 'sl, sw, pl, pw', segments => 1, seed => 1)")
        run(connection, *verb("fit", "mine", "of_mine", "two", epochs=1, options=OPTIONS))
        run(connection, "COMMIT")
    number = place.value("SELECT max(run) FROM run")
    assert place.value("SELECT options ->> 'in_session' FROM cerebro.run WHERE run = %s", number) == "true"
    assert len(frozen_tables(place, number)) == 1
    assert all(weights[:BODY] == given()[:BODY] for weights in place.weights("of_mine").values())


def test_of_two_sessions_the_second_waits_and_stores_nothing(place: Lab, calm: int) -> None:
    part = FrozenPart(0, 4, hashlib.sha256(b"part").hexdigest())
    place("CREATE TABLE piece AS SELECT 0::bigint AS start, 'part'::bytea AS payload")
    pieces = identifier(place.schema)
    made = sql("SELECT 0 AS __dist_key__, p AS made FROM {schema}.piece p", schema=pieces)
    store = text_of(store_frozen_sql(POSTGRESQL, storage(place, calm), part, made))
    blocked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    with contextlib.ExitStack() as opened:
        first, second = (opened.enter_context(contextlib.closing(place.connect())) for _ in range(2))
        pool = opened.enter_context(ThreadPoolExecutor(1))
        run(first, "BEGIN")
        run(first, store)
        waiting = pool.submit(run, second, store)
        eventually(lambda: place(blocked, second.info.backend_pid), 30, "the second waits")
        run(first, "COMMIT")
        waiting.result(30)
    table = f'cerebro_state."{storage(place, calm)}_frozen_{part.sha256[:16]}"'
    assert place(f"SELECT start, convert_from(payload, 'UTF8') FROM {table}") == [(0, "part")]
    place(f"DROP TABLE {table}")


def test_a_user_with_no_other_rights_has_parts(server: str) -> None:
    """Sessions on the segments log in with roles of their own."""
    with town(server) as root:
        user = root.user("plain", "cerebro_user")
        user("CREATE TABLE flowers (id serial, a real, b real, c real, d real, kind text)")
        user(
            "INSERT INTO flowers (a, b, c, d, kind) SELECT sin(i), cos(i), i % 3, i % 5, CASE WHEN sin(i) > 0 THEN 'x'"
            " WHEN i % 2 = 0 THEN 'y' ELSE 'z' END FROM generate_series(1, 60) i"
        )
        user("SELECT cerebro.add_architecture('frozen_body', %s, %s)", json.dumps(body()), given())
        configurations = [{"architecture": "frozen_body", "learning_rate": rate} for rate in (0.01, 0.003)]
        (number,) = user(*verb("fit", "flowers", "made", configurations, epochs=2, target="kind", segments=2))
        assert user("SELECT DISTINCT status FROM cerebro.leaderboard WHERE run = %s", number) == ["finished"]
        user("SELECT cerebro.resume(%s, epochs => 3)", number)
        assert user("SELECT DISTINCT epochs_done FROM cerebro.leaderboard WHERE run = %s", number) == [3]
        owners = "SELECT DISTINCT pg_get_userbyid(relowner)::text FROM pg_class WHERE relname ~ %s"
        name = user("SELECT storage FROM cerebro.run WHERE run = %s", number)[0]
        assert root(owners, f"{name}_frozen_") == [user.name]
        user("SELECT cerebro.drop_architecture('frozen_body')")


def test_an_event_of_no_model_breaks_no_table(place: Lab, calm: int) -> None:
    """A user can write events by hand."""
    place("INSERT INTO cerebro.event (run, event, detail) VALUES (%s, 'built', '{\"shards\": 2}')", calm)
    place("SELECT materialize(%s, 'with_event')", calm)
    assert place.weights("with_event") == place.weights("calm")


def test_forget_removes_all(place: Lab, calm: int) -> None:
    name = storage(place, calm)
    assert frozen_tables(place, calm)
    place("SELECT forget(%s)", calm)
    assert not place(TABLES, f"{name}_")


def test_rows_that_are_refused_take_the_fetched_frozen_part_with_them() -> None:
    part = FrozenPart(0, 10, "a" * 64)
    fetched = Fetched([StateRef.full("state", "b" * 64, frozen=part), StateRef.seed()])
    assert fetched.names == ["state"] and fetched.received == ["state", frozen_name(part.sha256)]
