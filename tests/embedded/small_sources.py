"""The sources of an extension with one function. With them, only faults of the embedded cluster fail its tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from cerebro_db.embedded.extension import Sources

HELLO = """\
CREATE FUNCTION hello() RETURNS text LANGUAGE plpython3u AS $python$
@cerebro@
return api.hello()
$python$;
"""


def small_sources(top: Path) -> Sources:
    shutil.copy(Sources.find().control, top)
    for folder in ("sql", "migrations", "cerebro_plpy", "cerebro_db/core", "cerebro_db/nn"):
        (top / folder).mkdir(parents=True)
    shutil.copy(Sources.find().root / "sql" / "api" / "05_code.sql", top / "sql")
    (top / "sql" / "00_internal.sql").write_text("CREATE SCHEMA cerebro_internal;\n")
    (top / "sql" / "20_hello.sql").write_text(HELLO)
    (top / "sql" / "10_table.sql").write_text("CREATE TABLE first (i int);\n")
    (top / "cerebro_db" / "__init__.py").write_text("")
    (top / "cerebro_plpy" / "__init__.py").write_text("")
    (top / "cerebro_plpy" / "api.py").write_text(
        "import json, os\n"
        "def hello():\n"
        "    return json.dumps({'file': __file__, 'uid': os.getuid(), 'environment': sorted(os.environ)})\n"
    )
    return Sources(top, top / "cerebro_db", top / "cerebro_plpy")
