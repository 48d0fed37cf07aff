"""Trained models outside the database: as Keras models, as files, and from one database to another."""
