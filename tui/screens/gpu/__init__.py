"""The pane of one GPU."""
