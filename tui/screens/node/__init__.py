"""The pane of one node."""
