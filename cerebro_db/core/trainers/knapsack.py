"""What to keep where there is not room for everything: the choice with the greatest worth."""

from __future__ import annotations

from collections.abc import Sequence

MOST_EXACT = 16  # things of which the best choice is found; of more, a good one


def best(sizes: Sequence[float], worths: Sequence[float], room: float) -> set[int]:
    """The places of those things that fit into the room together and have the greatest worth together."""
    order = sorted(
        (place for place, size in enumerate(sizes) if size <= room),
        key=lambda place: worths[place] / max(sizes[place], 1e-9),
        reverse=True,
    )
    if len(order) > MOST_EXACT:  # and so not empty
        return _greedy(order, sizes, worths, room)
    found, found_worth = set[int](), -1.0

    def look(start: int, left: float, worth: float, chosen: set[int]) -> None:
        nonlocal found, found_worth
        if worth > found_worth:
            found, found_worth = chosen, worth
        for number in range(start, len(order)):
            if worth + sum(worths[place] for place in order[number:]) <= found_worth:
                return
            place = order[number]
            if sizes[place] <= left:
                look(number + 1, left - sizes[place], worth + worths[place], chosen | {place})

    look(0, room, 0.0, set())
    return found


def _greedy(order: Sequence[int], sizes: Sequence[float], worths: Sequence[float], room: float) -> set[int]:
    """The best ratios first, or the single most worthy thing: at least half of the greatest worth."""
    chosen, left = set[int](), room
    for place in order:
        if sizes[place] <= left:
            chosen.add(place)
            left -= sizes[place]
    most = max(order, key=lambda place: worths[place])
    return chosen if sum(worths[place] for place in chosen) >= worths[most] else {most}
