"""Which numbers about few people may be printed: `small_counts` (method), `counts` (of the report), `derived`."""
