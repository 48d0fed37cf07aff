"""Runs the tests on every PostgreSQL of this machine, and writes the table of docs/versions.md.

python -m tests.matrix run [PG_CONFIG …]   all installed servers, or these, or that of CEREBRO_TEST_DSN
python -m tests.matrix page RESULT.json …  adds results, also of other machines, to docs/versions.json; writes the page

COMMIT names the commit of a copy without git.
A test that fails is repeated alone, as in CI: a fault fails twice, a busy machine seldom does.  The page says why it
failed: docs/versions.explained.json has a sentence about each.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cerebro_db.embedded import throw_away
from cerebro_db.embedded.installation import PACKAGED, Installation
from tests.bench.results import packages
from tests.conftest import CLONE, GIVEN, TRAINER, connect, is_here

Json = dict[str, Any]
FOLDER = CLONE / "build" / "matrix"
RESULTS = CLONE / "docs" / "versions.json"
EXPLAINED = CLONE / "docs" / "versions.explained.json"  # test without its parameters -> why it failed, written by hand
PAGE = CLONE / "docs" / "versions.md"
BLOCK = re.compile(r"(<!-- matrix -->\n).*?(\n<!-- matrix end -->)", re.DOTALL)
PYTHON = """CREATE FUNCTION pg_temp.v() RETURNS text LANGUAGE plpython3u AS
'import platform; return platform.python_version()'"""
FORKS = re.compile(r"\((Greenplum|Apache Cloudberry)(?: Database)? ([\d.]+)")
ENGINES = {"TensorFlow", "JAX", "PyTorch"}
WHOLE_SUITES = re.compile(r"tests(/\w+)*/?|--durations=\d+")
EXCEPT_RESULTS = "docs/versions.*"  # writing the table changes nothing that is tested


# -- running -----------------------------------------------------------------------------------------------


def run(pg_configs: Sequence[str], tests: Sequence[str]) -> list[Path]:
    """The files with the results, one per server."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if GIVEN:
        return [run_one(described(GIVEN), {}, tests)]
    written = []
    for program in pg_configs or installed():
        os.environ["PG_CONFIG"] = program  # of this process's own cluster, and of the tests'
        cluster = throw_away.create(TRAINER)
        try:
            server = described(cluster.dsn())
        finally:
            throw_away.remove(cluster)
        written.append(run_one(server, {"PG_CONFIG": program}, tests))
    return written


def installed() -> Iterator[str]:
    """The pg_config of each server with PL/Python; the oldest first."""
    programs = [program for pattern in PACKAGED for program in glob.glob(pattern)]
    found = {program: Installation.of(program) for program in programs}
    usable = [program for program, server in found.items() if server.has_server and server.has_plpython]
    yield from sorted(usable, key=lambda program: int(found[program].major))


def described(dsn: str) -> Json:
    with contextlib.closing(connect(dsn)) as db, db.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS plpython3u; SELECT version()")
        version = cursor.fetchone()[0]
        cursor.execute(PYTHON)
        cursor.execute("SELECT pg_temp.v()")
        python = cursor.fetchone()[0]
    fork = FORKS.search(version)
    name = " ".join(fork.groups()) if fork else " ".join(version.split()[:2])  # PostgreSQL 15.20
    return {
        "server": name,
        "server_python": python,
        "system": platform.freedesktop_os_release()["PRETTY_NAME"] if is_here(dsn) else "another machine",
        "trainer": {"Python": platform.python_version(), **packages()},
    }


def run_one(server: Json, environment: dict[str, str], tests: Sequence[str]) -> Path:
    name = re.sub(r"\W+", "-", f"{server['server']} {server['system']}").strip("-").lower()
    jobs = "0" if GIVEN else os.environ.get("JOBS", "2")
    several = ["--numprocesses", jobs, "--dist", "loadfile", "--no-loadscope-reorder"]
    name += "-part" if tests else ""
    report = FOLDER / f"{name}.xml"
    cases = pytest(environment, report, *several, *tests)
    if failed := [case for case, (outcome, _) in cases.items() if outcome == "failed"]:
        again = pytest(environment, report, "--last-failed", "--last-failed-no-failures", "none", *tests)
        cases.update({case: again[case] for case in failed if case in again})
    result = {
        "commit": git("log", "-1", "--format=%H", "--", ".", f":!{EXCEPT_RESULTS}") or os.environ.get("COMMIT", ""),
        "uncommitted": bool(git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{EXCEPT_RESULTS}")),
        "date": time.strftime("%Y-%m-%d"),
        "tests": list(tests),
        **server,
        **counted(cases),
    }
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{server['server']}: {path}", flush=True)
    return path


def pytest(environment: dict[str, str], report: Path, *arguments: str) -> dict[str, tuple[str, str]]:
    """Test -> outcome (passed, failed, skipped) and the reason of a skip or the message of a failure."""
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--junit-xml={report}", *arguments]
    subprocess.run(command, cwd=CLONE, env={**os.environ, **environment}, check=False)
    return read(report.read_text(encoding="utf-8"))


def read(report: str) -> dict[str, tuple[str, str]]:
    cases: dict[str, tuple[str, str]] = {}
    for case in xml.fromstring(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome = ("passed", "")
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = ("failed", (child.get("message") or "").splitlines()[0] if child.get("message") else "")
            elif child.tag == "skipped" and outcome[0] == "passed":
                outcome = ("skipped", child.get("message") or "")
        if name not in cases or cases[name][0] == "passed":  # an error at the end of a test is a case of its own
            cases[name] = outcome
    return cases


def suite(case: str) -> str:
    """tests.sql.runs.test_fit::test_one -> sql/runs; tests.core.test_sql::test_one -> core"""
    folders = [part for part in case.partition("::")[0].split(".")[1:] if not part.startswith(("test_", "Test"))]
    return "/".join(folders) or "core"


def counted(cases: dict[str, tuple[str, str]]) -> Json:
    suites: dict[str, dict[str, int]] = {}
    for case, (outcome, _) in sorted(cases.items()):
        of_suite = suites.setdefault(suite(case), {"passed": 0, "failed": 0, "skipped": 0})
        of_suite[outcome] += 1
    skipped = Counter(reason for outcome, reason in cases.values() if outcome == "skipped")
    return {
        "suites": suites,
        "failures": {case: reason for case, (outcome, reason) in sorted(cases.items()) if outcome == "failed"},
        "skips": dict(sorted(skipped.items(), key=lambda item: (-item[1], item[0]))),
    }


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CLONE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


# -- the page ----------------------------------------------------------------------------------------------


def merged(old: Sequence[Json], new: Sequence[Json]) -> list[Json]:
    """A new result takes the place of an old one of the same server, system, Python and engines.

    One with other suites is added to it, if both are of the same commit: a whole row takes hours on some servers.
    """
    by_server: dict[Any, Json] = {}
    for one in [*old, *new]:
        key = one["server"], one["system"], one["server_python"], *sorted(ENGINES & set(one["trainer"]))
        by_server[key] = with_suites(by_server.get(key), one)
    return sorted(
        by_server.values(), key=lambda one: (one["server"].split()[0] != "PostgreSQL", natural(one["server"]))
    )


def with_suites(old: Json | None, new: Json) -> Json:
    """The new result, with the suites of the old one that it lacks if both are of one commit."""
    if old is None or old["commit"] != new["commit"] or set(old["suites"]) & set(new["suites"]):
        return new
    skips: Counter[str] = Counter(old["skips"]) + Counter(new["skips"])
    return {
        **new,
        "tests": sorted({*old["tests"], *new["tests"]}),
        "suites": {**old["suites"], **new["suites"]},
        "failures": {**old["failures"], **new["failures"]},
        "skips": dict(sorted(skips.items(), key=lambda item: (-item[1], item[0]))),
    }


def natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def table(results: Sequence[Json], explained: dict[str, str]) -> str:
    if not results:
        return ""
    suites = sorted({name for one in results for name in one["suites"]})
    lines = [
        f"| server | system | Python of the server | trainer | {' | '.join(suites)} | commit |",
        f"|{'---|' * (5 + len(suites))}",
    ]
    for one in results:
        trainer = ", ".join(
            f"{name} {version}" for name, version in one["trainer"].items() if name == "Python" or name in ENGINES
        )
        cells = [shown(one["suites"][name]) if name in one["suites"] else "–" for name in suites]
        lines.append(
            f"| {one['server']} | {one['system']} | {one['server_python']} | {trainer} | {' | '.join(cells)} "
            f"| {one['commit'][:7]}{' and changes' if one['uncommitted'] else ''}, {one['date']} |"
        )
    reasons = sorted({reason for one in results for reason in one["skips"]})
    if reasons:
        lines += ["", "Tests that were skipped, by reason:", ""]
        for reason in reasons:
            where = [f"{one['server']}: {one['skips'][reason]}" for one in results if reason in one["skips"]]
            lines.append(f"- {reason} ({', '.join(where)})")
    if failures := list(failed(results, explained)):
        lines += ["", "Tests that failed, twice, and why:", "", *failures]
    return "\n".join(lines)


def failed(results: Sequence[Json], explained: dict[str, str]) -> Iterator[str]:
    for one in results:
        by_test: dict[str, list[str]] = {}
        for case, message in one["failures"].items():
            test, _, parameters = case.partition("[")
            by_test.setdefault(test, []).append(f"[{parameters} {message}" if parameters else message)
        for test, messages in by_test.items():
            yield f"- {one['server']}: `{test}`: {'; '.join(messages)}. **Why:** {explained.get(test, 'not known yet')}"


def shown(counts: dict[str, int]) -> str:
    more = [f"{counts[name]} {name}" for name in ("failed", "skipped") if counts[name]]
    return ", ".join([str(counts["passed"]), *more])


def written(page: str, results: Sequence[Json], explained: dict[str, str]) -> str:
    return BLOCK.sub(lambda found: f"{found[1]}{table(results, explained)}{found[2]}", page)


def load() -> list[Json]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def explanations() -> dict[str, str]:
    return json.loads(EXPLAINED.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> None:
    what, *rest = arguments
    if what == "run":
        files = run(
            [one for one in rest if one.endswith("pg_config")], [one for one in rest if not one.endswith("pg_config")]
        )
        sys.exit(any(json.loads(file.read_text(encoding="utf-8"))["failures"] for file in files))
    new = [json.loads(Path(name).read_text(encoding="utf-8")) for name in rest]
    if partial := [one["server"] for one in new if not all(map(WHOLE_SUITES.fullmatch, one["tests"]))]:
        sys.exit(f"only parts of suites ran: {', '.join(partial)}")
    results = merged(load(), new)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results, explanations()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
