-- What is new in 0.3.0.

@api@
