"""W5 on a server of its own with bounded memory: python -m tests.bench.bounded FOLDER ROWS ENGINE [MB].

The conditions are those of a container.  /dev/shm has 64 MB, so the trainers' rows are files in the data folder.  A
memory control group contains the server's processes and their page cache.  Run it as root in a mount namespace of its
own (unshare --mount).  Without MB there is no bound, and all rows stay cached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import meter
from tests.bench.database import database
from tests.bench.works import W5

GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group whose processes may use this number of bytes, including page cache."""
    old = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if old else GROUPS) / f"cerebro-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()  # possible only after its processes have ended


def main() -> None:
    folder, work = Path(sys.argv[1]), W5.but(rows=int(sys.argv[2]))
    engine, bound = sys.argv[3], int(sys.argv[4]) << 20 if len(sys.argv) > 4 else None
    meter.adopt_orphans()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"], check=True)
    with contextlib.ExitStack() as opened:
        group = opened.enter_context(memory_group(bound)) if bound else None
        served = opened.enter_context(database({"shared_buffers": "128MB"}))
        served.work(work)
        served.lab("CHECKPOINT")
        if group:
            for pid in [served.server, *meter.descendants(served.server)]:
                (group / "cgroup.procs").write_text(str(pid))
        session = opened.enter_context(contextlib.closing(served.lab.connect()))
        with meter.Meter(served.server, served.folders, meter.memory(meter.descendants())) as measured:
            began = time.time()
            run = served.fit(work, session, "bench_output", {"seed": 1, "engine": engine})
            ended = time.time()
        fitted = served.fitted(run, "bench_output", began, ended)
        partitions = served.lab.value("SELECT layout FROM w5_packed_summary")["partitions"]
    found = {
        "taken": dataclasses.asdict(measured.taken),
        "start": fitted.start,
        "results": fitted.results,
        "more": {
            "profile": fitted.profile,
            "end": fitted.end,
            "partition_bytes": max(partition["bytes"] for partition in partitions),
            "memory_bound": bound,
        },
    }
    (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
