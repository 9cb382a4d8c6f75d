"""The demo: an agent to copy, a script for it, and a scenario that kills its workers and counts the result."""
