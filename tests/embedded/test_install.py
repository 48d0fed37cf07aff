"""docker/install.sh: which builds of TensorFlow and JAX it has pip install.  Nothing is installed: pip is pretended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/bash
# Writes down what pip is asked for.
shift 2
case $1 in
  uninstall) echo "uninstall ${*: -1}" >>"$CEREBRO_HOME/asked" ;;
  install) [[ ${*: -2:1} != -r ]] || { echo "install ${*: -3:1}"; cat "${*: -1}"; } >>"$CEREBRO_HOME/asked" ;;
esac
"""

pytestmark = pytest.mark.skipif(
    not list(Path("/usr/share/postgresql").glob("*/extension/plpython3u.control")),
    reason="without Debian's PostgreSQL, install.sh would install it",
)


class Home:
    """The folder of an environment that is there already."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder, folder / "venv"
        self.packages = self.venv / "lib" / "python3.11" / "site-packages"
        self.packages.mkdir(parents=True)
        (self.venv / "bin").mkdir()
        (self.venv / "bin" / "python").write_text(PYTHON)
        (self.venv / "bin" / "python").chmod(0o755)
        (self.venv / ".python").write_text(f"{sys.version}\n")

    def install(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "CEREBRO_HOME": str(self.folder), "CEREBRO_PYTHON": sys.executable, **settings}
        return subprocess.run(
            [str(CLONE / "docker" / "install.sh"), "--no-link", *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )

    def asked(self) -> list[str]:
        """What pip was asked for since the last call."""
        log = self.folder / "asked"
        lines = [re.split(r" [;\\]", line)[0] for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def has(self, build: str | None) -> None:
        for other in self.packages.glob("tensorflow*"):
            other.rmdir()
        if build is not None:
            (self.packages / f"{build}-2.21.0.dist-info").mkdir()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def builds(asked: list[str]) -> list[str]:
    return [line.partition("==")[0] for line in asked if line.startswith(("tensorflow", "jax-cuda", "uninstall"))]


def test_builds_for_gpus_take_the_place_of_the_usual_one_and_stay(home: Home) -> None:
    done = home.install()
    assert done.returncode == 0, done.stderr
    asked = home.asked()
    assert builds(asked) == ["tensorflow-cpu"] and "install --require-hashes" in asked
    home.has("tensorflow_cpu")
    assert home.install().returncode == 0 and home.asked() == [], "nothing is missing"

    done = home.install("--gpu")
    assert done.returncode == 0, done.stderr
    asked = home.asked()
    assert builds(asked) == ["uninstall tensorflow_cpu", "jax-cuda12-pjrt", "jax-cuda12-plugin", "tensorflow"]
    assert sum(line.startswith("nvidia-") for line in asked) > 10 and "jax==0.10.2" in asked
    home.has("tensorflow")
    assert home.install().returncode == 0 and home.asked() == [], "later calls need no --gpu"
    (home.venv / ".requirements.txt").unlink()
    assert home.install().returncode == 0
    assert builds(home.asked()) == ["jax-cuda12-pjrt", "jax-cuda12-plugin", "tensorflow"]

    assert home.install("--tensorflow").returncode == 0
    assert builds(home.asked()) == ["uninstall tensorflow", "tensorflow-cpu"]
    home.has("tensorflow_cpu")
    assert home.install().returncode == 0 and home.asked() == [], "later calls need no --tensorflow"


def test_jax_alone_stays_until_tensorflow_is_wanted_again(home: Home) -> None:
    home.has("tensorflow_cpu")
    done = home.install("--jax-only")
    assert done.returncode == 0, done.stderr
    asked = home.asked()
    assert builds(asked) == ["uninstall tensorflow_cpu"] and "jax==0.10.2" in asked and "keras==3.15.1" in asked
    home.has(None)
    assert home.install().returncode == 0 and home.asked() == [], "later calls need no --jax-only"
    done = home.install(CEREBRO_TENSORFLOW="tensorflow==2.21.0")
    assert done.returncode == 1 and "exclude each other" in done.stderr
    assert home.install("--tensorflow").returncode == 0
    assert builds(home.asked()) == ["tensorflow-cpu"]
    done = home.install("--jax-only", "--gpu")
    assert done.returncode == 1 and "--jax-only and --gpu exclude each other" in done.stderr


def test_another_build_of_tensorflow(home: Home) -> None:
    home.has("tensorflow_cpu")
    assert home.install(CEREBRO_TENSORFLOW="tensorflow==2.21.0").returncode == 0
    asked = home.asked()
    assert builds(asked) == ["uninstall tensorflow_cpu", "tensorflow"] and "jax==0.10.2" in asked
    assert not any("hash" in line for line in asked), "pip wants hashes of all packages or of none"
    done = home.install("--gpu", CEREBRO_TENSORFLOW="tensorflow==2.21.0")
    assert done.returncode == 1 and "exclude each other" in done.stderr
    assert home.asked() == [] and not (home.folder / ".gpu").exists()


def test_a_processor_without_builds_for_gpus(home: Home) -> None:
    tools = home.folder / "tools"
    tools.mkdir()
    (tools / "uname").write_text("#!/bin/sh\necho aarch64\n")
    (tools / "uname").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = home.install("--gpu", PATH=path)
    assert done.returncode == 1 and "x86-64" in done.stderr and home.asked() == []
    assert home.install(PATH=path).returncode == 0, "without the argument all is as before"
    assert builds(home.asked()) == ["tensorflow-cpu"]


# --- another Python ------------------------------------------------------------------------------------------

SYSTEM_PYTHON = """#!/bin/bash
# An interpreter of another version.
[[ $* != *"sys.version_info[1]"* ]] || exit $((MINOR < ${*: -2:1} || MINOR > ${*: -1:1}))
exec /usr/bin/python3 "$@"
"""


def other_python(home: Home, minor: int) -> str:
    file = home.folder / f"python3.{minor}"
    file.write_text(SYSTEM_PYTHON.replace("MINOR", str(minor)))
    file.chmod(0o755)
    (home.venv / ".python").write_text(
        subprocess.check_output(["/usr/bin/python3", "-c", "import sys; print(sys.version)"], text=True)
    )
    return str(file)


def apt_with(home: Home, *versions: str) -> str:
    """A PATH on which apt has these versions of Python."""
    tools = home.folder / "apt"
    tools.mkdir()
    known = "|".join(f"python{version}-venv" for version in versions) or "none"
    (tools / "apt-cache").write_text(f"#!/bin/bash\ncase $2 in {known}) echo '  Candidate: 3.1' ;; esac\n")
    (tools / "apt-cache").chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def test_python_3_14_gets_jax_alone_and_a_way_to_tensorflow(home: Home) -> None:
    newest = other_python(home, 14)
    path = apt_with(home, "3.13", "3.14")
    done = home.install(CEREBRO_PYTHON=newest, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "no TensorFlow for Python 3.14 yet, so this environment gets JAX alone" in done.stderr
    assert "apt-get install python3.13 python3.13-venv" in done.stderr
    asked = home.asked()
    assert builds(asked) == [] and "jax==0.10.2" in asked
    assert not (home.folder / ".jax-only").exists(), "another Python gets TensorFlow"
    again = home.install(CEREBRO_PYTHON=newest, PATH=path)
    assert again.returncode == 0 and "JAX alone" not in again.stderr and home.asked() == []
    done = home.install("--tensorflow", CEREBRO_PYTHON=newest, PATH=path)
    assert done.returncode == 1 and "this environment (--tensorflow) needs Python 3.10 to 3.13" in done.stderr


def test_python_3_14_where_apt_has_no_other(home: Home) -> None:
    done = home.install(CEREBRO_PYTHON=other_python(home, 14), PATH=apt_with(home, "3.14"))
    assert done.returncode == 0, done.stderr
    assert "install Python 3.10 to 3.13, and set CEREBRO_PYTHON to its path; then run this again" in done.stderr


def test_python_3_10_runs_no_tests(home: Home) -> None:
    done = home.install("--dev", CEREBRO_PYTHON=other_python(home, 10))
    assert done.returncode == 1 and "needs Python 3.11 to 3.14" in done.stderr and home.asked() == []
    assert home.install(CEREBRO_PYTHON=other_python(home, 10)).returncode == 0


@pytest.mark.parametrize("minor", [9, 15])
def test_a_python_that_is_too_old_or_too_new(home: Home, minor: int) -> None:
    done = home.install(CEREBRO_PYTHON=other_python(home, minor))
    assert done.returncode == 1 and "needs Python 3.10 to 3.14" in done.stderr and home.asked() == []
