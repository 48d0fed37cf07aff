"""Writes the measured blocks of the pages from docs/benchmarks.json: python -m tests.bench.page [RESULTS.json …]

Results that are given become docs/benchmarks.json first; they are files that `make bench` has written at one commit on
one machine.  A block stands between `<!-- bench NAME -->` and `<!-- end -->`, within a line or in lines of its own.  A
block whose work is not in the results stays as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.bench import (
    explaining,
    groups,
    growth,
    hops,
    many,
    mixed,
    report,
    search,
    sessions,
    shards,
    tabular,
    trainers,
)
from tests.bench.results import CLONE, Unfit, merged, repeats_of, write
from tests.bench.works import WORKS
from tests.sql.lab import Json

DOCS = CLONE / "docs"
RESULTS = DOCS / "benchmarks.json"
BLOCK = re.compile(r"<!-- bench (\S+) -->(.*?)<!-- end -->", re.DOTALL)
PRODUCT = "cerebro_db"  # the pages call ours by its name

OURS, AUTO, KERAS = "ours", "ours, auto", "(a) Keras"
LOOP, WITHOUT_HOPS, RAY = "(b2) bare loop, traced once", "(e) task-parallel", "(c) Ray Tune"

Block = Callable[[Json], str | None]


def pages() -> list[Path]:
    return [CLONE / "README.md", *sorted(DOCS.rglob("*.md"))]


def updated(text: str, results: Json) -> str:
    """A page with all its blocks as these results have them."""

    def replaced(found: re.Match[str]) -> str:
        name, old = found.groups()
        new = BLOCKS[name](results)
        if new is None:
            return found[0]
        around = "\n" if old.startswith("\n") else ""
        return f"<!-- bench {name} -->{around}{_named(new)}{around}<!-- end -->"

    return BLOCK.sub(replaced, text)


def _named(text: str) -> str:
    """The text with our name; another length of a cell leaves no column aligned, so tables are not."""
    return "\n".join(
        re.sub(r"-{2,}(:?)", r"---\1", re.sub(r" +", " ", line)) if line.startswith("|") else line
        for line in re.sub(r"\bours\b", PRODUCT, text).splitlines()
    )


# --- sentences -------------------------------------------------------------------------------------------


def ratio(results: Json, work: str, ours: str, other: str, what: str = "wall") -> str | None:
    """The median of how many times as long the other contender takes."""
    values = report.times(repeats_of(results, work), ours, other).get(what)
    return f"{median(values):.1f}" if values else None


def conditions(results: Json) -> str:
    """The machine, the versions and the commit."""
    machine, versions = results["machine"], results["versions"]
    gpus = f", {len(machine['gpus'])} × {machine['gpus'][0]}" if machine["gpus"] else ""
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{machine['processor']}, {machine['processors']} processors, {machine['memory'] / 2**30:.0f} GB of"
        f" memory{gpus}, Linux {machine['kernel']}; {named}. Commit {results['commit'][:10]}, {results['date']}."
    )


def headline(results: Json) -> str | None:
    """One sentence for docs/README.md."""
    plain, best = ratio(results, "W1", OURS, KERAS), ratio(results, "W1", f"{AUTO}, second call", KERAS)
    first, loop = ratio(results, "W1", f"{AUTO}, nothing kept", KERAS), ratio(results, "W1", OURS, LOOP)
    if not plain or not best or not first or not loop:
        return None
    return (
        f"16 configurations of a small MLP on 60,000 rows: a queue of plain Keras processes takes {plain} times as long"
        f" on the same machine, and {first} (very first call) to {best} times (second call of a session) as long as"
        f" `engine => auto`. A bare compiled TensorFlow loop without a database takes {loop} times as long"
    )


def summary(results: Json) -> str | None:
    """The most important results as a list."""
    lines = list(_summary(results))
    return "\n".join(f"- {line}" for line in lines) if lines else None


def _summary(results: Json) -> Iterator[str]:
    for work, what in (("W1", "sixteen small MLPs on 60,000 rows"), ("W2", "eight small CNNs")):
        called = {
            "with TensorFlow": OURS,
            "with `engine => auto` in its very first call": f"{AUTO}, nothing kept",
            "in a later session": AUTO,
            "in that session's second call": f"{AUTO}, second call",
        }
        found = {words: value for words, name in called.items() if (value := ratio(results, work, name, KERAS))}
        if found:
            several = ", ".join(f"{value} times {words}" for words, value in found.items())
            yield f"{work}, {what}. Plain Keras takes this many times as long as ours: {several}."
        loop = ratio(results, work, OURS, LOOP), ratio(results, work, OURS, LOOP, "without start")
        if all(loop):
            yield f"{work}: a bare TensorFlow loop takes {loop[0]} times as long as ours, {loop[1]} without the starts."
        ray = ratio(results, work, OURS, RAY)
        if ray:
            yield f"{work}: Ray Tune with the export takes {ray} times as long as ours."
    # The other way round: ours is the one that takes longer.
    first, second = (ratio(results, "W4", WITHOUT_HOPS, name) for name in (OURS, f"{OURS}, second call"))
    if first and second:
        yield (
            f"W4, models of 100 MB: ours takes {first} times as long as the same trainers without a database and hops,"
            f" {second} times in a second call."
        )
    delays = [one.more["milliseconds"] for one in report.of(repeats_of(results, "singles"), OURS)]
    if delays:
        yield f"One row from a new session is predicted in {median(delays):.0f} ms."


# --- tables ----------------------------------------------------------------------------------------------


def measured(work: str) -> Block:
    """The contenders of a work in one table, its times compared with those of our first contender."""

    def block(results: Json) -> str | None:
        repeats = repeats_of(results, work)
        return _captioned(results, work, _table(repeats), *_busy(repeats)) if repeats else None

    return block


def _table(repeats: report.Repeats) -> str:
    names = report.contenders(repeats)
    ours = next(name for name in names if name.startswith("ours"))
    qualities = {name: report.quality(report.of(repeats, name)) for name in names}
    known = [one for one in qualities.values() if one]
    head = ["", "wall s", "of it start", "CPU s", f"wall / {ours}", "without starts", "CPU", "memory MB", "disk MB"]
    rows = []
    for name in names:
        mine = report.of(repeats, name)
        times = report.times(repeats, ours, name)
        rows.append(
            [
                name,
                report.spread([one.taken.wall for one in mine], digits=1),
                report.spread([one.start for one in mine], digits=1),
                report.spread([one.taken.cpu for one in mine], digits=1),
                *("1" if name == ours else report.spread(values) for values in times.values()),
                f"{max(one.taken.memory for one in mine) / 2**20:,.0f}",
                f"{max(one.taken.disk for one in mine) / 2**20:,.0f}",
            ]
        )
        if known:
            reached = qualities[name]
            same = reached and report.same_work(reached, known)
            rows[-1] += [f"{reached[0]:.4f}", f"{reached[1]:.4f}", "yes" if same else "NO"] if reached else ["", "", ""]
    return report.table([*head, *(["median loss", "best accuracy", "same work"] if known else [])], rows)


def _busy(repeats: report.Repeats) -> Iterator[str]:
    shares = {
        name: [100 * report.busy(one) for one in report.of(repeats, name) if "profile" in one.more]
        for name in report.contenders(repeats)
    }
    told = [f"{name} {report.spread(values, ' %', 1)}" for name, values in shares.items() if values]
    if told:
        yield f"Segments are busy between the first and the last unit for: {'; '.join(told)}."


def made_by(work: str, table: Callable[[report.Repeats], str]) -> Block:
    def block(results: Json) -> str | None:
        repeats = repeats_of(results, work)
        return _captioned(results, work, table(repeats)) if repeats else None

    return block


def hop_costs(results: Json) -> str | None:
    found = {work.name: repeats_of(results, work.name) for work in WORKS["hops"]}
    tables = [
        f"States of {name.removeprefix('hops_').replace('_', ' ')}:\n\n{hops.table(repeats)}"
        for name, repeats in found.items()
        if repeats
    ]
    return _captioned(results, WORKS["hops"][0].name, *tables) if tables else None


def of_parts(part: str, table: Callable[[report.Repeats], str]) -> Block:
    """A table for each work of a part."""

    def block(results: Json) -> str | None:
        tables = [
            f"{work.about[0].upper()}{work.about[1:]}:\n\n{table(repeats)}"
            for work in WORKS[part]
            if (repeats := repeats_of(results, work.name))
        ]
        return _captioned(results, WORKS[part][0].name, *tables) if tables else None

    return block


def searches(work: str) -> Block:
    def block(results: Json) -> str | None:
        found = results["works"].get(work, {}).get("search")
        return _captioned(results, work, search.table(found)) if found else None

    return block


def growing(results: Json) -> str | None:
    figures = [(work, repeats) for work in WORKS["growth"] if (repeats := repeats_of(results, work.name))]
    if len(figures) < len(WORKS["growth"]):
        return None
    return _captioned(results, figures[0][0].name, growth.table(figures), growth.simulation_table(figures))


def scores(work: str) -> Block:
    def block(results: Json) -> str | None:
        found = results["works"].get(work)
        if not found:
            return None
        seeds = 1 + max(line["repeat"] for line in found["scores"])
        means = "One seed" if seeds == 1 else f"Means over {seeds} seeds"
        beside = f", beside {found['busy']} busy processes" if found.get("busy") else ""
        return f"{tabular.table(found['scores'])}\n\n{means}{beside}. Commit {results['commit'][:10]}."

    return block


def _captioned(results: Json, work: str, *parts: str) -> str:
    repeats = repeats_of(results, work)
    others = median(one.taken.others for repeat in repeats for one in repeat)
    count = "one repeat" if len(repeats) == 1 else f"{len(repeats)} repeats"
    caption = f"Commit {results['commit'][:10]}, {count}; other work kept {others:.2f} processors busy."
    return "\n\n".join([*filter(None, parts), caption])


BLOCKS: dict[str, Block] = {
    "conditions": conditions,
    "headline": headline,
    "summary": summary,
    **{work.name: measured(work.name) for name in ("W1", "W2", "W3", "W4", "W5", "gpu") for work in WORKS[name]},
    "packing": measured("packing"),
    "pack_mixed": measured("pack_mixed"),
    "pack_narrow": measured("pack_narrow"),
    "predict": made_by("predict", lambda repeats: f"{_table(repeats)}\n\n{report.rates(repeats)}"),
    "predict_mixed": made_by("predict_mixed", mixed.table),
    "explain": made_by("explain", explaining.table),
    "singles": made_by("singles", report.delays),
    "sessions": made_by("sessions", sessions.table),
    "trainers": made_by("trainers", trainers.table),
    "hops": hop_costs,
    "many": of_parts("many", many.table),
    "groups": of_parts("groups", groups.table),
    "shards": of_parts("shards", shards.table),
    **{work.name: searches(work.name) for work in WORKS["search"]},
    "growth": growing,
    **{work: scores(work) for work in tabular.WORKS},
}


# --- the command -----------------------------------------------------------------------------------------


def pictures(results: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """The pictures that the benchmark drew beside these files, and where the pages show them."""
    for file in results:
        for name, shown in (
            ("", "growth"),
            *((f"-{work.name}", work.name.replace("_", "-")) for work in WORKS["search"]),
        ):
            drawn = file.with_name(f"{file.stem}{name}.png")
            if drawn.exists():
                yield drawn, DOCS / f"{shown}.png"


def main(arguments: Sequence[str]) -> None:
    files = [Path(name) for name in arguments]
    if files:
        try:
            write(merged(files), RESULTS)
        except Unfit as unfit:
            sys.exit(f"bench page: {unfit}")
        for drawn, shown in pictures(files):
            shutil.copyfile(drawn, shown)
    if not RESULTS.exists():
        sys.exit(f"bench page: there is no {RESULTS}; name a file that `make bench` has written")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := updated(text, results)) != text:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(CLONE)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
