"""The one door to the terminal: whatever the command line prints goes through ``Terminal``.

Names, reasons and messages come from other users of the database. Rich obeys markup in a string, and a terminal obeys
the control characters in its input. So a Terminal obeys no markup, and shows control characters instead of sending
them. One Text is one line: a line break in a name cannot begin a line that looks like ours.
``tests/client/test_terminal.py`` fails if another module prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from cerebro_db.core.texts import harmless

from .as_json import as_json

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

NAME, LINE = 100, 2000  # characters that are shown of a name, and of any line
INDENT = "  "
FUNCTION = re.compile(r"^cerebro(\.\w+)?: ")  # how messages of the server begin


class Terminal(Console):
    """A console that obeys nothing in the texts that it prints. Only styles given as arguments have an effect."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def status(self, status: RenderableType, **options: Any) -> Status:
        # Rich looks for markup in the text of a spinner, whatever the console's options are.
        return super().status(Text(status) if isinstance(status, str) else status, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        options.update(markup=False, emoji=False)
        return super().render_str(harmless(text, longest=LINE), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(one_line(renderable) if isinstance(renderable, Text) else renderable, options):
            # Rich's own control sequences have ``control``. All else is text, whatever made it.
            clean = segment.control or segment.text.isprintable()
            yield segment if clean else segment._replace(text=harmless(segment.text, lines=True))


def one_line(text: Text) -> Text:
    """The text without what a terminal obeys. Each character has one in its place: styles stay."""
    plain = harmless(text.plain, longest=LINE)
    if plain != text.plain:
        text = text.copy()
        text.plain = plain
    return text


def named(name: str | None) -> str:
    """A name as tables and titles show it."""
    return harmless(name or "", longest=NAME)


def lines(text: str, style: str = "") -> RenderableType:
    """A text of several lines. All but the first are indented, so that they cannot be taken for lines of ours."""
    first, *others = text.splitlines() or [""]
    return Group(Text(first, style=style), *(Text(INDENT + other, style=style) for other in others))


def fail(message: str, hint: str | None = None) -> NoReturn:
    """Ends the program with an error message."""
    errors = Terminal(stderr=True, soft_wrap=True)
    # The user of a command has not called the function.
    errors.print(lines(f"cerebro: {FUNCTION.sub('', message)}"))
    if hint:
        errors.print(lines(f"HINT: {hint}"))
    raise SystemExit(1)


def write_json(value: Any) -> None:
    """One line on standard output."""
    typer.echo(as_json(value))


def confirm(question: str) -> None:
    """Ends the program unless the user says yes."""
    typer.confirm(harmless(question), abort=True)
