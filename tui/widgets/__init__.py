"""What paints and scrolls by lines (Textual's Line API), all with one cursor."""
