"""The names of the arguments that packing's errors name, in the function that the user called."""

from __future__ import annotations

from cerebro_db.core.records import dataclass

PLEASE = "Please ensure that table '{}' has been packed with cerebro.pack() or cerebro.pack_plain()."


@dataclass(frozen=True)
class ArgumentWords:
    """By default those of the functions of the schema cerebro."""

    target: str = "target"
    inputs: str = "inputs"
    packed_table: str = "packed_table"
    classes: str = "classes"
    buffer_size: str = "buffer_size must be at least 1, or NULL."  # what is wrong with another number
    divide_by: str = "divide_by must be a positive number, or NULL."  # the same
    please: str = PLEASE  # if packed_table has no summary


NATURAL = ArgumentWords()
