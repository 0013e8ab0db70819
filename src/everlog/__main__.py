"""`python -m everlog`: the command line, for environments whose scripts are not on the path."""

from everlog.cli.main import main

if __name__ == "__main__":
    main("python -m everlog")
