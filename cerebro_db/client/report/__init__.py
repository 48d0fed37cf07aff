"""``cerebro report``: one HTML file about one or more runs, which needs no network and no server.

``contents`` reads the views, ``model`` judges the model of a run, ``figures`` computes what is drawn of it,
``importance`` compares hyper-parameters, and ``page`` makes the file. The page itself is ``report.css``, ``model.js``
and ``report.js``. The axes of its curves are those of uPlot 1.6.32, whose licence is beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from sqlalchemy import Engine

from cerebro_db import __version__

from ..errors import ClientError
from ..orm import Run
from . import contents, model, page


def write(engine: Engine, runs: Sequence[Run], path: Path, replace: bool, examples: bool) -> Path:
    """Writes the report about these runs, each once, and returns its path."""
    if not runs:
        raise ClientError("A report needs at least one run.", "Your runs: cerebro runs")
    different = list({(run.run, run.owner): run for run in runs}.values())
    page.check(path, replace)
    said = {
        "version": __version__,
        "made_at": datetime.now(timezone.utc).isoformat(),
        "runs": [contents.read(engine, run, partial(model.read, examples=examples)) for run in different],
    }
    title = ", ".join(f"run {run.run}" for run in different)
    page.write(page.page(said, f"cerebro_db: {title}"), path)
    return path
