"""`python -m runner`, which `./bentpipe` calls."""

from runner.cli import entry

if __name__ == "__main__":
    entry()
