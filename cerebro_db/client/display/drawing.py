"""Draws with characters: sparklines, bars, time lines, small images. Pure functions without colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"
SHADES = " .:-=+*#%@"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """One character per value. If there are more values than columns, a column shows the last of its values."""
    if len(values) > width > 0:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return "·" * len(values)
    low = min(known) / 2  # by halves, because the difference of two large numbers may be infinite
    span = max(known) / 2 - low

    def step(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "·"
        return STEPS[round((value / 2 - low) / span * (len(STEPS) - 1)) if span > 0 else 0]

    return "".join(step(value) for value in values)


def bar(share: float, width: int) -> str:
    """A bar that fills this share of the width, to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


@dataclass(frozen=True)
class Stretch:
    """One activity from ``begin`` to ``end``, in seconds."""

    begin: float
    end: float
    what: tuple[str, int]  # train or evaluate, and the model


def timeline(stretches: Sequence[Stretch], begin: float, end: float, width: int) -> list[tuple[str, int] | None]:
    """For each column of the line, the activity that took most of its time. None means no activity."""
    if end <= begin:
        return [None] * width
    size = (end - begin) / width
    shares: list[dict[tuple[str, int] | None, float]] = [{None: size} for _ in range(width)]
    for stretch in stretches:
        first = max(0, int((stretch.begin - begin) / size))
        last = min(width - 1, int((stretch.end - begin) / size))
        for column in range(first, last + 1):
            inside = min(stretch.end, begin + (column + 1) * size) - max(stretch.begin, begin + column * size)
            if inside > 0:
                taken = shares[column]
                taken[stretch.what] = taken.get(stretch.what, 0.0) + inside
                taken[None] -= inside
    return [max(taken, key=lambda what: taken[what]) for taken in shares]


def letters(models: Sequence[int]) -> dict[int, str]:
    """A letter for each model. The 27th has the letter A again."""
    return {model: chr(ord("A") + place % 26) for place, model in enumerate(sorted(set(models)))}


def image(pixels: Sequence[Sequence[float]], brightest: float) -> list[str]:
    """A line of text per row, two characters per pixel: a character is about twice as high as wide."""

    def shade(pixel: float) -> str:
        return SHADES[min(len(SHADES) - 1, int(pixel / brightest * len(SHADES)))] * 2

    return ["".join(shade(pixel) for pixel in row) for row in pixels]


def seconds(value: float | None) -> str:
    """``3.4 s``, ``1:07``, ``2:03:00``"""
    if value is None or not math.isfinite(value):
        return "–"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def number(value: float | None) -> str:
    """Four digits for common values of losses and metrics, all before the point for large ones, three for others."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if 999.5 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 100 or value == 0 else f"{value:.3g}"
