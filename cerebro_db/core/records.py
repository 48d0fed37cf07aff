"""``dataclass`` as in the standard library, except that database sessions make a class's methods when they need them.

Making the methods of one class takes 0.3 to 0.5 ms.  A new session that predicts one row imports 90 dataclasses and
creates objects of a quarter of them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import field as field
from typing import TYPE_CHECKING, Any

FIELDS = "__dataclass_fields__"  # dataclasses.fields(), is_dataclass() and the dataclasses of subclasses read it


def deferred(cls: type | None = None, /, **options: bool) -> Any:
    """As ``dataclass``.  Only for programs with one thread: a second thread could see a class without its methods."""

    def mark(cls: type) -> type:
        first = None if "__init__" in vars(cls) else _first_init(cls)
        setattr(cls, FIELDS, _Fields(cls, options, first))
        if first is not None:
            cls.__init__ = first  # type: ignore[misc]
        return cls

    return mark if cls is None else mark(cls)


class _Fields:
    """Makes the methods of a dataclass when its fields are read for the first time."""

    def __init__(self, cls: type, options: dict[str, bool], first: Callable[..., None] | None) -> None:
        self._cls, self._options, self._first = cls, options, first

    def __get__(self, instance: Any, owner: type) -> Any:
        before = dict(vars(self._cls))
        delattr(self._cls, FIELDS)
        if self._first is not None:
            delattr(self._cls, "__init__")  # dataclasses would not replace it
        try:
            dataclasses.dataclass(**self._options)(self._cls)
        except BaseException:  # no memory, or no room on the stack: the next object will need the methods, too
            for name in vars(self._cls).keys() - before.keys():
                delattr(self._cls, name)
            for name, value in before.items():
                if vars(self._cls).get(name) is not value:
                    setattr(self._cls, name, value)
            raise
        return getattr(owner, FIELDS)


def _first_init(cls: type) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        dataclasses.fields(cls)  # replaces this function
        cls.__init__(self, *args, **kwargs)  # type: ignore[misc]

    return __init__


if TYPE_CHECKING or "plpy" not in sys.modules:  # PL/Python's module; a database session has one thread
    from dataclasses import dataclass as dataclass
else:
    dataclass = deferred
