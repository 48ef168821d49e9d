"""What factors mean to the network: class names, importance, similarity."""
