"""Columns of related tables, beside those of a model's own rows."""
