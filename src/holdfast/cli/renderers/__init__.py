"""One module for each framework: pure functions from a stored payload to one line of text."""
