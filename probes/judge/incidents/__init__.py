"""One cause, one incident: samples, findings, stacks, deaths and how jobs move, joined to one answer per cause."""
