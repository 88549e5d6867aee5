"""Configuration files and the schema that composes each package's own settings."""
