"""Recordings of accelerometers: files of ActiGraph become rows of a table, second by second and never as a whole."""
