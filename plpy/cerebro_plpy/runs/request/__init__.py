"""What a user asks for: the arguments of the verbs, checked, and the tables that they name, read."""
