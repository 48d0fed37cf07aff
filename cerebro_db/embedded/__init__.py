"""The private PostgreSQL cluster of ``cerebro up``, and the installation of the extension.

May import ``cerebro_db.core``. ``cerebro_db.client``, the Makefile and the tests use it. ``extension.py`` imports the
standard library only, because the Makefile runs it as a plain script.
"""
