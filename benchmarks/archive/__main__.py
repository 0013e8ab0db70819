"""Entry point of `python -m benchmarks.archive`."""

if __name__ == "__main__":
    import sys

    from benchmarks.archive.command import main

    sys.exit(main())
