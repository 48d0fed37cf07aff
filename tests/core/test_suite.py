"""All files of tests are collected."""

from __future__ import annotations

from collections import Counter

from tests.conftest import CLONE

TESTS = CLONE / "tests"


def test_no_two_files_without_a_package_have_one_name() -> None:
    """A run of all tests would collect only the first."""
    files = [path for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert [name for name, count in Counter(path.name for path in files).items() if count > 1] == []
