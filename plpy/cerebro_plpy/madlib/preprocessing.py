"""``training_preprocessor_dl`` and ``validation_preprocessor_dl``, as MADlib packs.

Numbers to predict are classes, NULL is a class, and inputs are float32.
"""

from __future__ import annotations

from typing import Any

from ..data import packing
from ..data.words import Words
from ..database.access import Database
from ..database.entry import entry

WORDS = Words(
    source="source_table",
    output="output_table",
    target="dependent_varname",
    inputs="independent_varname",
    packed_table="training_preprocessor_table",
    classes="num_classes",
    divide_by="The normalizing constant has to be a positive integer or NULL.",
)


@entry(called="training_preprocessor_dl error")
def madlib_training_preprocessor_dl(db: Database, *arguments: Any) -> None:
    packing.pack_training(db, *arguments, words=WORDS, madlib=True)


@entry(called="validation_preprocessor_dl error")
def madlib_validation_preprocessor_dl(db: Database, *arguments: Any) -> None:
    packing.pack_validation(db, *arguments, words=WORDS, madlib=True)
