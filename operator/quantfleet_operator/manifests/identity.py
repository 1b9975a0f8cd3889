"""What all children have in common: names, labels, owner, a digest of their content."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from quantfleet_api.names import API_VERSION, GROUP, KIND, child_labels, child_name
from quantfleet_operator.admission import Admitted

Manifest = dict[str, Any]
CONTENT_ANNOTATION = f"{GROUP}/content-digest"
"""Tells whether a child that exists is the one that would be made today."""


def owner_reference(job: Admitted) -> Manifest:
    """The child goes when the job goes, with the operator running or not.

    It does not block the deletion of its owner: that would take rights on the owner's finalizers.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
    }


def child(
    job: Admitted,
    *,
    api_version: str,
    kind: str,
    content: Mapping[str, Any],
    name: str = "",
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A child of the job; `content` is all that is not its metadata."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or child_name(job.name, job.uid),
            "namespace": job.namespace,
            "labels": dict(labels or child_labels(job.name, job.uid)),
            "annotations": {CONTENT_ANNOTATION: digest[:32]},
            "ownerReferences": [owner_reference(job)],
        },
        **content,
    }
