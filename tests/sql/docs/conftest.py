"""Fixtures of the tests of task pages; the module that uses them names its PAGES."""

from __future__ import annotations

import pytest

from tests.sql.docs.task_pages import Shown
from tests.sql.lab import Lab


@pytest.fixture(scope="module")
def there(lab: Lab) -> Shown:
    return Shown(lab)


@pytest.fixture(scope="module")
def shown(there: Shown, request: pytest.FixtureRequest) -> Shown:
    """With all pages."""
    for page in request.module.PAGES:
        there.run(page)
    return there
