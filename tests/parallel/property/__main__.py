"""The long run: ``python -m tests.parallel.property --examples 200 --seed 1``, or one case again with ``--case``."""

from __future__ import annotations

import argparse
import collections
import time

from hypothesis import HealthCheck, given, seed, settings

from tests.parallel.property.cases import Case, cases
from tests.parallel.property.pool import Pool

COUNTED = ("door", "inputs", "loss", "optimizer", "clipping", "accumulation", "ema", "data", "weighted", "nan", "fits")


def main() -> int:
    """Runs what the command line asks for; 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.parallel.property", description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="cases in all, spread over the numbers of workers")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4], help="numbers of workers")
    parser.add_argument("--case", help="run this one case, as a failure prints it")
    asked = parser.parse_args()
    if asked.case:
        with Pool() as pool:
            pool.check(Case.from_json(asked.case))
        print("equal")
        return 0
    passed: list[Case] = []
    failed = 0
    for index, workers in enumerate(asked.workers):
        examples = asked.examples * (index + 1) // len(asked.workers) - asked.examples * index // len(asked.workers)
        began, before = time.monotonic(), len(passed)
        error = draw(workers, examples, asked.seed, passed)
        took = time.monotonic() - began
        print(f"{workers} workers: {len(passed) - before} cases equal, {took:.0f} s", flush=True)
        if error is not None:
            failed += 1
            print(f"{workers} workers: FAILED\n{error}\n{''.join(getattr(error, '__notes__', []))}", flush=True)
    distinct = set(passed)
    print(f"seed {asked.seed}: {len(passed)} cases equal, {len(distinct)} of them distinct; {failed} failures")
    for name in COUNTED:
        counts = collections.Counter(str(getattr(case, name)) for case in distinct)
        print(f"  {name}: " + ", ".join(f"{value} {count}" for value, count in counts.most_common()))
    layers = collections.Counter(1 + len(case.layers) for case in distinct)
    print("  layers: " + ", ".join(f"{number} in {count}" for number, count in sorted(layers.items())))
    return 1 if failed else 0


def draw(workers: int, examples: int, number: int, passed: list[Case]) -> Exception | None:
    """Draws and checks cases until one fails; that one is shrunk and returned as an exception."""
    with Pool() as pool:

        @seed(number)
        @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(cases(workers))
        def equals_one_process(case: Case) -> None:
            pool.check(case)
            passed.append(case)
            if len(passed) % 10 == 0:
                print(f"{len(passed)} equal so far", flush=True)

        try:
            equals_one_process()
        except Exception as error:
            return error
    return None


if __name__ == "__main__":
    raise SystemExit(main())
