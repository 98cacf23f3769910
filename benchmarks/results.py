"""The results that run.py has stored: medians over the rounds, and the rounds' ratios."""

from statistics import median
from typing import Dict, Iterator, List, Optional, Tuple

from benchmarks import plan
from hvdlite.bench.figures import floor_seconds


class Results:
    """Medians and ratios of the results that run.py has stored. Ratios are lists, by rounds.

    :param found: work (suite and number of ranks, such as "speed-2") -> a list of rounds. A round
        is a dict: contestant's name -> the results of its ranks.
    """

    def __init__(self, found: Dict[str, List[Dict[str, dict]]]) -> None:
        self.found = found

    def runs(self, contestant, ranks: int, suite: str = "speed") -> Dict[int, dict]:
        """Return the results of a contestant's ranks, by the number of the round."""
        rounds = enumerate(self.found.get(f"{suite}-{ranks}", []))
        return {n: kept[contestant.name] for n, kept in rounds if contestant.name in kept}

    def rows(self, contestant, ranks: int, case: str, suite: str = "speed") -> Dict[int, dict]:
        """Return the rows of a case, by the number of the round."""
        return {
            number: row
            for number, kept in self.runs(contestant, ranks, suite).items()
            for row in kept.get("rows", [])
            if row["name"] == case
        }

    def value(
        self, contestant, ranks: int, case: str, field: str = "p50", suite: str = "speed"
    ) -> Optional[float]:
        """Return the median of a field over rounds, or None."""
        found = self.values(contestant, ranks, case, field, suite)
        return median(found) if found else None

    def values(self, contestant, ranks: int, case: str, field: str, suite: str) -> List[float]:
        """Return a field's values, by rounds."""
        rows = self.rows(contestant, ranks, case, suite).values()
        return [row[field] for row in rows if field in row]

    def ratios(
        self, ours, our_case: str, theirs, their_case: str, ranks: int, suite: str = "speed"
    ) -> List[float]:
        """Return, for each round, the other system's time divided by hvdlite's time."""
        our_rows = self.rows(ours, ranks, our_case, suite)
        their_rows = self.rows(theirs, ranks, their_case, suite)
        both = our_rows.keys() & their_rows.keys()
        return [their_rows[n]["p50"] / our_rows[n]["p50"] for n in sorted(both)]

    def lone(self, contestant, ranks: int, case: str, lone_case: str) -> Optional[float]:
        """Return the time of a step without communication, for :meth:`speed_kept`."""
        by_turns = self.value(contestant, ranks, case, "alone")
        return by_turns or self.value(plan.ALONE, ranks, lone_case)

    def speed_kept(self, contestant, ranks: int, case: str, lone_case: str) -> List[float]:
        """Return the time without communication, divided by the contestant's time.

        Both times are from alternating steps or, if there are none, from the same round.
        """
        by_turns = self.values(contestant, ranks, case, "speed_kept", "speed")
        return by_turns or self.ratios(contestant, case, plan.ALONE, lone_case, ranks)

    def beside_floor(
        self, contestant, ranks: int, case, suite: str = "speed"
    ) -> Tuple[Optional[float], Optional[float], List[float]]:
        """Return the least seconds that memory bandwidth allows for a case, the contestant's
        seconds (both medians over rounds), and the ratio of the two in each round."""
        bandwidths = {
            n: kept.get("bandwidth") for n, kept in self.runs(plan.ALONE, ranks, suite).items()
        }
        shares = [
            floor_seconds(case.kind, ranks, case.nbytes, bandwidths[n], case.optimizer) / row["p50"]
            for n, row in self.rows(contestant, ranks, case.name, suite).items()
            if bandwidths.get(n)
        ]
        taken = self.value(contestant, ranks, case.name, suite=suite)
        return taken and (taken * median(shares) if shares else None), taken, shares

    def bandwidth(self, ranks: int) -> Optional[float]:
        """Return the memory bandwidth of all ranks together, in bytes per second."""
        found = [kept.get("bandwidth") for kept in self.runs(plan.ALONE, ranks).values()]
        found = [value for value in found if value]
        return median(found) if found else None

    def one(self, contestant, ranks: int, field: str, suite: str = "memory"):
        """Return the latest value of a field that not every round measures."""
        for kept in reversed(list(self.runs(contestant, ranks, suite).values())):
            if field in kept:
                return kept[field]
        return None

    def all(self) -> Iterator[Tuple[str, str, dict]]:
        """Yield each stored result with its work and contestant."""
        for work, rounds in self.found.items():
            for each in rounds:
                yield from ((work, name, kept) for name, kept in each.items())

    def failures(self) -> List[str]:
        """Return one line for each contestant that has failed, with its first reason."""
        reasons: Dict[Tuple[str, str], List[str]] = {}
        for work, name, kept in self.all():
            if "error" in kept:
                lines = kept["error"].strip().splitlines()
                reasons.setdefault((work, name), []).append(lines[0] if lines else "no reason")
        return [
            f"{name}, suite {work.replace('-', ' on ')} ranks: {len(found)} jobs failed: {found[0]}"
            for (work, name), found in reasons.items()
        ]

    def any(self, field: str) -> dict:
        """Return a field of all results, merged into one dict."""
        joined: dict = {}
        for _, _, kept in self.all():
            joined.update(kept.get(field, {}))
        return joined

    def rounds(self) -> int:
        return max((len(runs) for work, runs in self.found.items() if "speed" in work), default=0)

    def machine(self) -> str:
        """Return the machine and the versions in one line."""
        machine, versions = self.any("machine"), self.any("versions")
        words = [f"{machine.get('cores', '?')} cores of {machine.get('processor', '?')}"]
        words += [machine[key] for key in ("memory", "system") if key in machine]
        names = {"mxnet": "MXNet", "torch": "PyTorch", "horovod": "Horovod"}
        return ", ".join([*words, *(f"{names.get(k, k)} {v}" for k, v in versions.items())])

    def bandwidths(self) -> str:
        """Return the measured memory bandwidth for each number of ranks."""
        found = [(ranks, self.bandwidth(ranks)) for ranks in plan.RANKS]
        return " and ".join(f"{b / 1e9:.0f} GB/s with {ranks} ranks" for ranks, b in found if b)
