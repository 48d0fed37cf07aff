"""MADlib's deep-learning interface: which functions it has, what they are here, and their help texts."""
