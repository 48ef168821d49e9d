"""Pictures of a result, its HTML report, and the folder it is saved in."""
