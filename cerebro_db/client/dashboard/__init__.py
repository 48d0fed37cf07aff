"""``cerebro dashboard``: the runs and their reports in a browser, as they go on.

``server`` answers a browser on this machine, and ``pages`` makes what it answers: the list of the runs, and the page of
``cerebro report``.
"""
