"""What a launcher makes: one process whose stdout carries frames of one node or of many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchOptions:
    """What every launcher is told. ``python``: interpreter on the nodes, "" for the default."""

    interval_s: float = 1.0
    python: str = ""


@dataclass(frozen=True)
class Channel:
    """One process to start: ``argv``, and the nodes whose frames it carries."""

    argv: tuple[str, ...]
    nodes: tuple[str, ...]
