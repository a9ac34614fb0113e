"""A probe over nodes: asks their agents, joins what they say, has it judged."""
