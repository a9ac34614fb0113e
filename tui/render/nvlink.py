"""The NVLinks of a GPU: how many are up, how fast, and what errors each has counted."""

from __future__ import annotations

from collections.abc import Mapping

from mltop.probes.model import Nvlink, NvlinkLink
from mltop.tui.render.cells import Cell, Column, Row
from mltop.tui.render.units import UNKNOWN, count, known, number

LINK_COLUMNS = (
    Column("link", "LINK", 4, right=True),
    Column("state", "STATE", 5),
    Column("version", "GEN", 3, right=True),
    Column("speed", "SPEED", 7, right=True),
    Column("remote", "TO", 8),
    Column("errors", "ERRORS", 18, stretch=True),
)


def nvlink_cell(nvlink: Nvlink) -> Cell:
    """ "18/18 240G/s": links that are up, and both directions together; "–" where there is nothing to know."""
    links = nvlink.links
    up = sum(link.active is True for link in links)
    states_known = any(link.active is not None for link in links)
    parts = [f"{up}/{len(links)}"] if states_known else []
    rate = rate_of(nvlink.rx_bytes_per_s, nvlink.tx_bytes_per_s)
    if rate is not None:
        parts.append(decimal_rate(rate))
    if not parts:
        return Cell(UNKNOWN)
    return Cell(" ".join(parts), "crit" if states_known and any(link.active is False for link in links) else "")


def rate_of(rx: float | None, tx: float | None) -> float | None:
    """Both directions together; None when neither is known."""
    known_ones = [one for one in (rx, tx) if one is not None and known(one)]
    return sum(known_ones) if known_ones else None


def decimal_rate(bytes_per_s: float | None) -> str:
    """As link speeds are given, in powers of 1000: 26.6G/s."""
    text = count(bytes_per_s)
    return text if text == UNKNOWN else f"{text}/s"


def link_row(link: NvlinkLink, grown: Mapping[str, int]) -> Row:
    """One row of LINK_COLUMNS; ``grown``: by how much each counter grew since it is watched."""
    state, style = {True: ("up", ""), False: ("DOWN", "crit")}.get(link.active, (UNKNOWN, ""))  # type: ignore[arg-type]
    cells = (
        Cell(str(link.index)),
        Cell(state, style),
        Cell(number(link.version)),
        Cell(decimal_rate(link.speed_bytes_per_s)),
        Cell(link.remote or UNKNOWN),
        errors_cell(link.errors, grown),
    )
    return Row(str(link.index), cells)


def errors_cell(errors: Mapping[str, int], grown: Mapping[str, int]) -> Cell:
    """ "replay 12 (+3)": counters that are not 0, with their growth; "none", or "–" where no counter is known."""
    if not errors:
        return Cell(UNKNOWN)
    counted = {name: value for name, value in errors.items() if value}
    if not counted:
        return Cell("none", "dim")
    parts = [f"{name} {count(value)}{growth(grown.get(name, 0))}" for name, value in counted.items()]
    return Cell(", ".join(parts), "warn" if any(grown.get(name) for name in counted) else "")


def growth(grown: int | None) -> str:
    """ " (+3)"; "" of what has not grown."""
    return f" (+{count(grown)})" if grown else ""
