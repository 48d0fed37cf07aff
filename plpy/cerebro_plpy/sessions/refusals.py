"""Why this server refuses a login, as an SQLSTATE.

psycopg2 has only the server's message, in the language of lc_messages.  So a refused login is repeated here, with the
few messages of PostgreSQL's protocol that a login with SCRAM consists of.  The password itself is never sent.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
from typing import Any

ANSWERS_WITHIN = 2.0  # seconds
PROTOCOL = 3 << 16  # version 3.0
OK, SASL, SASL_CONTINUE, SASL_FINAL = 0, 10, 11, 12  # requests of an Authentication message
LARGEST = 1 << 16  # bytes of a message
MOST_ROUNDS = 100_000  # of SCRAM; no cancel is heard meanwhile
ACCEPTED = "00000"
UNKNOWN = ""


def refusal(address: dict[str, Any], user: str, password: str, database: str) -> str | None:
    """The SQLSTATE of the server's refusal.

    None: no server answers; ACCEPTED: the login succeeds now; UNKNOWN: what answers does not tell.
    """
    try:
        with contextlib.closing(connected(address)) as connection:
            return _Login(connection, user, password).begin(database)
    except (OSError, EOFError):
        return None
    except (ValueError, KeyError):
        return UNKNOWN


def connected(address: dict[str, Any]) -> socket.socket:
    host, port = str(address["host"]), int(address["port"])
    local = host.startswith("/")
    connection = socket.socket(socket.AF_UNIX if local else socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        connection.settimeout(ANSWERS_WITHIN)
        connection.connect(f"{host}/.s.PGSQL.{port}" if local else (host, port))
    except BaseException:
        connection.close()
        raise
    return connection


class _Login:
    def __init__(self, connection: socket.socket, user: str, password: str) -> None:
        self._connection, self._stream = connection, connection.makefile("rb")
        self._user, self._password = user, password.encode()
        self._nonce = base64.b64encode(secrets.token_bytes(18))
        self._first = b"n=,r=" + self._nonce

    def begin(self, database: str) -> str:
        names = ["user", self._user, "database", database]
        self._send(b"", struct.pack("!i", PROTOCOL) + b"".join(name.encode() + b"\0" for name in names) + b"\0")
        while True:
            kind, body = self._receive()
            if kind == b"E":
                # The texts beside it may be in any encoding.
                return next((field[1:].decode() for field in body.split(b"\0") if field[:1] == b"C"), UNKNOWN)
            if kind == b"Z":  # ready for a query
                return ACCEPTED
            if kind == b"R" and not self._authenticated(int.from_bytes(body[:4], "big"), body[4:]):
                return UNKNOWN

    def _authenticated(self, request: int, content: bytes) -> bool:
        """Answer a request; False for those of methods that no login of ours has."""
        if request == SASL:
            message = b"n,," + self._first
            self._send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(message)) + message)
        elif request == SASL_CONTINUE:
            self._send(b"p", self._proof(content))
        return request in (OK, SASL, SASL_CONTINUE, SASL_FINAL)

    def _proof(self, challenge: bytes) -> bytes:
        """The last message of SCRAM-SHA-256 (RFC 5802)."""
        given = dict((part[:1], part[2:]) for part in challenge.split(b","))
        rounds = int(given[b"i"])
        if not given[b"r"].startswith(self._nonce) or not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError("not an answer to this login")
        salted = hashlib.pbkdf2_hmac("sha256", self._password, base64.b64decode(given[b"s"]), rounds)
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = b"c=biws,r=" + given[b"r"]
        signed = hmac.digest(hashlib.sha256(key).digest(), b",".join([self._first, challenge, last]), "sha256")
        return last + b",p=" + base64.b64encode(bytes(one ^ other for one, other in zip(key, signed)))

    def _send(self, kind: bytes, body: bytes) -> None:
        self._connection.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def _receive(self) -> tuple[bytes, bytes]:
        kind, size = struct.unpack("!ci", self._read(5))
        if not 4 <= size <= LARGEST:
            raise ValueError("not a message of PostgreSQL's")
        return kind, self._read(size - 4)

    def _read(self, size: int) -> bytes:
        content = self._stream.read(size)
        if len(content) < size:
            raise EOFError("the server closed the connection")
        return content
