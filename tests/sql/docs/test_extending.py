"""The examples of docs/extending.md: their changes are made in a copy of the repository, and their commands succeed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CLONE

PAGE = (CLONE / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?:([^\n]+):\n\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHANGE = re.compile(r"`([^`]+)`, (a new file|at the end|(above|below|in place of) `([^`]+)`)( \(the last one\))?")
EXAMPLES = {
    heading: text
    for heading, text in re.findall(r"^### Example: ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
# The tests that show that an example works, of those that its commands run; CEREBRO_ALL_TESTS=1 runs all of them.
SHOW = {
    "a package that stops models whose objective gets worse": "worse",
    "Keras on TensorFlow without a compiled loop": "start_engine or no_rows_and_few or custom_loss or options",
    "trainers that let other processes go first": "option or takes or niceness or precedence or page",
    "the events of runs": "test_run_events or whole_matrix or judged or test_reference or has_a_model or structure",
    "durations as regression targets": "preparation or durations",
}
LEFT_OUT = (".git", ".venv", "build", ".pytest_cache")  # not what linters and Python know already
PYTEST = " .venv/bin/python -m pytest "
LINTERS = ("ruff format --check --quiet .", "ruff check .", "mypy", "lint-imports --no-logo")

pytestmark = pytest.mark.throw_away


def copied(to: Path) -> Path:
    """A copy of this clone, with the same Python environment."""
    shutil.copytree(CLONE, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (to / ".venv").symlink_to(Path(sys.prefix))
    return to


def changed(path: Path, place: str, word: str, anchor: str, last: bool, block: str) -> None:
    """One change of the page.  Its anchor is in the file once, or the page says that the last one counts."""
    if place == "a new file":
        assert not path.exists(), path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    if place == "at the end":
        gap = {".py": "\n\n", ".sql": "\n"}.get(path.suffix, "")
        path.write_text(f"{text}{gap}{block}", encoding="utf-8")
        return
    assert anchor in text and (last or text.count(anchor) == 1), f"{anchor!r} is in {path} {text.count(anchor)} times"
    start = text.rindex(anchor)
    end = start + len(anchor)
    if word == "in place of":
        block = block.removesuffix("\n")
    elif word == "above":
        start = end = text.rindex("\n", 0, start) + 1
    else:
        start = end = text.index("\n", end) + 1
    path.write_text(text[:start] + block + text[end:], encoding="utf-8")


def carried_out(folder: Path, example: str) -> list[str]:
    """Makes the changes of an example, and returns its commands."""
    commands = []
    for lead, language, block in BLOCK.findall(EXAMPLES[example]):
        if language == "sh":
            commands += block.splitlines()
            continue
        change = CHANGE.fullmatch(lead)
        assert change, f"where this goes: {lead!r} {block}"
        file, place, word, anchor, last = (part or "" for part in change.groups())
        changed(folder / file, place, word, anchor, bool(last), block)
    assert commands
    return commands


def succeeds(command: str, folder: Path, show: str = "") -> None:
    # Nothing of this clone may be found instead of the copy's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CEREBRO_", "PYTEST_"))}
    environment.pop("PYTHONPATH", None)
    if show and not os.environ.get("CEREBRO_ALL_TESTS"):
        environment["PYTEST_ADDOPTS"] = f"-k '{show}'"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"


def test_each_section_has_an_example() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    without = [one.partition("\n")[0] for one in sections if "\n### Example: " not in one]
    # A search method is the class of the package; tests/core/test_arguments.py has the places of an argument.
    assert len(EXAMPLES) == 5 and without == ["A search method", "An argument"]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A copy of this clone with the changes of all examples, and their commands."""
    folder = copied(tmp_path_factory.mktemp("together") / "clone")
    return folder, [command for example in EXAMPLES for command in carried_out(folder, example)]


def test_linters_accept_all_examples_together(together: tuple[Path, list[str]]) -> None:
    for linter in LINTERS:
        succeeds(f"PYTHONPATH=.:plpy .venv/bin/{linter}", together[0])


def test_all_examples_do_what_the_page_says(together: tuple[Path, list[str]]) -> None:
    """In one copy, and with one call of pytest, which needs one server."""
    folder, commands = together
    files: list[str] = []
    for command in dict.fromkeys(commands):
        before, pytest_, after = command.partition(PYTEST)
        if not pytest_:
            succeeds(command, folder)
        files += [one for one in after.split() if one not in files and (folder / one).exists()]
    privileges = folder / "tests/sql/rights/privileges.txt"
    known = privileges.read_text()
    environment = "PYTHONPATH=.:plpy:build/site CEREBRO_WRITE_PRIVILEGES=1"
    succeeds(f"{environment}{PYTEST}{' '.join(files)}", folder, " or ".join(SHOW.values()))
    assert len(privileges.read_text()) > len(known)


@pytest.mark.thorough  # test_all_examples_do_what_the_page_says: all in one copy
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_does_what_the_page_says(example: str, tmp_path: Path) -> None:
    folder = copied(tmp_path / "clone")
    for command in carried_out(folder, example):
        succeeds(command, folder, SHOW.get(example, ""))


def test_a_change_that_does_not_fit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\none\n")
    with pytest.raises(AssertionError, match="2 times"):
        changed(tmp_path / "a.py", "above `one`", "above", "one", False, "none\n")
    with pytest.raises(AssertionError, match="0 times"):
        changed(tmp_path / "a.py", "below `two`", "below", "two", False, "none\n")
    changed(tmp_path / "a.py", "above `one`", "above", "one", True, "none\n")
    assert (tmp_path / "a.py").read_text() == "one\nnone\none\n"
