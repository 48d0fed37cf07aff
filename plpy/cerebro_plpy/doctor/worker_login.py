"""The doctor's checks of the way in which the server logs in to itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from cerebro_db.core.errors import CerebroError
from cerebro_db.core.sql import sql

from ..sessions import logins
from .report import OK, PROBLEM, Examined, Row, with_detail

APPLICATION = "cerebro_db doctor"


def secret(examined: Examined) -> Iterator[Row]:
    path = logins.secret_file()
    if not path.exists():
        advice = "As a superuser: SELECT cerebro_internal._setup_logins(); pg_upgrade does not take the secret along."
        yield Row("worker login", "secret", PROBLEM, "the server's secret is not in its data folder", advice)
        return
    folder, file = path.parent.stat(), path.stat()
    if (folder.st_mode | file.st_mode) & 0o077 or file.st_uid != os.getuid():
        advice = "In the data folder: chmod 700 cerebro_db; chmod 600 cerebro_db/secret"
        yield Row("worker login", "secret", PROBLEM, "others can read the file with the server's secret", advice)
    else:
        yield Row("worker login", "secret", OK, "only the server's account reads it")


def login(examined: Examined) -> Iterator[Row]:
    """Enrolment works; the caller's worker role logs in and becomes the caller; a wrong password is refused."""
    user = logins.Owner.current(examined.db)
    database, listen = user.database, examined.listen
    try:
        logins.connect(logins.ENROL, logins.enrol_password(), database, APPLICATION, listen).close()
        yield Row("worker login", "enrolment", OK, f"{logins.ENROL} can log in")
    except CerebroError as error:
        yield Row("worker login", "enrolment", PROBLEM, with_detail(error), error.hint)
    try:
        with contextlib.closing(logins.connect_as(examined.db, user.name, APPLICATION, listen)) as session:
            now, began = session.run(sql("SELECT current_user, session_user"))[0]
            host = session.connection.info.host or ""
            way = "its socket" if host.startswith("/") else host
            if (now, began) == (user.name, session.role):
                yield Row("worker login", "login", OK, f"{began} logs in by {way} and acts as {now}")
            else:
                yield Row("worker login", "login", PROBLEM, f"{session.role} logged in as {began} and acts as {now}")
    except CerebroError as error:
        yield Row("worker login", "login", PROBLEM, with_detail(error), error.hint)
        return
    try:
        # Not as the worker role: its right password would be refused now, too.
        logins.connect(logins.ENROL, "not the password", database, APPLICATION, listen).close()
        yield Row(
            "worker login",
            "password",
            PROBLEM,
            "worker roles are let in whatever the password (trust?)",
            "pg_hba.conf needs, before other lines:  local all +cerebro_worker scram-sha-256",
        )
    except CerebroError:
        yield Row("worker login", "password", OK, "a wrong one is refused")
