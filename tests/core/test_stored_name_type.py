"""The name of a table in a document opens no table: it has a type of its own, and one module asks the log for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syntax_trees import forgotten, nodes  # noqa: F401  (the fixture is used by itself)

from cerebro_db.core import codec
from cerebro_db.core.names import Name, StoredName
from cerebro_db.core.packing.packed_summary import PLAIN, PackedSummary
from cerebro_plpy.database import relations

ROOT = Path(__file__).parents[2]
SERVER, MADLIB = "plpy/cerebro_plpy/", "plpy/cerebro_madlib/"
# Who may read a stored name as text: documents, rows and messages for people, and the module that asks the log.
FOR_PEOPLE = {
    "cerebro_db/core/names.py",
    "cerebro_db/core/packing/packed_summary.py",
    SERVER + "packing/related/source.py",
    SERVER + "runs/begin/new_run.py",
    SERVER + "runs/record/own_runs.py",
}
OPENS = SERVER + "runs/record/own_runs.py"
# Statements that read a column which names a table, and why each of them opens none.
TABLES = "source_table|packed_table|validation_table|model_arch_table|object_table"
COLUMNS = re.compile(rf"\bSELECT\b(?:(?!\bFROM\b).)*\b({TABLES})\b", re.DOTALL)
READERS = {
    MADLIB + "tables/automl_tables.py": "writes them",
    MADLIB + "tables/selection.py": "the call names the selection table, and MADlib's form has no other place",
    SERVER + "runs/record/log/known.py": "becomes a StoredName",
    SERVER + "runs/record/log/past.py": "rows of the current role",
    SERVER + "runs/record/log/plan.py": "rows of the current role",
    SERVER + "runs/record/own_runs.py": "drops tables of the current role in a schema of the product, and reads none",
    SERVER + "runs/request/request.py": "rows of the current role; and as selection.py of MADlib",
    SERVER + "runs/request/training_rows.py": "names that no new table gets",
    SERVER + "verbs/succession.py": "only whether there is one",
}


def code() -> Iterator[tuple[str, ast.AST]]:
    """Each module's path and its nodes."""
    for top in ("cerebro_db", "plpy"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            yield from ((name, node) for node in nodes(path))


def test_a_stored_name_is_neither_a_name_nor_a_text() -> None:
    stored = StoredName('S."My Table"')
    database: Any = None
    for use in (
        lambda: Name.parse(stored),  # type: ignore[arg-type]
        lambda: str(stored),
        lambda: f"{stored}",
        lambda: stored + "_summary",  # type: ignore[operator]
        lambda: relations.existing(database, stored),  # type: ignore[arg-type]
        lambda: relations.filled(database, stored),  # type: ignore[arg-type]
        lambda: relations.find(database, stored),  # type: ignore[arg-type]
        lambda: relations.hold(database, stored),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, AttributeError)):
            use()
    assert stored.for_people == 's."My Table"' and repr(stored) == "<stored name 's.\"My Table\"'>"


def test_the_tables_of_a_summary_are_stored_names() -> None:
    packing = {"arguments": {"validation_table": "b", "distribution_rules": "c", "target": "y"}, "profiles": []}
    document = {"source_table": "s.a", "target": "y", "inputs": "x", "packing": packing}
    found = PackedSummary.read(document, [], "it", PLAIN)
    assert found.packing is not None and found.source_table == StoredName("s.a")
    arguments = found.packing.arguments
    assert arguments == {"validation_table": StoredName("b"), "distribution_rules": StoredName("c"), "target": "y"}
    assert PackedSummary.read(found.to_json(), [], "it", PLAIN) == found
    assert codec.read(StoredName, "A", "it") == StoredName("a")


def test_few_modules_read_a_stored_name_as_text() -> None:
    found = {path for path, node in code() if isinstance(node, ast.Attribute) and node.attr == "for_people"}
    assert found == FOR_PEOPLE
    inner = {path for path, node in code() if isinstance(node, ast.Attribute) and node.attr == "_stored"}
    assert inner == {"cerebro_db/core/names.py"}


def test_one_module_makes_an_own_run_and_opens_its_tables() -> None:
    makers = {
        path
        for path, node in code()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OwnRun"
    }
    assert makers == {OPENS}
    users = {path for path, node in code() if isinstance(node, ast.Attribute) and node.attr == "tables_of_rows"}
    assert users == {OPENS}


def test_no_other_statement_reads_the_name_of_a_table_of_rows() -> None:
    found = {
        path
        for path, node in code()
        if path.startswith("plpy/")
        and isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and COLUMNS.search(node.value)
    }
    assert found <= READERS.keys(), found - READERS.keys()
    assert READERS.keys() <= found, READERS.keys() - found
