"""Before the first hop: trainers build every model once, and engines and fusion are chosen."""
