"""``cerebro.doctor()``: checks the installation, the coordinator, the roles and every segment.

Each check returns rows.  A check that fails becomes a row, too; only a cancel ends the doctor early.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

from cerebro_db.core.errors import CerebroError

from .. import platform
from ..database.access import Database
from ..database.cancellation import listener
from ..database.entry import entry
from ..segment import inspection
from ..sessions.failures import first_line
from . import coordinator, installation, roles, segments, worker_login
from .report import PROBLEM, Check, Examined, Row, with_detail

CHECKS: list[tuple[str, str, Check]] = [
    ("installation", "server", installation.server),
    ("installation", "extension", installation.extension),
    ("installation", "python", installation.python),
    ("installation", "install.json", installation.install_file),
    ("installation", "engines", installation.engines),
    ("installation", "code folder", installation.code_folder),
    ("coordinator", "search_path", coordinator.search_path),
    ("coordinator", "connections", coordinator.connections),
    ("coordinator", "statements", coordinator.statements),
    ("coordinator", "settings", coordinator.settings),
    ("coordinator", "disk", coordinator.disk),
    ("roles", "groups", roles.groups),
    ("roles", "worker roles", roles.worker_roles),
    ("worker login", "secret", worker_login.secret),
    ("worker login", "login", worker_login.login),
    ("segments", "trainers", segments.trainers),
]


@entry(any_version=True)  # which says what is wrong
def doctor(db: Database, segments: int | None) -> Iterator[tuple[str, str, str, str, str | None]]:
    rows: list[Row] = []
    here = inspection.facts()
    examined = Examined(db, listener(db.plpy), segments, here, platform.of(db))
    for component, name, check in CHECKS:
        rows += _tried(db, rows, component, name, lambda check=check: list(check(examined))) or []  # type: ignore[misc]
    return iter([(row.component, row.check, row.status, row.found, row.advice) for row in rows])


def _tried(db: Database, rows: list[Row], component: str, name: str, look: Callable[[], Any]) -> Any:
    """What a check returns, or None after adding a row that says why it failed."""
    try:
        return look()
    except db.plpy.SPIError as error:
        if str(error.sqlstate).startswith("57"):
            raise  # cancelled, or the server shuts down
        rows.append(Row(component, name, PROBLEM, first_line(error), "The check could not be made."))
    except CerebroError as error:
        rows.append(Row(component, name, PROBLEM, with_detail(error), error.hint))
    except Exception as error:
        rows.append(Row(component, name, PROBLEM, f"{type(error).__name__}: {first_line(error)}", None))
    return None
