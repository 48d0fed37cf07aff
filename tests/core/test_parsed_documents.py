"""Every document that users can write, with each leaf replaced by each of many values: it is read, or refused by us.

No parser may raise another error than ours, and nothing that a parser lets through may put a text of the document into
SQL outside of quotes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cerebro_db.core import codec, options, run_options
from cerebro_db.core import documents as reading_documents
from cerebro_db.core.architecture import keras_json, placeholders
from cerebro_db.core.errors import BadData, CerebroError
from cerebro_db.core.events import Action, Verdict
from cerebro_db.core.models.member_choice import read_members
from cerebro_db.core.packing.features import CategoryFeature, DateFeature, MeansFeature, NumberFeature, WordsFeature
from cerebro_db.core.packing.layout import GroupColumn, Groups, Layout, Partition, Variable
from cerebro_db.core.packing.packed_summary import PackedSummary, Packing
from cerebro_db.core.packing.preparation import (
    AsIs,
    Categories,
    Divided,
    Encoded,
    Fold,
    Measured,
    Numbers,
    OneHot,
    Pixels,
    Real,
    Weight,
    Words,
)
from cerebro_db.core.packing.windows import Windows, wanted
from cerebro_db.core.parameters import flat, params
from cerebro_db.core.search import named_methods
from cerebro_db.core.search.decision import Decision, NewConfiguration, NewModel
from cerebro_db.core.search.request import Request
from cerebro_db.core.search.request_checks import checked_budget
from cerebro_db.core.search.spaces import read_space
from cerebro_db.core.sql import identifier, shown, sql
from cerebro_db.core.sql_types import TEXT, SqlType
from cerebro_plpy.database.relations import Column
from cerebro_plpy.packing.rows.preparation import applied, expression, hashed
from tests import documents
from tests.documents import DEEP, MARK

NUMBER = NumberFeature(
    "number", SqlType("real"), "quantile", 1.0, 2.0, 0.5, True, "error", 1.0, (0.0, 1.0), (-1.0, 1.0), (-1.0, 1.0)
)
LOG = NumberFeature("money", SqlType("money"), "log", 1.0, 2.0, 0.5, True, "null", 3.0)
DATE = DateFeature("date", SqlType("timestamp with time zone"), ("year", "day"), 18000.0, 300.0, True)
CITY = CategoryFeature("text", SqlType('s."My Type"'), ("Rome", "D'Oh"), ("Bonn",), 0, "notice")
ZIP = CategoryFeature("number", SqlType("integer"), ("1",), (), 16, "error")
MEANS = MeansFeature("text", CITY.type, ("it's",), ("Rome", "D'Oh"), ((1.0, -0.5),))
WORDS = Words((WordsFeature("text", TEXT, 3, 100),))
PARTS = (Partition(0, 2, 1, 10, "ab" * 32, (1, 1)), Partition(7, 2, 1, 5, "cd" * 32, (2, 0)))
LAYOUT = Layout(
    inputs=(
        Variable("image", "uint8", (8, 8), ("image",), Divided(16.0)),
        Variable("photo", "uint8", (8, 8, 3), ("photo",), Pixels(255.0)),
        Variable("features", "float32", (2,), ("a", "b c"), AsIs()),
        Variable("numbers", "float32", (11,), ("n", "m", "d", "city"), Numbers((NUMBER, LOG, DATE, MEANS))),
        Variable("categories", "uint8", (2,), ("city", "zip"), Categories((CITY, ZIP))),
        Variable("text", "int32", (3,), ("text",), WORDS),
    ),
    outputs=(
        Variable("digit", "int16", (4,), ("digit",), OneHot(SqlType("public.digit"), (None, "two's"))),
        Variable("code", "int16", (3,), ("code",), Encoded()),
        Variable("price", "float32", (1,), ("price",), Real()),
        Variable("age", "float32", (1,), ("age",), Measured(40.0, 10.0)),
    ),
    rows=4,
    partitions=PARTS,
    weight=Variable("__weight__", "float32", (1,), ("w", "digit"), Weight(("a",), (2.0,))),
    fold=Variable("__fold__", "uint8", (1,), ("id",), Fold(2)),
)
OF_WINDOWS = Layout(
    (Variable("numbers", "float32", (9, 2), ("n",), Numbers((NUMBER,))),),
    (LAYOUT.outputs[0],),
    4,
    tuple(replace(one, folds=()) for one in PARTS),
    Windows(("who",), ("ts",), 9, 3, "majority"),
)
OF_GROUPS = Layout(
    (Variable("features", "float32", (1,), ("a",), AsIs()),),
    (LAYOUT.outputs[0],),
    4,
    (replace(PARTS[0], folds=(), groups=((1, 2),)), replace(PARTS[1], folds=(), groups=((1, 1), (2, 1)))),
    groups=Groups((GroupColumn("c", TEXT), GroupColumn("d", SqlType("date"))), (("it's", None), ("b", "2026-01-01"))),
)
SUMMARY = {
    "source_table": "t", "target": "y", "inputs": "x, z", "target_types": ["text"], "classes": [2],
    "divide_by": 1.0, "y_labels": ["a", None],
}  # fmt: skip
PACKING = {
    "arguments": {"target": "y", "validation_table": "a", "distribution_rules": "b", "seed": 1, "stratify": True},
    "fingerprint": "ab", "profiles": [],
}  # fmt: skip
MEMBERS = [{"architecture": "mlp", "parameters": {"units": 8}, "epoch": 3}]
ARCHITECTURE = {
    "class_name": "Sequential",
    "config": {
        "name": "m",
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 2], "dtype": "float32", "name": "in"}},
            {"module": "keras.layers", "registered_name": None, "class_name": "Dense",
             "config": {"name": "d", "units": 3, "activation": "relu",
                        "kernel_initializer": {"class_name": "GlorotUniform", "config": {"seed": None}}}},
        ],
    },
}  # fmt: skip
FUNCTIONAL = {
    "class_name": "Functional",
    "config": {
        "name": "m",
        "layers": [
            {"class_name": "InputLayer", "name": "in", "inbound_nodes": [],
             "config": {"batch_shape": [None, 2], "dtype": "float32", "name": "in"}},
            {"class_name": "Dense", "name": "d", "config": {"name": "d", "units": 3},
             "inbound_nodes": [{"args": [{"class_name": "__keras_tensor__", "config": {
                 "shape": [None, 2], "dtype": "float32", "keras_history": ["in", 0, 0]}}], "kwargs": {}}]},
        ],
        "input_layers": [["in", 0, 0]], "output_layers": [["d", 0, 0]],
    },
}  # fmt: skip
WITH_PARAMETERS = {
    "class_name": "Sequential",
    "config": {"name": "m", "layers": [{"class_name": "Dense", "config": {"units": "$units"}}]},
}
COMPILE = {
    "optimizer": {"class_name": "Adam", "config": {"learning_rate": 0.1}}, "loss": "mse", "metrics": ["mae"],
    "loss_weights": [1.0],
}  # fmt: skip
FIT = {"batch_size": 8, "epochs": 2, "shuffle": True, "class_weight": {"0": 1.0}, "steps_per_epoch": 5}
RECORDED = {
    "units": 8, "loss": ["mse", "mae"], "metrics": [["mae"], [{"class_name": "AUC", "config": {"curve": "PR"}}]],
    "optimizer": {"class_name": "SGD", "config": {"name": "x"}}, "momentum": 0.5, "batch_size": 8, "passes": 2,
    "learning_rate": {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 5}},
    "class_weight": {"0": 1.0}, "loss_weights": [1.0, 2.0],
}  # fmt: skip
OPTIONS = {
    "seed": 1, "engine": "jax", "precision": "mixed_bfloat16", "threads": 2, "stop_when": "SELECT 1", "budget": {},
    "method": {"name": "asha"}, "objective": "val_loss", "keep": "best", "replay": 3, "fuse": True,
}  # fmt: skip
SPACE = {
    "architecture": [1],
    "arch_params": {"units": {"choice": [4, 8]}},
    "compile": {"loss": "mse", "optimizer": {"choice": [{"class_name": "Adam"}, "SGD"]},
                "learning_rate": {"log_uniform": [0.001, 0.1], "when": {"optimizer": ["SGD"]}}},
    "fit": {"batch_size": {"integer": [8, 32], "step": 8}},
}  # fmt: skip
NEW = NewModel(
    configuration=NewConfiguration("loss='mse'", "batch_size=4", 1, None, {"fit.batch_size": 3}),
    parent=2, visits=(0, 1), model=5, parent_hop=3, fold=1,
).to_json()  # fmt: skip
DECISION = Decision(1, 2, Verdict.STOP, "why",
                    (NewModel.from_json(NEW),), (3,), hop=4).to_json()  # fmt: skip


def sound_request(action: Action) -> Callable[[Any], Any]:
    def read(detail: Any) -> Any:
        request = Request(1, action, detail)
        request.require_sound()
        return request.model, request.new if action is Action.ADD else None

    return read


def architecture(document: Any) -> Any:
    text = json.dumps(document)
    keras_json.parameters(text)
    checked = keras_json.architecture(text)
    compiled = {"metrics": ["x"], "weighted_metrics": None}
    return keras_json.outputs(checked), keras_json.widths(checked), keras_json.for_outputs(compiled, checked)


DOCUMENTS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "layout": (LAYOUT.to_json(), Layout.from_json),
    "layout of groups": (OF_GROUPS.to_json(), Layout.from_json),
    "layout of windows": (OF_WINDOWS.to_json(), Layout.from_json),
    "options of a run": ({"named": {"source_table": "a", "validation_table": "b"}},
                         lambda document: run_options.read(document, "the options")),
    "members": (MEMBERS, lambda document: read_members(document, "the members")),
    "packing": (PACKING, lambda document: codec.read(Packing, document, "the packing")),
    "summary": (SUMMARY, lambda document: PackedSummary.read(document, ["y"], "the summary")),
    "windows": ({"by": ["a"], "order": "b", "length": 9, "step": 3, "target": "last"}, lambda d: wanted(d, "sequence")),
    "architecture": (ARCHITECTURE, architecture),
    "functional architecture": (FUNCTIONAL, architecture),
    "architecture with parameters": (WITH_PARAMETERS, lambda d: placeholders.filled(d, {"units": 3})),
    "compile parameters": (COMPILE, lambda d: params.compile_params(json.dumps(d))),
    "fit parameters": (FIT, lambda d: params.fit_params(json.dumps(d))),
    "parameters on record": (RECORDED, lambda d: flat.recorded(d, "the parameters")),
    "options": (OPTIONS, options.check),
    "budget": ({"seconds": 5, "hops": 3}, checked_budget),
    "method": ({"name": "asha", "reduction": 3, "sampler": {"name": "tpe", "startup": 3}},
               lambda d: named_methods.checked(d, proposes=True)),
    "space": (SPACE, lambda d: (read_space.labels(d), read_space.read(d, {1: WITH_PARAMETERS}))),
    "new model": (NEW, NewModel.from_json),
    "decision": (DECISION, Decision.from_json),
    "request to stop": ({"model": 3}, sound_request(Action.STOP)),
    "request to extend": ({"epochs": 3}, sound_request(Action.EXTEND)),
    "request to add": ({"new": NEW, "parameters": {"units": 3}}, sound_request(Action.ADD)),
    "request of a budget": ({"seconds": 3}, sound_request(Action.BUDGET)),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_changed_document_is_read_or_refused_with_an_error_of_ours(name: str) -> None:
    document, read = DOCUMENTS[name]
    read(document)
    wrong = []
    for where, changed in documents.changes(document):
        try:
            read(changed)
        except CerebroError as error:
            if len(error.message) > 2000 or re.search(r"[a-z]Error", error.message):
                wrong.append(f"{where}: {len(error.message)} characters: {error.message[:200]}")
        except Exception as error:
            wrong.append(f"{where}: {type(error).__name__}: {str(error)[:80]}")
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:40])


@pytest.mark.parametrize(
    "text", ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "1" * 5000, "1e999", "NaN", "{", ""]
)
def test_a_text_that_python_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(BadData, match="^the document "):
        reading_documents.decoded(text, "the document")
    with pytest.raises(CerebroError):
        keras_json.architecture(text)
    with contextlib.suppress(CerebroError):
        assert keras_json.parameters(text) is None
    with pytest.raises(CerebroError):
        params.compile_params('{"loss": ' + (text or "x") + "}")


# -- SQL ------------------------------------------------------------------------------------------------------

QUOTED = re.compile(r"""E'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*\"""")


def sql_of(layout: Layout) -> list[str]:
    """The SQL that a layout becomes, as far as no database is needed."""
    found = []
    for variable in (*layout.inputs, *layout.outputs, *([layout.weight] if layout.weight else [])):
        columns = [Column(name, "text", "text", "S", None) for name in variable.columns]
        source = applied(variable.name, columns, variable.preparation)
        if not source.made:
            alias = lambda column: sql("s.{column}", column=identifier(column.name))  # noqa: E731
            found += [shown(expression(source, alias)), shown(hashed(source, alias, sql("1")))]
    return found


@pytest.mark.parametrize("layout", [LAYOUT, OF_WINDOWS], ids=["rows", "windows"])
def test_nothing_of_a_layout_is_sql_outside_of_quotes(layout: Layout) -> None:
    accepted = 0
    for where, changed in documents.changes(layout.to_json(), documents.SQL):
        try:
            found = Layout.from_json(changed)
        except CerebroError:
            continue
        accepted += 1
        for text in sql_of(found):
            assert MARK not in QUOTED.sub("", text), (where, text)
    assert accepted > 20  # names and labels may be any text


@pytest.mark.parametrize("text", documents.SQL)
def test_no_type_is_sql(text: str) -> None:
    with pytest.raises(CerebroError, match="not the name of an SQL type"):
        SqlType(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("text", (None, "text")),
        ("double precision", (None, "double precision")),
        ("timestamp with time zone", (None, "timestamp with time zone")),
        ('"char"', (None, "char")),
        ("integer[]", (None, "integer[]")),
        ("public.citext", ("public", "citext")),
        ('"My Schema"."a ""b"".c"', ("My Schema", 'a "b".c')),
        ('s."a.b"', ("s", "a.b")),
    ],
)
def test_types_as_the_server_writes_them(text: str, parts: Any) -> None:
    assert shown(SqlType(text).sql) == text and SqlType(text).parts == parts


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "Text", "text ", " text", "text text", "numeric(3)", "a.b.c", "a.", ".a", '"', '""', '"a', 'a"b"',
        "text[][]", "text[3]", "[]", "text--", "text/**/", "a;b", "double  precision", "setof text", "a\nb", '"a\0"',
        "x" * 64,
        f'"{"x" * 64}"', "ä", "$1", "1a", None, 7, [], "text\n",
    ],
)  # fmt: skip
def test_no_other_text_is_a_type(text: Any) -> None:
    with pytest.raises(CerebroError, match="not the name of an SQL type"):
        SqlType(text)


def test_the_depth_of_a_small_document_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with thousands of models has thousands of them."""
    monkeypatch.setattr(reading_documents, "range", None, raising=False)
    assert reading_documents.decoded('{"a": [1]}', "it") == {"a": [1]}
    with pytest.raises(TypeError):
        reading_documents.decoded("[" * 300 + "]" * 300, "it")
