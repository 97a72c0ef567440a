"""`python -m ehrsequencing` is `ehrseq`."""

from ehrsequencing.cli.app import main

if __name__ == "__main__":
    main()
