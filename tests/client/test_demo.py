"""The demo from beginning to end with few epochs. Tables that are not its own stay as they are."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from typer.testing import CliRunner

from cerebro_db.client import cli, demo
from cerebro_db.client import demo_statements as statements
from cerebro_db.client.display.terminal import Terminal
from cerebro_db.client.errors import ClientError


@pytest.fixture
def clean(server: str) -> Iterator[Any]:
    """A connection to a database without the demo's schema, before and after."""
    with contextlib.closing(psycopg2.connect(server)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA IF EXISTS cerebro_demo CASCADE")
            yield cursor
            cursor.execute("DROP SCHEMA IF EXISTS cerebro_demo CASCADE")


def session(server: str) -> demo.DemoSession:
    return demo.DemoSession(server, Terminal(file=io.StringIO(), width=100))


def said(session: demo.DemoSession) -> str:
    return session.console.file.getvalue()  # type: ignore[attr-defined]


def test_from_beginning_to_end(server: str, clean: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cerebro_db.client.demo", "--dsn", server, "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    clean.execute("SELECT run, status, configurations, segments, epochs FROM cerebro.runs ORDER BY run DESC LIMIT 1")
    run, *facts = clean.fetchone()
    assert facts == ["finished", 16, 2, 1]
    for statement in ("pack_plain(", "cerebro.fit(",
                      "cerebro.predict_into(", f"cerebro.run_time WHERE run = {run}"):  # fmt: skip
        assert statement in done.stdout
    clean.execute(
        "SELECT configuration, validation_metric FROM cerebro.leaderboard WHERE run = %s ORDER BY rank", (run,)
    )
    (best, accuracy), *others = clean.fetchall()
    assert len(others) == 15
    assert accuracy > 0.8  # after one epoch
    right = int(re.search(r"(\d+) of 360 validation images", done.stdout).group(1))  # type: ignore[union-attr]
    assert right / 360 == pytest.approx(accuracy, abs=1e-6)
    assert f"configuration => {best}" in done.stdout
    assert "@@" in done.stdout and f"show {run}" in done.stdout
    # The third of the three commands of README.md: its chart is about this run.
    file = tmp_path / "report.html"
    told = CliRunner().invoke(cli.app, ["report", "-o", str(file), "--dsn", server])
    assert told.exit_code == 0, told.output
    text = file.read_text("utf-8")
    assert f'"run":{run},' in text and text.count('"rank":') == 16
    # Integer images stay integers.
    clean.execute("SELECT layout FROM cerebro_demo.digits_packed_summary")
    image = clean.fetchone()[0]["inputs"][0]
    assert (image["dtype"], image["shape"], image["scale"]) == ("uint8", [8, 8], 16)


def test_a_second_time_and_with_other_tables_beside(server: str, clean: Any) -> None:
    for _ in range(2):
        again = session(server)
        demo.make_room(again)
        demo.load_digits(again)
        again.run(statements.PACK)
        again.run(statements.PACK_VALIDATION)
        again.connection.close()
        clean.execute("CREATE TABLE IF NOT EXISTS cerebro_demo.mine AS SELECT 1 AS kept")
    clean.execute("SELECT kept FROM cerebro_demo.mine")
    assert clean.fetchone() == (1,)


def test_a_schema_that_is_not_its_own_is_left_alone(server: str, clean: Any) -> None:
    clean.execute("CREATE SCHEMA cerebro_demo; CREATE TABLE cerebro_demo.digits_train AS SELECT 'mine' AS whose")
    asked = session(server)
    with pytest.raises(ClientError, match="was not made by this demo: it is left as it is"):
        demo.make_room(asked)
    asked.connection.close()
    clean.execute("SELECT whose FROM cerebro_demo.digits_train")
    assert clean.fetchone() == ("mine",)


def test_nobody_answers() -> None:
    command = [sys.executable, "-m", "cerebro_db.client.demo", "--dsn", "host=/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("cerebro: ") and "Traceback" not in done.stderr


def test_statements_are_no_wider_than_a_terminal() -> None:
    room = 80 - len("cerebro=# ")
    texts = [text for name, text in vars(statements).items() if name.isupper()]
    assert len(texts) == 8
    for statement in texts:
        first, *others = statement.replace("{{", "{").replace("}}", "}").splitlines()
        assert len(first) <= room, first
        assert max(map(len, others), default=0) <= 80
