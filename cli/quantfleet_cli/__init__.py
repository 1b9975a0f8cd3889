"""The `quantfleet` command: run, plan and verify on this machine."""
