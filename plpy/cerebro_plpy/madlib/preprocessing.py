"""``training_preprocessor_dl`` and ``validation_preprocessor_dl``, as MADlib packs.

Numbers to predict are classes, NULL is a class, and inputs are float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..data import pack_plain
from ..data.pack_arguments import LikeArguments, PlainArguments
from ..data.words import ArgumentWords
from ..database.access import Database
from ..database.entry import entry

WORDS = ArgumentWords(
    target="dependent_varname",
    inputs="independent_varname",
    packed_table="training_preprocessor_table",
    classes="num_classes",
    buffer_size="The buffer size has to be a positive integer or NULL.",
    divide_by="The normalizing constant has to be a positive integer or NULL.",
)


@entry(called="training_preprocessor_dl error")
def madlib_training_preprocessor_dl(db: Database, *arguments: Any) -> None:
    *others, distribution_rules = arguments
    given = replace(PlainArguments(*others), distribution_rules=distribution_rules)
    pack_plain.pack_training(db, given, words=WORDS, madlib=True)


@entry(called="validation_preprocessor_dl error")
def madlib_validation_preprocessor_dl(db: Database, *arguments: Any) -> None:
    pack_plain.pack_validation(db, LikeArguments(*arguments), words=WORDS, madlib=True)
