"""`python -m tests.bench [--quick] [--full] [NAME ...]`: every benchmark, or those named (screen, stacks, …).

``--full``: also connect to 64 hosts. `python -m tests.bench cases` is by itself (bench_cases.py): it takes an hour.
"""

from __future__ import annotations

import argparse
import sys

from tests.bench import (
    bench_agent,
    bench_all_reduce,
    bench_cases,
    bench_connect,
    bench_dump,
    bench_explain,
    bench_fleet,
    bench_incidents,
    bench_matmul,
    bench_merge,
    bench_past,
    bench_reader,
    bench_screen,
    bench_stacks,
    bench_stall,
    bench_text,
    bench_who,
)

BENCHES = {
    "screen": bench_screen,
    "agent": bench_agent,
    "stacks": bench_stacks,
    "merge": bench_merge,
    "reader": bench_reader,
    "dump": bench_dump,
    "explain": bench_explain,
    "fleet": bench_fleet,
    "incidents": bench_incidents,
    "connect": bench_connect,
    "matmul": bench_matmul,
    "all_reduce": bench_all_reduce,
    "text": bench_text,
    "who": bench_who,
    "stall": bench_stall,
    "past": bench_past,
}


def main() -> None:
    if sys.argv[1:2] == ["cases"]:
        sys.exit(bench_cases.main(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--full", action="store_true", help="also connect to 64 hosts")
    asked = parser.parse_args()
    for unknown in set(asked.names) - BENCHES.keys():
        parser.error(f"{unknown}: no such benchmark (one of: {', '.join(BENCHES)})")
    for name in asked.names or BENCHES:
        if name == "connect":
            bench_connect.main(asked.quick, full=asked.full)
        else:
            BENCHES[name].main(asked.quick)


if __name__ == "__main__":
    main()
