"""The layers of a network: which there are, their layouts and centers, running to and from them."""
