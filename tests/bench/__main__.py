"""`python -m tests.bench [--quick] [--full] [NAME ...]`: every benchmark, or those named (screen, stacks, …).

``--full``: also connect to 64 hosts.
"""

from __future__ import annotations

import sys

from tests.bench import (
    bench_agent,
    bench_all_reduce,
    bench_connect,
    bench_dump,
    bench_fleet,
    bench_matmul,
    bench_merge,
    bench_reader,
    bench_screen,
    bench_stacks,
    bench_text,
)

BENCHES = {
    "screen": bench_screen,
    "agent": bench_agent,
    "stacks": bench_stacks,
    "merge": bench_merge,
    "reader": bench_reader,
    "dump": bench_dump,
    "fleet": bench_fleet,
    "connect": bench_connect,
    "matmul": bench_matmul,
    "all_reduce": bench_all_reduce,
    "text": bench_text,
}


def main() -> None:
    quick = "--quick" in sys.argv
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"tests.bench: {unknown[0]}: no such benchmark (one of: {', '.join(BENCHES)})")
    for name in names or BENCHES:
        if name == "connect":
            bench_connect.main(quick, full="--full" in sys.argv)
        else:
            BENCHES[name].main(quick)


if __name__ == "__main__":
    main()
