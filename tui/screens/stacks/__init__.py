"""The pane of stacks."""
