"""`python -m ehrsequencing` is `ehrseq`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which `-m` puts first

    from ehrsequencing.cli.app import main

    main()
