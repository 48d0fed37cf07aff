"""Search methods against their papers: each decision in the log of a simulated search is worked out anew.

The rules here are written from the papers, and share no code with the methods.  ``Seen`` has what was known at each
decision.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from simulated_search import Simulation
from test_search_methods import WIDE, search, stopping

from cerebro_db.core.search.policy import Decision, Verdict
from cerebro_db.core.search.spaces.space import Space

SEEDS = range(4)


def noisy(seed: int) -> Any:
    """Losses that cross each other: chance has a part in each epoch."""

    def loss(point: dict[str, Any], epochs: int) -> float:
        chance = random.Random(f"{seed}/{sorted(point.items())}/{epochs}").random()
        return abs(math.log10(point["learning_rate"]) + 2) + 3 * chance / epochs

    return loss


def finished(policy: Any, epochs: int, seed: int, **more: Any) -> Simulation:
    return Simulation(policy, noisy(seed), epochs, seed=seed, **more).run()


class Seen:
    """The epochs of a search in the order of their decisions."""

    def __init__(self, done: Simulation) -> None:
        self.done = done
        self.epochs: dict[int, list[float]] = defaultdict(list)  # of each model the scores so far
        self.stopped: set[int] = set()

    def __iter__(self) -> Iterator[tuple[Decision, float]]:
        for decision in self.done.decisions:
            if decision.model is None:
                continue
            score = self.done.history.score(decision.model, decision.epoch)
            assert score is not None
            self.epochs[decision.model].append(score)
            yield decision, score
            self.stopped -= set(decision.gone_on)
            if decision.verdict is Verdict.STOP:
                self.stopped.add(decision.model)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reduction", [2, 3])
def test_asha(reduction: int, seed: int) -> None:
    """Li et al. 2020, Algorithm 2: of a rung, the best floor(n / eta) that have not been promoted are promoted."""
    seen = Seen(finished(search("asha", 60, reduction=reduction), 9, seed))
    rungs = [reduction**place for place in range(9) if reduction**place < 9]
    reached: dict[int, dict[int, float]] = {rung: {} for rung in rungs}
    promoted: dict[int, set[int]] = {rung: set() for rung in rungs}
    decided = 0
    for decision, score in seen:
        if decision.epoch not in rungs:
            assert decision.verdict is Verdict.CONTINUE and not decision.gone_on
            continue
        rung = decision.epoch
        reached[rung][decision.model] = score
        best = sorted(reached[rung], key=lambda one: (reached[rung][one], one))
        size = len(best) // reduction
        if not size and all_have_come(seen, rung, decision, 60):
            size = 1  # else nobody would train to the end
        now = set(best[:size]) - promoted[rung]
        promoted[rung] |= now
        assert (decision.verdict is Verdict.CONTINUE) == (decision.model in now)
        assert set(decision.gone_on) == now - {decision.model}
        decided += 1
    assert decided > 60


def all_have_come(seen: Seen, rung: int, decision: Decision, configurations: int) -> bool:
    """Whether no model is left that could still reach the rung."""
    models = [one for one in seen.done.history.models if one in seen.epochs]
    waiting = seen.stopped - set(decision.gone_on)
    return len(models) == configurations and all(len(seen.epochs[one]) >= rung or one in waiting for one in models)


def successive_halving(seen: Seen, brackets: list[tuple[int, list[int]]], reduction: float) -> None:
    """Of n models of a bracket, the best floor(floor(n / eta^i) / eta) pass rung i, once all are there."""
    mine: dict[int, int] = {}
    for place, (size, _) in enumerate(brackets):
        mine.update(dict.fromkeys(range(len(mine) + 1, len(mine) + size + 1), place))
    there: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    expected: dict[tuple[int, int], int] = {}
    for place, (size, rungs) in enumerate(brackets):
        left = size
        for number, rung in enumerate(rungs):
            expected[place, rung] = left
            left = min(left, max(1, math.floor(math.floor(size / reduction**number + 1e-9) / reduction + 1e-9)))
    for decision, score in seen:
        place = mine[decision.model]
        size, rungs = brackets[place]
        if decision.epoch not in rungs:
            assert decision.verdict is Verdict.CONTINUE and not decision.gone_on
            continue
        number = rungs.index(decision.epoch)
        at = there[place, decision.epoch]
        at[decision.model] = score
        passes: set[int] = set()
        if len(at) == expected[place, decision.epoch]:
            count = max(1, math.floor(math.floor(size / reduction**number + 1e-9) / reduction + 1e-9))
            passes = set(sorted(at, key=lambda one: (at[one], one))[:count])
        assert (decision.verdict is Verdict.CONTINUE) == (decision.model in passes)
        assert set(decision.gone_on) == passes - {decision.model}
    assert {key: len(at) for key, at in there.items()} == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("size", "reduction", "rungs"), [(27, 3, [1, 3]), (23, 2, [1, 2, 4, 8]), (20, 1.5, [1, 2, 3, 4, 5, 8])]
)
def test_successive_halving(size: int, reduction: float, rungs: list[int], seed: int) -> None:
    policy = search("halving", 2 * size, 9, reduction=reduction, bracket=size)
    rungs = [one for one in rungs if one < 9]
    successive_halving(Seen(finished(policy, 9, seed)), [(size, rungs)] * 2, reduction)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("most", "reduction"), [(9, 3), (20, 3), (12, 2)])
def test_hyperband(most: int, reduction: int, seed: int) -> None:
    """Li et al. 2018, Algorithm 1, with R epochs; also where R is no power of eta."""
    brackets = []
    for s in range(int(math.log(most) / math.log(reduction) + 1e-9), -1, -1):
        s_max = int(math.log(most) / math.log(reduction) + 1e-9)
        size = math.ceil((s_max + 1) / (s + 1) * reduction**s - 1e-9)
        brackets.append((size, [round(most * reduction ** (i - s)) for i in range(s)]))
    policy = search("hyperband", sum(size for size, _ in brackets), most, reduction=reduction)
    successive_halving(Seen(finished(policy, most, seed)), brackets, reduction)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_median_rule(seed: int) -> None:
    """Golovin et al. 2017: it stops where the best so far is worse than the median of the others' running averages."""
    fixed = [{"learning_rate": 10 ** random.Random(f"{seed}/{place}").uniform(-4, 0)} for place in range(30)]
    seen = Seen(finished(stopping("median", 30, 12), 12, seed, fixed=fixed))
    stops = 0
    for decision, _ in seen:
        epoch, mine = decision.epoch, seen.epochs[decision.model]
        others = [
            statistics.fmean(scores[:epoch])
            for model, scores in seen.epochs.items()
            if model != decision.model and len(scores) >= epoch
        ]
        stop = len(others) >= 5 and epoch < 12 and min(mine) > statistics.median(others)
        assert (decision.verdict is Verdict.STOP) == stop
        stops += stop
    assert 3 < stops < 27


@pytest.mark.parametrize("seed", SEEDS)
def test_population_based_training(seed: int) -> None:
    """Jaderberg et al. 2017, by truncation: a copy of a model of the best quarter replaces one of the worst quarter.

    Each place of the population comes to each age once.  The losses fall, so only scores of one age can be compared.
    """
    done = finished(search("pbt", 16, 8, quantile=0.25), 8, seed)
    at: dict[int, list[float]] = defaultdict(list)  # age -> the scores of the places that have come so far
    age_of: dict[int, int] = defaultdict(int)  # of a copy when it begins
    replaced = spared = 0
    for decision, score in Seen(done):
        age = age_of[decision.model] + decision.epoch
        at[age].append(score)
        ranked = sorted(at[age])
        count = min(max(1, len(ranked) // 4), len(ranked) // 2)
        is_bad = score in ranked[len(ranked) - count :]
        if not decision.added:
            assert age == 8 or (decision.verdict is Verdict.CONTINUE)
            spared += is_bad and age < 8  # all of the best were replaced themselves, and have not trained since
            continue
        (child,) = decision.added
        assert is_bad and age < 8 and child.parent is not None and child.configuration is not None
        replaced, age_of[child.model] = replaced + 1, age
        mine = age - age_of[child.parent]
        if mine > 0:  # else the place was a model's that it has replaced, when it had this age
            assert done.history.score(child.parent, mine) in ranked[:count]
        old, new = done.points[child.parent]["learning_rate"], child.configuration.chosen["learning_rate"]
        assert round(max(old / new, new / old), 6) == 1.2 or new in (1e-4, 1.0)
    assert all(len(scores) == 16 for scores in at.values()) and len(at) == 8
    assert spared <= replaced


def test_regularized_evolution() -> None:
    """Real et al. 2019: the parent is the best of S that are drawn with replacement from the P youngest that ended.

    So of the P, ranked from the best, number r is the parent with the chance ((P - r + 1)^S - (P - r)^S) / P^S.
    """
    population, tournament, ranks = 8, 3, Counter[int]()
    for seed in range(6):
        policy = search("evolution", 90, 1, at_once=1, space=WIDE, population=population, tournament=tournament)
        policy.sampler.seed = seed  # type: ignore[attr-defined]
        done = Simulation(policy, noisy(seed), 1, segments=1, seed=seed).run()
        for model in range(population + 1, 91):
            youngest = range(model - population, model)
            child = done.points[model]
            parents = [one for one in youngest if differences(WIDE, child, done.points[one]) <= 1]
            assert parents, "a child differs from its parent in one value"
            if len(parents) == 1:  # else two of them differ from it in the same value
                ranked = sorted(youngest, key=lambda one: (done.history.score(one, 1), one))
                ranks[1 + ranked.index(parents[0])] += 1
    total = ranks.total()
    assert total > 250
    for rank in range(1, population + 1):
        chance = ((population - rank + 1) ** tournament - (population - rank) ** tournament) / population**tournament
        assert ranks[rank] / total == pytest.approx(chance, abs=3.5 * math.sqrt(chance * (1 - chance) / total) + 0.01)


def test_a_tournament_of_evolution_draws_with_replacement() -> None:
    """The worse of two is drawn twice in a quarter of all tournaments of two. Without replacement it never wins."""
    worse = known = 0
    for seed in range(4):
        policy = search("evolution", 80, 1, at_once=1, space=WIDE, population=2, tournament=2)
        policy.sampler.seed = seed  # type: ignore[attr-defined]
        done = Simulation(policy, noisy(seed), 1, segments=1, seed=seed).run()
        for model in range(3, 81):
            both = sorted((model - 2, model - 1), key=lambda one: done.history.score(one, 1) or 0.0)
            alike = [differences(WIDE, done.points[model], done.points[one]) <= 1 for one in both]
            assert any(alike), "a child differs from its parent in one value"
            if not all(alike):
                known, worse = known + 1, worse + alike[1]
    assert known > 60 and worse / known == pytest.approx(0.25, abs=3.5 * math.sqrt(0.25 * 0.75 / known))


def differences(space: Space, one: dict[str, Any], other: dict[str, Any]) -> int:
    return sum(one[name] != other[name] for name in one)


def test_random_points_are_independent_and_uniform() -> None:
    """Bergstra and Bengio 2012.  Tested by Kolmogorov and Smirnov's bound for 1 of 1,000."""
    count = 400
    done = Simulation(search("random", count, 1, space=WIDE), noisy(1), 1).run()
    points = [done.points[model] for model in sorted(done.points)]
    rates = [(math.log10(one["learning_rate"]) + 4) / 4 for one in points]
    momenta = [one["momentum"] / 0.99 for one in points]
    for values in (rates, momenta):
        ordered = sorted(values)
        off = max(
            max(abs(value - place / count), abs(value - (place + 1) / count)) for place, value in enumerate(ordered)
        )
        assert off < 1.95 / math.sqrt(count)
    for one, other in ((rates, momenta), (rates[1:], rates[:-1])):
        assert abs(statistics.correlation(one, other)) < 3.3 / math.sqrt(count)


def test_a_grid_is_the_product_of_its_values() -> None:
    from cerebro_db.core.search.spaces.read_space import read

    space = read(
        {
            "compile": {"loss": "mse", "learning_rate": {"log_uniform": [0.001, 0.1], "points": 3}},
            "fit": {"batch_size": {"choice": [8, 16]}},
        },
        {7: None},
    )
    done = Simulation(search("grid", None, space=space), noisy(1), 1).run()
    tried = [(round(one["learning_rate"], 9), one["batch_size"]) for one in done.points.values()]
    assert tried == list(itertools.product((0.001, 0.01, 0.1), (8, 16)))
