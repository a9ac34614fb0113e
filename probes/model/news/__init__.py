"""What a node says of itself between whole samples: a row of numbers each second, and what it judges on change."""
