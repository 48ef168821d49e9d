"""From images to activations: networks, layers, extraction and its cache."""
