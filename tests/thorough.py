"""How often the tests try what they try at random.

``CEREBRO_THOROUGH=5`` lets them try five times as often as at a landing, and runs the tests that are marked thorough.
Each try is made of a number, so a longer run begins with the tries of a shorter one.
"""

from __future__ import annotations

import os

TIMES = float(os.environ.get("CEREBRO_THOROUGH", "1"))


def tries(at_a_landing: int) -> int:
    return max(1, round(at_a_landing * TIMES))
