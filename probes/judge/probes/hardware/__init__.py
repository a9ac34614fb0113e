"""What hardware should give: peaks of GPUs, links and collectives, one row each with its source."""
