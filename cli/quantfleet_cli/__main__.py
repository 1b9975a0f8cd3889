"""`python -m quantfleet_cli` is the `quantfleet` command."""

from quantfleet_cli.main import entry

if __name__ == "__main__":
    entry()
