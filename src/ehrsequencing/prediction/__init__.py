"""A run and records in, hazards, risks and files out."""
