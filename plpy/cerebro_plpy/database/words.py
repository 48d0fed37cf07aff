"""The texts of errors about tables and models, in the words of the function that the user called."""

from __future__ import annotations


class ErrorWords:
    """Templates with names in braces.  These are the texts of the schema cerebro; a subclass can have others."""

    input_name = "{argument}"  # what the argument is called if its value is not a name
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
