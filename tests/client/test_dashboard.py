"""``cerebro dashboard``: who has the token sees what the database user sees, as it goes on, and can change nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from small_run import NAME, Trained

from cerebro_db.client import ClientError, connect
from cerebro_db.client.dashboard.server import COOKIE, Dashboard
from tests.client.browser import Browser
from tests.client.test_report import HOSTILE
from tests.sql.users import equip, fit, town

browser_needed = pytest.mark.browser


@dataclass
class Place:
    board: Dashboard
    trained: Trained
    owner: str

    def ask(self, path: str, *, method: str = "GET", cookie: str | None = None, **headers: str) -> Any:
        """Status, headers and text of an answer; with the cookie unless another is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.board.port, timeout=60)
        token = f"{COOKIE}_{self.board.port}={self.board.token}" if cookie is None else cookie
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Cookie": token, **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    @property
    def key(self) -> str:
        return quote(f"{self.trained.run}:{self.owner}")


@contextlib.contextmanager
def served(engine: Any) -> Iterator[Dashboard]:
    board = Dashboard(engine, 0)
    thread = threading.Thread(target=board.serve)
    thread.start()
    try:
        yield board
    finally:
        board.close()
        thread.join()


@pytest.fixture
def place(trained: Trained) -> Iterator[Place]:
    with served(trained.cerebro.engine) as board:
        yield Place(board, trained, trained.cerebro.run(trained.run).owner)


def test_the_token_becomes_a_cookie(place: Place) -> None:
    status, headers, _ = place.ask(f"/?token={place.board.token}", cookie="")
    assert status == 303 and headers["Location"] == "/"
    assert re.fullmatch(rf"{COOKIE}_\d+={place.board.token}; HttpOnly; SameSite=Lax; Path=/", headers["Set-Cookie"])
    assert place.ask("/", cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200
    assert place.board.address == f"http://127.0.0.1:{place.board.port}/?token={place.board.token}"


@pytest.mark.parametrize("path", ["/", "/report?run={}", "/state", "/state?run={}", "/nothing"])
def test_nothing_is_told_without_the_token(place: Place, path: str) -> None:
    asked = path.format(place.key)
    for cookie in ("", f"{COOKIE}_{place.board.port}=wrong", f"{COOKIE}={place.board.token}", "=;;\x01", "a" * 5000):
        status, _, text = place.ask(asked, cookie=cookie)
        assert status == 403 and "cerebro dashboard" in text and "iris" not in text
    assert place.ask("/?token=wrong", cookie="")[0] == 403


@pytest.mark.parametrize(
    "line", [b"GET http://[ HTTP/1.1", b"GET http://[::1/ HTTP/1.1", "GET http://a\u2100b/ HTTP/1.1".encode(),
             b"GET /?token=%ff\xff HTTP/1.1", b"GET", b"GET / HTTP/1." + b"9" * 5000, b"\xff\x00 / HTTP/1.1",
             b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200, b"GET / HTTP/1.1\r\n\xff\r\nCookie: \xff=\xff"], ids=range(9)
)  # fmt: skip
def test_nothing_that_is_sent_without_the_token_is_printed(place: Place, capfd: Any, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", place.board.port), 30) as sent:
        sent.sendall(line + f"\r\nHost: 127.0.0.1:{place.board.port}\r\n\r\n".encode())
        sent.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sent.recv(65536), b""))
    assert re.search(rb"HTTP/1.0 [45]\d\d |Error code: 4\d\d", answer), answer
    assert place.ask("/")[0] == 200  # whatever is printed, is printed before this
    assert capfd.readouterr() == ("", "")


def test_another_name_of_the_host_is_refused(place: Place) -> None:
    """A page elsewhere can let its own name lead to 127.0.0.1; the browser then sends that name."""
    assert place.ask("/", Host="evil.example")[0] == 403
    assert place.ask("/", Host=f"evil.example:{place.board.port}")[0] == 403
    assert place.ask("/", Host=f"localhost:{place.board.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_it_only_answers_get(place: Place, method: str) -> None:
    assert place.ask("/", method=method)[0] == 501


def test_the_list_and_a_report(place: Place) -> None:
    status, headers, text = place.ask("/")
    assert status == 200 and headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    assert f'href="/report?run={place.key.replace("%3A", "%3A")}"' in text and NAME.replace("&", "&amp;") in text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy and "default-src 'none'" in policy[1] and "connect-src 'self'" in policy[1]
    assert "unsafe" not in policy[1]
    status, _, text = place.ask(f"/report?run={place.key}")
    (run,) = json.loads(re.search(r'id="contents">(.*?)</script>', text, re.S)[1])["runs"]  # type: ignore[index]
    assert status == 200 and run["run"] == place.trained.run and len(run["leaderboard"]) == 3


def test_the_list_says_how_good_the_model_is(place: Place, judged: str) -> None:
    text = place.ask("/")[2]
    assert judged.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;") in text
    assert "<b>setosa" not in text


def test_what_cannot_be_shown(place: Place) -> None:
    assert place.ask("/report?run=nonsense")[0] == 400
    assert place.ask("/report?run=1:%00")[0] in (404, 500)  # an answer in any case
    others = f'prefs={{"theme":"dark"}}; {COOKIE}_{place.board.port}={place.board.token}; x=y'
    assert place.ask("/", cookie=others)[0] == 200
    assert place.ask("/report")[0] == 400
    assert place.ask("/report?" + "&".join(f"run={number}:x" for number in range(9)))[0] == 400
    status, _, text = place.ask("/report?run=987654321:nobody")
    assert status == 404 and "There is no run 987654321 of nobody." in text
    assert place.ask("/report/../secret")[0] == 404
    assert place.ask(f"/state?run={place.key}")[2] == place.ask(f"/state?run={place.key}")[2]
    with pytest.raises(ClientError, match="cannot be used"):
        Dashboard(place.trained.cerebro.engine, place.board.port)


def test_each_user_sees_their_own_runs(place: Place, server: str) -> None:
    with town(server) as root:
        ben, mona = root.user("ben", "cerebro_user"), root.user("mona", "cerebro_monitor")
        equip(ben)
        number = fit(ben)
        with connect(ben.dsn) as cerebro, served(cerebro.engine) as board:
            his = Place(board, place.trained, ben.name)
            assert f"{number}%3A{ben.name}" in his.ask("/")[2] and place.key not in his.ask("/")[2]
            assert his.ask(f"/report?run={place.key}")[0] == 404
        with connect(mona.dsn) as cerebro, served(cerebro.engine) as board:
            hers = Place(board, place.trained, mona.name)
            text = hers.ask("/")[2]
            assert f"{number}%3A{ben.name}" in text and place.key in text and '<th scope="col">Owner</th>' in text
            assert hers.ask(f"/report?run={place.key}&run={number}:{ben.name}")[0] == 200


def test_names_are_texts(place: Place) -> None:
    cerebro = place.trained.cerebro
    run = cerebro.fit("packed", '"report <b>x"', "alone", epochs=1, run_name=HOSTILE, options={"seed": 1})
    try:
        text = place.ask("/")[2]
        assert "<img" not in text and "<b>" not in text and "&lt;/script&gt;&lt;img src=x" in text
        assert "\u202e" not in text and "\x1b" not in text
    finally:
        cerebro.rows('DROP TABLE "report <b>x", "report <b>x_info", "report <b>x_summary"')
        cerebro.forget(run.run)


@browser_needed
def test_a_browser_follows_what_goes_on(place: Place, tmp_path: Path) -> None:
    cerebro = place.trained.cerebro
    with Browser(tmp_path) as browser:
        browser.visit(place.board.address)
        assert browser("location.search") == "" and browser("document.querySelector('h1').textContent") == "Runs"
        before = browser("document.querySelectorAll('tbody tr').length")
        run = cerebro.fit("packed", "dashboard_models", "mst", epochs=1, options={"seed": 1})
        browser.until(f"document.querySelectorAll('tbody tr').length === {before + 1}", 30)
        browser("document.querySelector('tbody a').click()")
        browser.until("document.querySelector('#leaderboard') !== null")
        assert browser("document.querySelector('h1').textContent").endswith("dashboard_models")
        assert browser("document.querySelectorAll('#leaderboard tbody tr').length") == 3
        # A reader who has just touched the page is asked.
        browser("document.querySelector('.notice[hidden]') !== null")
        browser.press("Tab")
        cerebro.resume(run.run, 2)
        browser.until("!document.querySelector('.above .notice').hidden", 30)
        assert "new results" in browser("document.querySelector('.above .notice').textContent")
        browser("document.querySelector('#again').click()")
        browser.until("document.querySelector('.above .notice')?.hidden === true")
        assert all(one.startswith(f"http://127.0.0.1:{place.board.port}/") for one in browser.requests)
        assert browser.complaints == []
        browser.visit(f"http://127.0.0.1:{place.board.port}/")
        browser("for (const box of [...document.querySelectorAll('input')].slice(0, 2)) box.click()")
        browser("document.querySelector('form button').click()")
        browser.until("location.pathname === '/report' && document.querySelector('#leaderboard, h1') !== null")
        assert browser("new URLSearchParams(location.search).getAll('run').length") == 2
    cerebro.rows("DROP TABLE dashboard_models, dashboard_models_info, dashboard_models_summary")
    cerebro.forget(run.run)


def test_the_command(place: Place) -> None:
    command = [sys.executable, "-m", "cerebro_db.client.cli", "dashboard", "--port", "0", "--json"]
    environment = {**os.environ, "CEREBRO_DSN": place.trained.dsn}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = json.loads(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", said["port"], timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", said["address"].partition(f":{said['port']}")[2])
            assert connection.getresponse().status == 303
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
