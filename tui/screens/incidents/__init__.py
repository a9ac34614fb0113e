"""The pane of what is wrong."""
