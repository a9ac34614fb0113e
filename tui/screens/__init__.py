"""The panes, a folder each with what only that pane has; beside them what several share. tui/app/keys.py lists them."""
