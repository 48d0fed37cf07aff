"""The server's embedded Python may be as old as 3.9: what runs there has to be readable to it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IN_THE_SERVER = sorted([*(ROOT / "cerebro_db" / "core").glob("*.py"), *(ROOT / "plpy" / "cerebro_plpy").glob("*.py")])
NEWER = {"slots", "kw_only"}  # arguments of @dataclass


@pytest.mark.parametrize("path", IN_THE_SERVER, ids=lambda path: path.stem)
def test_python_3_9_reads_it(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source, str(path), feature_version=(3, 9))  # no match, no parenthesised with
    assert "from __future__ import annotations" in source or not _annotated(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("dataclass", "zip"):
            assert not {keyword.arg for keyword in node.keywords} & (NEWER | {"strict"}), ast.unparse(node)


def _annotated(tree: ast.AST) -> bool:
    return any(isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree))


def test_it_would_notice() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n  case 1: pass", feature_version=(3, 9))
