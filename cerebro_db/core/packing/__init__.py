"""What packing makes of columns and rows, and the documents that record it."""
