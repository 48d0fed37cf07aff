"""Sessions that the server opens to itself: logins, the worker sessions of a call, and the limits that hold for them.

runs/, predicting/ and doctor/ work through them.
"""
