"""Synthetic persons who sit, stand and walk, and what an accelerometer at the hip measures of them once a second.

Postures are a semi-Markov process: the lengths of bouts have heavy tails, and the next posture depends on the last one.
A person is sure to be told apart in no single second: the hip of some sits as upright as that of others stands, the
device slips, people fidget on their chairs, and stand still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter  # type: ignore[import-untyped]

SIT, STAND, WALK = range(3)
MEDIANS = (480.0, 70.0, 45.0)  # seconds of a bout
TAILS = (1.2, 1.0, 0.9)  # deviations of the logarithm
NEXT = ((0.0, 0.75, 0.25), (0.45, 0.0, 0.55), (0.35, 0.65, 0.0))
LEAST, MOST = 12, 3 * 3600  # seconds of a bout
DAY = 86_400
STEP = 10  # seconds, of which each day and each pause is a multiple


@dataclass(frozen=True)
class Recording:
    """What is there of a person: seconds since the beginning of the first day, with gaps where nothing is recorded."""

    seconds: np.ndarray
    axes: np.ndarray  # g, (seconds, 3): to the side, upwards, forward
    sits: np.ndarray
    worn: np.ndarray


def recording(number: int, days: int) -> Recording:
    chance = np.random.default_rng([73, number])
    parts = [_day(chance, day, *_habits(chance)) for day in range(days)]
    return Recording(*(np.concatenate([getattr(one, name) for one in parts]) for name in Recording.__annotations__))


def _habits(chance: np.random.Generator) -> tuple[float, float]:
    """How far the hip leans back (radians) while a person sits, and how the device is worn that day."""
    return np.radians(chance.normal(28, 9)), np.radians(chance.normal(0, 9))


def _day(chance: np.random.Generator, day: int, leans: float, slipped: float) -> Recording:
    """The device is recording from morning to night, and lies on a table for an hour or two of it."""
    begin, end = _steps(chance.uniform(6.5, 8.5) * 3600), _steps(chance.uniform(21.5, 23.5) * 3600)
    total = end - begin
    postures, bouts = _postures(chance, total)
    angles = np.array([leans, 0.0, 0.0])[postures] + slipped
    of_bout = chance.normal(0, np.radians([11, 5, 3])[postures[bouts]])
    angles = angles + of_bout[np.searchsorted(bouts, np.arange(total), side="right") - 1]
    drift = lfilter([1], [1, -0.98], chance.normal(0, np.radians(0.8), total))
    angles = angles + drift
    side = np.radians(chance.normal(0, 6)) + lfilter([1], [1, -0.98], chance.normal(0, np.radians(0.6), total))
    moves = _movement(chance, postures, bouts, total)
    axes = np.stack([np.sin(side), np.cos(angles) * np.cos(side), np.sin(angles) * np.cos(side)], axis=1)
    axes = axes + chance.normal(size=(total, 3)) * moves[:, None]
    worn = np.ones(total, bool)
    off, length = _steps(chance.uniform(0.1, 0.8) * total), _steps(chance.uniform(1, 2) * 3600)
    worn[off : off + length] = False
    axes[off : off + length] = [0.01, 0.02, 1.0] + chance.normal(0, 0.003, axes[off : off + length].shape)
    return Recording(day * DAY + begin + np.arange(total), axes.astype("f4"), postures == SIT, worn)


def _steps(seconds: float) -> int:
    return int(seconds) // STEP * STEP


def _postures(chance: np.random.Generator, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each second; and where bouts begin."""
    found, begins, reached, posture = [], [], 0, SIT
    while reached < total:
        drawn = np.exp(np.log(MEDIANS[posture]) + TAILS[posture] * chance.normal())
        length = int(np.clip(drawn, LEAST, MOST))
        begins.append(reached)
        found.append(np.full(length, posture))
        reached += length
        posture = int(chance.choice(3, p=NEXT[posture]))
    return np.concatenate(found)[:total], np.array(begins)


def _movement(chance: np.random.Generator, postures: np.ndarray, bouts: np.ndarray, total: int) -> np.ndarray:
    """The deviation (g) of each second: of the posture, of fidgeting, and of getting up and sitting down."""
    moves = np.array([0.015, 0.025, 0.22])[postures] * np.exp(chance.normal(0, 0.4, total))
    fidgets = lfilter(np.ones(6), [1], chance.random(total) < 1 / 240) > 0
    moves = np.where(fidgets & (postures != WALK), 0.12, moves)
    for begin in bouts[1:]:
        if (postures[begin - 1] == SIT) != (postures[begin] == SIT):
            moves[max(0, begin - 1) : begin + 2] += 0.15
    return moves
