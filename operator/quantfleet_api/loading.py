"""From a file or a parsed object to a checked QuantizationJob, and from claims to local folders.

Called by the CLI and by whoever receives manifests. Whatever is wrong is one InvalidInput: the
first error in document order, named by its full path. The only module of this package that reads
YAML.
"""

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from quantfleet_api.errors import InvalidInput
from quantfleet_api.messages import first_error
from quantfleet_api.rules import check
from quantfleet_api.spec import OutputClaim, PathInClaim, QuantizationJob

MAX_BYTES = 1 << 20
"""Longest manifest; the API server of a cluster takes no longer object either."""


def load_job(path: Path) -> QuantizationJob:
    """The job in a YAML (or JSON) file: one document, UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        rule = f"must be a readable file ({error.strerror})"
        raise InvalidInput("manifest", str(path), rule) from None
    if len(raw) > MAX_BYTES:
        raise InvalidInput("manifest", f"{len(raw)} bytes", f"must have at most {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        rule = f"must be UTF-8 text (byte {error.start} is not)"
        raise InvalidInput("manifest", str(path), rule) from None
    return parse_job(_parse_yaml(text, str(path)))


def parse_job(data: object) -> QuantizationJob:
    """The job in an object made of mappings, lists and scalars."""
    if not isinstance(data, dict) or not data:
        raise InvalidInput("manifest", data, "must be a mapping with apiVersion, kind, ...")
    try:
        job = QuantizationJob.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise first_error(error, data, QuantizationJob) from None
    check(job)
    return job


def resolve_volume(
    pvc: PathInClaim | OutputClaim, volumes: Mapping[str, Path], *, field: str = "pvc"
) -> Path:
    """The local path that stands for `pvc` (which errors call `field`), given each claim's folder.

    The path need not exist. It never leaves the claim's folder by its own spelling; links in that
    folder are the user's own.
    """
    if pvc.claim_name not in volumes:
        rule = f"names a volume that is not mapped: pass --volume {pvc.claim_name}=DIR"
        raise InvalidInput(f"{field}.claimName", pvc.claim_name, rule)
    if pvc.path.startswith("/") or posixpath.normpath(pvc.path).split("/")[0] == "..":
        raise InvalidInput(f"{field}.path", pvc.path, "must stay inside its claim")
    return volumes[pvc.claim_name] / pvc.path


class _Loader(yaml.SafeLoader):
    """YAML without what makes two readers see two things: repeated keys and aliases."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node; an alias may stand for any amount of text, so there are none."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of `node`; a key that is there twice is an error."""
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_short_int(self, node: yaml.ScalarNode) -> int:
        """The integer of `node`; a much longer one could not even be printed."""
        value = self.construct_yaml_int(node)
        if value.bit_length() > 64:
            problem = "integers have at most 64 bits"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_short_int)


def _parse_yaml(text: str, shown: str) -> object:
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        rule = f"must be valid YAML ({error.problem}{place})"
        raise InvalidInput("manifest", shown, " ".join(rule.split())) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise InvalidInput("manifest", shown, f"must be valid YAML ({detail})") from None
    if len(documents) != 1:
        rule = f"must hold one document, not {len(documents)}"
        raise InvalidInput("manifest", shown, rule)
    return documents[0]
