"""What one JAX trainer has compiled, and the next one runs without tracing: the same bits, and never a stale file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cerebro_db.nn.engines.kept import Kept, read_whole, write_whole
from tests.nn import configurations as c
from tests.nn.test_fusion import SEVERAL, tensors
from tests.nn.test_graphs import CROSS, made, registered, trainer
from tests.nn.test_hops import CASES
from tests.nn.trainer_client import ROOT
from tests.thorough import TIMES

TRACED = "Finished tracing _batches"  # in JAX's log, once for each function that trains or evaluates
EXECUTABLES = """
import sys
from pathlib import Path
import jax, numpy as np
from cerebro_db.nn.engines.executables import Executables
from cerebro_db.nn.engines.kept import Kept

folder, traced = Path(sys.argv[1]), []
other = jax.numpy.arange(3.0)

def step(function):
    def called(fixed, carried):
        traced.append(function)
        return function(fixed, carried)
    return called

def run(name, function):
    executables = Executables(jax, Kept(folder, []))
    call = executables.executable([name], step(function), ([other], [other]), {})
    given = [jax.numpy.arange(3.0)]
    result = call([other], given)
    again = call([other], list(result))
    print(name, np.asarray(again[0]).tolist(), given[0].is_deleted() and result[0].is_deleted(), len(traced))
    traced.clear()

run("pure", lambda fixed, carried: [2 * carried[0]])
run("closes over a value", lambda fixed, carried: [carried[0] + other])
run("calls what closes over a value", lambda fixed, carried: [jax.jit(lambda value: value + other)(carried[0])])
run("has another form", lambda fixed, carried: (2 * carried[0],))
run("prints", lambda fixed, carried: [jax.debug.print("", ordered=True) or carried[0]])
"""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")


def executables(kept: Path) -> dict[Path, tuple[int, int]]:
    return {file: (file.stat().st_ino, file.stat().st_size) for file in (kept / "jax").iterdir()}


def outcomes(folder: Path, kept: Path, cases: Any) -> list[Any]:
    with trainer(folder, kept, "jax") as one:
        return [made(one, *case) for case in cases]


def test_the_next_trainer_traces_nothing_and_has_the_same_bits(tmp_path: Path, kept: Path, capfd: Any) -> None:
    cases = [case for name, case in CASES.items() if name in SEVERAL or TIMES >= 5]
    first, left = outcomes(tmp_path / "first", kept, cases), executables(kept)
    assert len(left) == capfd.readouterr().err.count(TRACED) >= 3 * len(cases)
    assert list(kept.glob("jax-1/*")) and not list(kept.glob("jax-1/*_batches*")), "JAX keeps the small programs only"
    assert outcomes(tmp_path / "second", kept, cases) == first
    assert capfd.readouterr().err.count(TRACED) == 0
    assert executables(kept) == left

    files = sorted(left)  # what cannot be used is written anew
    os.truncate(files[0], 0)
    os.truncate(files[1], left[files[1]][1] // 2)
    write_whole(files[2], b"what another version of XLA has written")
    assert outcomes(tmp_path / "third", kept, cases) == first
    assert capfd.readouterr().err.count(TRACED) == 3
    assert executables(kept).keys() == left.keys()
    assert all(len(read_whole(file) or b"") > 10_000 for file in files)


def test_fused_models(tmp_path: Path, kept: Path, capfd: Any) -> None:
    found = []
    for name in ("first", "second"):
        with trainer(tmp_path / name, kept, "jax") as one:
            members = [
                one.member(c.configuration(c.noisy_mlp(), CROSS, learning_rate=rate), seed=seed, out=seed)
                for seed, rate in ((1, 0.1), (2, 0.01), (3, 0.001))
            ]
            visits = one.train_fused("digits", *members)
            found.append([(visit.loss, visit.metrics, [each.tobytes() for each in tensors(visit)]) for visit in visits])
        assert bool(capfd.readouterr().err.count(TRACED)) == (name == "first")
    assert found[0] == found[1]


def test_a_full_disk_or_a_folder_that_cannot_be_made(tmp_path: Path, kept: Path, capfd: Any) -> None:
    configuration = c.configuration(c.mlp(), CROSS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "jax").touch()
    states = [outcomes(tmp_path / "first", tmp_path / "other", [(configuration, c.DIGITS)])]
    with trainer(tmp_path / "second", kept, "jax") as one:
        resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))  # enough for states
        states.append([made(one, configuration, c.DIGITS)])
    assert states[0] == states[1] and not executables(kept)


def test_a_registered_function_of_the_same_name_is_not_the_same(tmp_path: Path, kept: Path) -> None:
    configuration = c.configuration(c.mlp(), CROSS)
    configuration["compile"]["loss"] = "own_loss@1"
    losses = []
    for factor in (1, 3):
        with trainer(tmp_path / str(factor), kept, "jax") as one:
            losses.append(made(one, configuration, c.DIGITS, [registered(factor)])[1])
    assert losses[1] > 1.5 * losses[0]


def test_other_circumstances_have_other_files(tmp_path: Path) -> None:
    circumstances = [["keras 1", 1], ["keras 2", 1], ["keras 1", 2]]
    paths = {Kept(tmp_path, each).path("program", what) for each in circumstances for what in ("train", "evaluate")}
    assert len(paths) == 6
    assert Kept(tmp_path, circumstances[0]).path("program", "train") in paths
    assert Kept(None, circumstances[0]).path("program", "train") is None


def test_what_belongs_to_a_process_is_not_kept(tmp_path: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", EXECUTABLES, str(tmp_path / "jax")],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]  # fmt: skip
    outputs = [[line for line in lines if line] for lines in outputs]  # without what the function prints
    assert outputs[0] == [
        "pure [0.0, 4.0, 8.0] True 1",
        "closes over a value [0.0, 3.0, 6.0] True 1",
        "calls what closes over a value [0.0, 3.0, 6.0] True 1",
        "has another form [0.0, 4.0, 8.0] True 1",
        "prints [0.0, 1.0, 2.0] True 1",
    ]
    assert outputs[1] == [outputs[0][0].removesuffix("1") + "0", *outputs[0][1:]]
    assert len(list((tmp_path / "jax").iterdir())) == 1
