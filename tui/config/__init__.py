"""What the user has set: the configuration file, what the screen remembers, and where each value comes from."""

from __future__ import annotations

from mltop.tui.config.effective import effective, load
from mltop.tui.config.settings import Config, Named, Source

__all__ = ["Config", "Named", "Source", "effective", "load"]
