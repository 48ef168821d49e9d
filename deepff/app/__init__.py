"""The browser app: name factors while looking at them, and export what they mark."""
