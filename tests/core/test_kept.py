"""What a session keeps at module level is kept by role (``database/kept.py``), or the list here says why not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_plpy.database import cancellation
from cerebro_plpy.database.kept import KeptByRole

ROOT = Path(__file__).parents[2]
SERVER, CORE = ROOT / "plpy" / "cerebro_plpy", ROOT / "cerebro_db" / "core"
MADLIB = ROOT / "plpy" / "cerebro_madlib"
DISPLAYS = (ast.Dict, ast.List, ast.Set)
MUTABLE = (*DISPLAYS, ast.DictComp, ast.ListComp, ast.SetComp)
CHANGES = ("add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")
CONTAINERS = {"dict", "list", "set", "defaultdict", "OrderedDict", "deque", "Counter", "WeakKeyDictionary",
              "WeakValueDictionary", "WeakSet", "SimpleNamespace", "local"}  # fmt: skip
REASONS = {
    "api.py:QUIETLY": "it has no attributes",
    "api.py:_begun": "whether the session has removed leftovers",
    "api.py:globals": "functions by their names",
    "database/cancellation.py:_admitted": "for the next function only",
    "database/cancellation.py:_get_user_id": "a function of the server",
    "database/cancellation.py:_greenplum": "about the server",
    "database/cancellation.py:_on_segment": "about the server",
    "database/cancellation.py:_scanning": "while a statement runs",
    "database/entry.py:_is_of_this_version": "about the database",
    "database/listening.py:_calls": "the functions that run",
    "database/listening.py:_paused": "while a function runs",
    "packing/rows/word_pieces.py:_last": "made of the bytes that each call gives",
    "platform/__init__.py:GREENPLUM": "methods without fields",
    "platform/__init__.py:POSTGRESQL": "methods without fields",
    "registry/steps.py:_step": "taken by the statement that comes next",
    "segment/current.py:_segment": "of the role in Segment.user, which each use compares",
    "segment/nursery_connection.py:_defaults": "about the installation",
    "segment/nursery_connection.py:_version": "about the installation",
    "predicting/resident_predictor.py:_mine": "its key has the role, which each call compares",
    "predicting/resident_predictor.py:_plans": "of constant statements; the server checks rights when they run",
    "predicting/resident_predictor.py:busy": "while a query runs",
    "sessions/kept_teams.py:_kept": "of the role in KeptTeam.user, which each use compares",
    "sessions/logins.py:_slots": "of the sessions of a call; limit_to sets the limit of its role",
    "sessions/own_session.py:_always_ready": "a file without contents",
    "sessions/session.py:UNLIMITED": "of no sessions: it has no limit",
}
REASONS_OF_CORE = {
    "engines.py:DISPLAY_NAMES": "filled when it is imported; look-ups keep nothing",
    "engines.py:ENGINES": "filled when it is imported; look-ups keep nothing",
    "entry_points.py:_points": "packages that the administrator has installed",
    "search/named_methods.py:METHODS": "filled when it is imported; look-ups keep nothing",
    "parameters/custom.py:NONE": "nothing changes it",
    "parameters/vocabulary.py:LOSSES": "filled when it is imported",
    "parameters/vocabulary.py:METRICS": "filled when it is imported",
    "parameters/vocabulary.py:OPTIMIZERS": "filled when it is imported",
    "parameters/vocabulary.py:SCHEDULES": "filled when it is imported",
    "packing/preparation.py:KINDS": "filled when it is imported",
    "codec.py:_FIELDS": "the fields of classes",
    "codec.py:_schema": "the fields of classes",
    "codec.py:_writer": "the fields of classes",
    "codec.py:_written": "the fields of classes",
    "codec.py:decoder": "the types of fields",
    "protocol/orders.py:ORDERS": "filled when it is imported",
    "scheduling/ring.py:_ring": "arithmetic",
    "sql.py:_templates": "templates that stand in the source, in parts",
}


def objects(top: Path) -> set[str]:
    """The classes whose objects can change: those that are no frozen records, and no errors, enumerations or types."""
    found = set()
    for path in top.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                made = [ast.unparse(one) for one in (*node.decorator_list, *node.bases)]
                if not any(
                    "frozen=True" in one or one in ("Protocol", "NamedTuple", "Enum", "str, Enum") for one in made
                ):
                    found.add(node.name)
    return found


OBJECTS = objects(SERVER) | objects(CORE) | objects(MADLIB)


def changed_names(tree: ast.AST) -> Iterator[str]:
    """The names whose contents a statement changes, or that a function assigns as global ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield from names_of(node.func.value)
        for target in targets:
            if isinstance(target, ast.Subscript):
                yield from names_of(target.value)


def names_of(changed: ast.expr) -> Iterator[str]:
    """The name; of an attribute both as it stands in its module and, with a point, in its object."""
    if isinstance(changed, ast.Attribute):
        yield from (changed.attr, f".{changed.attr}")
    elif isinstance(changed, ast.Name):
        yield changed.id


def is_kept(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "KeptByRole"


def may_change(value: ast.expr, name: str, changed: set[str]) -> bool:
    """Whether what a module or class assigns to the name may have other contents later."""
    if isinstance(value, ast.Tuple):
        return any(may_change(one, name, changed) for one in value.elts)
    if isinstance(value, MUTABLE):
        empty = isinstance(value, DISPLAYS) and not any(
            True for _ in ast.iter_child_nodes(value) if isinstance(_, ast.expr)
        )
        return name in changed or empty
    if isinstance(value, ast.Call) and ast.unparse(value.func).split("[")[0].split(".")[-1] in CONTAINERS | OBJECTS:
        return True
    return name in changed


def assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) and len(names) > 1 else [node.value]
                for at, name in enumerate(names):
                    yield ast.unparse(name), values[at if len(values) == len(names) else 0]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from assigned([one for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node])


def state(tree: ast.Module, changed: set[str]) -> set[str]:
    """The names of all that lasts from one call to the next and can change, but for what is kept by role."""
    found = {name for name, value in assigned(tree.body) if not is_kept(value) and may_change(value, name, changed)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            empty = {name for name, value in assigned(node.body) if isinstance(value, MUTABLE)}
            found |= {f"{node.name}.{name}" for name in empty if f".{name}" in changed}
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            wrappers = {ast.unparse(one).split("(")[0].split(".")[-1] for one in node.decorator_list}
            if wrappers & {"cache", "lru_cache"}:
                found.add(node.name)
            defaults = [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]
            if any(isinstance(one, MUTABLE) for one in defaults):
                found.add(node.name)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "globals":
            found.add("globals")
        if isinstance(node, ast.Name) and node.id in ("GD", "SD"):
            found.add(node.id)
    return found


def of_folder(top: Path) -> set[str]:
    trees = {path: ast.parse(path.read_text()) for path in sorted(top.rglob("*.py"))}
    changed = {path: set(changed_names(tree)) for path, tree in trees.items()}
    abroad: set[str] = set()  # what modules change that is not their own
    for path, tree in trees.items():
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        abroad |= changed[path] & {alias.name for node in imports for alias in node.names}
        abroad |= {name for dotted in changed[path] if dotted[0] == "." for name in (dotted, dotted[1:])}
    return {
        f"{path.relative_to(top).as_posix()}:{name}"
        for path, tree in trees.items()
        for name in state(tree, changed[path] | abroad)
    }


@pytest.mark.parametrize("top, reasons", [(SERVER, REASONS), (CORE, REASONS_OF_CORE), (MADLIB, {})])
def test_all_that_a_session_keeps_is_kept_by_role(top: Path, reasons: dict[str, str]) -> None:
    assert of_folder(top) == reasons.keys()


def test_no_function_in_sql_keeps_anything_itself() -> None:
    """PL/Python gives each function the dictionaries SD and GD."""
    for path in (ROOT / "sql").rglob("*.sql"):
        assert not {"SD[", "GD[", "global "} & set(path.read_text().replace("(", " ").split()), path


@pytest.mark.parametrize(
    "code",
    [
        "_x = {}", "_x: dict[str, int] = dict()", "_x = []", "_x = WeakValueDictionary()", "_x = defaultdict(list)",
        "_x = None\ndef f():\n global _x", "X = {1: 2}\ndef f(): X[3] = 4", "X = [1]\ndef f(): X.append(2)",
        "class A:\n x = {}\ndef f(): A.x['y'] = 1", "@functools.lru_cache(8)\ndef f(): pass", "@cache\ndef f(): pass",
        "def f(a={}): a[1] = 2", "def f(): GD['x'] = 1", "a, b = {}, 1", "if x:\n _x = {}",
        "def f(): globals()['x'] = 1",
    ],
)  # fmt: skip
def test_it_would_notice(code: str) -> None:
    tree = ast.parse(code)
    assert state(tree, set(changed_names(tree)))


@pytest.mark.parametrize(
    "code", ["_x: KeptByRole[str, int] = KeptByRole(8)", "X = {1: 2}", "X = sql('SELECT 1')", "X = 1 << 20"]
)
def test_it_leaves_alone(code: str) -> None:
    tree = ast.parse(code)
    assert not state(tree, set(changed_names(tree)))


def test_a_value_serves_its_role_and_the_latest_stay(monkeypatch: Any) -> None:
    kept: KeptByRole[str, int] = KeptByRole(2)
    role = 10
    monkeypatch.setattr(cancellation, "_get_user_id", lambda: role)
    kept.put("a", 1)
    role = 11
    assert kept.get("a") is None
    kept.put("a", 2)
    role = 10
    assert kept.get("a") == 1
    kept.put("b", 3)  # the other role's is the oldest one
    role = 11
    assert kept.get("a") is None
    role = 10
    kept.drop("a")
    assert kept.get("a") is None and kept.get("b") == 3
