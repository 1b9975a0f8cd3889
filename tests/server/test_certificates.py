"""The authority and the leaf: made, kept, renewed at two thirds, never shown before known (C19)."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from quantfleet_operator.certificates import (
    AUTHORITY_LIFE,
    KNOWN_AFTER,
    LEAF_LIFE,
    Chain,
    chain_of,
    renewed,
)
from quantfleet_operator.server_secret import names_of

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NAMES = names_of("https://qf-server.system.svc:8443")


def leaf(chain: Chain) -> x509.Certificate:
    return x509.load_pem_x509_certificate(chain.certificate)


def authorities(chain: Chain) -> list[x509.Certificate]:
    return list(x509.load_pem_x509_certificates(chain.authority))


def signed_by_one_of(chain: Chain, trusted: Chain) -> bool:
    for authority in authorities(trusted):
        if leaf(chain).issuer == authority.subject:
            leaf(chain).verify_directly_issued_by(authority)
            return True
    return False


def test_names_are_those_of_the_service() -> None:
    assert NAMES == (
        "qf-server.system.svc",
        "qf-server.system",
        "qf-server",
        "qf-server.system.svc.cluster.local",
        "localhost",
    )
    found = leaf(renewed(Chain(), NAMES, NOW))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(names.get_values_for_type(x509.DNSName)) == NAMES


def test_an_empty_secret_gets_an_authority_for_ten_years_and_a_leaf_for_one() -> None:
    chain = renewed(Chain(), NAMES, NOW)
    (authority,) = authorities(chain)

    assert authority.not_valid_after_utc == NOW + AUTHORITY_LIFE
    assert leaf(chain).not_valid_after_utc == NOW + LEAF_LIFE
    assert signed_by_one_of(chain, chain)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf(chain).extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_what_is_good_is_left_alone() -> None:
    chain = renewed(Chain(), NAMES, NOW)
    assert renewed(chain, NAMES, NOW + timedelta(days=200)) == chain
    assert chain_of(chain.data()) == chain


def test_the_leaf_is_renewed_at_two_thirds_by_the_same_authority() -> None:
    chain = renewed(Chain(), NAMES, NOW)
    assert renewed(chain, NAMES, NOW + LEAF_LIFE * 0.66) == chain
    later = renewed(chain, NAMES, NOW + LEAF_LIFE * 0.67)
    assert later.authority == chain.authority
    assert later.certificate != chain.certificate
    assert signed_by_one_of(later, chain)


def test_other_names_take_another_leaf() -> None:
    chain = renewed(Chain(), NAMES, NOW)
    other = renewed(chain, ("elsewhere.svc",), NOW)
    assert other.certificate != chain.certificate
    assert other.authority == chain.authority


def test_a_new_authority_is_trusted_before_its_first_leaf_is_shown() -> None:
    old = renewed(Chain(), NAMES, NOW - timedelta(days=100))
    at = NOW - timedelta(days=100) + AUTHORITY_LIFE * 0.67
    # the leaf was renewed on the way, a year before at most
    old = renewed(old, NAMES, at - timedelta(days=50))

    announced = renewed(old, NAMES, at)
    assert len(authorities(announced)) == 2
    assert announced.certificate == old.certificate
    assert signed_by_one_of(announced, old)

    soon = renewed(announced, NAMES, at + KNOWN_AFTER / 2)
    assert soon == announced

    shown = renewed(announced, NAMES, at + KNOWN_AFTER)
    assert leaf(shown).issuer == authorities(announced)[0].subject
    assert signed_by_one_of(shown, announced)
    assert shown.authority == announced.authority


def test_every_leaf_is_trusted_by_whoever_read_the_authorities_a_while_ago() -> None:
    """Twenty years of looks, a month apart: workers may be as far behind as the look before."""
    chain, now = renewed(Chain(), NAMES, NOW), NOW
    for _ in range(240):
        now += timedelta(days=30)
        for later in (timedelta(), KNOWN_AFTER):
            before, chain = chain, renewed(chain, NAMES, now + later)
            assert leaf(chain).not_valid_after_utc > now + timedelta(days=60)
            assert signed_by_one_of(chain, before)
            assert len(authorities(chain)) <= 2


@pytest.mark.parametrize("field", ["certificate", "key", "authority", "authority_key"])
@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_what_was_damaged_is_made_anew(field: str, content: bytes) -> None:
    chain = renewed(Chain(), NAMES, NOW)
    spoilt = chain_of({**chain.data()})
    spoilt = Chain(**{**{f: getattr(spoilt, f) for f in spoilt.__slots__}, field: content})

    mended = renewed(spoilt, NAMES, NOW)

    assert signed_by_one_of(mended, mended)
    assert renewed(mended, NAMES, NOW) == mended


def test_a_key_of_another_leaf_is_not_kept() -> None:
    chain, other = renewed(Chain(), NAMES, NOW), renewed(Chain(), NAMES, NOW)
    mixed = Chain(
        certificate=chain.certificate,
        key=other.key,
        authority=chain.authority,
        authority_key=chain.authority_key,
    )
    assert renewed(mixed, NAMES, NOW).certificate != chain.certificate
