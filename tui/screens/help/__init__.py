"""The pane of all keys and of what a filter takes."""
