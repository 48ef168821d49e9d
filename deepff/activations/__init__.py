"""A network run over an image set, and the cache of what it gives."""
