"""The command line: `app` (the commands), `options`, `importing` (`ehrseq import`), `demo`, `report` and `console`."""

from ehrsequencing.cli.app import main as main
