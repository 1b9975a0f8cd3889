"""Which linears a pattern of the manifest names.

Called by `scheme_choice`. Three kinds of pattern, as llm-compressor and compressed-tensors users
know them:

    model.layers.1.mlp.down_proj    the full name of one module
    *.layers.1.*                    a glob (`*`, `?`, `[..]`; `*` also spans dots), compared to the
                                    full name and to each of its dotted endings, so `mlp.*_proj`
                                    needs no leading `*.`
    re:.*\\.[01]\\..*                a regular expression that must match from the first character
                                    on, as `re.match` does
"""

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from quantfleet_api.errors import InvalidInput

_GLOB = frozenset("*?[")


def matching(pattern: str, names: Sequence[str], *, field: str) -> tuple[str, ...]:
    """The members of `names` that `pattern` names, in their order; none at all is refused."""
    if pattern.startswith("re:"):
        regex = _compiled(pattern, field=field)
        found = tuple(name for name in names if regex.match(name))
    elif _GLOB & set(pattern):
        found = tuple(name for name in names if _glob_matches(pattern, name))
    else:
        found = tuple(name for name in names if name == pattern)
    if not found:
        raise InvalidInput(field, pattern, _no_match(pattern, names))
    return found


def _compiled(pattern: str, *, field: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.removeprefix("re:"))
    except re.error as error:
        raise InvalidInput(field, pattern, f"must be a regular expression ({error})") from error


def _glob_matches(pattern: str, name: str) -> bool:
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[i:]), pattern) for i in range(len(parts)))


def _no_match(pattern: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(pattern.removeprefix("re:"), names, n=3, cutoff=0.5)
    endings = dict.fromkeys(name.rsplit(".", 1)[-1] for name in names)
    if not _GLOB & set(pattern) and not pattern.startswith("re:"):
        as_ending = [f"*.{pattern}", f"{pattern}.*"]
        close = [g for g in as_ending if any(_glob_matches(g, n) for n in names)] + close
    shown = ", ".join(close[:3] or [f"*.{ending}" for ending in list(endings)[:3]])
    return f"must name at least one linear of the model, for example {shown}"
