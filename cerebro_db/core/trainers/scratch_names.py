"""The names of scratch folders, which say whose they are: of a process, by its number and when it started."""

from __future__ import annotations

KEPT = "kept-"


def folder(pid: int, start: str) -> str:
    """Of a session."""
    return f"{pid}-{start}"


def kept_folder(pid: int, start: str, number: int) -> str:
    """Of a trainer that a nursery keeps without a session."""
    return f"{KEPT}{pid}-{start}-{number}"


def owner(name: str) -> tuple[int, str] | None:
    """The number of the process that has a folder of this name, and when it started."""
    pid, _, start = name.removeprefix(KEPT).partition("-")
    return (int(pid), start.partition("-")[0]) if pid.isdigit() else None
