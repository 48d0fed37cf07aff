"""A machine whose GPU no framework finds: a server in a mount namespace of its own, where /dev has a file nvidia0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.throw_away

CLONE = Path(__file__).resolve().parents[3]
DEVICES = r"""
set -e
dev=$1; shift
mount -t tmpfs none "$dev"
for name in null zero full random urandom tty; do touch "$dev/$name"; mount --bind "/dev/$name" "$dev/$name"; done
mkdir "$dev/shm"; mount --bind /dev/shm "$dev/shm"
ln -s /proc/self/fd "$dev/fd"
touch "$dev/nvidia0"
mount --rbind "$dev" /dev
exec "$@"
"""
CALLS = r"""
import json, sys
import psycopg2
from cerebro_db.embedded import throw_away
from tests.sql.lab import CROSS, Lab, flower_model

cluster = throw_away.create(sys.executable)
answers = {}
try:
    lab = Lab(cluster.dsn(), "g", cluster.home)
    lab("CREATE SCHEMA g")
    lab.iris(2)
    model = lab.architecture(flower_model())
    fit = "batch_size=8, epochs=1"
    lab.selection("mst", [(model, f"optimizer='Adam(learning_rate={rate})', {CROSS}", fit) for rate in (0.1, 0.03)])
    answers["doctor"] = lab("SELECT component, check_name, status, found, advice FROM cerebro.doctor(2)")
    lab.fit("train", "plain", "mst", 1)
    before = lab.tables()

    def refused(name, statement, *values):
        try:
            lab(statement, *values)
            answers[name] = None
        except psycopg2.Error as error:
            diagnosis = error.diag
            answers[name] = [error.pgcode, diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint]

    for engine in ("tensorflow", "jax", "auto"):
        options = json.dumps({"engine": engine})
        fit = "SELECT fit('train', %s, 'mst', epochs => 1, use_gpus => true, options => %s)"
        refused(engine, fit, f"by_{engine}", options)
    refused("evaluate", "SELECT madlib_keras_evaluate('plain', 'val', 'evaluated', true, 1)")
    refused("predict",
            "SELECT madlib_keras_predict('plain', 'garden', 'id', 'sl, sw, pl, pw', 'told', 'prob', true, 1)")
    answers["made"] = sorted(lab.tables() - before)
    answers["runs"] = lab("SELECT status FROM runs ORDER BY run")
    lab.fit("train", "afterwards", "mst", 1)
    lab.close()
finally:
    throw_away.remove(cluster)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("no mount namespace may be made here")
    command = ["unshare", "--mount", "bash", "-c", DEVICES, "-", str(tmp_path_factory.mktemp("dev"))]
    done = subprocess.run(
        [*command, sys.executable, "-c", CALLS],
        cwd=CLONE,
        env={**os.environ, "PYTHONPATH": f"{CLONE}:{CLONE / 'plpy'}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.no_gpu
@pytest.mark.tensorflow
@pytest.mark.parametrize("call", ["tensorflow", "jax", "auto", "evaluate", "predict"])
def test_what_should_be_on_a_gpu_is_refused(answers: dict[str, Any], call: str) -> None:
    state, message, detail, hint = answers[call]
    framework = "JAX" if call == "jax" else "TensorFlow"
    assert state == "0A000" and f"{framework} " in message and "finds no GPU" in message
    assert "nvidia-modprobe" in detail
    assert "docker/install.sh --gpu" in hint and "use_gpus => false" in hint


@pytest.mark.no_gpu
@pytest.mark.tensorflow
def test_nothing_is_left(answers: dict[str, Any]) -> None:
    assert answers["made"] == []
    assert answers["runs"] == [["finished"], ["failed"], ["failed"], ["failed"]]


def test_the_doctor_warns_and_looks_at_processors(answers: dict[str, Any]) -> None:
    found = {(place, check): rest for place, check, *rest in answers["doctor"]}
    assert [what for what, (status, *_) in found.items() if status == "problem"] == []
    for segment in ("segment 0", "segment 1"):
        assert found[segment, "trainer"][0] == "ok"
        status, text, advice = found[segment, "devices"]
        assert status == "warning" and "CPU" in text and "finds no GPU" in text and "nvidia-modprobe" in text
        assert "docs/install.md#no-gpu-is-found" in advice
