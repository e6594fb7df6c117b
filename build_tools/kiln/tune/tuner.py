"""The search: which candidates are timed, and which are preferred to the heuristics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kiln.config import Target
from kiln.lower.pipeline import machine_of
from kiln.tir.tuning_records import HEURISTICS, TuningRecord
from kiln.tune.candidates import first_round, second_round
from kiln.tune.measure import MILLISECONDS, Bench, TimedSubject
from kiln.tune.subject import Subject

CONFIRM = 250  # milliseconds per candidate in the last round, which confirms the winners
BATCH = 6  # number of keys whose candidates are linked into one program


@dataclass
class Tuner:
    """Times candidates on a bench and chooses the best for each key."""

    bench: Bench
    target: Target
    threads: str
    packed: bool = True  # whether weights may be packed in another way; False where buckets share weights
    # By key, the candidate that lowers to the same kernels as the heuristics.
    _explicit_heuristics: dict[str, TuningRecord] = field(default_factory=dict)

    def tuned(self, keys: Iterable[str]) -> dict[str, TimedSubject]:
        """The best candidate (or the heuristics) for each key, with time and ratio; prints a line per key.

        Three rounds: methods; variants of the fastest; and the winner against the heuristics once more, since
        the fastest of many is partly luck. Raises KilnError where a winner's results differ from theirs.
        """
        winners: dict[str, TimedSubject] = {}
        remaining = list(keys)
        while remaining:
            batch, remaining = remaining[:BATCH], remaining[BATCH:]
            for key, (winner, heuristics) in self._batch(batch).items():
                text = winner.subject.choice.describe() or "by the heuristics"
                print(f"{key}: {heuristics.us:.0f} → {winner.us:.0f} us, {text}", flush=True)
                winners[key] = winner
        return winners

    def _batch(self, keys: Sequence[str]) -> dict[str, tuple[TimedSubject, TimedSubject]]:
        """The three rounds for a few keys: by key, the winner and the heuristics of the last round."""
        machine = machine_of(self.target, self.threads, "auto")
        first = self._race({key: first_round(key, machine, self.packed) for key in keys}, "a")
        best = {key: _fastest_choice(timed) for key, timed in first.items()}
        second = {}
        for key, choice in best.items():
            varied = self._explicit_heuristics.get(key, choice) if choice == HEURISTICS else choice
            more = second_round(key, varied, machine, self.packed)
            second[key] = list(dict.fromkeys([HEURISTICS, choice, *more]))
        # The fastest of both rounds, however small its gain: the last round decides whether it is worth
        # using.
        raced = self._race({key: choices for key, choices in second.items() if len(choices) > 1}, "b")
        winners = {key: _fastest_choice(timed) for key, timed in {**first, **raced}.items()}
        pairs = {key: [HEURISTICS, choice] for key, choice in winners.items() if choice != HEURISTICS}
        judged = {key: self._winner_and_heuristics(timed) for key, timed in first.items()}
        result = {key: (heuristics, heuristics) for key, (_, heuristics) in judged.items()}
        if pairs:
            confirmed = self._race(pairs, "c", CONFIRM)
            result |= {key: self._winner_and_heuristics(timed) for key, timed in confirmed.items()}
        self._check([winner.subject for winner, heuristics in result.values() if winner is not heuristics])
        return result

    def _race(
        self, candidates: Mapping[str, Sequence[TuningRecord]], prefix: str, milliseconds: int = MILLISECONDS
    ) -> dict[str, list[TimedSubject]]:
        """Time the candidates of each key; the first candidate must be the heuristics.

        Candidates that lower to the kernels of an earlier one, or divide worse among threads, are skipped.
        """
        subjects: list[Subject] = []
        for key, choices in candidates.items():
            group: list[Subject] = []
            kernels: set[frozenset[str]] = set()
            for choice in choices:
                name = f"{prefix}{len(subjects) + len(group)}"
                subject = Subject(name, key, choice, self.target, self.threads)
                if group and subject.content == group[0].content:
                    self._explicit_heuristics.setdefault(key, choice)
                # Skip candidates with equal kernels, and those whose tasks threads divide worse.
                if subject.content in kernels or not self._divides_evenly(subject, [*group, subject][0]):
                    continue
                kernels.add(subject.content)
                group.append(subject)
            subjects += group
        timed_by_key: dict[str, list[TimedSubject]] = {key: [] for key in candidates}
        for timed in self.bench.race(subjects, milliseconds) if subjects else []:
            timed_by_key[timed.subject.key].append(timed)
        return timed_by_key

    def _divides_evenly(self, subject: Subject, heuristics: Subject) -> bool:
        cores = 1 if self.threads == "none" else self.target.cores
        return subject.slowest_share(cores) <= heuristics.slowest_share(cores) * 1.02

    def _check(self, chosen: Sequence[Subject]) -> None:
        pairs = [(subject.key, choice) for subject in chosen for choice in (HEURISTICS, subject.choice)]
        subjects = [
            Subject(f"d{number}", key, choice, self.target, self.threads, values=True)
            for number, (key, choice) in enumerate(pairs)
        ]
        if subjects:
            self.bench.check(subjects)

    def _winner_and_heuristics(self, timed: Sequence[TimedSubject]) -> tuple[TimedSubject, TimedSubject]:
        """The fastest candidate that is worth using, else the heuristics; and the heuristics."""
        heuristics = next(candidate for candidate in timed if candidate.subject.choice == HEURISTICS)
        bench = self.bench
        worth = [
            candidate
            for candidate in timed
            if candidate.ratio <= bench.worth and candidate.wins >= bench.wins
        ]
        return min(worth, key=lambda candidate: candidate.ratio, default=heuristics), heuristics


def _fastest_choice(timed: Sequence[TimedSubject]) -> TuningRecord:
    return min(timed, key=lambda candidate: candidate.ratio).subject.choice
