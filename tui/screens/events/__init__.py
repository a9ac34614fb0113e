"""The pane of what happened."""
