"""Stacks and what the judge says of them."""
