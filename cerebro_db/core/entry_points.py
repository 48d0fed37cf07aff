"""Finds what other packages add by Python's entry points: engines, search methods, trackers and exporters.

A session or a command looks up entry points only for a name that is not built in, so it starts as fast as without them.
A server looks only into the trainers' environment, which install.json names and the administrator has made: on
Greenplum a user can add folders to the path of Python.  Without a valid install.json it finds no packages.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import Unsupported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENGINES, SEARCH_METHODS = "cerebro_db.engines", "cerebro_db.search_methods"  # the groups
TRACKERS, EXPORTERS = "cerebro_db.trackers", "cerebro_db.exporters"
CODE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
T = TypeVar("T")


class Extensible(dict[str, T], Generic[T]):
    """The built-in ones by their names.  A look-up also finds those of other packages; an iteration does not."""

    def __init__(
        self,
        group: str,
        ours: Mapping[str, T],
        made: Callable[[EntryPoint], T | None] | None = None,
        taken: Iterable[str] = (),
    ) -> None:
        """``made``: turns an entry point into a value, or None if it does not fit.  Default: loads the object it names.

        ``taken``: further names that other packages cannot have.
        """
        super().__init__(ours)
        self.group = group
        self._made = loaded if made is None else made
        self._taken = {*ours, *taken}

    def only(self, fits: Callable[[T], bool]) -> Extensible[T]:
        def made(point: EntryPoint) -> T | None:
            found = self._made(point)
            return found if found is not None and fits(found) else None

        return Extensible(self.group, {name: one for name, one in self.items() if fits(one)}, made, self._taken)

    def names(self) -> list[str]:
        """All names: those built in, and those of installed packages that can be loaded."""
        found = list(self)
        for name in sorted(_points(self.group)):
            with contextlib.suppress(Unsupported):
                found += [name] if self._other(name) is not None else []
        return found

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._other(name) is not None

    def __missing__(self, name: str) -> T:
        found = self._other(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def _other(self, name: object) -> T | None:
        if not isinstance(name, str) or name in self._taken or name not in _points(self.group):
            return None
        return self._made(_points(self.group)[name])


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import distributions  # takes longer to import than all of this package

    found: dict[str, EntryPoint] = {}
    for one in distributions() if (folders := _libraries()) is None else distributions(path=folders):
        with contextlib.suppress(Exception):  # the metadata of any package can be wrong
            for point in one.entry_points:
                if point.group == group:
                    found.setdefault(point.name, point)
    return found


def _libraries() -> list[str] | None:
    """The ``site-packages`` of the trainers' environment; None outside a server, where Python's own path counts."""
    import json
    from glob import glob

    installed = os.path.join(CODE, "install.json")  # `make install` writes it there
    if "plpy" not in sys.modules and not os.path.exists(installed):
        return None
    try:
        with open(installed, encoding="utf-8") as file:
            environment = os.path.dirname(os.path.dirname(json.load(file)["trainer_python"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return sorted(glob(os.path.join(environment, "lib", "python3*", "site-packages")))


def loaded(point: EntryPoint, fits: Callable[[Any], bool] = lambda found: True) -> Any:
    """The object that an entry point names; an error if it cannot be loaded or does not fit."""
    try:
        folders = _libraries()
        if folders is not None:
            _import_from(folders, point.value.partition(":")[0].partition(".")[0].strip())
        found = point.load()
        if not fits(found):
            raise TypeError(f"{point.value} is of another kind")
        return found
    except Exception as error:  # the code of another package may raise anything
        kind = point.group.partition(".")[2].replace("_", " ")
        raise Unsupported(
            f"'{point.name}' of the {kind} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"Its package has the entry point {point.name} = {point.value}. docs/extending.md says what it needs.",
        ) from error


def _import_from(folders: list[str], package: str) -> None:
    """Import a package from one of the folders, but not another package of its name, and no package beside it."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec(package, folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"the package {package} is not in {', '.join(folders)}")
    known = sys.modules.get(package)
    if known is None:
        module = sys.modules[package] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[package]
            raise
    elif known.__spec__ is None or os.path.realpath(str(known.__spec__.origin)) != os.path.realpath(str(spec.origin)):
        raise ImportError(f"another package is called {package}, too: {known.__spec__ and known.__spec__.origin}")
