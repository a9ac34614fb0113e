"""What "/" takes: words, and expressions over fields of nodes, GPUs, ranks and findings. Pure."""

from __future__ import annotations

from mltop.tui.filters.fields import ALIASES, FIELDS, Field, Subject
from mltop.tui.filters.filter import Filter, meanwhile, parse

__all__ = ["ALIASES", "FIELDS", "Field", "Filter", "Subject", "meanwhile", "parse"]
