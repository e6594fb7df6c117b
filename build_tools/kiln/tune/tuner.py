"""Which candidates are tried, and which of them go before the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kiln.config import Target
from kiln.lower.pipeline import machine_of
from kiln.tir.tuning_records import RULES, Choice
from kiln.tune.candidates import first_round, second_round
from kiln.tune.measure import MILLISECONDS, Bench, Timed
from kiln.tune.subject import Subject

CONFIRM = 250  # milliseconds of each candidate, when what beat the rules has to do so once more
BATCH = 6  # keys whose candidates are one program


@dataclass
class Tuner:
    """Tries candidates on a bench."""

    bench: Bench
    target: Target
    threads: str
    packed: bool = True  # whether weights may be packed in another way: not where buckets share them
    _rules: dict[str, Choice] = field(default_factory=dict)  # the rules' own decision, spelt out

    def tuned(self, keys: Iterable[str]) -> dict[str, Timed]:
        """For each key what is to be used, with its ratio to the rules; prints a line for each.

        Three rounds: the methods; variants of the fastest; and once more what beat the rules, for the best
        of many is partly luck. What is left must compute what the rules compute.
        """
        found: dict[str, Timed] = {}
        remaining = list(keys)
        while remaining:
            batch, remaining = remaining[:BATCH], remaining[BATCH:]
            for key, (one, rules) in self._batch(batch).items():
                text = one.subject.choice.describe() or "as the rules say"
                print(f"{key}: {rules.us:.0f} → {one.us:.0f} us, {text}", flush=True)
                found[key] = one
        return found

    def _batch(self, keys: Sequence[str]) -> dict[str, tuple[Timed, Timed]]:
        machine = machine_of(self.target, self.threads, "auto")
        first = self._race({key: first_round(key, machine, self.packed) for key in keys}, "a")
        best = {key: min(timed, key=lambda one: one.ratio).subject.choice for key, timed in first.items()}
        second = {}
        for key, choice in best.items():
            varied = self._rules.get(key, choice) if choice == RULES else choice
            more = second_round(key, varied, machine, self.packed)
            second[key] = list(dict.fromkeys([RULES, choice, *more]))
        # The fastest of both rounds, whether it is worth it or not: the last round tells.
        raced = self._race({key: choices for key, choices in second.items() if len(choices) > 1}, "b")
        wanted = {
            key: min(timed, key=lambda one: one.ratio).subject.choice
            for key, timed in {**first, **raced}.items()
        }
        pairs = {key: [RULES, choice] for key, choice in wanted.items() if choice != RULES}
        judged = {key: self._judged(timed) for key, timed in first.items()}
        result = {key: (rules, rules) for key, (_, rules) in judged.items()}
        if pairs:
            result |= {key: self._judged(timed) for key, timed in self._race(pairs, "c", CONFIRM).items()}
        self._check([one.subject for one, rules in result.values() if one is not rules])
        return result

    def _race(
        self, candidates: Mapping[str, Sequence[Choice]], prefix: str, milliseconds: int = MILLISECONDS
    ) -> dict[str, list[Timed]]:
        """Time candidates of each key, the first of which are the rules."""
        subjects: list[Subject] = []
        for key, choices in candidates.items():
            group: list[Subject] = []
            kernels: set[frozenset[str]] = set()
            for choice in choices:
                name = f"{prefix}{len(subjects) + len(group)}"
                subject = Subject(name, key, choice, self.target, self.threads)
                if group and subject.content == group[0].content:
                    self._rules.setdefault(key, choice)
                # Another way of saying what another candidate says, or one that threads divide worse?
                if subject.content in kernels or not self._divides(subject, [*group, subject][0]):
                    continue
                kernels.add(subject.content)
                group.append(subject)
            subjects += group
        found: dict[str, list[Timed]] = {key: [] for key in candidates}
        for timed in self.bench.race(subjects, milliseconds) if subjects else []:
            found[timed.subject.key].append(timed)
        return found

    def _divides(self, subject: Subject, rules: Subject) -> bool:
        cores = 1 if self.threads == "none" else self.target.cores
        return subject.slowest_share(cores) <= rules.slowest_share(cores) * 1.02

    def _check(self, chosen: Sequence[Subject]) -> None:
        pairs = [(subject.key, choice) for subject in chosen for choice in (RULES, subject.choice)]
        made = [
            Subject(f"d{number}", key, choice, self.target, self.threads, values=True)
            for number, (key, choice) in enumerate(pairs)
        ]
        if made:
            self.bench.check(made)

    def _judged(self, timed: Sequence[Timed]) -> tuple[Timed, Timed]:
        """What goes before the rules, or they themselves; and they."""
        rules = next(one for one in timed if one.subject.choice == RULES)
        worth = [one for one in timed if one.ratio <= self.bench.worth and one.wins >= self.bench.wins]
        return min(worth, key=lambda one: one.ratio, default=rules), rules
