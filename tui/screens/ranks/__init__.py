"""The panes of all training ranks, and of one."""
