"""What errors about tables and models say, in the words of the functions that the user called."""

from __future__ import annotations


class ErrorWords:
    """Templates, with the names that they can use in braces: the words of the schema cerebro, unless a class below this
    one has others.
    """

    input_name = "{argument}"  # what a text is called that is no name
    no_input_name = "{argument} must not be NULL or empty."
    no_table = "{argument}: there is no table '{table}'."
    no_rows = "{argument}: '{table}' has no rows."
    no_column = "'{table}' has no column '{column}'."
    output_name = "{argument}"
    no_output_name = "{argument} must not be NULL or empty."
    taken = "'{table}' already exists."  # {bare}: as the user wrote it, or without its schema
    configuration = "configuration"  # the argument that names a model of a table
    no_companions = "model_table: '{table}' does not have its tables {info} and {summary}, or they lack columns."
    no_configuration = "'{table}' has no configuration {key}."
    only_model = "'{table}' has one model without a number, and configuration is {key}."
