"""From samples, stacks and results to words: pure functions, which read no file and no clock."""
