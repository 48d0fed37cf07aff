"""Shared by the tests of MADlib's interface: scripts for psql, and the columns of the tables that they make."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sklearn.datasets import load_iris

from tests.madlib_tables import TABLES
from tests.sql.lab import Lab

SCRIPTS = Path(__file__).with_name("madlib_scripts")


def iris_data(lab: Lab) -> None:
    """The table that the scripts begin with."""
    data = load_iris()
    rows = [(i, data.data[i].tolist(), f"Iris-{data.target_names[data.target[i]]}") for i in range(len(data.target))]
    lab.table("iris_data", {"id": "int", "attributes": "float8[]", "class_text": "varchar"}, rows)


def psql(lab: Lab, script: str, *more: str, path: str | None = None) -> str:
    """What psql prints; it stops at the first error.  ``more``: options of psql.  ``path``: of schemas."""
    program = shutil.which("psql")
    if program is None:
        pytest.skip("no psql here")
    options = f"-c search_path={path or lab.schema},public"
    done = subprocess.run(
        [program, "-X", "-v", "ON_ERROR_STOP=1", *more, "-f", str(SCRIPTS / script), lab.dsn],
        capture_output=True, text=True, timeout=300, env={"PGOPTIONS": options},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def kinds(lab: Lab, names: list[str]) -> list[str]:
    """The names of types as the catalog writes them."""
    return [lab.value("SELECT pg_catalog.format_type(to_regtype(%s), NULL)", name.lower()) for name in names]


def require_columns(lab: Lab, made_by: str, name: str, table: str) -> None:
    """The table has the documented columns: those of MADlib, then those of ours."""
    (documented,) = [one for one in TABLES if (one.made_by, one.name) == (made_by, name)]
    meant = {"<input>": "attributes", "<output>": "class_text", "<label>": "varchar", "<id>": "id", "<id type>": "int"}
    wanted = [
        tuple(re.sub(r"<[^>]+>", lambda found: meant[found[0]], part) for part in one) for one in documented.types
    ]
    wanted = list(zip((column for column, _ in wanted), kinds(lab, [kind for _, kind in wanted])))
    found = lab.columns(table)
    assert found[: len(wanted)] == wanted
    assert [column for column, _ in found[len(wanted) :]] == re.findall(r"\w+", documented.more)
