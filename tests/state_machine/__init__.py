"""Two databases are led through the same random life, and whatever one answers, the other answers too."""
