"""Pictures of a result: overlays, the figure and the HTML report."""
