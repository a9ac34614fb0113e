"""The first pane: one node, or the fleet as a map and as a list."""
