"""The terminal: what is written to it of what Textual paints, and how keys come from it."""
