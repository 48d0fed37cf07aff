"""Dataclasses whose methods are made when they are first needed behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from cerebro_db.core.records import deferred
from tests.conftest import CLONE


def classes(dataclass: Any) -> tuple[Any, Any, Any]:
    @dataclass(frozen=True)
    class Base:
        number: int
        items: list[int] = dataclasses.field(default_factory=list)

    @dataclass(frozen=True)
    class Derived(Base):
        name: str = "a"

        def __post_init__(self) -> None:
            object.__setattr__(self, "seen", self.number)

    @dataclass
    class Plain:
        value: int = 3

    return Base, Derived, Plain


@pytest.mark.parametrize("first", range(3))
def test_a_deferred_dataclass_is_a_dataclass(first: int) -> None:
    ours, theirs = classes(deferred), classes(dataclasses.dataclass)
    for one in (ours[first], theirs[first]):  # whichever is needed first
        one(1)
    for (base, derived, plain), again in ((ours, theirs), (theirs, ours)):
        assert [field.name for field in dataclasses.fields(derived)] == ["number", "items", "name"]
        assert repr(derived(2, [5])).endswith("Derived(number=2, items=[5], name='a')")
        assert derived(2).seen == 2
        assert derived(2) == derived(2) != derived(2, name="b")
        assert dataclasses.replace(derived(2), name="b").name == "b"
        assert dataclasses.asdict(base(1)) == {"number": 1, "items": []}
        assert base(1).items is not base(1).items
        assert plain().value == plain.value == 3
        assert derived(1) != again[1](1)
        assert derived.__match_args__ == ("number", "items", "name")
        with pytest.raises(dataclasses.FrozenInstanceError):
            base(1).number = 2
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
            base()
        with pytest.raises(TypeError, match="positional arguments"):
            plain(1, 2)


def test_an_own_initialiser_stays() -> None:
    @deferred(eq=False)
    class Own:
        value: int

        def __init__(self) -> None:
            self.value = 7

    assert Own().value == 7
    assert dataclasses.is_dataclass(Own)


def test_a_subclass_that_is_no_dataclass_can_be_first() -> None:
    base, _, _ = classes(deferred)

    class Child(base):  # type: ignore[misc, valid-type]
        pass

    assert Child(4).number == 4


def test_methods_that_could_not_be_made_are_made_later() -> None:
    def first_object(cls: Any, depth: int) -> Any:
        return first_object(cls, depth - 1) if depth else cls(1)

    failed = 0
    for depth in range(sys.getrecursionlimit()):
        base, derived, _ = classes(deferred)
        try:
            first_object(derived, depth)
        except RecursionError:
            failed += 1
            assert repr(derived(1)).endswith("Derived(number=1, items=[], name='a')")
            assert derived(1) == derived(1) and derived(1).seen == 1 and base(1).items == []
            with pytest.raises(dataclasses.FrozenInstanceError):
                derived(1).number = 2
            if failed == 100:
                break
    assert failed


def test_database_sessions_defer_and_nobody_else() -> None:
    program = "import sys; {0}; from cerebro_db.core import records; print(records.dataclass is records.deferred)"
    for before, told in (("pass", "False"), ("sys.modules['plpy'] = sys", "True")):
        command = [sys.executable, "-c", program.format(before)]
        assert subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=True).stdout.strip() == told
