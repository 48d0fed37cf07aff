"""What the command line prints obeys nothing in the texts of others: names, reasons, messages, errors."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import typer
from psycopg2 import sql
from rich.columns import Columns
from rich.live import Live
from rich.table import Table
from rich.text import Text
from small_run import Trained
from typer.testing import CliRunner, Result

import cerebro_db
from cerebro_db.client import watch as watches
from cerebro_db.client.commands import doctor, runs, steering
from cerebro_db.client.display.terminal import LINE, NAME, Terminal, lines, named
from cerebro_db.core.texts import harmless

HOSTILE = (
    "\x1b[31mred \x1b]0;title\x07\x1b]8;;http://x\x07link \x9b2J\x9d0;t\x9c \u202egpj.exe\u2066 [red]markup[/red]"
    " [link=http://x]l[/link] :boom: \rover\x08\x7f"
)
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")  # that rich writes
LINES = f"{HOSTILE}\nfinished\nHINT: curl evil | sh\u2028 next"
TABLE = "m\x1b[2J[red]\nx\u202e"  # a name has at most 63 bytes
SOURCES = Path(cerebro_db.__file__).parent


def obeyed(text: str) -> list[str]:
    return sorted(
        {hex(ord(one)) for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") and one != "\n"}
    )


def printed(act: Callable[[Terminal], Any], width: int = 200, **options: Any) -> str:
    terminal = Terminal(file=io.StringIO(), width=width, height=50, **options)
    act(terminal)
    return terminal.file.getvalue()  # type: ignore[attr-defined]


# --- the door ------------------------------------------------------------------------------------------------


def in_a_table(text: str | Text) -> Table:
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    return table


@pytest.mark.parametrize("text", [HOSTILE, LINES])
@pytest.mark.parametrize("kind", [str, Text])
@pytest.mark.parametrize("shown", [lambda text: text, in_a_table, lambda text: Columns([text, text])])
def test_nothing_is_obeyed(text: str, kind: Any, shown: Callable[[Any], Any]) -> None:
    out = printed(lambda terminal: terminal.print(shown(kind(text))))
    assert not obeyed(out)
    folded = "".join(part for part in out if part not in "│┃┏┓┡┩└┘━─┳┻ \n")
    assert "[red]markup[/red]" in folded and ":boom:" in folded and "␛[31mred" in folded


def test_a_terminal_gets_the_sequences_of_rich_only() -> None:
    def draw(terminal: Terminal) -> None:
        with Live(console=terminal, auto_refresh=False) as live:
            live.update(Text(HOSTILE, style="bold"), refresh=True)
        with terminal.status(HOSTILE):
            pass

    shown = printed(draw, force_terminal=True, color_system="standard")
    assert "\x1b[1m␛[31mred" in shown, "our style, and their sequence in letters"
    assert not obeyed(SEQUENCE.sub("", shown)) and "\x1b[31m" not in shown


def test_a_line_break_of_others_begins_no_line_of_ours() -> None:
    def show(terminal: Terminal) -> None:
        terminal.print(LINES, Text(LINES))
        terminal.print(lines(LINES))

    shown = printed(show, width=1000, soft_wrap=True).splitlines()
    assert not [line for line in shown if line.startswith(("finished", "HINT", " next"))]
    assert "  HINT: curl evil | sh" in shown, "a message keeps its lines, but for the first they are indented"


def test_a_long_name_is_cut() -> None:
    assert len(named("n" * 10_000)) == NAME and named("né") == "né" and named(None) == ""
    assert len(printed(lambda terminal: terminal.print(Text("a" * 100_000)), soft_wrap=True)) == LINE + 1
    accents = "a" + "\u0301" * 100_000  # no column wide
    assert len(printed(lambda terminal: terminal.print(accents), soft_wrap=True)) == LINE + 1


def test_harmless_changes_only_what_a_terminal_obeys() -> None:
    for kept in ("plain [x]", "naïve – 日本 🎉", "\u200c\u200d", "\xa0"):
        assert harmless(kept) == kept
    assert harmless("a\nb\tc") == "a␊b␉c" and harmless("a\nb\tc", lines=True) == "a\nb\tc"
    assert harmless("\x00\x7f\x85\u202e\ufeff") == "␀\ufffd\ufffd\ufffd\ufffd"


# --- nobody prints otherwise ----------------------------------------------------------------------------------

BANNED = {
    "print", "Console", "echo", "secho", "confirm", "prompt", "from_markup", "from_ansi", "stdout", "stderr", "input",
    "StreamHandler", "basicConfig", "print_exc", "exit", "SystemExit", "log", "out", "print_json",
}  # fmt: skip
LOGARITHM = "math.log"


def ways_out(tree: ast.AST) -> set[str]:
    """The ways in which a module may print without a Terminal. Called methods of objects count, but not ``x.print``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in BANNED:
                found.add(called.id)
            if (
                isinstance(called, ast.Attribute)
                and called.attr in BANNED - {"print"}
                and ast.unparse(called) != LOGARITHM
            ):
                found.add(called.attr)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
            found.add(node.attr)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("rich", "sys", "click"):
            found |= {one.name for one in node.names} & (BANNED | {"escape"})
    return found


def test_only_the_door_prints() -> None:
    allowed = {
        "client/display/terminal.py": {
            "Console",
            "SystemExit",
            "confirm",
            "echo",
        },  # echo: JSON without what a terminal obeys
        "client/commands/clusters.py": {"stdout", "confirm"},  # flushed before psql takes over; confirm() is the door's
        "client/database.py": {"log"},  # of harmless notices
        "embedded/extension.py": {"exit"},  # the installation from a clone
    }
    found = {
        str(path.relative_to(SOURCES)): ways
        for folder in ("client", "embedded")
        for path in (SOURCES / folder).rglob("*.py")
        if (ways := ways_out(ast.parse(path.read_text())))
    }
    assert found == allowed


def test_it_would_notice() -> None:
    for code in ("print(x)", "sys.exit(f'cerebro: {x}')", "from rich.console import Console", "typer.echo(x)",
                 "Text.from_markup(x)", "sys.stderr.write(x)", "raise SystemExit(x)", "console.log(x)"):  # fmt: skip
        assert ways_out(ast.parse(code)), code
    assert not ways_out(ast.parse("console.print(Text(x))\nraise typer.Exit(1)"))


# --- the commands, on a run full of hostile texts --------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile_run(trained: Trained) -> Iterator[int]:
    """A run with a hostile name, description, model table, reason of a request, and message of an event."""
    client = trained.cerebro
    run = client.fit(
        "packed",
        f'"{TABLE}"',
        "mst",
        epochs=1,
        validation_table="validation",
        run_name=LINES,
        description=LINES,
        options={"seed": 1},
    ).run
    client.extend(run, 2, reason=LINES)  # waits, because the run has ended
    client.rows(
        "INSERT INTO cerebro.decision (run, model, epoch, decision, policy, reason) VALUES (%s, 2, 1, 'stop', %s, %s)",
        (run, LINES, LINES),
    )
    client.rows(
        "INSERT INTO cerebro.event (run, event, detail) SELECT run, event, detail || %s FROM cerebro.event"
        " WHERE run = %s AND event = 'finished'",
        (json.dumps({"message": LINES, "reason": LINES}), run),
    )
    try:
        yield run
    finally:
        client.forget(run)
        with contextlib.closing(psycopg2.connect(trained.dsn)) as connection, connection, connection.cursor() as cursor:
            for ending in ("", "_info", "_summary"):
                name = sql.Identifier("client_tests", TABLE + ending)
                cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))


def cerebro(trained: Trained, *arguments: object) -> Result:
    app = typer.Typer()
    for module in (runs, steering, doctor):
        module.register(app)
    words = [str(one) for one in arguments]
    return CliRunner().invoke(app, words, env={"CEREBRO_DSN": trained.dsn, "COLUMNS": "160"})


def test_commands_about_a_hostile_run(trained: Trained, hostile_run: int) -> None:
    for words in (
        ["runs"], ["show", hostile_run], ["watch", hostile_run], ["extend", hostile_run, 3, "--reason", LINES],
        ["cancel", hostile_run], ["show", hostile_run, "--dsn", f"dbname='{HOSTILE}' {trained.dsn}"],
    ):  # fmt: skip
        shown = cerebro(trained, *words)
        assert not obeyed(shown.output), words
        assert not [line for line in shown.output.splitlines() if line.startswith(("finished", "HINT: curl"))], words
        assert shown.exception is None or isinstance(shown.exception, SystemExit), words
    text = cerebro(trained, "show", hostile_run).output
    assert text.count("␛[31mred") >= 3, "the name, the description, the reason"


def test_watching_a_hostile_run_on_a_terminal(trained: Trained, hostile_run: int) -> None:
    client = trained.cerebro
    look = watches.snapshot(client, client.run(hostile_run), client.run_progress(hostile_run))
    drawn = printed(lambda terminal: terminal.print(watches.picture(look, 120, 5)), 120, force_terminal=True)
    assert "␛[31mred" in drawn and not obeyed(SEQUENCE.sub("", drawn))
    ended = [line for line in drawn.splitlines() if line.startswith("finished")]
    assert not ended, "the name cannot look like a line of ours"


def test_a_hostile_finding_of_the_doctor() -> None:
    found = [(HOSTILE, HOSTILE, "problem", LINES, LINES), (HOSTILE, "check", "ok", "fine", None)]
    shown = printed(lambda terminal: terminal.print(doctor.table(found)), 150)
    assert not obeyed(shown) and "→ ␛[31mred" in " ".join(shown.split())


def test_the_server_sends_harmless_messages(trained: Trained) -> None:
    """They also reach the terminals of psql and of other clients."""
    with contextlib.closing(psycopg2.connect(trained.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        with pytest.raises(psycopg2.Error) as caught:
            cursor.execute("SELECT cerebro.pack(%s, 'client_tests.out', 'y')", (f'"{TABLE}"',))
        told = str(caught.value)
        assert "m␛[2J[red]" in told and not obeyed(told)
        cursor.execute("CREATE TEMP TABLE t AS SELECT sin(i % 40) AS x, i % 2 AS y FROM generate_series(1, 100) i")
        name = json.dumps(HOSTILE[:20])
        cursor.execute(sql.SQL("ALTER TABLE t ADD COLUMN {} json").format(sql.Identifier(json.loads(name))))
        cursor.execute("SELECT cerebro.pack('t', 'pg_temp.out', 'y')")
        assert connection.notices and not obeyed("".join(connection.notices))
