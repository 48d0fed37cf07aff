"""The shipped packages have no import circle, every import goes downwards, and no module is long without a reason."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from tests import graph as graphs

FILES = graphs.modules()
GRAPH = graphs.imports(FILES)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert [" -> ".join(circle) for circle in graphs.circles(GRAPH)] == []


def test_no_folders_import_each_other_in_a_circle() -> None:
    assert [" -> ".join(circle) for circle in graphs.folder_circles(GRAPH, FILES)] == []


def test_every_import_goes_downwards() -> None:
    assert [f"{importer} -> {imported}" for importer, imported in graphs.upward(GRAPH, graphs.contracts())] == []


def test_a_long_module_says_why() -> None:
    assert graphs.long_modules(FILES) == {}


# --- the checks themselves -------------------------------------------------------------------------------------


def test_the_graph_is_that_of_import_linter() -> None:
    """grimp reads the imports for import-linter."""
    theirs = grimp.build_graph("cerebro_db", "cerebro_plpy", cache_dir=None)
    assert set(GRAPH) == theirs.modules
    assert {name: set(imported) for name, imported in GRAPH.items()} == {
        name: theirs.find_modules_directly_imported_by(name) for name in GRAPH
    }


def packages(top: Path, /, **texts: str) -> tuple[graphs.Graph, graphs.Files]:
    """A package ``p`` with these modules; ``a__b`` is the module ``b`` in the folder ``a``."""
    for name, text in texts.items():
        file = top / "p" / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in {top / "p", file.parent}:
            (folder / "__init__.py").touch()
        file.write_text(text)
    files = graphs.modules({"p": top / "p"})
    return graphs.imports(files), files


@pytest.mark.parametrize(
    "text",
    [
        "import p.low.b",
        "from p.low import b",
        "from p.low.b import thing",
        "from .low import b",
        "from .low.b import thing",
        "def later():\n    from .low import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .low.b import thing",
    ],
)
def test_every_way_to_import_is_read(tmp_path: Path, text: str) -> None:
    graph, _ = packages(tmp_path, a=text, low__b="thing = 1")
    assert graph["p.a"] == {"p.low.b"}


def test_a_circle_is_found(tmp_path: Path) -> None:
    graph, _ = packages(
        tmp_path, a="from . import b", b="from . import c", c="def f():\n    from . import a", d="from . import a"
    )
    assert graphs.circles(graph) == [["p.a", "p.b", "p.c", "p.a"]]


def test_a_circle_of_folders_is_found(tmp_path: Path) -> None:
    graph, files = packages(tmp_path, x__a="from ..y import b", x__c="", y__b="", y__d="from ..x import c")
    assert graphs.circles(graph) == []
    assert graphs.folder_circles(graph, files) == [["p.x", "p.y", "p.x"]]


def test_an_import_upwards_is_found(tmp_path: Path) -> None:
    graph, _ = packages(tmp_path, top="from .low import b", low__b="", low__c="from .. import other", other="")
    layers = graphs.Layers("p", ("top", "other | (missing)", "low"))
    assert graphs.upward(graph, [layers]) == [("p.low.c", "p.other")]
    assert graphs.upward(graph, [graphs.Layers("p", ("top", "low | other"))]) == [("p.low.c", "p.other")]
    assert graphs.upward(graph, [graphs.Layers("p", ("top", "low : other"))]) == []


def test_a_long_module_is_found(tmp_path: Path) -> None:
    long = "\nx = 1" * graphs.MOST_LINES
    _, files = packages(
        tmp_path,
        short=long[1:],
        long='"""Does much."""' + long,
        reason='"""Does much.\n\nLonger than 350 lines because\nit is one table.\n"""' + long,
    )
    assert graphs.long_modules(files) == {"p.long": graphs.MOST_LINES + 1}
