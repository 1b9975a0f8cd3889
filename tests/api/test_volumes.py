"""Claims become local folders."""

from pathlib import Path

import pytest

from quantfleet_api.errors import InvalidInput
from quantfleet_api.loading import resolve_volume
from quantfleet_api.spec import OutputClaim, PathInClaim


def test_path_lies_in_the_folder_of_its_claim(tmp_path: Path) -> None:
    volumes = {"models": tmp_path, "out": Path("out")}

    assert resolve_volume(PathInClaim(claim_name="models", path="a/b"), volumes) == tmp_path / "a/b"
    assert resolve_volume(PathInClaim(claim_name="models"), volumes) == tmp_path
    assert resolve_volume(OutputClaim(claim_name="out", path="c"), volumes) == Path("out/c")


def test_claim_without_folder_says_what_to_pass() -> None:
    with pytest.raises(
        InvalidInput, match=r"^pvc\.claimName: .* pass --volume data=DIR, got .data."
    ):
        resolve_volume(PathInClaim(claim_name="data"), {"models": Path()})


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/etc"])
def test_path_out_of_its_claim_is_refused_even_if_nobody_parsed_it(path: str) -> None:
    claim = PathInClaim.model_construct(claim_name="models", path=path)

    with pytest.raises(InvalidInput, match="must stay inside its claim"):
        resolve_volume(claim, {"models": Path("models")})
