"""The pages in docs/reference/: everything public has a comment and a place, and the pages say what the code says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cerebro_db.core.options import OPTIONS
from tests import reference
from tests.conftest import connect


@pytest.fixture(scope="module")
def connection(server: str) -> Iterator[Any]:
    with contextlib.closing(connect(server)) as made:
        yield made


def test_every_view_has_a_place_and_every_column_a_comment(connection: Any) -> None:
    found = reference.columns(connection)
    assert sorted(found) == sorted(name for names in reference.VIEWS.values() for name in names)
    assert [view for view, (comment, _) in found.items() if not comment] == []
    missing = [
        f"{view}.{column}" for view, (_, columns) in found.items() for column, _, comment in columns if not comment
    ]
    assert missing == []


def test_every_function_has_a_place_and_a_comment(connection: Any) -> None:
    found = reference.functions(connection)
    assert sorted(found) == sorted(name for names in reference.FUNCTIONS.values() for name in names)
    assert [signature for all_of in found.values() for signature, comment in all_of if not comment] == []


def test_the_schema_has_only_what_people_call(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT proname::text FROM pg_proc WHERE pronamespace = 'cerebro'::regnamespace"
            " UNION ALL SELECT viewname::text FROM pg_views WHERE schemaname = 'cerebro'"
        )
        found = [name for (name,) in cursor.fetchall()]
        cursor.execute("SELECT count(*) FROM pg_proc WHERE pronamespace = 'cerebro_internal'::regnamespace")
        ((internal,),) = cursor.fetchall()
    # Functions of users call these two, the second one on Greenplum.
    of_functions = [name for name in found if name.startswith("_")]
    assert {*of_functions} <= {"_require_window", "_begin_call"}
    assert len(found) - len(of_functions) <= 64 + len(reference.columns(connection)) and internal > 60


def test_durations_have_a_unit(connection: Any) -> None:
    for view, (_, columns) in reference.columns(connection).items():
        for column, kind, comment in columns:
            if "seconds" in column:
                assert kind == "double precision" and "econds" in (comment or ""), f"{view}.{column}"


def test_fit_names_every_option(connection: Any) -> None:
    ((_, comment),) = reference.functions(connection)["fit"]
    listed = (comment or "").partition("- options:")[2]
    assert set(re.findall(r"^  (\w+) \(", listed, re.MULTILINE)) == set(OPTIONS)


def test_the_pages_are_up_to_date(connection: Any) -> None:
    made = reference.pages(connection)
    written = {name: (reference.FOLDER / name).read_text(encoding="utf-8") for name in made}
    assert written == made, "python -m tests.reference writes them again"
