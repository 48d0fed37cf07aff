"""The statements of docs/retrieval.md, run as printed: two towers find what was asked for in other words."""

from __future__ import annotations

import re

from cerebro_db.client import Cerebro
from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements

PAGE = "docs/retrieval.md"
POPULAR = 10 / 160  # recall of ten items that chance, or how often they are asked for, names


def test_what_was_not_seen_is_found(lab: Lab) -> None:
    import keras

    (code,) = blocks(PAGE, "py")
    goods, pairs, find, index = blocks(PAGE, "sql")
    lab("SELECT setseed(0.5)")
    for block in (goods, pairs):
        for one in statements(block):
            lab(one)
    with Cerebro(lab.db) as cerebro:
        try:
            exec(code, {"cerebro": cerebro, "keras": keras})
        finally:
            cerebro.drop_architecture("two_towers")
    *made, recall = statements(find)
    for one in made:
        lab(one)
    assert lab("SELECT count(*) FROM query_vectors") == [(32,)]
    assert lab.value(recall) > 8 * POPULAR
    product = "(SELECT sum(a * b) FROM unnest(i.vector, %s::real[]) AS u (a, b))"
    near = f"SELECT i.id FROM item_vectors i ORDER BY {product} DESC"
    (asked,) = re.findall(r"SELECT vector::vector (FROM cerebro.embed\(.*?'query_vector'\))", index, re.DOTALL)
    ((vector,),) = lab(f"SELECT vector {asked}")
    first = lab(f"SELECT item FROM goods WHERE id IN ({near} LIMIT 3)", vector)
    if not lab("SELECT 1 FROM pg_available_extensions WHERE name = 'vector' AND default_version >= '0.5'"):
        return  # what the index finds is what comparing all finds
    lab("CREATE EXTENSION IF NOT EXISTS vector")
    try:
        *changes, query = statements(index)
        for one in changes:
            lab(one)
        assert sorted(lab(query)) == sorted(first)
    finally:
        lab("SET client_min_messages = warning; DROP EXTENSION vector CASCADE")
