"""The slow tests, of which ``make test`` runs a quarter: another one for each commit. ``make test-all`` runs them all.

python -m tests.slow REPORT.xml   writes the list from a report of all tests (pytest --junit-xml)

A test belongs to a family: its variants have one function. The list has the families that take more than two seconds.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

LIST = Path(__file__).with_name("slow.json")
LEAST = 2.0  # seconds of all tests of a family
PARTS = 4


def known() -> dict[str, float]:
    """Seconds by family, such as tests/sql/runs/test_fit.py::test_one."""
    seconds: dict[str, float] = json.loads(LIST.read_text(encoding="utf-8"))
    return seconds


def family(test: str) -> str:
    return test.partition("[")[0]


def chosen(tests: Iterable[str], part: int) -> list[bool]:
    """Whether each test belongs to this part: it is quick, or one of the slow tests whose turn it is."""
    slow = known()
    return [family(test) not in slow or crc32(test.encode()) % PARTS == part % PARTS for test in tests]


def seconds_by_file(tests: Iterable[str]) -> dict[str, float]:
    """How long the slow families of each file take, as far as they are among these tests."""
    slow = known()
    found: dict[str, float] = {}
    for one in sorted({family(test) for test in tests} & slow.keys()):
        file = one.partition("::")[0]
        found[file] = found.get(file, 0.0) + slow[one]
    return found


def measured(report: str) -> dict[str, float]:
    """Seconds by family, of those in a report that are slow."""
    found: dict[str, float] = {}
    for case in xml.fromstring(report).iter("testcase"):
        folders = case.get("classname", "").split(".")
        place = next((i for i, part in enumerate(folders) if part.startswith("test_")), len(folders) - 1)
        file = "/".join(folders[: place + 1]) + ".py"
        name = "::".join([file, *folders[place + 1 :], family(case.get("name", ""))])
        found[name] = found.get(name, 0.0) + float(case.get("time", 0))
    return {name: round(seconds, 1) for name, seconds in sorted(found.items()) if seconds > LEAST}


def main(report: str) -> None:
    found = measured(Path(report).read_text(encoding="utf-8"))
    LIST.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} families, {sum(found.values()):.0f} seconds")


if __name__ == "__main__":
    main(*sys.argv[1:])
