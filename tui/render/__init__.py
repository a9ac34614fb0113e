"""From objects to cells: pure functions that several panes and the reports draw with."""
