"""`python -m tests.bench [--quick]`: every benchmark, one table each."""

from __future__ import annotations

import sys

from tests.bench import bench_merge, bench_screen, bench_stacks


def main() -> None:
    quick = "--quick" in sys.argv
    for bench in (bench_screen, bench_stacks, bench_merge):
        bench.main(quick)


if __name__ == "__main__":
    main()
