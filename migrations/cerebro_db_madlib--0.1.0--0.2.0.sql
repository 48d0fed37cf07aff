-- What is new in 0.2.0.

@api@
