"""The CustomResourceDefinition of QuantizationJob: `python -m quantfleet_api.crd > FILE`.

Generated from the models, never edited. The operator compares `schema_hash()` with the annotation
of the definition that the cluster has, because a field which that one lacks could not be stored.
"""

import hashlib
import json
import sys
from typing import Any

import yaml

from quantfleet_api.crd_schema import structural_schema, without_defaults
from quantfleet_api.names import CRD_NAME, GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from quantfleet_api.spec import QuantizationJob
from quantfleet_api.status import JobStatus

SCHEMA_HASH_ANNOTATION = f"{GROUP}/schema-hash"

_COLUMNS = (
    ("Phase", "string", ".status.phase", "State of the job in one word.", 0),
    ("Progress", "integer", ".status.progress.percent", "Share of the work, in percent.", 0),
    (
        "ETA",
        "integer",
        ".status.progress.estimatedRemainingSeconds",
        "Estimate of the time that is left, in seconds.",
        0,
    ),
    ("Workers", "integer", ".status.workers.ready", "Pods that run and are ready.", 0),
    ("Attempt", "integer", ".status.attempt", "Number of the present attempt.", 0),
    ("Scheme", "string", ".spec.recipe.scheme", "Bits of weights and activations.", 1),
    ("Output", "string", ".spec.output.pvc.path", "Folder to publish, in its claim.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created.", 0),
)


def schema() -> dict[str, Any]:
    """The structural schema of a QuantizationJob with its status."""
    job = structural_schema(QuantizationJob)
    properties = job["properties"]
    # What the API server itself checks of metadata cannot be said again.
    properties["metadata"] = {"type": "object"}
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string"}
    status = without_defaults(structural_schema(JobStatus))
    return {**job, "required": ["spec"], "properties": {**properties, "status": status}}


def definition() -> dict[str, Any]:
    """The whole object, with its schema's hash in an annotation."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": CRD_NAME,
            "annotations": {SCHEMA_HASH_ANNOTATION: schema_hash()},
        },
        "spec": _specification(),
    }


def schema_hash() -> str:
    """Digest of all that the API server does with these objects, as "sha256:<hex>"."""
    text = json.dumps(_specification(), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _specification() -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
        for name, kind, path, text, priority in _COLUMNS
    ]
    return {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": KIND,
            "listKind": f"{KIND}List",
            "plural": PLURAL,
            "singular": SINGULAR,
            "shortNames": [SHORT_NAME],
            "categories": ["quantfleet"],
        },
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": schema()},
            }
        ],
    }


class _Dumper(yaml.SafeDumper):
    """Writes lists indented, and nothing by reference."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents lists below their key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Readers of a definition should not have to resolve references."""
        return True


def as_yaml() -> str:
    """The file under crds/."""
    head = "# Generated from the models in quantfleet_api by `make generate`; do not edit.\n"
    return head + yaml.dump(definition(), Dumper=_Dumper, sort_keys=False, width=100)


if __name__ == "__main__":
    sys.stdout.write(as_yaml())
