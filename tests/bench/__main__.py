"""The command python -m tests.bench.  See docs/benchmarks.md."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tests.bench import (
    adapters,
    explaining,
    forecasts,
    gpu,
    groups,
    growth,
    hops,
    large,
    many,
    meter,
    mixed,
    other_work,
    postures,
    related,
    report,
    results,
    retrieval,
    reuse,
    rungs,
    search,
    sessions,
    several,
    shapes,
    shards,
    tabular,
    trainers,
)
from tests.bench.contenders import CONTENDERS
from tests.bench.database import Database, database, write_task
from tests.bench.stage import Contender, Skipped, Stage
from tests.bench.works import REUSE, WORKS, FrozenWork, GroupedWork, Work
from tests.sql.lab import Json

REDUCING = ("rows", "configurations", "epochs", "budget", "rivals")  # the options that make works smaller
OF_SETS = (
    *tabular.WORKS,
    "adapters",
    "retrieval",
    "related",
    "posture",
    "forecasts",
    "large",
)  # their data sets are no works
BY_NAME = {**{work.name: [work] for works in WORKS.values() for work in works}, **WORKS}
CONTENDERS_OF = {
    "packing": other_work.PACKING,
    "pack_mixed": mixed.PACKING,
    "pack_narrow": mixed.NARROW,
    "predict_mixed": mixed.PREDICTION,
    "explain": explaining.CONTENDERS,
    "predict": other_work.PREDICT,
    "singles": other_work.SINGLE,
    "sessions": sessions.CONTENDERS,
    "several": several.CONTENDERS,
    "W5": other_work.BOUNDED,
    "trainers": trainers.CONTENDERS,
    **{work.name: hops.CONTENDERS for work in WORKS["hops"]},
    **{work.name: many.CONTENDERS for work in WORKS["many"]},
    **{work.name: groups.CONTENDERS for work in WORKS["groups"]},
    **{work.name: gpu.CONTENDERS for work in WORKS["gpu"]},
    **{work.name: reuse.ARRIVING if work.cycles else reuse.CONTENDERS for work in REUSE},
    **{work.name: rungs.CONTENDERS for work in WORKS["rungs"]},
    **{work.name: shapes.CONTENDERS for work in WORKS["plan"]},
    **{work.name: search.CONTENDERS for work in WORKS["search"]},
    **{work.name: shards.CONTENDERS for work in WORKS["shards"]},
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare(stage: Stage, contenders: Sequence[Contender], repeats: int, record: TextIO) -> report.Repeats:
    """Let the contenders do the same work in turn, ``repeats`` times.  Another contender begins each time."""
    taking_part = list(contenders)
    measured: report.Repeats = []
    for number in range(repeats):
        measured.append([])
        first = number % len(taking_part)
        for contend in taking_part[first:] + taking_part[:first]:
            stage.settle()
            try:
                for one in contend(stage):
                    measured[-1].append(one)
                    say(f"{stage.work.name} {number + 1}/{repeats} {one.contender}: {one.taken.wall:.1f} s")
                    line = {"work": stage.work.name, "repeat": number, **dataclasses.asdict(one)}
                    print(json.dumps(line), file=record, flush=True)
            except Skipped as skipped:
                say(f"{stage.work.name}: {skipped}")
                taking_part.remove(contend)
    return measured


@contextlib.contextmanager
def staged(work: Work, database: Database) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        known = CONTENDERS_OF.get(work.name)
        if known in (mixed.PACKING, mixed.PREDICTION, mixed.NARROW):
            (mixed.make_narrow_tables if known is mixed.NARROW else mixed.make_table)(database, work.rows)
            (Path(folder) / "work.json").write_text(json.dumps({"configurations": [], "epochs": 0, "processes": 1}))
        elif isinstance(work, GroupedWork):
            groups.make_tables(database, work)
            groups.write_task(Path(folder), work, database.lab.dsn)
        elif isinstance(work, FrozenWork):
            reuse.prepare(database, work, Path(folder))
        elif known is not other_work.BOUNDED:  # Those contenders have a server of their own.
            database.work(work)
            write_task(Path(folder), work, database.lab.dsn)
        yield Stage(work, database, Path(folder))


def main(arguments: Sequence[str] | None = None) -> None:
    asked = read(arguments)
    # Any of these signals must also end the servers. The shell lets a background job ignore SIGINT.
    for ended in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ended, signal.default_int_handler)
    meter.adopt_orphans()
    asked.results.mkdir(parents=True, exist_ok=True)
    path = asked.results / time.strftime("%Y%m%d-%H%M%S.jsonl")
    with open(path, "w") as record, database() as served:
        reduced = {name: value for name in REDUCING if (value := getattr(asked, name))}
        found = results.begun(served.lab.value("SHOW server_version"), reduced)
        print(json.dumps(found), file=record, flush=True)
        growing: growth.Figures = []
        for work in asked.works:
            known = CONTENDERS_OF.get(work.name, CONTENDERS)
            named = asked.contenders or work.contenders or known
            with staged(work, served) as stage:
                repeats = compare(stage, [known[name] for name in named if name in known], asked.repeats, record)
            found["works"][work.name] = results.of_work(work, repeats)
            results.write(found, path.with_suffix(".json"))  # after each work, because later ones may take hours
            print(f"\n## {work.name}: {work.about}\n")
            tables = [*report.about(repeats), hops.table(repeats), many.table(repeats), trainers.table(repeats)]
            tables += [sessions.table(repeats), several.table(repeats), shards.table(repeats)]
            tables += [groups.table(repeats), mixed.table(repeats), search.table(search.figures(repeats))]
            tables += [rungs.table(repeats), shapes.table(repeats)]
            print("\n\n".join(filter(None, tables)), flush=True)
            if known is search.CONTENDERS:
                search.draw(work, repeats, path.with_name(f"{path.stem}-{work.name}.png"))
            if work.name in results.GROWING:
                growing.append((work, repeats))
        for name, work_of_sets in of_sets(served, asked, record).items():
            if name not in asked.of_sets:
                continue
            print(f"\n## {name}: {work_of_sets.about}\n")
            lines = work_of_sets.compare()
            print(work_of_sets.table(lines), flush=True)
            found["works"][name] = results.rounded({**work_of_sets.more, work_of_sets.key: lines})
            results.write(found, path.with_suffix(".json"))
        if len(growing) > 1:
            print(f"\n## growth\n\n{growth.table(growing)}\n\n{growth.simulation_table(growing)}")
            growth.draw(growing, path.with_suffix(".png"))
    say(f"the results are in {path.with_suffix('.json')}, and every measurement is in {path}")


class WorkOfSets(NamedTuple):
    """A work that has data sets of its own, and tells all its measurements in lines."""

    about: str
    compare: Callable[[], list[Json]]
    table: Callable[[list[Json]], str]
    key: str  # of the lines in the results
    more: Json = {}


def of_sets(served: Database, asked: argparse.Namespace, record: TextIO) -> dict[str, WorkOfSets]:
    names, rivals = asked.contenders, asked.rivals
    told: dict[str, Any] = {"record": record, "say": say}
    with_rivals: dict[str, Any] = {"budget": asked.budget, "repeats": asked.repeats, **told}
    return {
        **{
            name: WorkOfSets(
                "cerebro.train compared with other tools, on rows that are held out",
                partial(tabular.compared, served, name, names, rivals, processes=asked.busy, **with_rivals),
                tabular.table, "scores", {"busy": asked.busy},
            )
            for name in tabular.WORKS
        },
        "adapters": WorkOfSets(
            "low-rank products in a sentence encoder, on made-up texts that are held out",
            partial(
                adapters.compared, served, names, rows=asked.rows, epochs=asked.epochs,
                configurations=asked.configurations, **told,
            ),
            adapters.table, "measured",
        ),
        "retrieval": WorkOfSets(
            "functions of Python found by what is written about them",
            partial(retrieval.compared, served, names, epochs=asked.epochs, **told),
            retrieval.table, "measured",
        ),
        "related": WorkOfSets(
            "tables that are related, on rows that are later",
            partial(related.compared, served, names, rivals, rows=asked.rows, **with_rivals),
            related.table, "scores",
        ),
        "posture": WorkOfSets(
            "whether persons sit, of samples of an accelerometer",
            partial(postures.compared, served, names, rows=asked.rows, epochs=asked.epochs, **told),
            postures.table, "measured",
        ),
        "forecasts": WorkOfSets(
            "weighted quantile loss, and the part of the values in 0.9 intervals",
            partial(forecasts.compared, served, names, rivals, **with_rivals),
            forecasts.table, "scores",
        ),
        "large": WorkOfSets(
            "ten million rows and six minutes",
            partial(large.compared, served, names, rows=asked.rows, budget=asked.budget, **told),
            large.table, "measured",
        ),
    }  # fmt: skip


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="docs/benchmarks.md")
    names = list(dict.fromkeys([*CONTENDERS, *(name for known in CONTENDERS_OF.values() for name in known)]))
    sets = (*tabular.WORKS.values(), related.SETS, postures.SETS, postures.NAMES, forecasts.SETS, large.NAMES)
    names += [name for one in (*sets, adapters.NAMES, retrieval.NAMES) for name in one]
    works = [*WORKS, *OF_SETS]
    parser.add_argument("--works", type=chosen([*BY_NAME, *OF_SETS]), default=works, help=", ".join(works))
    parser.add_argument("--contenders", type=chosen(names), default=[], help=", ".join(names))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, help="of each work, to try something out")
    parser.add_argument("--configurations", type=int, help="the first so many of each work")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--budget", type=int, help="seconds for each data set of tables and related")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside the contenders of tables")
    parser.add_argument(
        "--rivals", type=chosen([*tabular.RIVALS, *related.NAMES, *forecasts.NAMES]), default=[],
        help=f"of tables: {', '.join(tabular.RIVALS)}; of related: {', '.join(related.NAMES)};"
        f" of forecasts: {', '.join(forecasts.NAMES)}",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, default=Path("build/bench"), help="a folder")
    asked = parser.parse_args(arguments)
    smaller: dict[str, Any] = {}
    if asked.rows:
        smaller.update(rows=asked.rows, validation_rows=max(10, asked.rows // 10))
    if asked.epochs:
        smaller.update(epochs=asked.epochs)
    asked.of_sets = [name for name in OF_SETS if name in asked.works]
    asked.works = [
        work.but(**smaller, configurations=work.configurations[: asked.configurations])
        for name in asked.works
        if name not in OF_SETS
        for work in BY_NAME[name]
    ]
    return asked


def chosen(known: Iterable[str]) -> Callable[[str], list[str]]:
    def read_names(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
        return names

    return read_names


if __name__ == "__main__":
    main()
