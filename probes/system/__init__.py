"""What mltop asks of the operating system: children, files, and what root may run."""
