"""What runs inside a segment's session: its trainer processes, its cached rows, its states.

The driver reaches it only through SQL and core.protocol.  predicting/ also uses it in the caller's own session.
"""
