"""Entry point of `python -m benchmarks.books`."""

if __name__ == "__main__":
    import sys

    from benchmarks.books.command import main

    sys.exit(main())
