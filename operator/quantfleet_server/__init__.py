"""The status server: takes progress from workers, shows it to people, writes it into the status.

A process and a Deployment of its own, since its rights, restarts and load differ from the
operator's. It decides nothing: the operator would carry every job to the same end without it.
"""
