"""Draws the pictures of docs/concepts.md as SVG files in docs/pictures/.

python -m tests.pictures

Each picture has a white background of its own, so that it can be read on light and on dark pages.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
INK, PALE, GRID = "#1f2933", "#52606d", "#cbd2d9"
COLOURS = ("#2f6fb7", "#b5541c", "#2c7a4b", "#7a4aa3")  # of the models; white text can be read on each
LETTERS = "ABCD"


class Drawing:
    """The shapes of one picture."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="14">',
            f"<title>{html.escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str = "none", line: str = GRID) -> None:
        self.lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{line}"/>'
        )

    def text(self, x: float, y: float, text: str, colour: str = INK, anchor: str = "start", bold: bool = False) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.lines.append(
            f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{weight}>{html.escape(text)}</text>'
        )

    def arrow(self, points: Sequence[tuple[float, float]]) -> None:
        self.lines.append(
            f'<polyline points="{_joined(points)}" fill="none" stroke="{INK}" stroke-width="1.5"'
            ' marker-end="url(#tip)"/>'
        )

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        self.lines.append(f'<polyline points="{_joined(points)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')

    def svg(self) -> str:
        return "\n".join([*self.lines, "</svg>"]) + "\n"


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def rows() -> str:
    """How the rows of a table become a packed table on segments."""
    drawing = Drawing(760, 300, "A table is packed into buffers, which are spread over segments")
    drawing.text(20, 30, "your table", bold=True)
    for n in range(8):
        drawing.box(20, 45 + n * 24, 130, 20)
        drawing.text(28, 60 + n * 24, "one row", PALE)
    drawing.arrow([(160, 140), (238, 140)])
    drawing.text(199, 130, "pack", anchor="middle")
    drawing.text(250, 30, "packed table", bold=True)
    drawing.text(570, 30, "server processes", bold=True)
    for n in range(3):
        top = 45 + n * 72
        drawing.box(250, top, 270, 60, "#f5f7fa")
        drawing.text(262, top + 35, f"segment {n}")
        for m in range(3):
            drawing.box(350 + m * 55, top + 15, 48, 30, "#ffffff", PALE)
            drawing.text(374 + m * 55, top + 35, "buffer", PALE, "middle")
        drawing.arrow([(525, top + 30), (563, top + 30)])
        drawing.box(570, top, 170, 60)
        drawing.text(582, top + 25, "session")
        drawing.text(582, top + 47, "trainer of segment " + str(n), PALE)
    drawing.text(20, 285, "A buffer holds many of your rows. The rows never leave the database server.", PALE)
    return drawing.svg()


def hopping() -> str:
    """One epoch of four models on four segments."""
    drawing = Drawing(760, 330, "In one epoch each of four models visits each of four segments once")
    left, top, wide, high = 120, 70, 150, 52
    drawing.text(left, 30, "one epoch", bold=True)
    drawing.arrow([(left + 90, 25), (left + 4 * wide - 10, 25)])
    drawing.text(left + 4 * wide, 55, "time", PALE, "end")
    for segment in range(4):
        y = top + segment * high
        drawing.text(20, y + 27, f"segment {segment}")
        for step in range(4):
            model = (segment - step) % 4
            drawing.box(left + step * wide, y, wide - 34, high - 12, COLOURS[model], COLOURS[model])
            drawing.text(left + step * wide + (wide - 34) / 2, y + 25, f"model {LETTERS[model]}", "#ffffff", "middle")
    for step in range(3):  # model A
        x, y = left + step * wide + wide - 34, top + step * high + 20
        drawing.arrow([(x + 2, y), (x + 17, y), (x + 17, y + high), (x + 32, y + high)])
    drawing.text(20, 300, "A coloured box is a visit: one model trains on the rows of one segment.", PALE)
    drawing.text(
        20,
        320,
        "After each visit the model hops to the next segment: the arrows of model A.",
        PALE,
    )
    return drawing.svg()


def loss() -> str:
    """How the loss of a model develops, as a sketch."""
    drawing = Drawing(760, 330, "Sketch: training loss falls; validation loss falls and then rises")
    left, bottom, wide, high = 70, 270, 480, 220

    def at(epoch: float, value: float) -> tuple[float, float]:
        return left + epoch / 20 * wide, bottom - value * high

    epochs = [n / 4 for n in range(81)]
    training = [at(n, 0.06 + 0.84 * math.exp(-n / 4)) for n in epochs]
    validation = [at(n, 0.14 + 0.76 * math.exp(-n / 3.2) + 0.0011 * n * n) for n in epochs]
    drawing.arrow([(left, bottom), (left, 30)])
    drawing.arrow([(left, bottom), (left + wide + 10, bottom)])
    drawing.text(left + 12, 38, "loss: smaller is better", PALE)
    drawing.text(left + wide, bottom + 22, "epochs", PALE, "end")
    best = min(validation, key=lambda point: -point[1])
    drawing.lines.append(
        f'<line x1="{best[0]:g}" y1="{best[1] + 8:.1f}" x2="{best[0]:g}" y2="{bottom}" stroke="{PALE}"'
        ' stroke-dasharray="4 4"/>'
    )
    drawing.curve(training, COLOURS[0])
    drawing.curve(validation, COLOURS[1])
    drawing.text(best[0], bottom + 22, "best epoch", INK, "middle")
    for (x, y), colour, text in (
        (validation[-1], COLOURS[1], "on rows for validation"),
        (training[-1], COLOURS[0], "on rows for training"),
    ):
        drawing.text(x + 10, y + 5, text, colour)
    drawing.text(20, 318, "A sketch. Both fall at first. Later the model learns its training rows by heart.", PALE)
    return drawing.svg()


def parts() -> str:
    """What a run consists of."""
    drawing = Drawing(760, 320, "A run has configurations, a configuration has a model, a model has epochs of visits")
    drawing.box(15, 15, 730, 260, "#f5f7fa")
    drawing.text(30, 40, "run 12", bold=True)
    drawing.text(95, 40, "one call of train, search or fit", PALE)
    for n, (settings, colour) in enumerate(zip(("learning_rate 0.001", "learning_rate 0.01"), COLOURS)):
        top = 55 + n * 108
        drawing.box(30, top, 190, 92, "#ffffff")
        drawing.text(42, top + 27, f"configuration {n + 1}", bold=True)
        drawing.text(42, top + 52, settings, PALE)
        drawing.arrow([(224, top + 46), (258, top + 46)])
        drawing.box(264, top, 466, 92, "#ffffff", colour)
        drawing.text(276, top + 27, f"model {n + 1}", colour, bold=True)
        for epoch in range(2):
            x = 276 + epoch * 226
            drawing.text(x, top + 50, f"epoch {epoch + 1}", PALE)
            for segment in range(4):
                drawing.box(x + segment * 54, top + 58, 48, 24, colour, colour)
                drawing.text(x + segment * 54 + 24, top + 75, "visit", "#ffffff", "middle")
    drawing.text(
        20,
        302,
        "Four segments, so an epoch has four visits. After each visit the model's state is committed: a hop.",
        PALE,
    )
    return drawing.svg()


PICTURES = {"rows.svg": rows, "hopping.svg": hopping, "loss.svg": loss, "parts.svg": parts}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        sys.stdout.write(f"docs/pictures/{name}\n")


if __name__ == "__main__":
    main()
