"""A real trainer process at the other end of two pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_db.core import wire

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "cerebro_db" / "nn" / "trainer_main.py"


class OrderFailed(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['message']}\n{error.get('detail', '')}")
        self.kind, self.message, self.detail = error["kind"], error["message"], error.get("detail")


class Gone(Exception):
    """The trainer ended without an answer."""


class Trainer:
    def __init__(self, folder: Path, *, confined: bool = False, **hello: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", str(MAIN), *([str(folder)] if confined else [])]
        home = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd="/", env=home if confined else None
        )
        self.decoder = wire.Decoder()
        self.waiting: list[dict[str, Any]] = []
        self.progress: list[dict[str, Any]] = []
        self._greeting = {"order": "hello", "engine": "tensorflow", "threads": 1, "deterministic": True, "gpu": None}
        self._greeting.update(hello)
        self.send(self._greeting)  # the answer is read later, so that two trainers can start at once
        self._hello: dict[str, Any] | None = None

    @property
    def hello(self) -> dict[str, Any]:
        if self._hello is None:
            self._hello = self.answer()
        return self._hello

    def send(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(wire.encode(order))

    def frame(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while not self.waiting:
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise Gone(self.process.wait(10))
            self.waiting += self.decoder.feed(piece)
        return self.waiting.pop(0)

    def answer(self) -> dict[str, Any]:
        while True:
            frame = self.frame()
            if "progress" in frame:
                self.progress.append(frame["progress"])
            elif "error" in frame:
                raise OrderFailed(frame["error"])
            else:
                return frame["ok"]

    def __call__(self, order: str, **arguments: Any) -> dict[str, Any]:
        assert self.hello
        self.send({"order": order, **arguments})
        return self.answer()

    def data(self, handle: str, layout: dict[str, Any], **arrays: np.ndarray) -> dict[str, Any]:
        files, rows = {}, 0
        for variable in layout["inputs"] + layout["outputs"]:
            name = variable["name"]
            if name in arrays:
                array = np.ascontiguousarray(arrays[name], variable["dtype"])
                files[name], rows = str(self.folder / f"{handle}.{name}"), len(array)
                array.tofile(files[name])
        return self("data", handle=handle, layout=layout, rows=rows, files=files)

    def train(
        self, configuration: dict[str, Any], handle: str, state: dict[str, Any] | None = None, **more: Any
    ) -> Any:
        functions = more.pop("functions", [])
        arguments = {"seed": 1, "shuffle_seed": 1, "out": str(self.folder / "out"), "hop": 0, **more}
        state = state or {"kind": "none"}
        member = {"configuration": configuration, "state": state, **arguments}
        answer = self("train", handle=handle, members=[member], functions=functions)
        (trained,) = answer["members"]
        return {**trained, "seconds": answer["seconds"]}

    def train_together(self, handle: str, *members: dict[str, Any]) -> list[dict[str, Any]]:
        usual = {"seed": 1, "shuffle_seed": 1, "state": {"kind": "none"}}
        told = [{**usual, "out": str(self.folder / f"out.{place}"), **m} for place, m in enumerate(members)]
        return self("train", handle=handle, members=told)["members"]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.stdout.close()


def full(state: dict[str, Any]) -> dict[str, Any]:
    """A train order's result as the state of the next one, wherever that one runs."""
    return {"kind": "full", "path": state["path"], "sha256": state["sha256"]}
