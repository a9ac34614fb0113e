"""Why a GPU's clock is held down, as badges. Reasons are NVML's clocks event reasons (nvml.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.model import GpuSample
from mltop.probes.model.units import UNKNOWN, known, percent
from mltop.tui.render.cells import Cell


@dataclass(frozen=True)
class Badge:
    """A reason in a word or two. ``words``: what it means."""

    text: str
    style: str
    words: str


# Worst first.
BADGES = {
    "hw_thermal": Badge("too hot", "crit", "the hardware cuts the clock"),
    "power_brake": Badge("PSU brake", "crit", "the power supply cuts the clock"),
    "hw_slowdown": Badge("HW slowdown", "warn", "the hardware cuts the clock"),
    "sw_thermal": Badge("hot", "warn", "the driver lowers the clock to stay cool"),
    "reliability": Badge("voltage", "warn", "at its voltage limit"),
    "board_limit": Badge("board power", "warn", "at the power limit of the board"),
    "sw_power_cap": Badge("power cap", "dim", "at its power limit, normal under full load"),
    "applications_clocks": Badge("set clocks", "dim", "clocks are set by hand"),
    "sync_boost": Badge("sync boost", "dim", "follows another GPU's clock"),
    "display_clocks": Badge("display", "dim", "clocks are set by the display"),
    "gpu_idle": Badge("idle", "dim", "nothing runs"),
}
ALARMING = tuple(reason for reason, badge in BADGES.items() if badge.style in ("crit", "warn"))
# Hardware slowdown is what these two do: beside them it says nothing new.
_SLOWDOWN_CAUSES = ("hw_thermal", "power_brake")
_LEAST_SHARE = 0.005


def throttle_cell(reasons: Sequence[str] | None, shares: Mapping[str, float] | None = None) -> Cell:
    """Badges of the reasons that hold now, worst first; blank: none. New reasons keep their name.

    ``shares``: of the time since the sample before; a reason that held then is shown also when it does not hold now:
    "too hot 34%".
    """
    shown_shares = {reason: share for reason, share in (shares or {}).items() if share >= _LEAST_SHARE}
    earlier = [reason for reason in shown_shares if reason in BADGES and reason not in (reasons or ())]
    if reasons is None and not earlier:
        return Cell(UNKNOWN)
    shown = [*(reasons or ()), *earlier]
    ordered = [reason for reason in BADGES if reason in shown]
    if len(ordered) > 1 and "gpu_idle" in ordered:
        ordered.remove("gpu_idle")
    texts = [_text(BADGES[reason].text, shown_shares.get(reason)) for reason in ordered]
    texts += [reason for reason in shown if reason not in BADGES]
    return Cell(", ".join(texts), style_of(ordered))


def gpu_throttle_cell(gpu: GpuSample) -> Cell:
    """The badges of one GPU, without what another badge says already."""
    reasons = gpu.throttle_reasons
    if reasons is not None and any(cause in reasons for cause in _SLOWDOWN_CAUSES):
        reasons = [reason for reason in reasons if reason != "hw_slowdown"]
    cell = throttle_cell(reasons, gpu.throttle_share)
    return Cell("") if reasons is not None and cell.text == BADGES["gpu_idle"].text else cell  # nothing holds it down


def style_of(reasons: Iterable[str]) -> str:
    """The style of the worst of these reasons; "" of none."""
    return next((badge.style for reason, badge in BADGES.items() if reason in reasons), "")


def worst_share(gpu: GpuSample) -> float:
    """For sorting: how much of the time anything alarming held, 1 for what holds now without a known share."""
    reasons = gpu.throttle_reasons or ()
    shares = [gpu.throttle_share.get(reason, float(reason in reasons)) for reason in ALARMING]
    return max([share for share in shares if known(share)], default=0.0)


def _text(badge: str, share: float | None) -> str:
    return badge if share is None else f"{badge} {percent(min(share, 1.0))}"
