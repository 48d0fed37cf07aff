"""What an error says when the server cannot open a session to itself."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cerebro_db.core.errors import CannotConnect
from cerebro_plpy.sessions import logins, refusals


@pytest.mark.parametrize(
    ("state", "blamed"),
    [
        (None, "server is back"),
        ("57P01", "server is back"),
        ("57P03", "server is back"),
        ("53300", "max_connections"),
        ("28P01", "_setup_logins"),
        ("28000", "pg_hba.conf"),
        ("00000", "Repeat the call"),
    ],
)
def test_the_hint_names_the_cause_in_any_language(state: str | None, blamed: str) -> None:
    problem = "FATAL:  Passwort-Authentifizierung für Benutzer »cerebro_enrol« fehlgeschlagen"
    error = logins.cannot_log_in(logins.ENROL, [problem], [None, state])
    assert error.hint is not None and str(error.detail).startswith(problem) and error.sqlstate == "08001"
    hints = ("server is back", "max_connections", "pg_hba.conf", "_setup_logins", "Repeat the call")
    assert [word for word in hints if word in error.hint] == [blamed]


def test_the_secret_is_that_of_one_login_only() -> None:
    error = logins.cannot_log_in("cerebro_w_10_abc", ["FATAL"], ["28P01"])
    assert error.hint is not None and "_setup_logins" not in error.hint


def test_a_server_that_ended_is_known_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(refusals, "ANSWERS_WITHIN", 0.1)
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(".s.PGSQL.5432")
        address = {"host": str(tmp_path), "port": 5432}
        assert refusals.refusal(address, "me", "secret", "mine") is None, "a file is left of the server"
        there.listen()
        assert refusals.refusal(address, "me", "secret", "mine") is None, "it accepts connections, and says nothing"
    assert refusals.refusal({"host": str(tmp_path / "nowhere"), "port": 5432}, "me", "secret", "mine") is None


def test_a_server_without_its_file_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (None, "", "1\n2\n"):
        if content is not None:
            (tmp_path / "postmaster.pid").write_text(content)
        with pytest.raises(CannotConnect, match="it has ended") as failed:
            logins.addresses()
        assert failed.value.hint is not None and "pg_hba" not in failed.value.hint
