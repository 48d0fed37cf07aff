"""Throw-away clusters for tests and benchmarks: each in a temporary folder, with this clone's extension."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import extension
from .cluster import Cluster
from .errors import ClusterError
from .files import DATABASE

# Nobody needs the data after a crash of the machine.
QUICK = {"fsync": "off", "shared_buffers": "128MB", "max_wal_size": "1GB"}


def create(
    trainer_python: str | None = None,
    settings: Mapping[str, str] | None = None,
    sources: extension.Sources | None = None,
) -> Cluster:
    """A running cluster in a temporary folder. ``remove`` removes it."""
    # For root below /tmp itself: the server's account cannot enter a private TMPDIR.
    base = Path(tempfile.mkdtemp(prefix=f"cerebro-{secrets.token_hex(2)}-", dir="/tmp" if os.geteuid() == 0 else None))
    base.chmod(0o755)
    cluster = Cluster("test", at=base)
    try:
        cluster.up(trainer_python=trainer_python, settings={**QUICK, **(settings or {})}, sources=sources)
        with contextlib.closing(cluster.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE {DATABASE} SET search_path = "$user", public, cerebro')
    except BaseException:
        remove(cluster)
        raise
    return cluster


def remove(cluster: Cluster) -> None:
    """Stops and removes a cluster that ``create`` made."""
    with contextlib.suppress(ClusterError):
        cluster.destroy()
    shutil.rmtree(cluster.home, ignore_errors=True)
