"""The subcommands of ``cerebro``, by what they are about.  cli.py puts them together."""
