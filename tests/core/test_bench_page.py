"""The measured blocks of the pages are those of docs/benchmarks.json, and results of one commit make one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import page, results
from tests.bench.meter import Taken
from tests.bench.page import BLOCK, BLOCKS, CLONE, RESULTS, pages, updated
from tests.bench.report import Repeats
from tests.bench.stage import Measured
from tests.bench.works import WORKS, Work
from tests.sql.lab import Json

W1: Work = WORKS["W1"][0]
every_page = pytest.mark.parametrize("file", pages(), ids=lambda file: str(file.relative_to(CLONE)))


@every_page
def test_blocks_are_closed_and_have_a_maker(file: Path) -> None:
    text = file.read_text()
    found = BLOCK.findall(text)
    assert len(found) == text.count("<!-- bench ") == text.count("<!-- end -->")
    assert [name for name, _ in found if name not in BLOCKS] == []
    assert not any("<!-- bench" in inside for _, inside in found)


@every_page
def test_a_page_has_the_figures_of_the_results(file: Path) -> None:
    if not RESULTS.exists():
        pytest.skip("no run of the benchmark is recorded")
    text = file.read_text()
    assert updated(text, json.loads(RESULTS.read_text())) == text, "run make bench-page"


# --- from measurements to a page -------------------------------------------------------------------------


def measured(contender: str, wall: float, start: float = 1.0, loss: float = 0.3) -> Measured:
    found = [{"loss": loss, "accuracy": 0.9}, {"loss": loss + 0.1, "accuracy": 0.8}, {"loss": 9.0, "accuracy": 0.1}]
    more = {"units": {"1": {"train": 1.0}}, "profile": {"starting": 1.0, "training": 8.0, "waiting": 2.0}}
    return Measured(contender, Taken(wall=wall, cpu=2 * wall), start, found, more if "ours" in contender else {})


REPEATS: Repeats = [
    [measured("ours", 5.0), measured("(a) Keras", 21.0), measured("(b2) bare loop, traced once", 6.0)],
    [measured("ours", 9.0), measured("(a) Keras", 33.0), measured("(b2) bare loop, traced once", 9.0)],
]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Json:
    monkeypatch.setattr(results, "_git", lambda *asked: "c" * 40 if asked[0] == "rev-parse" else "")
    begun = results.begun("15.8 (Debian 15.8-0)", {})
    begun["works"]["W1"] = results.of_work(W1, REPEATS)
    return json.loads(json.dumps(begun))  # type: ignore[no-any-return]


def test_every_ratio_is_in_the_file(found: Json) -> None:
    assert found["works"]["W1"]["ratios"] == {
        "ours": {
            "(a) Keras": {"wall": [4.2, 3.66667], "without start": [5.0, 4.0], "CPU": [4.2, 3.66667]},
            "(b2) bare loop, traced once": {"wall": [1.2, 1.0], "without start": [1.25, 1.0], "CPU": [1.2, 1.0]},
        }
    }
    assert found["commit"] == "c" * 40 and found["versions"]["PostgreSQL"] == "15.8"


def test_the_file_has_what_the_report_compares_and_nothing_large(found: Json) -> None:
    read = results.repeats_of(found, "W1")
    assert [[one.contender for one in repeat] for repeat in read] == [[one.contender for one in r] for r in REPEATS]
    assert read[0][0].results == [{"loss": 0.4, "accuracy": 0.9}], "the median loss and the best accuracy"
    assert "units" not in read[0][0].more and read[0][0].more["profile"]["training"] == 8.0
    assert results.repeats_of(found, "W2") == []


def test_blocks_in_lines_of_their_own_and_within_a_line(found: Json) -> None:
    inline = "b <!-- bench conditions -->?<!-- end --> c <!-- bench W2 -->2<!-- end -->"
    text = f"a\n<!-- bench W1 -->\nold\n<!-- end -->\n{inline}"
    new = updated(text, found)
    assert new.startswith("a\n<!-- bench W1 -->\n| ") and "\n<!-- end -->\nb <!-- bench conditions -->" in new
    assert "ours" not in new and "| cerebro_db " in new
    row = next(line for line in new.splitlines() if line.startswith("| (a) Keras"))
    assert "| 3.93 (3.67–4.20) | 4.50 (4.00–5.00) |" in row
    assert "cerebro_db 80.0 % (80.0–80.0)" in new, "eight seconds of ten"
    assert "PostgreSQL 15.8" in new and "Commit cccccccccc, 2 repeats" in new
    assert new.endswith("<!-- bench W2 -->2<!-- end -->"), "a work that is not in the results stays as it is"
    assert updated(new, found) == new


def test_what_is_said_in_short(found: Json) -> None:
    assert page.headline(found) is None, "not without the calls with auto"
    assert page.summary(found) == (
        "- W1, sixteen small MLPs on 60,000 rows. Plain Keras takes this many times as long as ours: 3.9 times with"
        " TensorFlow.\n- W1: a bare TensorFlow loop takes 1.1 times as long as ours, 1.1 without the starts."
    )
    names = ("ours, auto, nothing kept", "ours, auto", "ours, auto, second call")
    fuller = [[*repeat, *(measured(name, wall) for name, wall in zip(names, (4.0, 3.0, 2.0)))] for repeat in REPEATS]
    found["works"]["W1"] = results.of_work(W1, fuller)
    said = page.headline(found)
    assert said and "takes 3.9 times as long" in said and "6.8 (very first call) to 13.5 times (second call" in said


# --- several calls of the benchmark ----------------------------------------------------------------------


def written(tmp_path: Path, *several: Json) -> list[Path]:
    files = [tmp_path / f"{number}.json" for number in range(len(several))]
    for file, one in zip(files, several):
        results.write(one, file)
    return files


def test_calls_at_one_commit_become_one_file(tmp_path: Path, found: Json) -> None:
    second = {**found, "works": {"W2": {"about": "", "measured": [], "ratios": {}}}}
    assert set(results.merged(written(tmp_path, found, second))["works"]) == {"W1", "W2"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"commit": "d" * 40}, "commit differs"),
        ({"machine": {}}, "machine differs"),
        ({"versions": {}}, "versions differs"),
        ({"uncommitted": True}, "changes that no commit has"),
        ({"commit": None}, "changes that no commit has"),
        ({"reduced": {"rows": 500}}, "smaller works"),
    ],
)
def test_other_calls_are_refused(tmp_path: Path, found: Json, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(results.Unfit, match=says):
        results.merged(written(tmp_path, found, {**found, **changed}))
