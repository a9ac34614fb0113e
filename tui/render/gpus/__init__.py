"""One GPU and many: the table, the details, throttling, graphs over time."""
