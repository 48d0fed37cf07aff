"""Drawings for notebooks: SVG that needs no script and no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..orm import LearningCurvePoint
from . import drawing

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 28, 36
# Each has a contrast of 3 to 1 with white and with the dark grounds of notebooks.
COLOURS = ("#4269d0", "#b97f00", "#e0533d", "#0f92a8", "#2f9a45", "#d6548b", "#a463f2", "#5b8fe0", "#9c6b4e")
OTHERS = "#808690"  # the colour of the curves after the best ones, which have one each
TICKS = 5
TRAINING, VALIDATION = "training loss", "validation loss"


def learning_curves(points: Sequence[LearningCurvePoint]) -> str:
    """The loss of each model by epoch. The model with the lowest one has the thickest line.

    The loss is that of ``drawn_losses``; the lowest one is a validation loss if there is any.
    The models of groups are left out if there are models on all rows: their losses are on other rows.
    """
    on_all_rows = [point for point in points if point.group_number is None]
    left_out = (
        len({point.model for point in points}) - len({point.model for point in on_all_rows}) if on_all_rows else 0
    )
    points = on_all_rows or points
    name, losses_by_model = drawn_losses(points)
    curves = _finite(losses_by_model)
    if not curves:
        return "<p>No epoch is complete yet.</p>"
    configurations = {point.model: point.configuration for point in points}
    validated = _finite(_losses(points, "validation_loss"))
    ranked = sorted(curves, key=lambda model: min(loss for _, loss in validated.get(model) or curves[model]))
    last = max(epoch for curve in curves.values() for epoch, _ in curve)
    losses = [loss for curve in curves.values() for _, loss in curve]
    low, high = min(losses), max(losses)

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((epoch - 1) / (last - 1) if last > 1 else 0.5)

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * ((high - loss) / (high - low) if high > low else 0.5)

    parts = []
    for place in range(TICKS):
        loss = low + (high - low) * place / (TICKS - 1)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" opacity="0.15"/>')
        parts.append(_text(LEFT - 6, y(loss) + 4, drawing.number(loss), "end"))
    for epoch in sorted({1, *(round(1 + (last - 1) * place / (TICKS - 1)) for place in range(TICKS))}):
        parts.append(_text(x(epoch), HEIGHT - BOTTOM + 18, str(epoch), "middle"))
    for place, model in reversed(list(enumerate(ranked))):
        colour = COLOURS[place] if place < len(COLOURS) else OTHERS
        told = f"configuration {configurations[model]}, model {model}: {drawing.number(curves[model][-1][1])}"
        path = [(f"{x(epoch):.1f}", f"{y(loss):.1f}") for epoch, loss in sorted(curves[model])]
        line = f'<polyline points="{" ".join(map(",".join, path))}" fill="none"/>'
        if len(path) == 1:  # which is no line
            line += f'<circle cx="{path[0][0]}" cy="{path[0][1]}" r="3" fill="{colour}"/>'
        width = 1.5 if place else 3
        parts.append(f'<g stroke="{colour}" stroke-width="{width}"><title>{escape(told)}</title>{line}</g>')
    best = f"lowest{' validation loss' if validated and name == TRAINING else ''}: configuration"
    best += f" {configurations[ranked[0]]}"
    if left_out:
        best += f"; {left_out} models of groups are left out"
    parts.append(_text(LEFT, 16, f"{name} by epoch, {best}", "start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img"'
        f' aria-label="{name} by epoch" font-family="sans-serif" font-size="12" stroke="currentColor"'
        f' stroke-width="1" style="max-width:100%">{"".join(parts)}</svg>'
    )


def drawn_losses(points: Sequence[LearningCurvePoint]) -> tuple[str, dict[int, list[tuple[int, float]]]]:
    """The name of the loss to draw, and for each model its values by epoch.

    The validation loss, unless it was measured so seldom that no model has two values, while the training loss has.
    """
    training, validation = _losses(points, "training_loss"), _losses(points, "validation_loss")
    seldom = max(map(len, validation.values()), default=0) < 2 <= max(map(len, training.values()), default=0)
    return (TRAINING, training) if seldom or not validation else (VALIDATION, validation)


def _finite(curves: dict[int, list[tuple[int, float]]]) -> dict[int, list[tuple[int, float]]]:
    """The curves without what cannot be drawn."""
    known = {model: [(epoch, loss) for epoch, loss in curve if math.isfinite(loss)] for model, curve in curves.items()}
    return {model: curve for model, curve in known.items() if curve}


def _losses(points: Sequence[LearningCurvePoint], name: str) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for point in points:
        if (loss := getattr(point, name)) is not None:
            found.setdefault(point.model, []).append((point.epoch, loss))
    return found


def _text(x: float, y: float, text: str, anchor: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} fill="currentColor" stroke="none">{escape(text)}</text>'
