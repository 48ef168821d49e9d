"""A network that is ready to run: by name, from a checkpoint, or your own; and its classes."""
