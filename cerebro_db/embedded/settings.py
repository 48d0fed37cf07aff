"""The configuration files of the embedded cluster's server: pg_hba.conf, pg_ident.conf and cerebro.conf."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .files import SUPERUSER, Record

HBA = f"""\
# Made by cerebro. The first line lets worker sessions log in; see docs/architecture.md.
local  all  +cerebro_worker  scram-sha-256
local  all  {SUPERUSER}  peer map=cerebro
local  all  all  scram-sha-256
host   all  all  127.0.0.1/32  scram-sha-256
host   all  all  ::1/128  scram-sha-256
"""

# At the end of postgresql.conf: a setting that a person adds below this line overrides the one in cerebro.conf.
INCLUDE = """
# cerebro.conf has the settings of cerebro. Settings below the include override them.
include 'cerebro.conf'
"""


def ident(accounts: Iterable[str]) -> str:
    """pg_ident.conf: these system accounts may connect as the superuser."""
    return "".join(f'cerebro "{name}" {SUPERUSER}\n' for name in sorted(set(accounts)))


def cerebro_conf(record: Record, log: Path, major: int) -> str:
    """cerebro.conf. The record's own settings override the others."""
    settings = {
        "listen_addresses": record.listen,
        "port": str(record.port),
        "unix_socket_directories": record.socket,
        "password_encryption": "scram-sha-256",
        "shared_buffers": "256MB",
        "max_connections": "100",
        "max_wal_size": "4GB",
        "wal_compression": "on",
        "jit": "off",
        "logging_collector": "on",
        "log_directory": str(log),
        "log_filename": "postgresql-%a.log",
        "log_truncate_on_rotation": "on",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_line_prefix": "%m [%p] %q%u@%d ",
    }
    if major >= 14:
        # Without it the server notices that a fit's client is gone only when it sends the client a message.
        settings["client_connection_check_interval"] = "10s"
    settings.update(record.settings)
    quoted = {name: "'" + value.replace("'", "''") + "'" for name, value in settings.items()}
    lines = "".join(f"{name} = {value}\n" for name, value in quoted.items())
    return "# cerebro writes this file at each start. Put your own settings into postgresql.conf.\n" + lines
