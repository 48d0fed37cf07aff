"""The SQL that reads the rows of a table as a model does, for packing and for predicting."""
