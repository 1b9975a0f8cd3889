"""The real command, with `crash_points` in its ranks: what tests start as a process of its own."""

from quantfleet_cli.main import entry
from quantfleet_worker import launch

if __name__ == "__main__":
    launch.PRELOADED.append("crash_points")
    entry()
