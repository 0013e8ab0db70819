"""Entry point of `python -m benchmarks.engine`; deliberately empty of everything else.

Child processes import this module again, so it must not pull in what only the parent needs.
"""

if __name__ == "__main__":
    import sys

    from benchmarks.engine.command import main

    sys.exit(main())
