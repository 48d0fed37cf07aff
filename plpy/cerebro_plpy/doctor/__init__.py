"""cerebro.doctor(): checks of the installation, from the roles to a trainer on every segment.

Only api.py may use it.
"""
