"""Entry point of `python -m benchmarks.client`; deliberately empty of everything else.

Child processes import this module again, so it must not pull in what only the parent needs.
"""

if __name__ == "__main__":
    import sys

    from benchmarks.client.command import main

    sys.exit(main())
