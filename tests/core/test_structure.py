"""Where code may stand: rules about modules that the import contracts of pyproject.toml cannot express."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from pathlib import Path

from syntax_trees import forgotten, module, nodes  # noqa: F401  (the fixture is used by itself)

from cerebro_db.core.events import Event
from cerebro_db.core.protocol import ORDERS

SERVER = Path(__file__).parents[2] / "plpy" / "cerebro_plpy"
# And all of platform/.  A new session takes too long to import either of them for resident_predictor.py.
MAY_BRANCH = {"database/cancellation.py", "predicting/resident_predictor.py"}
LOG = SERVER / "runs" / "record" / "log"
LOG_TABLES = "architecture|attempt|configuration|decision|evaluation|event|heartbeat|hop|model|request|run"
CEREBRO_DB = SERVER.parents[1] / "cerebro_db"
PACKAGES = SERVER.parent  # all that the server loads, besides core
# Classes that share a name on purpose: a reader meets one thing in two programs.
SHARED_NAMES = {
    *("Average", "Evaluate", "Train"),  # a unit of the schedule, and the order to a trainer that carries it out
    *("Cancelled", "CannotConnect"),  # errors of the server, and as what users of the client see them
    # Of a call of SQL, and of the client's method of the same name.
    *("FitArguments", "PackArguments", "PackingArguments", "SearchArguments", "TrainArguments"),
    *("Decision", "Request", "Run"),  # what the server works with, and a row of the client's view of the same name
}


def branches_on_the_database(code: Iterable[ast.AST]) -> bool:
    """Whether code asks which database it runs in: a name with greenplum in it, or a comparison with that text."""
    for node in code:
        if isinstance(node, (ast.Name, ast.Attribute, ast.alias, ast.arg, ast.keyword)):
            name = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}.get(type(node), "arg")
            if "greenplum" in str(getattr(node, name)).lower():
                return True
        if isinstance(node, ast.Compare):
            compared = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            if any(isinstance(text, str) and "greenplum" in text.lower() for text in compared):
                return True
    return False


def test_platform_differences_have_one_home() -> None:
    """Only platform/ and database/cancellation.py ask which database it is; all others call platform.of(db)."""
    found = {
        str(path.relative_to(PACKAGES)).replace("cerebro_plpy/", "")
        for path in PACKAGES.rglob("*.py")
        if branches_on_the_database(nodes(path))
    }
    assert {path for path in found if not path.startswith("platform/")} == MAY_BRANCH


def test_it_would_notice() -> None:
    for code in ("if is_greenplum(db): pass", "x = team.dialect.greenplum", "'Greenplum' in version", "f(greenplum=1)"):
        assert branches_on_the_database(ast.walk(ast.parse(code)))
    code = "platform.of(db).distributed_by('x')  # as Greenplum wants"
    assert not branches_on_the_database(ast.walk(ast.parse(code)))


@functools.cache
def texts(path: Path) -> list[str]:
    """All string constants but the docstrings, those inside f-strings included."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = (node for node in nodes(path) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return [node.value for node in constants if isinstance(node.value, str)]


def modules_with(wrong: re.Pattern[str], *tops: Path) -> set[str]:
    return {
        path.name
        for top in tops
        for path in ([top] if top.is_file() else top.rglob("*.py"))
        if any(wrong.search(text) for text in texts(path))
    }


def test_only_the_log_has_the_sql_of_the_log() -> None:
    """Statements that read or write the log's tables are in runs/record/log/; other modules call its methods."""
    table = re.compile(rf"\bcerebro\.({LOG_TABLES})\b(?!\()")
    assert modules_with(table, LOG)
    assert modules_with(table, *(path for path in PACKAGES.rglob("*.py") if LOG not in path.parents)) == set()


def test_the_log_does_not_join_tables_that_grow_with_the_models() -> None:
    """Of rows that were just written the server knows nothing, and compares each row of the one table with each of the
    other: a run of 5,000 models took three times as long.  ``log/base.py`` and ``log/tables.py`` say what helps.
    """
    joined = re.compile(r"(?<!FULL )JOIN cerebro\.(attempt|decision|evaluation|event|hop|model|objective)\b")
    assert joined.search("cerebro.model m JOIN cerebro.hop h USING (run, owner, model)")
    assert modules_with(joined, LOG) == set()


def test_no_statement_depends_on_standard_conforming_strings() -> None:
    """Without that setting a backslash in a text of SQL means something else, and the body of a function, too."""
    scripts = (SERVER.parents[1] / "sql").rglob("*.sql")
    assert [str(path) for path in scripts if "\\" in path.read_text()] == []
    statement = re.compile(r"(SELECT|WHERE|LIKE) .*'[^']*\\")
    assert modules_with(statement, PACKAGES) == set()


def test_no_module_spells_an_event_as_a_string() -> None:
    spelled = re.compile(rf"'({'|'.join(event.value for event in Event)})'")
    assert modules_with(spelled, PACKAGES) == set()
    constants = {event.value for event in Event if " " in event.value}  # others are everyday words
    assert not constants & {text for path in PACKAGES.rglob("*.py") for text in texts(path)}


def test_no_module_spells_an_order_as_a_string() -> None:
    """An order's name is made from its class; what would spell one is ``{"order": "train"}``."""
    for path in [*PACKAGES.rglob("*.py"), *(SERVER.parents[1] / "cerebro_db" / "nn").rglob("*.py")]:
        for node in nodes(path):
            if isinstance(node, ast.Dict):
                keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                assert not keys & {"order", "work"}, f"{path}:{node.lineno}"
    assert {"train", "evaluate", "predict"} <= set(ORDERS)


def homes(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The name of each class that stands at the top of a module, and the modules that define it."""
    found: dict[str, list[str]] = {}
    for path, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path)
    return found


def test_a_class_name_stands_for_one_thing() -> None:
    modules = [path for top in (CEREBRO_DB, PACKAGES) for path in top.rglob("*.py")]
    found = homes({str(path): module(path) for path in modules})
    assert {name for name, paths in found.items() if len(paths) > 1} == SHARED_NAMES
    assert homes({"a": ast.parse("class A: pass"), "b": ast.parse("class A: pass")}) == {"A": ["a", "b"]}


def test_one_function_makes_the_request_of_a_run() -> None:
    made = [
        path.relative_to(PACKAGES).as_posix()
        for path in PACKAGES.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "RunRequest"
    ]
    assert made == ["cerebro_plpy/runs/request/request.py"]


# Where users read its name, which their call or their table has: in texts of errors, and where the extension is named.
NAMES_MADLIB = {
    "cerebro_db/client/models/archives.py",
    "cerebro_db/core/parameters/custom.py",
    "cerebro_db/core/models/state.py",  # the name of a tensor in stored states
    "cerebro_db/embedded/database.py",
    "cerebro_db/embedded/extension.py",
    "plpy/cerebro_plpy/packing/packed.py",
    "plpy/cerebro_plpy/runs/request/options.py",
    "plpy/cerebro_plpy/runs/request/request.py",
    "plpy/cerebro_plpy/judging/calibrate.py",
    "plpy/cerebro_plpy/predicting/keys_and_outputs.py",
    "plpy/cerebro_plpy/models/trained.py",
    "plpy/cerebro_plpy/verbs/registering.py",
}


def test_madlib_stands_outside() -> None:
    """No code outside its package depends on MADlib; what differs is an argument, a form or a template."""
    modules = {
        str(path.relative_to(PACKAGES.parent)): path.read_text()
        for top in (CEREBRO_DB, SERVER)
        for path in top.rglob("*.py")
    }
    assert {path for path, text in modules.items() if "madlib" in text.lower()} == NAMES_MADLIB
    names = {
        path
        for path in modules
        for node in nodes(PACKAGES.parent / path)
        for name in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "arg", ""))
        if "madlib" in str(name).lower()
    }
    assert names <= {"cerebro_db/embedded/extension.py"}


# Their arguments are values of a statement, or cells of a row of a table for people, as many as it has.
TAKE_LISTS = {"add_row", "execute"}
MOST_POSITIONS = 6


def positions(call: ast.Call) -> int:
    """The values that a call gives by their position."""
    return sum(not isinstance(one, ast.Starred) for one in call.args)


def test_calls_with_many_values_name_them() -> None:
    """Among positional values of the same type, only a user would notice a swapped pair."""
    found = {
        f"{path.name}:{node.lineno}"
        for top in (CEREBRO_DB, SERVER)
        for path in top.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] not in TAKE_LISTS
        and positions(node) > MOST_POSITIONS
    }
    assert found == set()
    (call,) = (node for node in ast.walk(ast.parse("f(1, *more, 2, a=3)")) if isinstance(node, ast.Call))
    assert positions(call) == 2


# -- messages --------------------------------------------------------------------------------------------------


def hints(code: Iterable[ast.AST]) -> list[str]:
    """The texts of the hints in a module."""
    calls = [node for node in code if isinstance(node, ast.Call)]
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "hint"]
    return [ast.unparse(one) for one in given]


def test_no_hint_proposes_to_drop_what_is_no_model() -> None:
    """A hint is often copied and run.  What it drops should be a model: cerebro.drop_model() drops nothing else."""
    found = {
        f"{path.name}: {hint}"
        for top in (CEREBRO_DB, PACKAGES)
        for path in top.rglob("*.py")
        for hint in hints(nodes(path))
        if re.search(r"DROP [A-Z]+|\bdrop (it|them|these|that|this)\b|\bDrop ", hint.replace("can drop it", ""))
    }
    of_sql = {
        f"{path.name}: {hint}"
        for path in (SERVER.parents[1] / "sql").rglob("*.sql")
        for hint in re.findall(r"HINT\s*=\s*([^;]*)", path.read_text())
        if re.search(r"DROP [A-Z]+|\bdrop (it|them|these)\b|\bDrop ", hint)
    }
    assert not found | of_sql
    code = ast.walk(ast.parse("raise Wrong('x', hint=f'DROP TABLE {name};')"))
    assert hints(code) == ["f'DROP TABLE {name};'"]


# Of these tables nothing is read: only whether they are there, or which columns they have.
ONLY_IN_CATALOGS = {
    "models/model_parts.py", "verbs/dropping.py", "verbs/refitting.py", "verbs/retraining.py",
    "verbs/succession.py",
}  # fmt: skip


def test_a_table_beside_another_one_is_read_if_it_has_the_same_owner() -> None:
    """``relations.beside`` asks for that; whoever may create tables in the schema could have put it there."""
    found = re.compile(r"\bfind\(db, [^\n]*\.?suffixed\(")
    paths = {path.relative_to(SERVER).as_posix() for path in SERVER.rglob("*.py") if found.search(path.read_text())}
    assert paths == ONLY_IN_CATALOGS | {"database/relations.py"}
