"""The nodes of modules, for tests that look for something in all of them: each file is parsed once, not by each."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """In the order of ``ast.walk``; the first is the module."""
    return list(ast.walk(ast.parse(path.read_text())))


def module(path: Path) -> ast.Module:
    (tree, *_) = nodes(path)
    assert isinstance(tree, ast.Module)
    return tree


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """A file of tests imports this. All nodes take 140 MB, which the tests of other files need."""
    yield
    nodes.cache_clear()
