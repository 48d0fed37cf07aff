"""What an error says when the server cannot open a session to itself."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cerebro_db.core.errors import CannotConnect
from cerebro_plpy.sessions import logins

GONE = 'connection to server on socket "/tmp/.s.PGSQL.54320" failed: Connection refused'
REFUSED = 'FATAL:  password authentication failed for user "cerebro_enrol"'
NOT_LISTED = 'FATAL:  no pg_hba.conf entry for host "[local]", user "cerebro_enrol", database "postgres", no encryption'
GERMAN = "FATAL:  Passwort-Authentifizierung für Benutzer »cerebro_enrol« fehlgeschlagen"


@pytest.mark.parametrize(
    ("problem", "answers", "blamed"),
    [
        (GONE, False, "server is back"),
        ("server closed the connection unexpectedly", True, "server is back"),
        ("FATAL:  the database system is shutting down", True, "server is back"),
        ("FATAL:  the database system is starting up", True, "server is back"),
        ("FATAL:  the database system is in recovery mode", True, "server is back"),
        ("FATAL:  terminating connection due to administrator command", True, "server is back"),
        ("Verbindung verweigert", False, "server is back"),  # in any language, if nothing answers
        ("FATAL:  sorry, too many clients already", True, "max_connections"),
        ("FATAL:  remaining connection slots are reserved for superusers", True, "max_connections"),
        ("FATAL:  too many connections for database", True, "max_connections"),
        (REFUSED, True, "_setup_logins"),
        (NOT_LISTED, True, "pg_hba.conf"),
        (GERMAN, True, "pg_hba.conf"),
    ],
)
def test_the_hint_names_the_cause(problem: str, answers: bool, blamed: str) -> None:
    error = logins.cannot_log_in([problem], answers=answers)
    assert error.hint is not None and str(error.detail).startswith(problem) and error.sqlstate == "08001"
    assert [
        word for word in ("server is back", "max_connections", "pg_hba.conf", "_setup_logins") if word in error.hint
    ] == [blamed]


def test_a_server_that_ended_is_known_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as there, socket.socket() as tcp:
        there.bind(".s.PGSQL.5432")
        address = {"host": str(tmp_path), "port": 5432}
        assert not logins.is_answered(address), "a file is left of the server"
        there.listen()
        assert logins.is_answered(address)
        tcp.bind(("127.0.0.1", 0))
        assert not logins.is_answered({"host": "127.0.0.1", "port": tcp.getsockname()[1]})
        tcp.listen()
        assert logins.is_answered({"host": "127.0.0.1", "port": tcp.getsockname()[1]})
    assert not logins.is_answered(address)
    assert not logins.is_answered({"host": str(tmp_path / "nowhere"), "port": 5432})


def test_a_server_without_its_file_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (None, "", "1\n2\n"):
        if content is not None:
            (tmp_path / "postmaster.pid").write_text(content)
        with pytest.raises(CannotConnect, match="it has ended") as failed:
            logins.addresses()
        assert failed.value.hint is not None and "pg_hba" not in failed.value.hint
