"""Pictures of a result: figures, crops, regions, the tree over k."""
