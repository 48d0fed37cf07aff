"""Where the rows of each group lie, and the folds of a small group.

Every group is on one segment, unless it has more rows than a segment's share.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

MOST_GROUPS = 100_000
MOST_COLUMNS = 32
MOST_MODELS = 51_000  # of a run with groups: its driver keeps all of them in memory
LONGEST_LABEL = 400  # bytes of all values of a group's columns
SLACK = 0.15  # of a segment's share: a group that is so much larger stays whole, because a hop costs more than waiting

Piece = tuple[int, int]  # number of the group, rows


def placed(sizes: Sequence[int], segments: int) -> list[list[Piece]]:
    """For each segment its pieces, in the order of the groups' numbers, which are the places in ``sizes`` from 1.

    A group has one piece, or several on different segments if it has more rows than a segment's share.  The largest
    pieces are placed first, each on the segment with the fewest rows.  The result has fewer segments than asked for
    where one would stay without rows.  Equal arguments give equal results.
    """
    while True:
        found = _placed(sizes, segments)
        filled = sum(bool(pieces) for pieces in found)
        if filled == segments:
            return found
        segments = filled


def _placed(sizes: Sequence[int], segments: int) -> list[list[Piece]]:
    total = sum(sizes)
    items = [
        (size, number) for number, group_rows in enumerate(sizes, 1) for size in _pieces(group_rows, total, segments)
    ]
    items.sort(key=lambda item: (-item[0], item[1]))
    found: list[list[Piece]] = [[] for _ in range(segments)]
    of_segment: list[set[int]] = [set() for _ in range(segments)]
    heap = [(0, segment) for segment in range(segments)]
    for size, number in items:
        passed = []
        while heap and number in of_segment[heap[0][1]]:
            passed.append(heapq.heappop(heap))
        rows, segment = heap[0]
        heapq.heapreplace(heap, (rows + size, segment))
        for one in passed:
            heapq.heappush(heap, one)
        found[segment].append((number, size))
        of_segment[segment].add(number)
    return [sorted(pieces) for pieces in found]


def _pieces(rows: int, total: int, segments: int) -> list[int]:
    """The sizes of a group's pieces.  A remainder that is small is spread over the others."""
    share = max(1, total // segments)
    whole, rest = divmod(rows, share)
    if not whole or rows <= (1 + SLACK) * share:
        return [rows]
    if rest > SLACK * share * whole and whole < segments:
        return [share] * whole + [rest]
    each, more = divmod(rows, min(whole, segments))
    return [each + (place < more) for place in range(min(whole, segments))]


def spread(wanted: Sequence[int], count: int) -> list[int]:
    """Different folds of 1 to ``count`` in rising order, each the one that is wanted or close to it."""
    found: list[int] = []
    for place, fold in enumerate(wanted):
        least, most = (found[-1] + 1 if found else 1), count - (len(wanted) - 1 - place)
        found.append(min(max(fold, least), most))
    return found
