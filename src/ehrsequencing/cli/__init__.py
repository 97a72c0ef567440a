"""The command line: `app` has the commands; `options` what they share; `console` how they print."""

from ehrsequencing.cli.app import main

__all__ = ["main"]
