"""Image files: which there are, and how they are read."""
