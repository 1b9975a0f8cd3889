"""The operator: runs every QuantizationJob of a cluster as gangs of worker pods.

A gang that loses a worker is restarted as a whole, as a new attempt.

`reconcile` decides, purely; `manifests` builds child objects, purely; `cluster` alone talks to the
API server; `handlers` are the watches that kopf supplies.
"""
