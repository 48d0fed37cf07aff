"""Writes install.json below /etc, for packages of the system: what the package says, and the administrator's settings.

python3 -I keep_settings.py SHAREDIR/cerebro_db/install.json /etc/cerebro-db/15.json
"""

import json
import os
import sys
from pathlib import Path

# docs/install.md documents them. Whatever else the file has is from an earlier release, or misspelt.
KEPT = ("keep_ready", "keep_compiled", "confine", "trainer_python")


def main(packaged: Path, kept: Path) -> None:
    new = json.loads(packaged.read_text(encoding="utf-8"))
    try:
        settings = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        unknown = ", ".join(sorted(settings.keys() - new.keys() - set(KEPT)))
        written = {**new, **{name: settings[name] for name in KEPT if name in settings}}
    except (AttributeError, ValueError) as error:
        sys.exit(f"cerebro_db: {kept} is no JSON object: {error}. Repair or remove it, and install the package again.")
    if unknown:
        print(f"cerebro_db: {kept} loses keys that are no settings: {unknown}", file=sys.stderr)
    kept.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = kept.with_name(kept.name + ".new")
    aside.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    aside.chmod(0o644)
    os.replace(aside, kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
