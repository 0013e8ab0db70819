"""Entry point of `python -m benchmarks.spark`; deliberately empty of everything else."""

if __name__ == "__main__":
    import sys

    from benchmarks.spark.command import main

    sys.exit(main())
