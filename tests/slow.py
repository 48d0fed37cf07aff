"""The slow files of tests, of which ``make test`` runs a quarter. The commit decides which one.

python -m tests.slow REPORT.xml   writes the list from a report of all tests (pytest --junit-xml)

Whole files are chosen, because the tests of a file share expensive fixtures. ``make test-all`` runs them all.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as xml
from collections.abc import Mapping
from pathlib import Path

LIST = Path(__file__).with_name("slow.json")
LEAST = 10.0  # seconds of a file
PARTS = 4


def known() -> dict[str, float]:
    """Seconds by file, such as tests/sql/runs/test_fit.py."""
    seconds: dict[str, float] = json.loads(LIST.read_text(encoding="utf-8"))
    return seconds


def parts(slow: Mapping[str, float]) -> list[set[str]]:
    """The files of each part; all parts take about as long."""
    found: list[set[str]] = [set() for _ in range(PARTS)]
    seconds = [0.0] * PARTS
    for file in sorted(slow, key=lambda one: (-slow[one], one)):
        place = seconds.index(min(seconds))
        found[place].add(file)
        seconds[place] += slow[file]
    return found


def left_out(part: int) -> set[str]:
    """The slow files that are not of this part."""
    slow = known()
    return slow.keys() - parts(slow)[part % PARTS]


def measured(report: str) -> dict[str, float]:
    """Seconds by file."""
    found: dict[str, float] = {}
    for case in xml.fromstring(report).iter("testcase"):
        folders = case.get("classname", "").split(".")
        place = next((i for i, part in enumerate(folders) if part.startswith("test_")), None)
        if place is not None:  # else it is the collection that failed
            file = f"{'/'.join(folders[: place + 1])}.py"
            found[file] = found.get(file, 0.0) + float(case.get("time", 0))
    return found


def main(report: str) -> None:
    found = measured(Path(report).read_text(encoding="utf-8"))
    here = LIST.parents[1]
    if missing := [file for file in known() if file not in found and (here / file).exists()]:
        sys.exit(f"the report is not of all tests: it lacks {', '.join(missing[:5])}")
    slow = {file: round(seconds, 1) for file, seconds in sorted(found.items()) if seconds > LEAST}
    LIST.write_text(json.dumps(slow, indent=1) + "\n", encoding="utf-8")
    print(f"{len(slow)} of {len(found)} files, {sum(slow.values()):.0f} of {sum(found.values()):.0f} seconds")


if __name__ == "__main__":
    main(*sys.argv[1:])
