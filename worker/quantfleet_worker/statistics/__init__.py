"""Mergeable values that calibration collects at a site: update, merge, identity, pack, unpack.

Each is a monoid whose merge is exact, so that what the ranks collected apart is, bit for bit, what
one rank would have collected alone.
"""
