"""What notebooks show of a run: the drawings of the terminal as HTML, redrawn while the run goes on."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich.console import RenderableType

from . import watch as watches
from .display.terminal import Terminal
from .methods.runs import RunMethods
from .orm import RunProgress
from .run_handle import AnyRun

WIDTH = 110  # characters
EVERY = 1.0  # seconds between two drawings
# These fonts have all characters of the drawings. Characters taken from another font have another width.
FONTS = "Menlo,'DejaVu Sans Mono',Consolas,'Courier New',monospace"
FRAME = f'<pre style="font-family:{FONTS};line-height:1.25;white-space:pre;overflow-x:auto">{{code}}</pre>'
BLACK = "color: #000000; text-decoration-color: #000000"  # of text without a colour, unreadable on a dark ground


def html(shown: RenderableType) -> str:
    """What a terminal of that width would show. Texts of others stay text."""
    console = Terminal(record=True, file=io.StringIO(), width=WIDTH, color_system="truecolor", force_terminal=True)
    console.print(shown)
    return console.export_html(inline_styles=True, code_format=FRAME).replace(BLACK, "")


def picture(cerebro: RunMethods, run: AnyRun) -> str:
    """A run as ``cerebro watch`` draws it."""
    return _picture(cerebro, run, cerebro.run_progress(run))


def _picture(cerebro: RunMethods, run: AnyRun, progress: RunProgress) -> str:
    seen = watches.snapshot(cerebro, cerebro.run(run), progress)
    return html(watches.picture(seen, WIDTH, watches.TOP))


def watch(cerebro: RunMethods, run: int) -> RunProgress:
    """Follows a run until it ends, wherever Python runs."""
    display = _display()
    if display is None:
        return watches.watch(cerebro, run, Terminal())
    shown = display.display(display.HTML(""), display_id=True)
    for progress in cerebro.follow(run, EVERY):
        shown.update(display.HTML(_picture(cerebro, run, progress)))
    return progress


def _display() -> Any:
    """The module that draws in a notebook; None elsewhere, also in IPython on a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython import display

    return display
