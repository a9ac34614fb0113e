"""The screen's content as plain text, for commands without a screen. Same renderers, printed with rich.

Everything printed is ``Text`` made of cells: what machines say is never read as markup. Colours and width
follow the console (no colours when it is no terminal or NO_COLOR is set). Nodes are folded: ``h[01-16]``.
"""

from mltop.tui.report.check import print_doctor
from mltop.tui.report.snapshot import print_snapshot
from mltop.tui.report.stacks import MOST_UNREADABLE, print_reports

__all__ = ["MOST_UNREADABLE", "print_doctor", "print_reports", "print_snapshot"]
