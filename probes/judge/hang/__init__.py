"""From stacks to a verdict: which rank holds the others up, where it stands, and how sure that is."""
