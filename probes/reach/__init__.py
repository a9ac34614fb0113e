"""From the names a user typed to live streams of samples: targets, launchers, the hub."""
