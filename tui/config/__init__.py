"""What the user has set: the configuration file, what the screen remembers, and where each value comes from."""
