"""What packing finds in the columns of a table, and chooses to make of them."""
