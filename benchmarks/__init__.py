"""A claim is a ratio measured in one run: Holdfast, its peers and the floor take turns on the same machine."""
