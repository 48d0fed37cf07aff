"""``training_preprocessor_dl`` and ``validation_preprocessor_dl``, as MADlib packs.

Numbers to predict are classes, NULL is a class, and inputs are float32.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.packing.packed_summary import VARNAMES
from cerebro_plpy.database.access import Database
from cerebro_plpy.packing import pack_plain
from cerebro_plpy.packing.pack_arguments import LikeArguments, PlainArguments
from cerebro_plpy.packing.rows.argument_names import ArgumentWords

from .entry import entry, require_output_name

WORDS = ArgumentWords(
    target="dependent_varname",
    inputs="independent_varname",
    packed_table="training_preprocessor_table",
    classes="num_classes",
    buffer_size="The buffer size has to be a positive integer or NULL.",
    divide_by="The normalizing constant has to be a positive integer or NULL.",
    please="Please ensure that table '{}' has been preprocessed using training_preprocessor_dl().",
)


@entry(called="training_preprocessor_dl error")
def madlib_training_preprocessor_dl(
    db: Database,
    *,
    dependent_varname: str | None,
    independent_varname: str | None,
    normalizing_const: float | None,
    num_classes: list[int | None] | None,
    **as_in_pack_plain: Any,
) -> None:
    given = PlainArguments(
        target=dependent_varname,
        inputs=independent_varname,
        divide_by=normalizing_const,
        classes=num_classes,
        **as_in_pack_plain,
    )
    require_output_name(given.output_table)
    pack_plain.pack_training(db, given, words=WORDS, form=VARNAMES)


@entry(called="validation_preprocessor_dl error")
def madlib_validation_preprocessor_dl(
    db: Database,
    *,
    dependent_varname: str | None,
    independent_varname: str | None,
    training_preprocessor_table: str | None,
    **as_in_pack_like: Any,
) -> None:
    given = LikeArguments(
        target=dependent_varname,
        inputs=independent_varname,
        packed_table=training_preprocessor_table,
        **as_in_pack_like,
    )
    require_output_name(given.output_table)
    pack_plain.pack_validation(db, given, words=WORDS, form=VARNAMES)
