"""Every internal function that a plain user may execute, called by hand with what no session of ours would send."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cerebro_db.core import errors, protocol
from cerebro_db.core.protocol.orders import ORDERS
from tests.conftest import ENGINE
from tests.sql.users import ARCHITECTURE, User, town

OURS = {kind.sqlstate for kind in errors.kinds()}
# PostgreSQL itself refuses arguments that have not the type of a parameter, and functions that are not there.
SERVERS = {"22P02", "22003", "22P05", "22021", "42883", "42P13"}
# _scan, _await and _perform, which only Greenplum has, run the user's own statement: NULL, none, or no SQL.
SERVERS |= {"22004", "42601", "42P11"}
RAW = ("KeyError", "TypeError", "ValueError", "OverflowError", "IndexError", "AttributeError", "RecursionError",
       "UnicodeEncodeError", "AssertionError", "OSError", "Traceback", "struct.error")  # fmt: skip
BY_TYPE: dict[str, list[Any]] = {
    "bigint": [None, 0, -1, 2**31, 2**63 - 1, -(2**63)],
    "integer": [None, 0, -1, 2**31 - 1, -(2**31)],
    "text": [None, "", "x", "../../x", "x" * 100_000, "\u0669\ufeff", "{}", "[]", "null", "[" * 50_000],
    "name": [None, "", "nobody", "x" * 63],
    "integer[]": [None, [], [None], [1], [-(2**31)] * 1000],
    "oid[]": [None, [], [None], [1], [2**32 - 1] * 1000],
    "smallint[]": [None, [], [None], [1], [-(2**15)] * 1000],
    "real[]": [None, [], [None], [1.5], [3e38] * 1000],
    "double precision[]": [None, [], [None], [1.5], [1e300] * 1000],
    "real": [None, 0.0, -1.5, 3e38, float("nan")],
    "double precision": [None, 0.0, -1.5, 1e300, float("nan"), float("inf")],
    "json": [None, "1", "{}", "[]", '"x"', '{"a": null}'],
    "text[]": [None, [], [None], ["x"]],
    "bytea": [None, b"", b"x", b"\x00" * 100_000],
    "bytea[]": [None, [], [None], [b""], [b"x"], [b"x"] * 1000],
    "boolean": [None, True, False],
    "anyarray": [[1], [1.5]],
    "anyelement": [1, 1.5, True],
    "jsonb": [
        *(json.dumps(value) for value in (None, 1, "x", [], {}, {"engine": None}, {"engine": "x"}, {"engine": []})),
        *(json.dumps({"engine": ENGINE, name: value})
          for name in ("threads", "gpu", "memory_limit_mb", "hang_after", "cache_mb", "reuse", "features_mb",
                       "features_type",
                       "shard", "memory_mb", "deterministic", "silent")
          for value in ("x", -1, 2**70, 1e300, [], {})),
    ],
}  # fmt: skip
WRONG: list[Any] = [None, -1, 0, 2**63, 2**70, 1e308, True, "x", "", [], {}, [None], {"": None}, [[[]]], "\ud800"]
CONFIGURATION = {
    "architecture": json.loads(ARCHITECTURE),
    "compile": {"optimizer": {"class_name": "SGD", "config": {"learning_rate": 0.1}}, "loss": "mse", "metrics": []},
    "fit": {"batch_size": 8, "epochs": 1, "shuffle": True},
}
LAYOUT = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [2], "scale": 1.0}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [2], "kind": "real"}],
}
STATE = {"origin": "seed"}
MEMBER = {
    "configuration": 0,
    "seed": 1,
    "visits": [{"shuffle_seed": 1, "evaluated": True}, {"shuffle_seed": 2}],
    "state": STATE,
    "evaluations": [{"handle": "h"}],
}
EXCHANGE: dict[str, Any] = {"elements": [{"input": "x", "start": 1, "width": 1}, {"input": "x"}], "seed": 1}
COUNTED: dict[str, Any] = {"means": {"loss": [1.0, 1.0]}}
SOUND: dict[str, dict[str, Any]] = {
    "load_rows": {"handle": "h", "layout": LAYOUT, "rows": 1},
    "drop_rows": {"handle": "h"},
    "describe": {"configuration": CONFIGURATION, "layout": LAYOUT, "others": [CONFIGURATION]},
    "try_engine": {"configuration": CONFIGURATION, "handle": "h", "others": []},
    "rehearse_fusion": {"configurations": [CONFIGURATION], "handle": "h"},
    "train": {"handle": "h", "configurations": [CONFIGURATION], "groups": [{"members": [MEMBER]}]},
    "average": {
        "configuration": CONFIGURATION,
        "handle": "h",
        "replicas": [
            {"state": {"origin": "full", "name": "s", "sha256": "0" * 64}, "rows": 1, "metric_states": COUNTED}
        ],
        "state_bytes": 100,
    },
    "begin_joint": {
        "configuration": CONFIGURATION,
        "handle": "h",
        "member": {"configuration": 0, "seed": 1, "visits": [{"shuffle_seed": 1}], "state": STATE},
        "rows": [1, 2],
        "place": 0,
    },
    "step_joint": {"step": 0, "gradients": [None, "AAAA"]},
    "end_joint": {"metric_states": [COUNTED], "statistics": ["AAAA"]},
    "evaluate": {
        "handle": "h",
        "configurations": [CONFIGURATION],
        "models": [{"configuration": 0, "state": STATE, "exchanges": [EXCHANGE, {**EXCHANGE, "repeats": 2}]}],
    },
    "merge_metrics": {"configuration": CONFIGURATION, "handle": "h", "states": [COUNTED]},
    "suggest": {
        "dimensions": [
            {
                "name": "rate",
                "path": "r",
                "conditions": [],
                "low": 0.1,
                "high": 0.9,
                "log": True,
                "whole": False,
                "step": None,
            },
            {"name": "kind", "path": "k", "conditions": [["rate", [0.5]]], "labels": ["a", "b"]},
        ],
        "seed": 1,
        "number": 0,
        "trials": [{"point": {"rate": 0.5, "kind": "a"}, "state": "complete", "score": 1.0, "epochs": 1}],
    },
    "begin": {"computation": {"order": "describe", "configuration": CONFIGURATION}},
    "collect_result": {"seconds": 0},
    "drop_states": {"names": ["s"]},
    "keep_engines": {"engines": ["tensorflow"]},
    "begin_prediction": {
        "configuration": CONFIGURATION,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [2]}],
        "state": STATE,
        "best": {"labels": [2], "ranks": 1},
    },
    "end_prediction": {},
    "rest": {"seconds": 1},
    "inspect": {},
}


@pytest.fixture(scope="module")
def user(server: str) -> Iterator[User]:
    with town(server) as root:
        user = root.user("curious", "cerebro_user")
        user("SET statement_timeout = '120s'")
        yield user
        user("SELECT cerebro_internal._worker_close()")


OPEN = f"""SELECT cerebro_internal._worker_open('{{"engine": "{ENGINE}", "threads": 1}}')"""


def call(user: User, statement: str, *values: Any) -> Any:
    """The answer, or the error, which has to be one of ours."""
    try:
        return user(statement, *values)
    except psycopg2.Error as error:
        shown = (error.pgcode, error.diag.message_primary, [str(value)[:200] for value in values])
        assert error.pgcode in OURS | SERVERS, shown
        assert not any(name in (error.diag.message_primary or "") for name in RAW), shown
        return error


def test_every_internal_function_refuses_wrong_arguments_clearly(user: User) -> None:
    functions = user(
        "SELECT p.proname::text, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t)"
        " FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'cerebro_internal'::regnamespace"
        " AND has_function_privilege(p.oid, 'EXECUTE') AND p.prorettype <> 'trigger'::regtype"
        # Greenplum's other name of generate_series, which returns as many rows as it is asked for.
        " AND p.proname <> '_on_coordinator' ORDER BY 1",
    )
    called = 0
    for name, types in functions:
        if not types:
            continue
        usual = [next(value for value in BY_TYPE[kind] if value not in (None, "null")) for kind in types]
        calls = [[None] * len(types)]
        calls += [[*usual[:at], value, *usual[at + 1 :]] for at, kind in enumerate(types) for value in BY_TYPE[kind]]
        any_type = [kind.startswith("any") for kind in types]
        marks = ", ".join("%s" if free else f"CAST(%s AS {kind})" for kind, free in zip(types, any_type))
        for values in calls:
            if None in values and any(any_type):
                continue
            call(user, f"SELECT cerebro_internal.{name}({marks})", *values)
            called += 1
    assert called > 100
    assert {name for name, _ in functions} >= {"_work", "_state_in", "_data_in", "_predict", "_worker_open", "_drive"}


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    if path:
        yield path
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def test_the_orders_here_are_all_that_a_segment_takes() -> None:
    taken = {name for name, kind in ORDERS.items() if kind.route is not protocol.orders.Route.TO_TRAINER}
    assert taken == set(SOUND)
    for name, fields in SOUND.items():
        required = {
            field.name
            for field in dataclasses.fields(ORDERS[name])
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        assert required <= set(fields), name


@pytest.mark.parametrize("name", SOUND)
def test_an_order_with_any_wrong_value_is_refused_clearly(user: User, name: str) -> None:
    """Each value of each order is replaced by each wrong one, down to the layers of the architecture."""
    user(OPEN)
    user("SELECT cerebro_internal._data_in('h', 'x', %s)", b"\x00" * 8)
    for path in places(SOUND[name]):
        if "configuration" in path[:-1] or {"configurations", "others"} & set(path[:-2]):
            continue  # the trainer looks at these itself, and may end: test_documents_that_have…
        for value in WRONG:
            document = json.dumps({"order": name, **changed(SOUND[name], path, value)})
            found = call(user, "SELECT cerebro_internal._work(%s)", document)
            check_reply(found, (path, value))
            if name == "begin":
                call(user, "SELECT cerebro_internal._work(%s)", '{"order": "collect_result", "seconds": 0}')
    call(user, "SELECT cerebro_internal._work(%s)", '{"order": "end_prediction"}')


LAYOUTS: list[Any] = [
    {},
    {"inputs": [{}], "outputs": [{}]},
    {"inputs": [{"name": 1, "dtype": [], "shape": "x"}], "outputs": [{"name": None, "dtype": {}, "shape": [-1]}]},
    {"inputs": [{"name": "x", "dtype": "float32", "shape": [2**40, 2**40]}], "outputs": []},
    {"inputs": [{"name": "x", "dtype": "float32", "shape": [2], "scale": "x"}], "outputs": LAYOUT["outputs"]},
]
PARAMETERS: list[Any] = [
    {"loss": {"class_name": 5}},
    {"loss": {"class_name": "focal@" + "9" * 40}},
    {"loss": "x@y@z"},
    {"loss": [["a"], {"b": []}]},
    {"metrics": [{"class_name": None, "config": []}]},
    {"metrics": {"a": 1}},
    {"metrics": [[[[1]]]]},
    {"optimizer": {"class_name": "Adam", "config": {"learning_rate": [1e308]}}},
    {"optimizer": 7},
    {"loss_weights": {"x": 1e400}, "weighted_metrics": 3},
]


@pytest.mark.parametrize(
    "name", ["describe", "begin_prediction", "train", "average", "begin_joint", "evaluate", "try_engine"]
)
def test_documents_that_have_the_right_types_only_outside(user: User, name: str) -> None:
    user(OPEN)
    for parameters in PARAMETERS:
        configuration = {**CONFIGURATION, "compile": {**CONFIGURATION["compile"], **parameters}}
        text = json.dumps({"order": name, **SOUND[name]})
        assert text.count(json.dumps(CONFIGURATION)) > 0
        document = json.loads(text.replace(json.dumps(CONFIGURATION), json.dumps(configuration)))
        check_reply(call(user, "SELECT cerebro_internal._work(%s)", json.dumps(document)), document)
    for layout in LAYOUTS:
        document = {"order": "describe", **SOUND["describe"], "layout": layout}
        check_reply(call(user, "SELECT cerebro_internal._work(%s)", json.dumps(document)), layout)
        document = {"order": "load_rows", **SOUND["load_rows"], "layout": layout}
        check_reply(call(user, "SELECT cerebro_internal._work(%s)", json.dumps(document)), layout)


def test_predictions_of_anything(user: User) -> None:
    """A prediction is under way, and gets other rows than it was told of."""
    user(OPEN)
    for inputs in (
        SOUND["begin_prediction"]["inputs"],
        [],
        [{"name": "x", "dtype": "float32", "shape": [2**62, 2**62]}],
        [{"name": "../x", "dtype": "object", "shape": [-1], "scale": 0.0}],
    ):
        order = {"order": "begin_prediction", **SOUND["begin_prediction"], "inputs": inputs}
        check_reply(call(user, "SELECT cerebro_internal._work(%s)", json.dumps(order)), order)
        for rows in BY_TYPE["bigint"]:
            for variables in BY_TYPE["bytea[]"]:
                call(user, "SELECT * FROM cerebro_internal._predict(CAST(%s AS bigint), %s::bytea[])", rows, variables)
        for rows in (1, 2**31, 2**62):
            call(user, "SELECT * FROM cerebro_internal._predict(CAST(%s AS bigint), %s::bytea[])", rows, [b"\x00" * 24])
    call(user, "SELECT cerebro_internal._work(%s)", '{"order": "end_prediction"}')


def test_arrays_of_anything(user: User) -> None:
    for array in (
        "ARRAY[]::integer[]", "ARRAY[NULL]::real[]", "ARRAY['x']::text[]", "ARRAY[[1, 2], [3, 4]]::bigint[]",
        "ARRAY[1e30]::numeric[]", "ARRAY[now()]", "ARRAY[ROW(1, 'x')]", "NULL::integer[]", "'{}'::bytea[]",
        "'[0:1]={1,2}'::smallint[]", "ARRAY['NaN', 'Infinity']::double precision[]",
    ):  # fmt: skip
        call(user, f"SELECT cerebro_internal._array_bytes({array})")
    for size in (0, 1, 3, 4, 5, 20, 21, 1000):
        for byte in (b"\x00", b"\xff", b"\x7f"):
            call(user, "SELECT cerebro_internal._reals(%s)", byte * size)


def check_reply(found: Any, sent: Any) -> None:
    """The reply is an answer, or an error that a user can understand."""
    if isinstance(found, list) and "error" in (reply := json.loads(found[0])):
        assert reply["error"]["kind"] in {kind.__name__ for kind in errors.kinds()}, (sent, reply)
        assert not any(word in reply["error"]["message"] for word in RAW), (sent, reply)
