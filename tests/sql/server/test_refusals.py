"""The SQLSTATE of a refused login, which psycopg2 does not have: the same in every language of the server."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from cerebro_plpy.sessions.logins import ENROL
from cerebro_plpy.sessions.refusals import ACCEPTED, refusal
from tests.conftest import connect

pytestmark = [pytest.mark.needs_cluster, pytest.mark.same_machine]


@pytest.fixture
def password(data_folder: Path) -> str:
    return hmac.new((data_folder / "cerebro_db" / "secret").read_bytes(), ENROL.encode(), hashlib.sha256).hexdigest()


def test_what_the_server_says_in_its_own_words(server: str, password: str) -> None:
    parameters = parse_dsn(server)
    address, database = {"host": parameters["host"], "port": parameters["port"]}, parameters["dbname"]

    def of(**other: Any) -> str | None:
        return refusal(address, **{"user": ENROL, "password": password, "database": database, **other})

    assert of() == ACCEPTED
    assert of(password="not the password") == "28P01"
    assert of(database="nowhere") == "3D000"
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER ROLE {ENROL} CONNECTION LIMIT 0")
        try:
            with pytest.raises(psycopg2.OperationalError) as failed:
                connect(server, user=ENROL, password=password)
            assert failed.value.pgcode is None, "then psycopg2 could say it"
            assert of() == "53300"
        finally:
            cursor.execute(f"ALTER ROLE {ENROL} CONNECTION LIMIT -1")
