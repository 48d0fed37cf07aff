"""What the pages name is there, and the walks of architecture.md follow the imports of the code."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from cerebro_db.core import entry_points
from cerebro_plpy import api, neighbours
from tests.sql.docs import test_judging_pages, test_serving_pages, test_task_pages
from tests.sql.pages import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "migrations/README.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
OF_DEVELOPERS = {  # those who change cerebro_db read these in the repository; they are not on the site
    ROOT / "CONTRIBUTING.md",
    ROOT / "migrations" / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("accuracy", "architecture", "benchmarks", "decisions", "extending")),
    *(ROOT / "docs" / f"{name}.md" for name in ("scheduling", "versions", "reference/protocol")),
}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

STARTS = ("", "plpy", "plpy/cerebro_plpy", "cerebro_db")  # a page may leave these folders out
TOPS = ("cerebro_db", "docker", "docs", "migrations", "plpy", "sql", "tests")
ENDINGS = (".md", ".py", ".sql", ".toml", ".txt", ".yaml")
ELSEWHERE = (
    "cerebro_db/secret",
    "cerebro_db--",
    "cerebro_db_madlib--",
)  # in a server's folder, or a name with a version to fill in
EXAMPLES = {  # files that the worked examples of extending.md make, and one that cerebro export copies
    "cerebro_scorer.py",
    "cerebro_db/nn/engines/eager.py",
    "tests/nn/test_eager.py",
    "tests/nn/test_niceness.py",
    "tests/sql/runs/test_durations.py",
    "tests/sql/runs/test_run_events.py",
    "worse/pyproject.toml",
    "worse/worse/__init__.py",
    "worse/test_worse.py",
}
GROUPS = {entry_points.ENGINES, entry_points.SEARCH_METHODS, entry_points.TRACKERS, entry_points.EXPORTERS}

SOURCES = list((ROOT / "tests").rglob("*.py"))
TESTS = {file.stem for file in SOURCES}.union(
    *(re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE) for file in SOURCES)
)


# -- examples ------------------------------------------------------------------------------------------------

# The test that runs the SQL of each page.
RUN_BY = {
    **dict.fromkeys(test_task_pages.PAGES, "test_task_pages"),
    **dict.fromkeys(test_judging_pages.PAGES, "test_judging_pages"),
    **dict.fromkeys(test_serving_pages.PAGES, "test_serving_pages"),
    "run": "test_run_page",
    "posture": "test_posture_page",
    "adapters": "test_adapters_page",
    "retrieval": "test_retrieval_page",
    "README": "test_readme",  # also docs/README.md
    **dict.fromkeys(("reference/options", "madlib"), "test_other_pages"),
    **dict.fromkeys(("operate", "install"), "test_operate_page"),
    "extending": "test_extending",
    **dict.fromkeys(("reference/functions", "reference/madlib"), "test_reference"),  # heads of functions
}


def test_the_sql_of_every_page_runs_in_a_test() -> None:
    """What cannot run says why in a comment before it."""
    for page in PAGES:
        if page.name in ("decisions.md", "CHANGELOG.md") or not blocks(str(page.relative_to(ROOT)), "sql"):
            continue
        name = str(page.relative_to(ROOT / "docs") if page.is_relative_to(ROOT / "docs") else page.name)
        test = RUN_BY[name.removesuffix(".md")]
        (file,) = (file for file in SOURCES if file.stem == test)
        assert page.stem in file.read_text() or page.parent.name == "reference", (page, test)


# -- what a page names ---------------------------------------------------------------------------------------


@every_page
def test_examples_name_their_run(page: Path) -> None:
    """The highest number of a run may be that of another session."""
    if page.name == "decisions.md":
        pytest.skip("its records name forms of queries, which are no examples")
    assert not re.search(r"max\(run\)\)? FROM (cerebro\.)?runs\s*[);]", page.read_text())


def without_blocks(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def paths(text: str) -> set[str]:
    """The files and folders of the repository that a text names in code; not those with a part to fill in."""
    words = {
        word for code in re.findall(r"`([^`]+)`", without_blocks(text)) for word in re.split(r"[\s=:,;()'\"]+", code)
    }
    return {
        word
        for word in words
        if (word.endswith(ENDINGS) or word.partition("/")[0] in TOPS and "/" in word)
        and not re.search(r"[<>*$…]", word)
        and not any(part in word for part in ELSEWHERE)
    }


def modules(text: str) -> set[str]:
    """The Python modules, or what is in them, that a text names."""
    found = set(re.findall(r"\b(?:cerebro_db|cerebro_plpy|cerebro_madlib|tests)(?:\.[a-z_]\w*)+", text))
    return {name for name in found - GROUPS if not (ROOT / name).exists()}  # cerebro_db.control is a file


def links(text: str) -> Iterator[tuple[str, str]]:
    """(file, anchor) of each link into the repository; either may be empty."""
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            yield file, anchor


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(path: str) -> bool:
    """A file's name alone may be that of a file in any folder."""
    if any((ROOT / start / path).exists() for start in STARTS):
        return True
    return "/" not in path and any(True for top in TOPS for _ in (ROOT / top).rglob(path))


def is_module(name: str) -> bool:
    """Whether a dotted name is a module, or a name that is assigned or defined in one."""
    parts = name.split(".")
    above = ROOT / "plpy" if parts[0] in ("cerebro_plpy", "cerebro_madlib") else ROOT
    file = above.joinpath(*parts)
    if file.is_dir() or file.with_suffix(".py").exists():
        return True
    holder = file.parent / "__init__.py" if file.parent.is_dir() else file.parent.with_suffix(".py")
    return holder.exists() and bool(re.search(rf"\b{parts[-1]}\b", holder.read_text()))


# -- the checks ----------------------------------------------------------------------------------------------


@every_page
def test_no_merge_was_left_unfinished(page: Path) -> None:
    assert not re.search(r"^(<{7} |={7}$|>{7} )", page.read_text(), re.MULTILINE)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for file, anchor in links(page.read_text()):
        target = page.parent / file if file else page
        if not target.exists() or anchor and anchor not in anchors(target):
            missing.append(f"{file}#{anchor}")
    assert missing == []


@every_page
def test_no_link_is_broken_in_two(page: Path) -> None:
    assert re.findall(r"\]\([^)\s]*\s[^)]*\)", page.read_text()) == []


@every_page
def test_files_and_folders_are_there(page: Path) -> None:
    assert [path for path in sorted(paths(page.read_text()) - EXAMPLES) if not is_there(path)] == []


@every_page
def test_modules_are_there(page: Path) -> None:
    examples = {example.removesuffix(".py").replace("/", ".") for example in EXAMPLES}
    assert [name for name in sorted(modules(page.read_text()) - examples) if not is_module(name)] == []


SITE = (ROOT / "mkdocs.yml").read_text()
ON_THE_SITE = {page.relative_to(ROOT).as_posix(): page for page in PAGES if page not in OF_DEVELOPERS}


def test_the_site_has_every_page_for_users() -> None:
    assert sorted(re.findall(r"^ +- [^:]+: (\S+\.md)$", SITE, re.MULTILINE)) == sorted(ON_THE_SITE)
    left_out = re.findall(r"^  (docs/\S+\.md)$", SITE.partition("exclude_docs:")[2], re.MULTILINE)
    of_developers = [page.relative_to(ROOT).as_posix() for page in OF_DEVELOPERS]
    assert sorted(left_out) == sorted(page for page in of_developers if page.startswith("docs/"))


@pytest.mark.parametrize("page", ON_THE_SITE)
def test_the_site_links_to_its_own_pages(page: str) -> None:
    targets = {(ON_THE_SITE[page].parent / file).resolve() for file, _ in links(ON_THE_SITE[page].read_text()) if file}
    assert sorted(str(target) for target in targets & OF_DEVELOPERS) == []


WORKED_EXAMPLES = (
    "posture",
    "adapters",
    "retrieval",
)  # pages that show one application; nothing else of the manual needs them


def test_the_manual_is_short() -> None:
    """docs/README.md promises one reading path of 16 pages, and worked examples, which are short."""
    words = {page.stem: len(page.read_text().split()) for page in ON_THE_SITE.values() if page.parent == ROOT / "docs"}
    examples = {name: words.pop(name) for name in WORKED_EXAMPLES}
    assert len(words) == 16 and sum(words.values()) <= 40_000 and max(examples.values()) <= 700


def test_code_names_pages_that_are_there() -> None:
    """Comments, hints and messages name pages by their path."""
    tops = ("sql", "plpy", "cerebro_db", "docker", "tests")
    files = [file for top in tops for file in (ROOT / top).rglob("*") if file.suffix in (".py", ".sql", ".sh", ".yml")]
    named = {found for file in files for found in re.findall(r"\b(docs/[\w/]+\.md)(?:#([\w-]+))?", file.read_text())}
    missing = [page for page, _ in sorted(named) if not (ROOT / page).exists()]
    assert missing == [] and len(named) > 10
    assert [(page, anchor) for page, anchor in sorted(named) if anchor and anchor not in anchors(ROOT / page)] == []


RECORDS = re.split(r"^### ", (ROOT / "docs" / "decisions.md").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.partition("\n")[0])
def test_a_decision_has_its_parts_and_is_short(record: str) -> None:
    lines = [line for line in record.partition("\n## ")[0].splitlines() if line]
    parts = [found[1] for line in lines if (found := re.match(r"\*(\w+)\.\* \S", line))]
    assert parts == ["Context", "Decision", "Evidence"]
    assert len(lines) <= 12 and max(map(len, lines)) <= 120
    assert set(re.findall(r"\btest_\w+", record)) <= TESTS


def test_the_checks_notice() -> None:
    text = "`cerebro_db/core/none.py`, `none.py`, `sql/none/`, `sql/api/<n>.sql` and `x.y`"
    assert paths(text) == {"cerebro_db/core/none.py", "none.py", "sql/none/"}
    assert not any(map(is_there, paths(text)))
    assert is_there("core/names.py") and is_there("names.py") and is_there("sql/api/")
    assert modules("from cerebro_db.core.names import Name; cerebro_db.control") == {"cerebro_db.core.names"}
    assert is_module("cerebro_db.core.names.Name") and is_module("cerebro_plpy.runs.fit")
    assert not is_module("cerebro_db.core.none") and not is_module("cerebro_plpy.runs.fit.none_at_all")
    assert list(links("[a](b.md#c), [d](https://e.f), [g](#h)")) == [("b.md", "c"), ("", "h")]


# -- the rooms -----------------------------------------------------------------------------------------------

ROOMS = {path.parent for top in ("cerebro_db", "plpy") for path in (ROOT / top).rglob("*.py")} - {ROOT / "cerebro_db"}
MOST_MODULES = 20  # of a folder: more are divided by subject


def named_rooms(page: str) -> set[Path]:
    """The folders that have a row in a table of folders; a table says in its head where its folders are."""
    found = set()
    for top, rows in re.findall(r"^\| folder(?:[^|\n]* of `([\w/]+)`)? \|.*\n((?:\|.*\n)+)", page, re.MULTILINE):
        first = " ".join(row.split("|")[1] for row in rows.splitlines())
        found |= {ROOT / top / name for name in re.findall(r"`([\w/]+)`", first)}
    return found


def test_each_room_has_a_row_and_each_row_a_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = named_rooms(page)
    assert [str(room.relative_to(ROOT)) for room in sorted(ROOMS - named)] == []
    assert [str(room.relative_to(ROOT)) for room in sorted(named) if not room.is_dir()] == []
    table = "| folder of `cerebro_db/core` | contents |\n|---|---|\n| `search`, `a.py` | `nn` |\n"
    assert named_rooms(table) == {ROOT / "cerebro_db" / "core" / "search"}


def test_no_room_has_too_many_modules() -> None:
    modules = {room: len(list(room.glob("*.py"))) for room in ROOMS}
    assert {str(room.relative_to(ROOT)): number for room, number in modules.items() if number > MOST_MODULES} == {}


# -- the walks of architecture.md ----------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = {
    "cerebro_db": ROOT / "cerebro_db",
    "cerebro_plpy": ROOT / "plpy" / "cerebro_plpy",
    "cerebro_madlib": ROOT / "plpy" / "cerebro_madlib",
}
FILES = {  # module -> its file
    ".".join((package, *file.relative_to(top).with_suffix("").parts)).removesuffix(".__init__"): file
    for package, top in PACKAGES.items()
    for file in top.rglob("*.py")
}
API = "cerebro_plpy.api"  # imports a module by its name, when a function of it is called
BY_NAME = re.findall(r'^    "([\w.]+)": \(', FILES[API].read_text(), re.MULTILINE)
IMPORTS = grimp.build_graph(*PACKAGES, cache_dir=None)
GRAPH = {name: IMPORTS.find_modules_directly_imported_by(name) for name in FILES}
BESIDE = {name for name in FILES if name.startswith("cerebro_madlib.")}  # are imported by their names, too
GRAPH[API] = GRAPH[API] | {f"cerebro_plpy.{name}" for name in BY_NAME} | {"cerebro_plpy.neighbours"} | BESIDE
GRAPH["cerebro_plpy.neighbours"] = BESIDE
# Modules that no import leads to: a process that is started, and frameworks that are imported by name.
NOT_IMPORTED = {
    *(f"cerebro_db.nn.{name}" for name in ("nursery", "template", "trainer_main")),
    *(f"cerebro_db.nn.engines.{name}" for name in ("tensorflow", "jax", "torch")),
}


def section(heading: str) -> str:
    return ARCHITECTURE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def steps(heading: str) -> list[list[str]]:
    """The modules of each numbered item, in order."""
    items = re.split(r"^\d+\. ", section(heading), flags=re.MULTILINE)[1:]
    return [[module_of(path) for path in re.findall(r"`([\w/]+\.py)`", item.partition("\n\n")[0])] for item in items]


def used_throughout() -> set[str]:
    text = section("The walk of one fit").partition("**Used throughout:**")[2].partition("\n**")[0]
    return {module_of(path) for path in re.findall(r"`([\w/]+\.py)`", text)}


@functools.cache
def module_of(path: str) -> str:
    found = [name for name, file in FILES.items() if any(file == ROOT / start / path for start in STARTS)]
    assert len(found) == 1, path
    return found[0]


WALKS = ("The walk of one fit", "The walk of one predict")


@pytest.mark.parametrize("walk", WALKS)
def test_items_are_numbered_in_order(walk: str) -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section(walk), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 20


@pytest.mark.parametrize("walk", WALKS)
def test_no_module_is_entered_twice(walk: str) -> None:
    entered = [module for step in steps(walk) for module in step]
    assert sorted(set(entered)) == sorted(entered)
    assert not set(entered) & used_throughout()


@pytest.mark.parametrize("walk", WALKS)
def test_every_module_is_imported_by_one_before_it(walk: str) -> None:
    before: set[str] = set()
    for step in steps(walk):
        before |= set(step)
        for module in step:
            assert not before - {module} or module in NOT_IMPORTED or any(module in GRAPH[one] for one in before), (
                module
            )


def test_every_function_of_the_api_is_there() -> None:
    """In this package, or in one beside it."""
    called = set(re.findall(r"api\.(\w+)\(plpy", "".join(file.read_text() for file in ROOT.glob("sql/*/*.sql"))))
    there = {
        name: f"{package.__name__.removesuffix('.api')}.{module}"
        for package in (api, *neighbours.packages())
        for module, names in package.FUNCTIONS.items()
        for name in names
    }
    assert set(there) | set(re.findall(r"^def ([a-z]\w*)\(plpy", FILES[API].read_text(), re.MULTILINE)) == called
    for name, module in there.items():
        assert f"def {name}(" in FILES[module].read_text(), name


def test_a_walk_leaves_out_no_module_of_runs_and_segment() -> None:
    """Those of other calls are named here."""
    others = {
        *(f"runs.{door}" for door in (*("background", "elsewhere", "lifecycle", "planned", "search", "steering"),)),
        *("runs.record.own_runs", "runs.request.needs", "runs.request.past", "runs.units.averaging"),
        *("segment.inspection", "segment.keeping", "segment.nursery_place", "segment.prediction"),
    }
    named = {module for step in steps("The walk of one fit") for module in step} | used_throughout()
    there = {
        name.removeprefix("cerebro_plpy.")
        for name, file in FILES.items()
        if name.startswith(("cerebro_plpy.runs.", "cerebro_plpy.segment.")) and file.name != "__init__.py"
    }
    assert there - {name.removeprefix("cerebro_plpy.") for name in named} == others


# -- what the pages say of the SQL ---------------------------------------------------------------------------

SQL = "".join(file.read_text() for file in sorted(ROOT.glob("sql/*/*.sql")))
IN_THE_SCHEMA = set(re.findall(r"CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW|TABLE|SEQUENCE|TYPE)\s+cerebro\.(\w+)", SQL))
SETTINGS = {"segments", "details"}  # cerebro.segments …
OF_EXAMPLES = {"run_events", "last_event"}  # those of extending.md


def test_the_security_page_lists_every_function_with_the_rights_of_its_owner() -> None:
    functions = re.findall(
        r"CREATE OR REPLACE FUNCTION\s+cerebro(?:_internal)?\.(\w+)(.*?)(?:\sAS\s|;)", SQL, re.DOTALL
    )
    definer = {name for name, head in functions if "SECURITY DEFINER" in head}
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("These functions are `SECURITY DEFINER`")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert definer and {name for row in rows for name in re.findall(r"`(\w+)`", row)} == definer


@every_page
def test_names_of_the_schema_are_there(page: Path) -> None:
    """Blocks in Python and shell have names of the client."""
    if page.name == "python.md":
        pytest.skip("is made from the client")
    text = re.sub(r"^ *```(?:python|sh)\n.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(?<![\w/.])cerebro\.(\w+)\b(?!_)", text))
    assert named - IN_THE_SCHEMA - SETTINGS - OF_EXAMPLES == set()
