"""Every call can be ended: each argument of each function gets its largest values, and the call ends by itself within
about a second, or a cancel ends it, and so does a terminate.

The functions and their arguments come from the catalog, so a new function needs its arguments here (``VALUES``,
``FUNCTIONS``). With CEREBRO_TEST_ENDING=all, each argument gets all forms of large values, which takes some minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2
import pytest

from cerebro_db.core import protocol
from tests.conftest import ENGINE, connect
from tests.sql.lab import CROSS, Lab, flower_model
from tests.sql.users import Town, User, town
from tests.thorough import TIMES as THOROUGH

ALL = os.environ.get("CEREBRO_TEST_ENDING") == "all"
EVERY = 2 if THOROUGH >= 5 else 4  # of the large values of an argument, one of so many
# At a landing, an argument is tried with so many functions: those of one name and type are read by the same code.
FUNCTIONS_EACH = 1_000 if ALL or THOROUGH >= 5 else 2
SESSIONS = 2  # at the same time
PATIENCE = 1.0  # seconds until a call is ended
WITHIN = 2.0  # seconds in which it then ends

LONGEST = 1_000_000  # characters of an argument, and 100,000 elements: cerebro_plpy/database/sizes.py
COMPILED = f"optimizer='SGD(lr=0.1)', {CROSS}"
GRID = "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.1, 0.01]}]}"
SPACE = {
    "optimizer": {"choice": ["SGD", "Adam"]}, "learning_rate": {"log_uniform": [0.001, 0.1]},
    "batch_size": {"choice": [8, 16], "when": {"optimizer": "SGD"}},
}  # fmt: skip


OF_A_WORKER = {
    "cerebro_internal._data_in",
    "cerebro_internal._state_in",
    "cerebro_internal._state_out",
    "cerebro_internal._predict",
    "cerebro_internal._work",
}
SETTINGS = protocol.encode_settings(protocol.TrainerSettings(engine=ENGINE))
OPEN = f"SELECT cerebro_internal._worker_open('{SETTINGS}'); "


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def document(value: Any) -> str:
    return text(json.dumps(value))


STEPS = text("SELECT species, timestamp '2024-01-01' + id * interval '10 s' AS at, id % 3 AS kind FROM garden")

# Arguments that are right, as SQL, by name. NULL means that the call is right without it.
VALUES = {
    "source_table": "'train'", "source": "'flowers'", "table_name": "'train'", "packed_table": "'train'",
    "training_preprocessor_table": "'train'", "test_table": "'val'", "validation_table": "NULL",
    "model_output_table": "'made'", "output_table": "'made'", "output": "'made'", "model_table": "'made'",
    "schedule_table": "'made'", "model": "'models'", "model_selection_table": "'mst'", "selection_table": "'mst'",
    "model_arch_table": "'arch'", "keras_model_arch_table": "'arch'", "arch_table": "'arch'", "object_table": "NULL",
    "layer": "NULL", "vocabulary": "'[CLS]\n[SEP]\n[UNK]'",
    "name": "NULL", "description": "NULL", "reason": "'because'", "owner": "NULL",
    "model_id": "1", "mst_key": "1", "model_id_list": "ARRAY[1]", "num_iterations": "1", "epochs": "1",
    "compile_params": text(COMPILED), "fit_params": "'batch_size=8, epochs=1'",
    "compile_params_list": f"ARRAY[{text(COMPILED)}]", "fit_params_list": "ARRAY['batch_size=8, epochs=1']",
    "compile_params_grid": text(GRID), "fit_params_grid": "'{''batch_size'': [8, 16], ''epochs'': [1]}'",
    "search_type": "'grid'", "num_configs": "NULL", "random_state": "NULL",
    "model_arch": document(flower_model()), "model_weights": "NULL", "object": "'\\x00'",
    "space": document(SPACE), "options": document({"seed": 1, "threads": 1}), "method": "'asha'",
    "budget": document({"hops": 1}), "objective": "NULL", "direction": "NULL", "at_once": "2",
    "configurations": document([{"units": 8}]), "configuration": "1", "max_configurations": "2",
    "run_name": "NULL", "dry_run": "false", "replace": "false", "refit": "false",
    "related": "NULL", "as_of": "NULL", "origins": "2", "season": "1", "apart": "NULL",
    "architecture": document(flower_model()),
    "gone": "'mine'", "standard_errors": "1", "tables": "ARRAY[1]",
    "start_from": "NULL", "evaluate_every": "1", "metrics_compute_frequency": "1",
    "stop_when": "NULL", "use_gpus": "false", "warm_start": "false", "use_caching": "false", "wait": "true",
    "automl_method": "'hyperband'", "automl_params": "'R=3, eta=3'", "dependent_varname": "'species'",
    "independent_varname": "'sl, sw, pl, pw'", "target": "'species'", "inputs": "NULL", "buffer_size": "NULL",
    "normalizing_const": "1", "num_classes": "NULL", "divide_by": "1",
    "classes": "NULL", "distribution_rules": "NULL", "segments": "2", "seed": "1",
    "prepare": document({"sl": "number"}), "validation": "0.2", "split_by": "NULL", "split_at": "NULL",
    "stratify": "false", "sequence": "NULL", "weights": "NULL", "initial_weights": "NULL", "class_weight": "NULL",
    "folds": "NULL", "group_by": "NULL", "group_value": "NULL", "same_name": "false",
    "coverage": "0.9", "calibrated": "false", "thresholds": "false", "decide_by": "'f1'",
    "query": "'SELECT * FROM garden'", "key": "'id'", "top": "1", "class": "NULL", "bins": "10", "repeats": "1",
    "background": "NULL", "probability_of": "'setosa'", "keep": "'sl'", "times": "true", "also_in": "NULL",
    "id_col": "'id'", "pred_type": "'prob'", "class_values": "NULL", "dependent_count": "1",
    "kind": "'mlp'", "parameters": document({"units": 8}), "optimizer": "NULL", "engine": "'jax'",
    "changes": document({"learning_rate": 0.1}), "run": "last_run()", "forgotten": "last_run()",
    "whose": "current_user", "retry_failed": "false", "which": "NULL", "fold": "NULL", "members": "1",
    "all_join": "true", "merged": "false",
    "seconds": "60",
    "train_proportion": "0.5", "test_proportion": "0.5", "grouping_cols": "'species'", "target_cols": "'sl, sw'",
    "with_replacement": "false", "separate_output_tables": "false", "message": "'help'", "k": "2",
    "r": "9", "eta": "3", "skip_last": "0", "id": "1", "schema": "'madlib'", "fn_name": "'f'", "n": "2",
    "function": "'cerebro.roc_curve'", "wanted": "'class'", "one": "current_user", "other": "current_user",
    "handle": "'rows'", "variable": "'features'", "payload": "'\\x00'", "state": "'1'", "start": "0", "visit": "1",
    "index": "0", "rows": "1", "variables": "ARRAY['\\x00'::bytea]", "numbers": "'\\x00000000'",
    "column_name": "'seen'", "value": "'a text of words'", "length": "5", "ids": "100", "settings": text(SETTINGS),
    "work": document(["DropStates", {"names": []}]), "timeout": "0.1", "var": "'{1, 2}'", "x": "'{1, 2}'",
    "bytes": "'\\x00000000'", "size": "4", "elements": "ARRAY[1, 2]",
    "task": "'judge'", "metric": "'accuracy'", "margin": "0", "if_unchanged": "true",
    "edges_table": "'friends'", "columns": "NULL", "hops": "2", "normalization": "'row'", "edge_source": "'source'",
    "edge_target": "'target'", "edge_weight": "NULL", "undirected": "true", "self_loops": "true", "append": "false",
    "entity_table": "'garden'", "event_table": "'visits'", "horizon": "'10 days'", "every": "'10 days'",
    "on_columns": "NULL", "event_time": "NULL", "starts": "NULL", "ends": "NULL", "entity_time": "NULL",
    "active": "'90 days'",
    "subject": "'species'", "step_time": "'at'", "class_column": "'kind'", "step_seconds": "10", "valid_hours": "1",
    "truth": STEPS, "predicted": STEPS, "tolerance": "60", "true_times": "'{1, 2}'", "predicted_times": "'{1, 3}'",
    "called": "'cerebro.fit'", "registered_model": "current_user::text", "reference": "current_user || '@1'",
    "alias": "'production'", "version": "1", "role": "'cerebro_user'", "right": "'use'",
    "command": "'SELECT 1'", "commands": "'SELECT 1'", "labels": "'{a}'", "answers": "true",  # on Greenplum only
}  # fmt: skip

# What is right for some functions only. Arguments without a name have their number.
FLOWERS = {"source_table": "'flowers'", "source": "'flowers'"}
PLAIN = {"source_table": "'flowers'", "inputs": "'sl, sw, pl, pw'"}
RAW = {"test_table": "'garden'"}
MODEL_OF = {"model": "1"}
TRAINED = {"model_table": "'models'"}
ONE_CLASS = {**TRAINED, "class": "'setosa'"}
WEIGHTED = {**RAW, "model_id": "2"}
BYTES = {"var": "'\\x00000000'"}
PACKED = dict.fromkeys(("target", "prepare", "validation", "stratify", "segments", "packed_table"), "NULL")


def with_parts(name: str) -> tuple[str, str, str]:
    """A function, and the two that Greenplum has besides."""
    return name, f"_{name}_rows", f"_{name}_lines"


FUNCTIONS: dict[str, dict[str, str]] = {
    "_array_bytes": {"1": "ARRAY[1::real]"},
    "_text_in_utc": {"1": "now()"},
    "_require_window": {"length": "5", "given": "ARRAY[5]"},
    "_close_cursor": {"name": "'none'"},
    "array_to_bytea": {"1": "ARRAY[1::real]"},
    "__to_char": {"1": "1"},
    "assert": {"1": "true", "2": "'said'"},
    "assert_guc_value": {"1": "'jit'", "2": "'off'"},
    "relative_error": {"1": "NULL", "2": "NULL"},  # numbers or arrays
    "is_table_unlogged": {"1": "'flowers'"},
    "trap_error": {"1": "'SELECT 1'"},
    "test_error_msg": {"1": "'SELECT 1'", "2": "'said'"},
    "test_input_table": {"1": "'SELECT 1'"},
    "test_output_table": {"1": "'SELECT 1'"},
    "_array_product": {"x": "ARRAY[1, 2]"},
    "array_scalar_mult": {"x": "ARRAY[1, 2]"},
    "array_square": {"x": "ARRAY[1, 2]"},
    "_rule": {"query": "'SELECT 1 AS model'"},
    "_on_coordinator": {"1": "1", "2": "2"},  # on Greenplum only
    "_gpu_texts": {"source": "'nvidia'"},
    "_gpu_configuration": {"source": "'nvidia'"},
    "gpu_configuration": {"source": "'nvidia'"},
    "_madlib_usage": {"name": "'load_keras_model'"},
    "_train_test_split": FLOWERS,
    "train_test_split": FLOWERS,
    "training_preprocessor_dl": FLOWERS,
    "pack": {"source_table": "'flowers'"},
    **dict.fromkeys(with_parts("bouts"), {"query": STEPS}),
    "propagate": {"source_table": "'garden'", "columns": "'sl'", "target": "NULL"},
    "make_task": {"target": "'count(*)'"},
    "_packed_rows": {"source_table": "'flowers'"},
    "pack_plain": PLAIN,
    "pack_like": PLAIN,
    "append": {**FLOWERS, "divide": "false"},
    "_madlib_training_preprocessor_dl": FLOWERS,
    "validation_preprocessor_dl": FLOWERS,
    "_madlib_validation_preprocessor_dl": FLOWERS,
    "madlib_keras_predict": {**RAW, "model_table": "'models'"},
    "_madlib_keras_predict_byom": WEIGHTED,
    "madlib_keras_predict_byom": WEIGHTED,
    **dict.fromkeys(("predict", "_predict_rows", "_predictions", "_judging", "drop_model", *with_parts("evaluate"),
                     *with_parts("embed"), "_embedded",
                     "_validation_sample",
                     *with_parts("confusion_matrix"), *with_parts("residuals"), *with_parts("mistakes"),
                     *with_parts("importance"), *with_parts("explain")), TRAINED),
    "_explained": {**TRAINED, "wanted": "NULL"},
    "_validation_explained": {**TRAINED, "numbers": "ARRAY[1, 2]"},
    "predict_into": {**TRAINED, "source_table": "'garden'"},
    **dict.fromkeys((*with_parts("roc_curve"), *with_parts("precision_recall"), *with_parts("calibration")), ONE_CLASS),
    "_scored": ONE_CLASS,
    "convert_bytea_to_real_array": BYTES,
    "convert_bytea_to_smallint_array": BYTES,
    "extend": {"epochs": "2"},
    "resume": {"epochs": "2"},
    "_drive": {"epochs": "2"},
    "load_top_k_accuracy_function": {"object_table": "'objects'"},
    "_madlib_load_top_k_accuracy_function": {"object_table": "'objects'"},
    "madlib_keras_evaluate": {"model_table": "'models'"},
    "_madlib_keras_fit": {"model": "'made'"},
    "madlib_keras_fit": {"model": "'made'"},
    "load_model_selection_table": {"model_selection_table": "'made'"},
    "_madlib_load_model_selection_table": {"model_selection_table": "'made'"},
    "madlib_keras_automl": {"model_selection_table": "'made_mst'"},
    "_madlib_keras_automl": {"model_selection_table": "'made_mst'"},
    "convert_madlib_table": {"packed_table": "'made'"},
    "clone_model": MODEL_OF,
    "go_on": MODEL_OF,
    "stop_model": MODEL_OF,
    "train": {"source_table": "'flowers'", "budget": "'10 seconds'", "space": "NULL", "epochs": "NULL",
              "packed_table": "NULL", "architectures": document({"mlp": {"units": 8}}), "max_configurations": "NULL",
              "segments": "NULL", "at_once": "NULL", "dry_run": "true", "options": "NULL", "method": "NULL"},
    "search": {**PACKED, "architectures": document(["mlp"])},
    "fit": PACKED,
    "add_architecture": {"name": "'mine'"},
    "drop_architecture": {"name": "'mine'"},
    "create_predictor": {**TRAINED, "function_name": "'made'", "replace": "false"},
    "ensemble": {**TRAINED, "members": "2", "all_join": "false"},
    "materialize": {"model_table": "'made'"},
    "register": {"model_table": "'plain_models'"},
    "_state_in": {"state": "'1'"},
    "load_custom_function": {"name": "'mine'"},
    "add_custom_function": {"name": "'mine'"},
    "forget": {"run": "0"},  # what this does on record is not undone with the call
    "_to_forget": {"run": "0"},
}  # fmt: skip


# -- the calls ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    name: str  # with its schema
    arguments: tuple[tuple[str, str], ...]  # (name or number, type)

    def call(self, changed: str, value: str) -> str:
        """A call with one changed argument."""
        own = FUNCTIONS.get(self.name.partition(".")[2], {})
        given = []
        for name, kind in self.arguments:
            right = value if name == changed else f"{own.get(name) or valid(name, kind)}{cast(kind)}"
            given.append(right if name.isdigit() else f"{name} => {right}")
        call = f"SELECT {self.name}({', '.join(given)}) IS NULL"  # to write a large result takes the server long
        return OPEN + call if self.name in OF_A_WORKER else call


def cast(kind: str) -> str:
    return "" if kind.startswith("any") else f"::{kind}"


def valid(name: str, kind: str) -> str:
    """An argument's right value, if its function has no other."""
    return (
        {"integer": "2", "double precision": "0.5"}[kind] if name == "pred_type" and kind[0] in "id" else VALUES[name]
    )


def functions(user: User) -> list[Function]:
    """The functions that the user may call, by the names of the catalog."""
    found = user(
        "SELECT n.nspname || '.' || p.proname,"
        " ARRAY(SELECT COALESCE(NULLIF(p.proargnames[i], ''), i::text) FROM generate_series(1, p.pronargs) i),"
        " ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, i) ORDER BY i)"
        " FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname IN ('cerebro', 'cerebro_internal', 'madlib') AND p.prokind = 'f' AND p.pronargs > 0"
        " AND has_function_privilege(p.oid, 'EXECUTE') ORDER BY 1, p.oid::regprocedure::text"
    )
    return [Function(name, tuple(zip(names, kinds))) for name, names, kinds in found]


# Large values are made on the server, by expressions.


def many(pattern: str, count: int) -> str:
    """The text with so many copies of a pattern, in which # stands for the number of the copy."""
    return f"(SELECT string_agg(replace({text(pattern)}, '#', i::text), ', ') FROM generate_series(1, {count}) i)"


def around(*parts: str) -> str:
    """The text of which every second part is an expression."""
    return "(" + " || ".join(part if place % 2 else text(part) for place, part in enumerate(parts)) + ")"


def elements(pattern: str, count: int) -> str:
    """The array of so many copies of a pattern."""
    return f"(SELECT array_agg(replace({text(pattern)}, '#', i::text)) FROM generate_series(1, {count}) i)"


def layers(count: int, *, linked: bool) -> list[dict[str, Any]]:
    """Dense layers; ``linked``: as a functional model lists them, each after the one before it."""
    made: list[dict[str, Any]] = [
        {
            "class_name": "InputLayer",
            "name": "d0",
            "config": {"name": "d0", "batch_shape": [None, 2]},
            "inbound_nodes": [],
        }
    ]
    for i in range(1, count):
        after = {"class_name": "__keras_tensor__", "config": {"keras_history": [f"d{i - 1}", 0, 0]}}
        node: dict[str, Any] = {"inbound_nodes": [{"args": [after], "kwargs": {}}]} if linked else {}
        made.append({"class_name": "Dense", "name": f"d{i}", "config": {"name": f"d{i}", "units": 2}, **node})
    return made


SEQUENTIAL = {"class_name": "Sequential", "config": {"name": "m", "layers": layers(10_000, linked=False)}}
FUNCTIONAL = {
    "class_name": "Functional",
    "config": {
        "name": "m",
        "layers": layers(10_000, linked=True),
        "input_layers": [["d0", 0, 0]],
        "output_layers": [[f"d{i}", 0, 0] for i in range(5_000)],
    },
}
MORE = 5 if ALL else 1
LETTERS = f"repeat('a', {LONGEST})"
# @right stands for the argument's right value.
LISTED = f"left(repeat(@right::text || ', ', {LONGEST} / (length(@right::text) + 2)) || @right::text, {LONGEST})"
KEYS = around("{", many('"key #": #', 40_000), "}")
NUMBERS = around("[", many("#", 130_000), "]")
NESTED = "(repeat('{\"a\":[', 1500) || repeat(']}', 1500))"
BYTES = f"convert_to(repeat('a', {20_000_000 * MORE}), 'UTF8')"
METRICS = ", ".join(["'mae'"] * 1000)  # more are refused
LARGE: dict[str, list[str]] = {
    "text": [LISTED, LETTERS, "'\"' || repeat('a', 999998) || '\"'", KEYS, NUMBERS, NESTED,
             around("{'loss': [", many("'mse #'", 4000), "]}")],
    "json": [KEYS, NUMBERS, NESTED],
    "jsonb": [KEYS, NUMBERS, NESTED],
    "integer": ["2147483647", "-2147483648", "0"],
    "bigint": ["9223372036854775807", "(-9223372036854775808)", "0"],
    "double precision": ["'Infinity'", "'NaN'", "1e308", "-1"],
    "real": ["'Infinity'", "'NaN'", "1e38", "-1"],
    "interval": ["'170000000 years'", "'-1 second'"],
    "boolean": ["true"],
    "bytea": [BYTES],
    "name": ["repeat('a', 63)"],
    "oid[]": [f"array_fill(1::oid, ARRAY[{1_000_000 * MORE}])"],
    "integer[]": ["(SELECT array_agg(i) FROM generate_series(1, 100000) i)",
                  f"array_fill(1, ARRAY[{2_000_000 * MORE}])"],
    "text[]": [f"array_fill((@right)[1], ARRAY[LEAST(100000, {LONGEST} / length((@right)[1]))])",
               "(SELECT array_agg((@right)[1] || repeat(' ', i)) FROM generate_series(1, 1000) i)",
               f"array_fill('a'::text, ARRAY[{1_000_000 * MORE}])"],
    "bytea[]": [f"array_fill('\\x00'::bytea, ARRAY[{1_000_000 * MORE}])"],
    "real[]": [f"array_fill(1::real, ARRAY[{10_000_000 * MORE}])"],
    "double precision[]": [f"array_fill(1::double precision, ARRAY[{5_000_000 * MORE}])"],
    "smallint[]": [f"array_fill(1::smallint, ARRAY[{10_000_000 * MORE}])"],
    "anyarray": [f"array_fill(1::real, ARRAY[{2_000_000 * MORE}])"],
    "anyelement": ["1"],
}  # fmt: skip
# The forms in which an argument's value goes furthest, by the argument's name. They come first.
FURTHEST: dict[str, list[str]] = {
    "space": [
        around('{"epsilon": {"choice": [', many("#", 10_000), ']}, "momentum": {"choice": [', many("#", 10_000), "]}}"),
        around('{"optimizer": "SGD", "metrics": [', many('"mae"', 1000), '], "learning_rate": {"choice": [',
               many("#e-6", 10_000), "]}}"),
        around("{", many('"k#": {"uniform": [0, 1]}', 30_000), "}"),
        around('{"loss": {"choice": [', many('{"a": {"choice": [#, -#]}}', 10_000), "]}}"),
    ],
    "configurations": [around("[", many('{"learning_rate": #e-6}', 10_000), "]")],
    "query": [around("SELECT * FROM garden WHERE id IN (", many("#", 140_000), ")")],
    "compile_params_list": [
        elements(f"optimizer='SGD(lr=#e-6)', loss='mse', metrics=[{METRICS}]", 130),
        elements("optimizer='SGD(lr=#e-6)', loss='mse'", 20_000),
    ],
    "fit_params_list": [elements("batch_size=#", 60_000)],
    "compile_params_grid": [
        around("{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [", many("#e-6", 6000),
               "]}]}"),
        around("{'loss': ['mse'], ", many("'a#': [1]", 4000), "}"),
        around("{'loss': ['mse'], 'metrics': [[", many("'mae'", 1000), "]], 'optimizer': ['SGD'], 'lr': [",
               many("#e-6", 3000), "]}"),
    ],
    "fit_params_grid": [around("{'batch_size': [", many("#", 9000), "]}")],
    "compile_params": [text(f"optimizer='SGD(lr=0.1)', loss='mse', metrics=[{METRICS}]")],
    "fit_params": [around("batch_size=8, class_weight={", many("#: 1", 5000), "}")],
    "model_arch": [document(SEQUENTIAL), document(FUNCTIONAL)],
    "parameters": [around('{"units": [', many("#", 130_000), "]}")],
    "prepare": [around("{", many('"key #": "ignore"', 40_000), "}")],
    "options": [around('{"budget": ', KEYS, "}"), around('{"seed": ', NUMBERS, "}")],
    "work": [around('["DropStates", {"names": [', f"repeat('\"a\", ', {2_000_000 * MORE})", '"a"]}]')],
    "value": [f"repeat('word ', {7_000_000 * MORE})", f"repeat('é, ', {8_000_000 * MORE})"],
    "num_classes": ["array_fill(1, ARRAY[100000])"],
    "classes": ["array_fill(1, ARRAY[100000])"],
    "class_values": [elements("class #", 80_000)],
    "inputs": [around("sl, ", "repeat('sw, ', 240000)", "sw")],
}  # fmt: skip


def values(function: Function, name: str, kind: str) -> list[str]:
    """The values that an argument is tried with."""
    own = FUNCTIONS.get(function.name.partition(".")[2], {})
    right = own.get(name) or valid(name, kind)
    found = FURTHEST.get(name, [])
    others: list[str] = LARGE[kind.replace("character varying", "text")]
    if right == "NULL":
        others = [one for one in others if "@right" not in one]
    if not ALL and function.name.startswith("madlib."):  # they call functions of the other schema
        found, others = found[:1], others[: 0 if found else 1]
    elif not ALL:
        others = others[: 1 if found else 2]
    return [one.replace("@right", f"({right}{cast(kind)})") + cast(kind) for one in (*found, *others)]


# -- the people ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(server: str) -> Iterator[tuple[Town, User]]:
    with town(server) as root:
        user = root.user("eve", "cerebro_user")
        equip(root, user)
        yield root, user


def equip(root: Town, user: User) -> None:
    lab = Lab(user.dsn, user.name, None)
    with contextlib.closing(lab):
        lab.iris(segments=2)
        model = lab.architecture(flower_model())
        lab.selection("mst", [(model, COMPILED, f"batch_size={size}, epochs=1") for size in (16, 32)])
        lab("CREATE TABLE visits AS SELECT id, date '2026-01-01' + 7 * n AS day FROM garden, generate_series(0, 12) n")
        lab("CREATE TABLE friends AS SELECT min(id) AS source, max(id) AS target FROM garden")
        lab.architecture(flower_model(), weights=bytes(4 * (4 * 8 + 8 + 8 * 3 + 3)))
        lab("CREATE FUNCTION last_run() RETURNS bigint LANGUAGE sql AS 'SELECT max(run) FROM cerebro.runs'")
        lab.fit("train", "models", "mst", 1)
        lab("SELECT fit('train', 'plain_models', 'mst', epochs => 1)")
        lab("SELECT register(current_user::text, 'plain_models', alias => 'production')")
    # Runs are refused as late as possible: when all arguments have been read.
    root("SELECT cerebro.set_limits(%s, max_running_runs => 0)", user.name)


@pytest.fixture
def root(place: tuple[Town, User]) -> Town:
    return place[0]


@pytest.fixture
def user(place: tuple[Town, User]) -> User:
    return place[1]


class Trial:
    """A session of the user, and one that ends its calls."""

    def __init__(self, root: Town, user: User) -> None:
        self.root, self.user = root, user
        self.session: Any = None
        self.ender = connect(root.dsn)

    def close(self) -> None:
        for one in (self.session, self.ender):
            if one is not None:
                one.close()

    def ready(self) -> Any:
        if self.session is None or self.session.closed:
            self.session = psycopg2.connect(self.user.dsn)
            with self.session.cursor() as cursor:
                cursor.execute(f"SET search_path = {self.user.name}, cerebro, madlib; SET statement_timeout = '60s'")
            self.session.commit()
        return self.session

    def took(self, call: str, how: str) -> tuple[float, str]:
        """Seconds that a call took which was ended after some time, and how it ended.  Its changes are undone."""
        session, done = self.ready(), threading.Event()

        def end() -> None:
            if not done.wait(PATIENCE):
                with self.ender.cursor() as cursor:
                    cursor.execute(f"SELECT pg_{how}_backend(%s)", (session.info.backend_pid,))

        ender = threading.Thread(target=end)
        begun = time.monotonic()
        ender.start()
        try:
            with session.cursor() as cursor:
                cursor.execute(call)
            said = "done"
        except psycopg2.Error as error:
            said = f"{error.pgcode} {str(error).splitlines()[0][:200]}"
        took = time.monotonic() - begun
        done.set()
        ender.join()
        with contextlib.suppress(psycopg2.Error):
            session.rollback()
        return took, said


def tried(root: Town, user: User, calls: list[str]) -> list[tuple[float, str, str, str]]:
    """(seconds, how it was ended, what it said, call) of all calls, some at the same time."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for call in calls:
        waiting.put(call)
    found: list[tuple[float, str, str, str]] = []

    def work() -> None:
        with contextlib.closing(Trial(root, user)) as trial, contextlib.suppress(queue.Empty):
            while True:
                call = waiting.get_nowait()
                ways = ["cancel", "terminate"]
                for how in ways if ALL else [ways[zlib.crc32(call.encode()) % 2]]:
                    took, said = trial.took(call, how)
                    found.append((took, how, said, call))
                    if took < PATIENCE:
                        break

    workers = [threading.Thread(target=work) for _ in range(SESSIONS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


# -- the tests ---------------------------------------------------------------------------------------------------


def test_each_function_has_arguments_to_try(user: User) -> None:
    """A new function needs values in this file."""
    missing = {
        f"{one.name}({name})"
        for one in functions(user)
        for name, _ in one.arguments
        if name not in FUNCTIONS.get(one.name.partition(".")[2], {}) and name not in VALUES
    }
    assert not missing


def test_no_argument_makes_a_call_that_cannot_be_ended(root: Town, user: User) -> None:
    calls: list[str] = []
    tries: Counter[tuple[str, str]] = Counter()
    for one in sorted(functions(user), key=lambda one: zlib.crc32(one.name.encode())):
        for name, kind in one.arguments:
            tries[name, kind] += 1
            if tries[name, kind] > FUNCTIONS_EACH:
                continue
            large = [one.call(name, value) for value in values(one, name, kind)]
            first = zlib.crc32(f"{one.name} {name}".encode()) % min(EVERY, max(1, len(large)))
            calls += large if ALL else large[first::EVERY]
    found = tried(root, user, list(dict.fromkeys(calls)))
    if os.environ.get("CEREBRO_TEST_ENDING_LIST"):
        with open(os.environ["CEREBRO_TEST_ENDING_LIST"], "w") as file:
            for one in sorted(found, reverse=True):
                print(f"{one[0]:.2f} {one[1]} {one[2]!r} {one[3][:600]}", file=file)
    deaf = [one for one in found if one[0] > PATIENCE + WITHIN]
    assert not deaf, "\n".join(f"{took:.1f} s, {how}: {said}: {call[:300]}" for took, how, said, call in deaf)


@pytest.mark.parametrize(
    ("function", "argument", "form"),
    [("cerebro.search", "space", 1), ("madlib.generate_model_configs", "compile_params_grid", 2)],
)
@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_a_call_that_computes_for_long_is_ended(
    root: Town, user: User, function: str, argument: str, form: int, how: str
) -> None:
    (one,) = [one for one in functions(user) if one.name == function and argument in dict(one.arguments)]
    kind = dict(one.arguments)[argument]
    with contextlib.closing(Trial(root, user)) as trial:
        took, said = trial.took(one.call(argument, FURTHEST[argument][form] + cast(kind)), how)
    assert PATIENCE < took < PATIENCE + WITHIN and said.startswith("57014" if how == "cancel" else "None"), (took, said)
