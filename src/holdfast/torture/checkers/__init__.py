"""A checker is a pure function from what was observed to what is wrong with it; it asks no store and no clock."""
