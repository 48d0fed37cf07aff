"""The repeated login of sessions/refusals.py, with servers that are not PostgreSQL: it sends them no password."""

from __future__ import annotations

import base64
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from cerebro_plpy.sessions import refusals

PASSWORD = "not to be sent"
Answers = list[Callable[[bytes], bytes]]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def asks(request: int, content: bytes = b"") -> Callable[[bytes], bytes]:
    return lambda heard: message(b"R", struct.pack("!i", request) + content)


def challenge(
    nonce: bytes | None = None, rounds: bytes = b"i=4096", salt: bytes = b"s=c2FsdA=="
) -> Callable[[bytes], bytes]:
    """With the nonce of the login, unless another one is given."""

    def answer(heard: bytes) -> bytes:
        given = heard.partition(b"r=")[2] + base64.b64encode(b"server") if nonce is None else nonce
        return asks(11, b",".join([b"r=" + given, salt, rounds]))(heard)

    return answer


REFUSED = message(b"E", "SSCHWERWIEGEND\0C28P01\0Mungültiges Passwort\0\0".encode("latin-1"))
SASL = asks(10, b"SCRAM-SHA-256\0\0")


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Callable[[Answers], tuple[str | None, bytes]]]:
    """What the login says of a server with these answers, and all that the server heard."""

    def login(answers: Answers) -> tuple[str | None, bytes]:
        heard = []
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / ".s.PGSQL.1"))
            listening.listen()

            def serve() -> None:
                connection, _ = listening.accept()
                with connection:
                    for answer in answers:
                        heard.append(connection.recv(1 << 16))
                        connection.sendall(answer(heard[-1]))
                    heard.append(connection.recv(1 << 16))

            server = threading.Thread(target=serve)
            server.start()
            said = refusals.refusal({"host": str(tmp_path), "port": 1}, "me", PASSWORD, "mine")
            server.join()
        (tmp_path / ".s.PGSQL.1").unlink()
        return said, b"".join(heard)

    yield login


@pytest.mark.parametrize(
    "answers, state",
    [
        ([lambda heard: REFUSED], "28P01"),
        ([SASL, lambda heard: REFUSED], "28P01"),
        ([SASL, challenge(), lambda heard: REFUSED], "28P01"),
        ([SASL, challenge(), lambda heard: message(b"Z", b"I")], refusals.ACCEPTED),
        ([challenge()], refusals.UNKNOWN),  # without having asked for a login
        ([asks(3)], refusals.UNKNOWN),  # the password as it is
        ([asks(5, b"salt")], refusals.UNKNOWN),  # MD5
        ([SASL, challenge(nonce=b"of another login")], refusals.UNKNOWN),
        ([SASL, challenge(rounds=b"i=2000000000")], refusals.UNKNOWN),
        ([SASL, challenge(rounds=b"i=many")], refusals.UNKNOWN),
        ([SASL, challenge(salt=b"x=")], refusals.UNKNOWN),
        ([lambda heard: b"HTTP/1.1 400 Bad Request\r\n\r\n"], refusals.UNKNOWN),
        ([lambda heard: b"R"], None),  # and hangs up
    ],
)
def test_what_a_server_answers(
    told: Callable[[Answers], tuple[str | None, bytes]], answers: Answers, state: str | None
) -> None:
    said, heard = told(answers)
    assert said == state
    assert b"user\0me\0database\0mine" in heard and PASSWORD.encode() not in heard


def test_a_server_that_is_slow_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "ANSWERS_WITHIN", 0.05)
    address = {"host": str(tmp_path), "port": 1}
    assert refusals.refusal(address, "me", PASSWORD, "mine") is None
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / ".s.PGSQL.1"))
        silent.listen()
        assert refusals.refusal(address, "me", PASSWORD, "mine") is None
