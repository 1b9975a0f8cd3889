"""Contracts of QuantFleet: the manifest, the plan, progress, names and exit codes.

Imported by every other package; imports pydantic and the standard library only, so a tool can
validate a manifest without torch or a cluster.
"""
