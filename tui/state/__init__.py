"""What mltop remembers for the user between runs, in the user's state directory."""
