"""What it costs to clean the text of every cell that is drawn (`model.text.clean`)."""

from __future__ import annotations

import timeit

from mltop.probes.model.text import clean
from tests.bench.table import Goal, print_table

CELLS_PER_S = 5000  # 50 rows of 15 cells, header and status, six times a second
TEXTS = {
    "number": "  97%",
    "sentence": "GPU 3 is throttled by heat: 91 C, clock 1.2 GHz of 1.98",
    "sparkline": "▁▂▃▄▅▆▇█▇▆▅▄▃▂▁▂▃▄▅▆",
    "name in Japanese": "日本語のノード名",
    "hostile": "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\nline two",
}


def main(quick: bool = False) -> None:
    count = 2_000 if quick else 200_000
    cost_s = {
        name: min(timeit.repeat(lambda: clean(text), number=count, repeat=3)) / count  # noqa: B023 - called at once
        for name, text in TEXTS.items()
    }
    rows: list[tuple[str, float, Goal | None]] = [(f"{name}, µs", cost * 1e6, None) for name, cost in cost_s.items()]
    # Of ten cells one is a sparkline or a gauge.
    share = CELLS_PER_S * (0.9 * cost_s["sentence"] + 0.1 * cost_s["sparkline"])
    rows.append((f"{CELLS_PER_S:,} cells a second, % of a core", share * 100, Goal(at_most=0.5)))
    print_table("cleaning text", rows)
