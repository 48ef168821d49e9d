"""A network that is ready to run: by name, from a checkpoint, or one's own; and its classes."""
