"""What factors mean to the network: classes, importance, and where else a patch is."""
