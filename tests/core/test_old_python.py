"""The server's embedded Python may be as old as 3.9, so it must be able to parse the modules that run there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER_MODULES = sorted([*(ROOT / "cerebro_db" / "core").rglob("*.py"), *(ROOT / "plpy").rglob("*.py")])
NEWER = {"slots", "kw_only"}  # arguments of @dataclass that Python 3.9 does not have


@pytest.mark.parametrize("path", SERVER_MODULES, ids=lambda path: path.stem)
def test_python_3_9_parses_it(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source, str(path), feature_version=(3, 9))  # refuses match and parenthesised with
    assert "from __future__ import annotations" in source or not _annotated(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("dataclass", "zip"):
            assert not {keyword.arg for keyword in node.keywords} & (NEWER | {"strict"}), ast.unparse(node)


def _annotated(tree: ast.AST) -> bool:
    return any(isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree))


def test_the_parser_refuses_newer_syntax() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n  case 1: pass", feature_version=(3, 9))
