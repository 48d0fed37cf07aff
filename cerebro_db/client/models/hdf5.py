"""Checks an HDF5 file before Keras reads weights from it: nothing in it may lead out of the file, or be too large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ClientError, MissingPackage

MOST_OBJECTS = 100_000


def check(path: Path, most: int) -> None:
    """ClientError unless the file has only groups and datasets of its own, of ``most`` bytes in all."""
    try:
        import h5py
    except ImportError as error:
        raise MissingPackage(f"h5py cannot be imported: {error}.", "h5py") from error
    try:
        with h5py.File(path, "r") as file:
            _Checked(h5py, most).group(file)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClientError(f"The weights cannot be read as HDF5: {error}") from error


class _Checked:
    def __init__(self, h5py: Any, most: int) -> None:
        self.h5py = h5py
        self.left = most
        self.objects = 0
        self.seen: set[Any] = set()

    def group(self, root: Any) -> None:
        pending = [root]
        while pending:
            group = pending.pop()
            for name in group:
                self.objects += 1
                if self.objects > MOST_OBJECTS:
                    raise ClientError(f"The weights have more than {MOST_OBJECTS:,} objects.")
                if not isinstance(group.get(name, getlink=True), self.h5py.HardLink):
                    raise _refused(name, "is a link, which could lead to another file")
                one = group[name]
                address = self.h5py.h5o.get_info(one.id).addr
                if address in self.seen:
                    raise _refused(name, "is there twice")
                self.seen.add(address)
                if isinstance(one, self.h5py.Group):
                    pending.append(one)
                elif isinstance(one, self.h5py.Dataset):
                    self.dataset(name, one)
                else:
                    raise _refused(name, "is neither a group nor a dataset")

    def dataset(self, name: str, one: Any) -> None:
        if one.external:
            raise _refused(name, "has its data in another file")
        if one.is_virtual:
            raise _refused(name, "is virtual: its data are in other datasets")
        if one.dtype.kind not in "fiub":
            raise _refused(name, f"has the type {one.dtype}, which is no number")
        self.left -= one.nbytes
        if self.left < 0:
            raise _refused(name, f"of shape {list(one.shape)} has more bytes than the file")
        if one.id.get_create_plist().get_nfilters():
            raise _refused(name, "is compressed or filtered, which Keras does not do")


def _refused(name: str, why: str) -> ClientError:
    return ClientError(f"The weights are refused: {name[:80]!r} {why}.")
