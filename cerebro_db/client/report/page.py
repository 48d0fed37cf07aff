"""Makes the HTML file of a report. The texts in it are other people's: they are data, and never code or markup."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import ClientError

# What would end the block of data, or begin markup or a line in it.
ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}

PAGE = """<!doctype html>
<html lang="en"{attributes}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="cerebro_db {version}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This report draws its tables and charts with a script, which this browser does not run.</noscript>
{before}<main id="report">{markup}</main>
{data}{scripts}</body>
</html>
"""
DATA = '<script type="application/json" id="contents">{}</script>\n'


def page(contents: Mapping[str, Any], title: str) -> str:
    """The whole file. The browser runs this script, uses this style, and loads nothing."""
    return _page(title, contents, [_script()], "form-action 'none'", contents["version"])


def live_page(
    title: str, markup: str, contents: Mapping[str, Any] | None, *, state: str, script: str, version: str
) -> str:
    """A page of the dashboard: the report, with other markup above it; or that markup alone.

    ``script`` may ask the dashboard for ``state``, and for nothing else.
    """
    scripts = [script] if contents is None else [_script(), script]
    asks, attributes = "connect-src 'self'; form-action 'self'", f' data-state="{html.escape(state)}"'
    return _page(title, contents, scripts, asks, version, markup=markup, attributes=attributes)


def _script() -> str:
    here = files(__package__)
    return "".join((here / name).read_text("utf-8") for name in ("uplot/uPlot.iife.min.js", "model.js", "report.js"))


def _page(
    title: str,
    contents: Mapping[str, Any] | None,
    scripts: Sequence[str],
    policy: str,
    version: str,
    *,
    markup: str = "",
    attributes: str = "",
) -> str:
    style = "".join((files(__package__) / name).read_text("utf-8") for name in ("uplot/uPlot.min.css", "report.css"))
    hashes = " ".join(f"'{_hash(one)}'" for one in scripts)
    whole = (
        f"default-src 'none'; script-src {hashes}; style-src '{_hash(style)}'; img-src data:; base-uri 'none'; {policy}"
    )
    data = ""
    if contents is not None:
        written = json.dumps(contents, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = DATA.format(written.translate(ESCAPES))
    above = contents is not None and markup  # the report fills its own element
    return PAGE.format(
        version=html.escape(version), policy=whole, style=style, title=html.escape(title), attributes=attributes,
        before=f'<div class="above">{markup}</div>\n' if above else "", markup="" if above else markup, data=data,
        scripts="".join(f"<script>{one}</script>\n" for one in scripts),
    )  # fmt: skip


def check(path: Path, replace: bool) -> None:
    """Raises an error if the file cannot be made there."""
    with _told(path):
        if path.is_dir():
            raise ClientError(f"{path} is a folder.", "Name a file, such as report.html.")
        if not path.parent.is_dir():
            raise ClientError(f"There is no folder {path.parent}.", "Make it first, or name a file in another folder.")
        if path.exists() and not replace:
            raise ClientError(f"The file {path} exists.", "--replace (in Python replace=True) writes over it.")


def write(text: str, path: Path) -> None:
    """Writes the file whole or not at all."""
    unfinished = path.with_name(f".{secrets.token_hex(8)}.html")
    with _told(path):
        try:
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClientError(f"The file {path} cannot be written: {error.strerror}.") from error


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
