"""The pages of the dashboard. The texts in them are other people's: they are escaped, or data of the report's page."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib.resources import files
from urllib.parse import urlencode

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from cerebro_db import __version__
from cerebro_db.core.texts import harmless

from ..display import drawing
from ..errors import NoSuchRun, translated
from ..orm import Run, RunProgress
from ..report import contents, model, page

MOST_RUNS = 500  # in the list, the latest first
MOST_COMPARED = 8
LIVE = (
    '<p class="notice" role="status" hidden><span id="live"></span> <button type="button" id="again">Show</button></p>'
)

LIST = """<h1>Runs</h1>
<p class="pale">The latest first. Choose several to see them beside each other.</p>
<form action="/report" method="get">
<div class="scroll"><table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table></div>
<p><button type="submit">Compare the chosen runs</button></p>
</form>"""

MORE = f'<tr><td colspan="{{}}" class="pale">Earlier runs are not listed. A list has {MOST_RUNS} runs.</td></tr>'

COLUMNS = ("Status", "Progress", "Best", "Source table", "Model table", "Created")  # after those that name the run

# The number of a run and its owner
Key = tuple[int, str]


def key_of(text: str) -> Key:
    """``12:alice``; ValueError if it is none."""
    number, _, owner = text.partition(":")
    return int(number), owner


def state(engine: Engine, keys: Sequence[Key]) -> str:
    """Another text whenever these runs, or all in the list, have moved on."""
    seen = [
        (one.run, one.owner, one.status, one.hops_done, one.hops_total, one.configurations_finished, one.best_value,
         one.best_loss, one.configurations_failed, one.configurations, one.message)
        for one in _progress(engine, keys)
    ]  # fmt: skip
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def overview(engine: Engine) -> str:
    """The list of the runs that the viewer may see."""
    now = state(engine, [])
    progress = {(one.run, one.owner): one for one in _progress(engine, [])}
    latest = select(Run).order_by(Run.created_at.desc(), Run.run.desc()).limit(MOST_RUNS)
    with translated(), engine.connect() as connection:
        runs = [dict(row) for row in connection.execute(latest).mappings()]
    several = len({run["owner"] for run in runs}) > 1
    columns = ["", "Run", "Name", *(["Owner"] if several else []), *COLUMNS]
    headings = "".join(map(_heading, columns))
    rows = "".join(_row(run, progress.get((run["run"], run["owner"])), several) for run in runs)
    body = "<h1>Runs</h1><p>There are no runs yet. SELECT cerebro.train(…) starts one.</p>"
    if runs:
        rows += MORE.format(len(columns)) if len(runs) == MOST_RUNS else ""
        body = LIST.format(headings=headings, rows=rows)
    return page.live_page("cerebro_db: runs", LIVE + body, None, state=now, script=script(), version=__version__)


def report(engine: Engine, keys: Sequence[Key], kept: model.Kept) -> str:
    """The report about these runs; NoSuchRun if the viewer sees none of them. ``kept``: what was computed of models."""
    now = state(engine, keys)  # before the contents are read: what comes later is news
    runs = [_run(engine, key) for key in keys]
    read_model = partial(model.read, examples=True, kept=kept)
    said = {"version": __version__, "made_at": datetime.now().astimezone().isoformat(),
            "runs": [contents.read(engine, run, read_model) for run in runs]}  # fmt: skip
    title = ", ".join(f"run {number}" for number, _ in keys)
    back = '<p><a href="/">All runs</a></p>'
    return page.live_page(f"cerebro_db: {title}", LIVE + back, said, state=now, script=script(), version=__version__)


def script() -> str:
    return (files(__package__) / "live.js").read_text("utf-8")


def _progress(engine: Engine, keys: Sequence[Key]) -> list[RunProgress]:
    wanted = select(RunProgress).order_by(RunProgress.run.desc(), RunProgress.owner)
    if keys:
        wanted = wanted.where(RunProgress.run.in_([number for number, _ in keys]))
    with translated(), Session(engine, expire_on_commit=False) as session:
        found = list(session.scalars(wanted.limit(MOST_RUNS)))
    return [one for one in found if not keys or (one.run, one.owner) in keys]


def _run(engine: Engine, key: Key) -> Run:
    number, owner = key
    with translated(), Session(engine, expire_on_commit=False) as session:
        found = session.scalars(select(Run).where(Run.run == number, Run.owner == owner)).first()
    if found is None:
        raise NoSuchRun(f"There is no run {number} of {owner}.", "Your runs: cerebro runs")
    return found


def _heading(name: str) -> str:
    number = ' class="number"' if name in ("Run", "Progress") else ""
    return f'<th scope="col"{number}>{name or "<span class=unseen>Choose</span>"}</th>'


def _row(run: dict[str, object], progress: RunProgress | None, several: bool) -> str:
    number, owner = str(run["run"]), str(run["owner"])
    key = f"{number}:{owner}"
    link = f'<a href="/report?{html.escape(urlencode({"run": key}))}">{number}</a>'
    choose = f'<input type="checkbox" name="run" value="{html.escape(key)}" aria-label="Run {number}">'
    status = str(run["status"])
    shown = f'<span class="status {_text(status)}">{_text(status)}</span>'
    if status == "running" and run["message"]:
        shown += f" {_text(str(run['message']))}"
    best = str(run["quality"] or ("–" if progress is None else _best(progress)))
    percent = "–" if progress is None else f"{progress.percent:.0f} %"
    cells = [
        f"<td>{choose}</td>", f'<td class="number">{link}</td>', _cell(run["run_name"]),
        *([_cell(owner)] if several else []), f"<td>{shown}</td>",
        f'<td class="number">{percent}</td>', _cell(best),
        _cell(run["source_table"]), _cell(run["model_table"]), _cell(_moment(run["created_at"])),
    ]  # fmt: skip
    return f"<tr>{''.join(cells)}</tr>"


def _best(progress: RunProgress) -> str:
    """``val_accuracy 0.9667``"""
    if progress.objective is not None and progress.best_value is not None:
        return f"{progress.objective} {drawing.number(progress.best_value)}"
    return "–" if progress.best_loss is None else f"loss {drawing.number(progress.best_loss)}"


def _cell(value: object) -> str:
    return f'<td><span class="text">{_text("" if value is None else str(value))}</span></td>'


def _moment(value: object) -> str:
    return f"{value.astimezone():%Y-%m-%d %H:%M}" if isinstance(value, datetime) else ""


def _text(text: str) -> str:
    return html.escape(harmless(text[: contents.TEXT]))
