"""The files that leave: what a metrics file and a manifest hold, as types, and its redaction for sharing."""
