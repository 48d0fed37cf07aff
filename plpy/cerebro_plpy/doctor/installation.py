"""The doctor's checks of the installation: versions, the trainer's environment, who may write the code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from cerebro_db import __version__
from cerebro_db.core.engines import DISPLAY_NAMES, default_among
from cerebro_db.core.errors import CerebroError
from cerebro_db.core.sql import sql
from cerebro_db.core.texts import counted

from ..segment import nursery_connection
from .report import OK, PROBLEM, WARNING, Examined, Row, numbers

OLDEST_PYTHON = (3, 9)


def server(examined: Examined) -> Iterator[Row]:
    text = examined.db.value(sql("SELECT pg_catalog.version() AS v"))
    major = int(examined.db.value(sql("SELECT pg_catalog.current_setting('server_version_num') AS v"))) // 10000
    shown = re.sub(r" on \S+-linux.*|,.*", "", text)
    advice = examined.platform.too_old(major)
    yield Row("installation", "server", PROBLEM if advice else OK, shown, advice)


def extension(examined: Examined) -> Iterator[Row]:
    row = examined.db.one(
        sql(
            "SELECT e.extversion::text AS installed, a.default_version::text AS available"
            " FROM pg_catalog.pg_extension e"
            " LEFT JOIN pg_catalog.pg_available_extensions a ON a.name = e.extname WHERE e.extname = 'cerebro_db'"
        )
    ) or {"installed": None, "available": None}
    installed, available = row["installed"], row["available"]
    found = f"SQL {installed}, code {__version__}, on disk {available}"
    if installed == available == __version__:
        yield Row("installation", "extension", OK, found)
    elif installed == available:
        yield Row("installation", "extension", PROBLEM, found, "Run make install again: code and SQL do not match.")
    elif available is None:
        yield Row("installation", "extension", PROBLEM, found, "Run make install: cerebro_db.control is missing.")
    else:
        advice = "ALTER EXTENSION cerebro_db UPDATE; then start new sessions."
        yield Row("installation", "extension", PROBLEM, found, advice)


def python(examined: Examined) -> Iterator[Row]:
    version = examined.here.python
    found = f"embedded Python {version}, psycopg2 {examined.here.psycopg2}"
    if numbers(version) < OLDEST_PYTHON:
        yield Row("installation", "python", PROBLEM, found, "The server's PL/Python needs Python 3.9 or later.")
    else:
        yield Row("installation", "python", OK, found)


def install_file(examined: Examined) -> Iterator[Row]:
    written, advice = examined.here.installed, "Run make install TRAINER_PYTHON=… again."
    if not isinstance(written, dict):
        yield Row("installation", "install.json", PROBLEM, str(examined.here.installed_error), advice)
        return
    program = str(written.get("trainer_python"))
    found = f"version {written.get('version')}, trainer's Python {program}"
    if written.get("version") != __version__:
        yield Row("installation", "install.json", PROBLEM, f"{found}; the code is {__version__}", advice)
    elif not os.access(program, os.X_OK):
        why = "does not exist" if not os.path.exists(program) else "may not be executed by the server's account"
        advice = _setup(written) or advice
        yield Row("installation", "install.json", PROBLEM, f"{found}, which {why}", advice)
    else:
        yield Row("installation", "install.json", OK, found)


def engines(examined: Examined) -> Iterator[Row]:
    try:
        report = nursery_connection.report(examined.listen)
    except CerebroError:
        return  # the check of install.json reports what is wrong
    templates = ", ".join(f"{DISPLAY_NAMES[engine]} ({state})" for engine, state in report.templates.items())
    found = f"{counted(report.trainers, 'trainer')}; engines imported: {templates or 'none at present'}"
    if report.kept:
        found += f"; resident predictors without a session: {report.kept}"
    yield Row("installation", "nursery", OK, found)
    names = ", ".join(DISPLAY_NAMES[engine] for engine in report.engines)
    default = default_among(report.engines)
    if default is None:
        usual = "docker/install.sh makes the trainer's environment; make install TRAINER_PYTHON=… names another."
        advice = _setup(examined.here.installed) or usual
        yield Row("installation", "engines", PROBLEM, "no engine is installed", advice)
    else:
        yield Row(
            "installation",
            "engines",
            OK,
            f"{names}: the option engine of a run chooses one, default {DISPLAY_NAMES[default]}",
        )


def _setup(written: object) -> str | None:
    """What makes the trainer's environment, if the extension comes from a package of the system."""
    command = written.get("setup") if isinstance(written, dict) else None
    return f"Run {command} as root, on every host." if isinstance(command, str) else None


def code_folder(examined: Examined) -> Iterator[Row]:
    writers, folder = examined.here.code_writers, examined.here.code
    if writers == "others":
        yield Row(
            "installation",
            "code folder",
            PROBLEM,
            f"{folder}: its group or everybody may write there",
            "chmod -R go-w on it and on its parent folder: whoever can write there controls the server.",
        )
    elif writers == "server":
        yield Row(
            "installation",
            "code folder",
            WARNING,
            f"{folder}: the server's own account may write there",
            "This is normal for a private cluster; on a shared server the code should belong to root.",
        )
    else:
        yield Row("installation", "code folder", OK, f"{folder}: not writable by the server's account")
