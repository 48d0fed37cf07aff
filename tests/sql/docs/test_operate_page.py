"""The statements of docs/operate.md run as printed, in the order of the page, on a server of their own.

The last section removes the extension: nothing of it is left, but the tables of users are. Then the statements of
docs/install.md install it again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core.trainers import shared_memory
from cerebro_db.embedded import throw_away
from cerebro_db.embedded.account import Account
from cerebro_db.embedded.cluster import Cluster
from tests.conftest import TRAINER, connect
from tests.sql.lab import eventually, run
from tests.sql.pages import blocks, statements

pytestmark = pytest.mark.throw_away
PAGE = "docs/operate.md"
SETUP = """
CREATE ROLE alice LOGIN;
CREATE ROLE grafana LOGIN;
CREATE ROLE olivia LOGIN;
CREATE TABLE public.leaves AS
SELECT i AS id, i % 9 AS length, CASE i % 3 WHEN 0 THEN 'oak' ELSE 'ash' END AS tree FROM generate_series(1, 300) i;
SELECT setval('cerebro.run_id', 11);
SELECT cerebro.train('public.leaves', 'public.trees', target => 'tree', budget => NULL, max_configurations => 2,
                     epochs => 2);
"""
LEFT = """
SELECT 'role ' || rolname FROM pg_roles WHERE rolname ~ '^cerebro'
 UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname ~ '^(cerebro|madlib)'
 UNION ALL SELECT 'extension ' || extname FROM pg_extension WHERE extname ~ '^cerebro'
 UNION ALL SELECT 'session ' || application_name FROM pg_stat_activity WHERE application_name ~ '^cerebro_db'
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    cluster = throw_away.create(TRAINER)
    try:
        yield cluster
    finally:
        throw_away.remove(cluster)


@pytest.fixture(scope="module")
def shown(place: Cluster) -> dict[str, list[tuple[Any, ...]]]:
    """The rows that each statement returns, by its text."""
    found = {}
    with contextlib.closing(connect(place.dsn())) as connection:
        for statement in statements(SETUP):
            run(connection, statement)
        for block in blocks(PAGE, "sql"):
            for statement in [block] if "$$" in block else statements(block):
                found[statement] = run(connection, statement)
    return found


def of(shown: dict[str, list[tuple[Any, ...]]], part: str) -> list[tuple[Any, ...]]:
    (rows,) = [rows for statement, rows in shown.items() if part in statement]
    return rows


def test_queries_have_the_answers_that_the_page_speaks_of(shown: dict[str, list[tuple[Any, ...]]]) -> None:
    assert len(shown) > 20
    assert all(weights > 0 for _, weights in of(shown, "SELECT configuration, weights"))
    assert all(trainer and worker for _, trainer, worker in of(shown, "SELECT DISTINCT segment"))
    assert [owner for owner, _ in of(shown, "_state_size")] == ["postgres"]
    assert set(of(shown, "FROM pg_auth_members")) == {
        ("cerebro_user", "alice"),
        ("cerebro_monitor", "grafana"),
        ("cerebro_admin", "olivia"),
    }
    assert {row[1] for row in of(shown, "component = 'worker login'")} == {"ok"}
    assert {what for _, what in of(shown, "'drives the run'")} >= {"drives the run", "segment 0"}
    assert {(str(row[0]), row[2]) for row in of(shown, "FROM cerebro.role_limit")} == {("-", 8), ("alice", 16)}
    assert {"coordinator", "segments", "segment 0"} <= {row[0] for row in of(shown, "WHERE check_name IN")}
    assert of(shown, "SELECT count(cerebro.forget") == [(1,)]


def test_nothing_is_left(place: Cluster, shown: dict[str, list[tuple[Any, ...]]]) -> None:
    assert shown
    with contextlib.closing(connect(place.dsn())) as connection:
        eventually(lambda: not run(connection, LEFT), 90, "the sessions that were kept have ended")
        assert run(connection, "SELECT count(*) > 0 FROM public.trees") == [(True,)]
        assert place.data.joinpath("cerebro_db", "secret").exists()
        uid = os.stat(place.data).st_uid
        assert shared_memory.folder_of(place.data, uid).is_dir()
    place.restart()
    eventually(lambda: not nurseries(place.data), 30, "the nursery has ended")
    account = Account.get(create=False)
    for block in blocks(PAGE, "sh"):
        done = account.run(["bash", "-ec", f"cd {place.data}\n{block}"], {"PATH": "/usr/bin:/bin", "HOME": "/tmp"})
        assert done.returncode == 0, done.stdout
    assert [file.name for file in place.data.iterdir() if "cerebro" in file.name] == ["cerebro.conf"]  # of `cerebro up`
    assert not shared_memory.folder_of(place.data, uid).exists()


def test_the_extension_is_installed(place: Cluster, shown: dict[str, list[tuple[Any, ...]]]) -> None:
    """After it was removed."""
    (block,) = blocks("docs/install.md", "sql")
    with contextlib.closing(connect(place.dsn())) as connection:
        *made, problems = [run(connection, statement) for statement in statements(block)]
        assert len(made) == 3 and "problem" not in {status for _, _, status, _ in problems}
        granted = "SELECT pg_has_role('alice', 'cerebro_user', 'USAGE'), to_regnamespace('madlib') IS NOT NULL"
        assert run(connection, granted) == [(True, True)]


def nurseries(data: Path) -> list[str]:
    """The command lines of the server's nursery and its templates."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = process.read_bytes().decode(errors="replace").split("\0")
            if any("cerebro_db/nn/" in word for word in words) and any(str(data.parent) in word for word in words):
                found.append(" ".join(words))
    return found
