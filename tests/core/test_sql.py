"""SQL is built from fragments that quoting functions made, and from templates that stand in the source."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.core import sql as fragments
from cerebro_db.core.errors import InvalidName
from cerebro_db.core.sql import (
    Sql,
    constant,
    identifier,
    in_format,
    in_psycopg2,
    joined,
    literal,
    marks,
    number_array,
    numbered,
    quoting,
    shown,
    sql,
    sql_of_user,
    with_constants,
)
from cerebro_plpy.runs.record import state_tables

ROOT = Path(__file__).parents[2]
MODULE = "cerebro_db.core.sql"
SERVER = "plpy/cerebro_plpy/"

# The functions that read a fragment as text or make SQL of a text, and who may call each of them.
RESTRICTED = {
    "text_of": {SERVER + "database/access.py", SERVER + "predicting/resident_recipes.py"},
    "in_psycopg2": {SERVER + "sessions/session.py"},
    "numbered": {SERVER + "runs/record/log/base.py"},
    "with_constants": {SERVER + "sessions/own_session.py", SERVER + "runs/record/log/events.py"},
    "is_query": {SERVER + "sessions/own_session.py"},
    "sql_of_type": {"cerebro_db/core/sql_types.py"},
    "sql_of_user": {
        SERVER + "database/relations.py",
        SERVER + "tasks/make_task.py",
        SERVER + "runs/drive/rules.py",
        SERVER + "predicting/resident_recipes.py",
    },
}
LITERAL_FIRST = ("sql", "joined")  # their first argument is a literal in the source
# Methods of the server's interface and of psycopg2 that take a text, and the modules that may call them.
TEXT_RUNNERS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "plpy": (
        ("execute", "prepare", "cursor"),
        # resident_predictor.py runs what resident_recipes.py has written, and imports none of this.
        {
            SERVER + "database/access.py",
            SERVER + "database/cancellation.py",
            SERVER + "predicting/resident_predictor.py",
        },
    ),
    "cursor": (("execute", "executemany", "mogrify", "copy_expert"), {SERVER + "sessions/session.py"}),
}
# Greenplum reserves these words, and PostgreSQL does not: no alias may be one of them.
RESERVED_BY_GREENPLUM = re.compile(
    r"\b(decode(?!\()|distributed(?! (by|replicated|randomly)\b)|exclude|following(?! and|\))|group_id"
    r"|partition(?! (by|of)\b)"
    r"|(?<!\bunbounded )preceding|scatter|unbounded(?! preceding\b))\b",
    re.IGNORECASE,
)


# -- the check ---------------------------------------------------------------------------------------------------


def wrongs(path: str, text: str) -> Iterator[str]:
    """What breaks the rules in a module, each with its line."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == "sql":
            for alias in node.names:
                imported.add(alias.name)
                if alias.asname not in (None, alias.name):
                    yield f"{node.lineno}: {alias.name} has another name here"
                if path not in RESTRICTED.get(alias.name, {path}) or alias.name.startswith("_"):
                    yield f"{node.lineno}: {alias.name} may not be used here"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names}
            module = getattr(node, "module", "")  # of a plain import: none
            if MODULE in names or (module == "cerebro_db.core" and names & {"sql", "*"}):
                yield f"{node.lineno}: import the functions of {MODULE}, and not the module"
        if isinstance(node, ast.Attribute) and node.attr == "_sql":
            yield f"{node.lineno}: the text of a fragment is read"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from (f"{node.lineno}: {why}" for why in _text_run(path, node.func))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
            continue
        if node.id not in imported.intersection(LITERAL_FIRST):
            continue
        call = parents[node]
        if not (isinstance(call, ast.Call) and call.func is node):
            yield f"{node.lineno}: {node.id} is not called"
        elif not (call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)):
            yield f"{node.lineno}: the first argument of {node.id} is no literal"
        elif reserved := RESERVED_BY_GREENPLUM.search(re.sub(r"\{\w*\}|'[^']*'", "", call.args[0].value)):
            yield f"{node.lineno}: '{reserved[0]}' is a reserved word on Greenplum"
        elif any(word.arg is None for word in call.keywords):
            yield f"{node.lineno}: the parts of {node.id} are not named"
    yield from (f"{line}: {name} is another thing here" for name, line in _named(tree, parents) if name in imported)


def _named(tree: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[str, int]]:
    """The names that a module gives to things, outside the bodies of classes, and the lines."""
    for node in ast.walk(tree):
        in_class = isinstance(parents.get(node), ast.ClassDef) or (
            isinstance(parents.get(node), ast.AnnAssign) and isinstance(parents.get(parents[node]), ast.ClassDef)
        )
        if in_class:
            continue
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def _text_run(path: str, called: ast.Attribute) -> Iterator[str]:
    """The server's interface is called ``plpy`` everywhere, and psycopg2's cursors ``cursor``."""
    whose = called.value.attr if isinstance(called.value, ast.Attribute) else getattr(called.value, "id", "")
    methods, allowed = TEXT_RUNNERS.get(whose.strip("_"), ((), set()))
    if called.attr in methods and path not in allowed:
        yield f"{whose}.{called.attr} may not be called here"


def shipped() -> list[str]:
    files = [*(ROOT / "plpy").rglob("*.py"), *(ROOT / "cerebro_db/core").rglob("*.py")]
    return sorted(str(file.relative_to(ROOT)) for file in files if file != ROOT / "cerebro_db/core/sql.py")


def test_templates_are_literals_and_few_modules_read_sql_as_text() -> None:
    found = {path: list(wrongs(path, (ROOT / path).read_text())) for path in shipped()}
    assert {path: said for path, said in found.items() if said} == {}


def test_each_permission_is_used() -> None:
    """A module that no longer needs a restricted function loses the permission."""
    texts = {path: (ROOT / path).read_text() for path in shipped()}
    unused = [(name, path) for name, paths in RESTRICTED.items() for path in paths if name not in texts[path]]
    assert unused == []


IMPORT = "from cerebro_db.core.sql import sql, joined, literal\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('sql(f"SELECT {x}")', "no literal"),
        ('sql("SELECT " + x)', "no literal"),
        ('sql("SELECT %s" % x)', "no literal"),
        ('sql("SELECT {}".format(x))', "no literal"),
        ("sql(x)", "no literal"),
        ("sql(*x)", "no literal"),
        ("joined(x, [])", "no literal"),
        ("map(sql, x)", "not called"),
        ("make = sql", "not called"),
        ('sql("{a}", **x)', "not named"),
        ("x._sql", "read"),
        ("def sql(x): pass", "another thing"),
        ("def f(literal): pass", "another thing"),
        ("plpy.execute(x)", "may not be called"),
        ("self._plpy.prepare(x)", "may not be called"),
        ("db.plpy.cursor(x)", "may not be called"),
        ("self.cursor.execute(x)", "may not be called"),
        ("from cerebro_db.core.sql import sql as make", "another name"),
        ("from cerebro_db.core.sql import text_of", "may not be used"),
        ("from cerebro_db.core.sql import sql_of_user", "may not be used"),
        ("from cerebro_db.core.sql import _made", "may not be used"),
        ("from cerebro_db.core import sql", "not the module"),
        ("import cerebro_db.core.sql", "not the module"),
        ('sql("SELECT lead(n) OVER (ORDER BY n) AS following FROM t")', "reserved word"),
        ('sql("SELECT exclude FROM t PARTITION BY y")', "reserved word"),
    ],
)
def test_the_check_finds(text: str, why: str) -> None:
    assert any(why in said for said in wrongs("plpy/cerebro_plpy/packing/x.py", IMPORT + text))


def test_the_check_lets_the_rest_be() -> None:
    good = 'sql("a" "b {c}", c=literal(x)); joined(", ", xs); f(table.sql, db.cursor(q), db.execute(q));'
    good += 'sql("(PARTITION BY x ROWS UNBOUNDED PRECEDING) {partition}", partition=y)'
    assert list(wrongs("plpy/cerebro_plpy/packing/x.py", IMPORT + good)) == []


# -- fragments ----------------------------------------------------------------------------------------------------


def test_a_template_gets_fragments_and_numbers() -> None:
    made = sql("SELECT {a}, '{{}}', {n} FROM {t} WHERE {a} < {n}", a=identifier('x"y'), n=3, t=identifier("T"))
    assert shown(made) == """SELECT "x""y", '{}', 3 FROM "T" WHERE "x""y" < 3"""
    assert shown(sql("{a}-{b}", a=1, b=-1.5)) == "1-(-1.5)"
    assert shown(joined(", ", [1, literal("it's")])) == "1, 'it''s'"
    assert shown(marks(2)) == "\0, \0" and shown(number_array([1, -2.5])) == "'{1,-2.5}'"


@pytest.mark.parametrize("part", ["x", None, True, math.nan, math.inf, b"x", object()])
def test_nothing_else_is_a_part(part: Any) -> None:
    for attempt in (lambda: sql("{x}", x=part), lambda: joined(", ", [part])):
        with pytest.raises(TypeError):
            attempt()


def test_the_parts_are_those_of_the_template() -> None:
    for attempt in (lambda: sql("{x}"), lambda: sql("x", x=1), lambda: sql("{x}", x=1, y=2)):
        with pytest.raises(TypeError, match="template"):
            attempt()
    for template in ("{", "}", "{0}", "{a.b}", "{a!r}", "{a:x}", "{a[0]}"):
        with pytest.raises((ValueError, TypeError)):
            sql(template)


def test_a_fragment_is_no_text() -> None:
    fragment = sql("SELECT 1")
    for attempt in (
        lambda: str(fragment),
        lambda: f"{fragment}",
        lambda: "x" + fragment,
        lambda: ", ".join([fragment]),
        lambda: Sql(),
        lambda: Sql("SELECT 1"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError):
            attempt()
    assert fragment != "SELECT 1" and fragment == sql("SELECT {n}", n=1) and len({fragment, sql("SELECT 1")}) == 1  # type: ignore[comparison-overlap]
    assert not sql("") and fragment


@pytest.mark.parametrize("text", ["", "it's", 'a"b', "back\\slash", "a\nb", "%s {} {x} $1 %%", "--", "/*", "$$", "Ä"])
def test_quoting(text: str) -> None:
    known = "'" + text.replace("'", "''") + "'" if "\\" not in text else "E'back\\\\slash'"
    assert shown(literal(text)) == known
    assert shown(quoting(sql("{x}", x=literal(text)))) == shown(literal(known))
    if text:
        assert shown(identifier(text)) == '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize("maker", [literal, identifier, sql_of_user])
def test_a_zero_byte_is_refused(maker: Any) -> None:
    """It marks the places of parameters."""
    with pytest.raises(InvalidName):
        maker("a\0b")


def test_parameters_of_a_session() -> None:
    made = sql("SELECT {}, 5 % 3, {name}::text, {}", name=identifier("100%s"))
    assert in_psycopg2(made, (1, 2)) == 'SELECT %s, 5 %% 3, "100%%s"::text, %s'
    assert in_psycopg2(sql("SELECT 5 % 3"), None) == "SELECT 5 % 3"
    assert shown(numbered(made)) == 'SELECT $1, 5 % 3, "100%s"::text, $2'
    assert shown(with_constants(made, (None, "a{}b"))) == """SELECT NULL, 5 % 3, "100%s"::text, 'a{}b'"""
    with pytest.raises(TypeError, match="1 values for 2"):
        with_constants(made, (1,))
    assert shown(in_format(made)).count("%%") == 2


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "NULL"), (True, "true"), (5, "5"), (-5, "(-5)"), (1.5, "'1.5'::float8"), (math.inf, "'inf'::float8"),
        ("it's", "'it''s'"), (b"\1\2", "pg_catalog.decode('0102', 'hex')"), ([1, 2], "ARRAY[1, 2]"), ([], "'{}'"),
        ((1, "x"), "(1, 'x')"),
    ],
)  # fmt: skip
def test_constants(value: Any, written: str) -> None:
    assert shown(constant(value)) == written


def test_nothing_public_is_untold() -> None:
    """Each function of the module is one of the makers above, or restricted."""
    own = {name for name, one in vars(fragments).items() if getattr(one, "__module__", "") == MODULE}
    public = {name for name in own if not name.startswith("_")}
    assert public - RESTRICTED.keys() == {
        "Sql", "check", "constant", "identifier", "in_format", "joined", "literal", "marks",
        "number_array", "quoted", "quoting", "shown", "sql", "storable",
    }  # fmt: skip


@pytest.mark.parametrize(
    "statements",
    [
        state_tables.moved_sql("run_1", 0, [(1, 2)]),
        state_tables.emptied_sql([sql("a"), sql("b")], sql("DELETE FROM a")),
        state_tables.released_sql("run_1"),
    ],
    ids=["states move", "a table is emptied", "tables are closed"],
)
def test_a_subtransaction_writes_no_rows(statements: Sql) -> None:
    """On Greenplum, rows that a block with EXCEPTION has written can be lost while another session reads the table."""
    text = shown(statements)
    inner = [block.rpartition("BEGIN ")[2] for block in text.split(" EXCEPTION ")[:-1]]
    assert inner and not re.search(r"\b(INSERT|DELETE|UPDATE|TRUNCATE|CREATE)\b", " ".join(inner)), text


@pytest.mark.parametrize("script", sorted((ROOT / "sql").rglob("*.sql")), ids=lambda path: path.name)
def test_no_schema_is_made_for_another_role(script: Path) -> None:
    """Greenplum's segments refuse that, if the role may not create schemas itself."""
    assert not re.search(r"\bCREATE SCHEMA\b[^;]*\bAUTHORIZATION\b", script.read_text(encoding="utf-8"))


def test_no_table_gets_the_indexes_of_another_one() -> None:
    """An expression in an index of a stranger's table would run in a table of the caller's."""
    texts = [
        node.value
        for top in ("cerebro_db", "plpy")
        for path in (ROOT / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    scripts = [path.read_text() for path in (ROOT / "sql").rglob("*.sql")]
    assert (
        scripts
        and [one for one in texts + scripts if re.search(r"\bLIKE\b.*\bINCLUDING\b|\bINCLUDING [A-Z]", one)] == []
    )
