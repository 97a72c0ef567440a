"""The command line: `app` (the commands), `importing` (`ehrseq import`), `demo`, and `console`, used by them all."""

from ehrsequencing.cli.app import main as main
