"""What every room stands on: errors, arrays, files, signals and the version."""
