"""The loop of a run: what happens next, who asks for it, and where it is trained."""
