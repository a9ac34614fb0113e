"""Everything behind the panes: the app, its session, the pictures, history, keys, where the user is."""
