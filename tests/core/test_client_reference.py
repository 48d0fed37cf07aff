"""What the reference pages need no database for: the client, the command line, the layers, and the pictures."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest

from cerebro_db import client
from cerebro_db.core.architecture import tables
from tests import client_reference, pictures, reference


def test_every_method_has_a_place_and_a_docstring() -> None:
    listed = [name for names in client_reference.METHODS.values() for name in names]
    assert sorted(listed) == sorted(client_reference.public(client.Cerebro))
    for kind in (client.Cerebro, client.RunHandle):
        found = client_reference.public(kind)
        assert [name for name, one in found.items() if not client_reference.docstring(one)] == []


def test_every_public_name_is_on_the_page() -> None:
    page = client_reference.python_page()
    assert [name for name in client.__all__ if f"`{name}`" not in page and f".{name}(" not in page
            and f"## {name}" not in page and f"-> {name}" not in page] == []  # fmt: skip


def test_every_layer_is_on_the_page() -> None:
    page = reference.layers_page()
    assert [name for name in tables.LAYERS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", ["python.md", "commands.md", "layers.md"])
def test_the_pages_are_up_to_date(name: str) -> None:
    made = {**client_reference.pages(), "layers.md": reference.layers_page()}
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == made[name], "make reference writes it again"


def test_the_arguments_of_the_client_are_those_of_the_table() -> None:
    module = client_reference.ARGUMENTS.read_text(encoding="utf-8")
    assert module == client_reference.with_arguments(module), "make reference writes them again"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_pictures_are_up_to_date(name: str) -> None:
    drawn = pictures.PICTURES[name]()
    assert (pictures.FOLDER / name).read_text(encoding="utf-8") == drawn, "make reference draws it again"


def test_there_are_no_other_pictures() -> None:
    assert {file.name for file in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)


@pytest.mark.parametrize("draw", pictures.PICTURES.values(), ids=pictures.PICTURES)
def test_texts_end_within_their_picture(draw: Callable[[], str]) -> None:
    """By the width of DejaVu Sans, the widest of the fonts that are named."""
    svg = draw()
    width = int(re.search(r'width="(\d+)"', svg)[1])
    texts = re.findall(r'<text x="([\d.]+)".*?text-anchor="start".*?>(.*?)</text>', svg)
    assert texts and [text for x, text in texts if float(x) + 7.3 * len(html.unescape(text)) > width] == []
