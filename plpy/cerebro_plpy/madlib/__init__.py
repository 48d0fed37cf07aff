"""MADlib's face: its functions, argument forms, tables and texts, made of what the other folders do."""
