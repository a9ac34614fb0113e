"""Workers of a DataLoader."""
