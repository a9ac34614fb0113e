"""The panes; registry.py lists them."""
