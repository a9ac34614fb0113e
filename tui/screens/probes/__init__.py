"""The pane of probes: its tables, details and the question before one starts."""
