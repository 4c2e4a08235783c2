"""`python -m ostinato`: the command line, also for `torchrun -m ostinato`."""

from ostinato.cli import main

if __name__ == "__main__":
    main()
