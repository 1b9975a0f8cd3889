"""The structural schema of a model: what the API server enforces of what pydantic enforces.

Called by `crd` for the models of a job and its status. Starts from pydantic's own JSON schema,
writes references out (structural schemas have none), and adds the rules of `crd_rules`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from quantfleet_api.crd_rules import is_union, rules_of
from quantfleet_api.fields import DEFAULT_IN_CLUSTER

Schema = dict[str, Any]

RULES = "x-kubernetes-validations"
_COPIED = (
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
"""Keywords that mean the same to the API server, in the order in which they are written."""

MOST_EXACT = 2**53
"""The API server reads a maximum as a float64, and 2^63 - 1 as less than any number."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """The schema of a model of the manifest or the status."""
    written = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(written, written.get("$defs", {}))


def _structural(node: Mapping[str, Any], models: Mapping[str, Any]) -> Schema:
    """A node of pydantic's schema without references; `models` holds what they refer to."""
    node = _dereferenced(node, models)
    schema: Schema = {}
    if "description" in node:
        schema["description"] = " ".join(node["description"].split())
    schema |= {keyword: node[keyword] for keyword in _COPIED if keyword in node}
    if node.get("type") == "integer":
        schema["format"] = "int32" if node.get("maximum", 2**63) < 2**31 else "int64"
        if schema.get("maximum", 0) > MOST_EXACT:
            del schema["maximum"]
    if "properties" in node:
        schema["properties"] = {
            name: _structural(entry, models) for name, entry in node["properties"].items()
        }
    if values := _values(node):
        schema["additionalProperties"] = _structural(values, models)
    if (default := _default(node, schema)) is not None:
        schema["default"] = default
    if "items" in node:
        schema["items"] = _structural(node["items"], models)
        schema.setdefault("x-kubernetes-list-type", "atomic")
    return _with_rules(schema, node)


def _dereferenced(node: Mapping[str, Any], models: Mapping[str, Any]) -> Schema:
    """The node with its reference written out and without the choice of null.

    What stands beside a reference (description, default) is about this place, so it wins.
    """
    here = dict(node)
    if "anyOf" in here:
        (chosen,) = [choice for choice in here.pop("anyOf") if choice != {"type": "null"}]
        return _dereferenced({**chosen, **here}, models)
    if "$ref" in here:
        referred = models[here.pop("$ref").rsplit("/", 1)[1]]
        return _dereferenced({**referred, **here}, models)
    if "const" in here:
        here["enum"] = [here.pop("const")]
    return here


def _default(node: Mapping[str, Any], schema: Schema) -> Any:
    """The default to write, or None.

    An object's default consists of those of its fields: the API server would fill them in, but
    checks rules on the default before that. An empty list or mapping means what its absence means,
    so it is left out of stored objects.
    """
    default = node.get(DEFAULT_IN_CLUSTER, node.get("default"))
    if not isinstance(default, dict):
        return None if default == [] else default
    fields = schema.get("properties", {})
    return {name: field["default"] for name, field in fields.items() if "default" in field} or None


def _values(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of a mapping's values, whatever its keys must look like."""
    found: Mapping[str, Any] | None = node.get("additionalProperties") or next(
        iter(node.get("patternProperties", {}).values()), None
    )
    return found


def _key_rules(node: Mapping[str, Any]) -> list[dict[str, str]]:
    """What keys of a mapping must look like; structural schemas have no keyword for it."""
    return [
        {
            "rule": f"self.all(key, size(key) <= {node['propertyNames']['maxLength']}"
            f" && key.matches(r'{pattern}'))",
            "message": f"each key must match {pattern}",
        }
        for pattern in node.get("patternProperties", {})
    ]


def _with_rules(schema: Schema, node: Mapping[str, Any]) -> Schema:
    """Adds the rules of the field and those of the model that the node was written from.

    Members of a union are not required: its rule says of all of them that one is.
    """
    model = node.get("title", "") if "properties" in node else ""
    if is_union(model):
        schema = {key: value for key, value in schema.items() if key != "required"}
    rules = [
        *node.get(RULES, []),
        *_key_rules(node),
        *rules_of(model, list(schema.get("properties", {}))),
    ]
    return {**schema, RULES: rules} if rules else schema


def without_defaults(schema: Schema) -> Schema:
    """The schema less its defaults: in a status, a default would be nobody's statement."""
    kept = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in kept:
        kept["properties"] = {
            name: without_defaults(entry) for name, entry in kept["properties"].items()
        }
    if "items" in kept:
        kept["items"] = without_defaults(kept["items"])
    return kept
