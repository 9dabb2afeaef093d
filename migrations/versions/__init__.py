"""One module for each schema version, oldest first."""
