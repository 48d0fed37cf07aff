"""Runs the statements of task pages in their order, on the tables that docs/prepare.md makes, and on iris."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from cerebro_db.embedded.cluster import IRIS
from tests.sql.lab import Lab
from tests.sql.pages import blocks, statements

Rows = list[tuple[Any, ...]]

BUDGET = "'2 seconds'"  # in place of the minutes of a page
RUN = re.compile(r"\b12\b")  # stands for the number of the run that a page starts


class Shown:
    """The rows that each statement returns, by the statement's text, and the run that a page calls 12."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.rows: dict[str, Rows] = {}
        self.runs: dict[str, int] = {}
        self.pages: list[str] = []
        for statement in [IRIS.read_text().replace("public.", ""), *statements(blocks("docs/prepare.md", "sql")[-1])]:
            lab(statement)

    def run(self, page: str) -> None:
        """Run all statements of a page, unless that is done; of prepare.md those that prepare: the tables are there."""
        if page in self.pages:
            return
        self.pages.append(page)
        of_page = blocks(f"docs/{page}.md", "sql")
        for statement in [one for block in of_page[: -1 if page == "prepare" else None] for one in statements(block)]:
            number = self.runs.get(page)
            assert statement not in self.rows, "two pages have this statement"
            numbered = statement if number is None else RUN.sub(str(number), statement)
            self.rows[statement] = self.lab(re.sub(r"'\d+ minutes'", BUDGET, numbered))
            if "wait => false" in statement:
                self.runs[page] = self.rows[statement][0][0]

    def of(self, part: str) -> list[Rows]:
        found = [rows for statement, rows in self.rows.items() if part in statement]
        assert found, f"no statement of the page has {part}"
        return found

    def without_rows(self) -> list[str]:
        """The queries that have returned nothing."""
        return [one for one, rows in self.rows.items() if one.startswith("SELECT") and not rows]

    def require_rows(self, pages: tuple[str, ...], page: str) -> None:
        """Run the page and those before it, whose tables it needs. Each of their queries has to return rows."""
        for one in pages[: pages.index(page) + 1]:
            self.run(one)
        assert self.without_rows() == []

    def statuses(self) -> dict[int, str]:
        """Of the runs that the pages have started."""
        known = dict(self.lab("SELECT run, status FROM runs WHERE model_table LIKE %s", f"{self.lab.schema}.%"))
        started = [rows[0][0] for part in ("cerebro.train(", "cerebro.fit(") for rows in self.of(part)]
        return {run: known.get(run, "forgotten") for run in started}


def earlier(pages: Iterable[str], parts: Iterable[str]) -> Iterator[str]:
    """The statements of earlier pages that have these parts, each once, with fewer epochs."""
    found = [one for page in pages for block in blocks(f"docs/{page}.md", "sql") for one in statements(block)]
    for part in parts:
        (statement,) = [one for one in found if part in one]
        yield re.sub(r"epochs => \d+", "epochs => 2", re.sub(r"'\d+ minutes'", BUDGET, statement))
