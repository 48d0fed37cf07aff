"""The entry of MADlib's functions: errors about tables and models have MADlib's texts."""

from __future__ import annotations

import re
from functools import partial

from cerebro_db.core.errors import InvalidName
from cerebro_db.core.names import Name
from cerebro_plpy.database import relations
from cerebro_plpy.database.access import Database
from cerebro_plpy.database.entry import entry as plain_entry
from cerebro_plpy.database.words import ErrorWords


class MadlibWords(ErrorWords):
    input_name = "input table name"
    no_input_name = "NULL/empty input table name!"
    no_table = "Input table '{table}' does not exist."
    no_rows = "Input table '{table}' is empty!"
    no_column = "invalid column name ('{column}') for table ({table})."
    output_name = "output table name"
    no_output_name = "NULL/empty output table name!"
    taken = "Output table '{bare}' already exists.\n            Drop it before calling the function."
    configuration = "mst_key"
    no_companions = "Missing summary and/or info tables for {table}"
    no_configuration = "mst_key {key} does not exist in the info table"
    only_model = "Single model should not pass mst_key"


entry = partial(plain_entry, words=MadlibWords)


def new_table(db: Database, text: str | None, endings: tuple[str, ...] = (), *, argument: str = "output_table") -> Name:
    """As ``relations.new``, with MADlib's text for a wrong name."""
    require_output_name(text)
    return relations.new(db, text, endings, argument=argument)


def require_output_name(text: str | None) -> None:
    given = (text or "").strip()
    if given and not re.match(r'[^\W\d]|"', given):
        raise InvalidName(
            f"Invalid output table name {given}",
            hint="A name begins with a letter or an underscore; others need double quotes.",
        )
