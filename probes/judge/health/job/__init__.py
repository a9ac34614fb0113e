"""Rules about training jobs: what their ranks have in common, and which differ."""
