"""Prints which folder of the shipped packages imports which, and fails if an import goes where it must not.

    make graph

No modules import each other in a circle, no folders do, and every import goes downwards in the contracts of type
*layers* in pyproject.toml, which import-linter checks, too. Imports inside functions and under TYPE_CHECKING count like
all others.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"cerebro_db": ROOT / "cerebro_db", "cerebro_plpy": ROOT / "plpy" / "cerebro_plpy"}
MOST_LINES = 350
REASON = re.compile(rf"Longer than {MOST_LINES} lines because \w")

Files = Mapping[str, Path]  # module -> its file; a package's name stands for its __init__.py
Graph = Mapping[str, frozenset[str]]  # module -> the modules that it imports


# --- reading ---------------------------------------------------------------------------------------------------


def modules(packages: Mapping[str, Path] = PACKAGES) -> Files:
    found = {}
    for package, top in packages.items():
        for file in sorted(top.rglob("*.py")):
            parts = file.relative_to(top).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = file
    return found


def imports(files: Files) -> Graph:
    return {name: frozenset(_imported(name, file, files)) - {name} for name, file in files.items()}


def _imported(name: str, file: Path, files: Files) -> Iterator[str]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _loaded(alias.name, files)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                parts = package.split(".")
                base = [*parts[: len(parts) - node.level + 1], *base]
            for alias in node.names:  # the name of a module, or of something inside the module ``base``
                yield from _loaded(".".join([*base, alias.name]), files)


def _loaded(name: str, files: Files) -> list[str]:
    """The module that an import of ``name`` loads: ``name`` itself, or the module that contains it."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return [name] if name else []


# --- circles ---------------------------------------------------------------------------------------------------


def circles(graph: Graph) -> list[list[str]]:
    """One circle, such as ``[a, b, a]``, for each group of names that lead to each other."""
    reachable = {name: _reachable(name, graph) for name in graph}
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in sorted(graph):
        if name in reachable[name] and name not in seen:
            seen |= {other for other in reachable[name] if name in reachable[other]}
            found.append(_shortest_circle(name, graph))
    return found


def folder_circles(graph: Graph, files: Files) -> list[list[str]]:
    """Circles among the modules and folders directly inside one package, in which each folder counts as one."""
    found = []
    for package in sorted(name for name, file in files.items() if file.name == "__init__.py"):
        inside: dict[str, set[str]] = {}
        for importer, imported in graph.items():
            one = _child(importer, package)
            if one:
                others = {_child(other, package) for other in imported} - {one, None}
                inside.setdefault(one, set()).update(other for other in others if other)
        contracted = {name: frozenset(others) for name, others in inside.items()}
        for circle in circles(contracted):
            if any(files[name].name == "__init__.py" for name in circle):  # modules alone: circles() finds them
                found.append(circle)
    return found


def _child(module: str, package: str) -> str | None:
    """The module or folder directly inside the package that the module is, or is in."""
    if not module.startswith(f"{package}."):
        return None
    return f"{package}.{module[len(package) + 1 :].partition('.')[0]}"


def _reachable(start: str, graph: Graph) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    return seen


def _shortest_circle(start: str, graph: Graph) -> list[str]:
    before = {name: start for name in graph[start]}
    todo = sorted(before)
    for name in todo:
        for following in sorted(graph[name] - set(before)):
            before[following] = name
            todo.append(following)
    circle = [start]
    while len(circle) == 1 or circle[-1] != start:
        circle.append(before[circle[-1]])
    return circle[::-1]


# --- layers and length -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layers:
    """The order of the modules and folders directly inside one package, from top to bottom."""

    package: str
    order: tuple[str, ...]  # as import-linter writes them: "a", "a | b" (independent), "a : b", "(a)" (optional)

    def allows(self, importer: str, imported: str) -> bool:
        one, other = self._place(importer), self._place(imported)
        if one is None or other is None or one == other:
            return True
        return one[0] < other[0] or (one[0] == other[0] and "|" not in self.order[one[0]])

    def _place(self, module: str) -> tuple[int, str] | None:
        child = _child(module, self.package)
        for level, layer in enumerate(self.order):
            for name in re.findall(r"\w+", layer):
                if child == f"{self.package}.{name}":
                    return level, name
        return None


def contracts(pyproject: Path = ROOT / "pyproject.toml") -> list[Layers]:
    settings = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]
    return [
        Layers(package, tuple(contract["layers"]))
        for contract in settings["contracts"]
        if contract["type"] == "layers"
        for package in contract["containers"]
    ]


def upward(graph: Graph, layers: Iterable[Layers]) -> list[tuple[str, str]]:
    """The imports that the layers do not allow."""
    layers = list(layers)
    return sorted(
        (importer, name)
        for importer, imported in graph.items()
        for name in imported
        if not all(one.allows(importer, name) for one in layers)
    )


def long_modules(files: Files) -> dict[str, int]:
    """Module -> lines, for those above the limit whose docstring does not say ``Longer than 350 lines because …``."""
    found = {}
    for name, file in files.items():
        text = file.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MOST_LINES and not REASON.search(" ".join((ast.get_docstring(ast.parse(text)) or "").split())):
            found[name] = lines
    return found


# --- printing --------------------------------------------------------------------------------------------------


def table(graph: Graph, files: Files) -> Iterator[str]:
    """A line per folder: its modules, the imports between them, and the imports of other folders. Top folders first."""
    folder = {name: name if file.name == "__init__.py" else name.rpartition(".")[0] for name, file in files.items()}
    arrows = Counter((folder[one], folder[other]) for one, imported in graph.items() for other in imported)
    sizes = Counter(folder.values())
    order = _top_down({name: {to for one, to in arrows if one == name} for name in sorted(sizes)})
    width = max(map(len, sizes))
    yield f"{'folder':<{width}}  modules  imports inside  imports of other folders"
    for name in order:
        package = f"{name.partition('.')[0]}."
        others = [f"{to.removeprefix(package)} {arrows[name, to]}" for to in order if to != name and arrows[name, to]]
        yield f"{name:<{width}}  {sizes[name]:>7}  {arrows[name, name]:>14}  {', '.join(others) or '-'}"


def _top_down(graph: Mapping[str, set[str]]) -> list[str]:
    """Each name before those that it imports, as far as there is no circle."""
    done: dict[str, None] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        for imported in sorted(graph[name]):
            if imported not in done and imported not in above:
                visit(imported, above | {imported})
        done[name] = None

    for name in graph:
        if name not in done:
            visit(name, frozenset({name}))
    return list(done)[::-1]


def offenders(graph: Graph, files: Files) -> list[str]:
    """A line for each import or circle that breaks a rule."""
    found = [f"circle of modules: {' -> '.join(circle)}" for circle in circles(graph)]
    found += [f"circle of folders: {' -> '.join(circle)}" for circle in folder_circles(graph, files)]
    return found + [f"upwards: {importer} -> {imported}" for importer, imported in upward(graph, contracts())]


def main() -> int:
    files = modules()
    graph = imports(files)
    print("\n".join(table(graph, files)))
    print(f"\n{len(graph)} modules, {sum(map(len, graph.values()))} imports between them")
    found = offenders(graph, files)
    print("\n".join(found) or "no circle, every arrow downwards")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
