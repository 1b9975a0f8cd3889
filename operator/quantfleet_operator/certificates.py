"""The certificates of the status server: an authority of its own, and a leaf that it signs (C19).

Pure but for the randomness of keys. The authority lives for ten years and the leaf for one; each
is renewed when two thirds of its life are over. Workers trust a list of authorities, so that a new
one is known everywhere before the first leaf of it is shown.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
"""Keys of the Secret; AUTHORITY holds all that is to be trusted, the newest first."""
AUTHORITY_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=365)
KNOWN_AFTER = timedelta(minutes=10)
"""Until every worker trusts a new authority: kubelets bring a ConfigMap to pods within minutes."""
SKEW = timedelta(minutes=5)
"""How long before now certificates begin, for clocks that are behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What the Secret holds, as PEM."""

    certificate: bytes = b""
    key: bytes = b""
    authority: bytes = b""
    authority_key: bytes = b""

    def data(self) -> dict[str, bytes]:
        """The Secret's entries."""
        return {
            CERTIFICATE: self.certificate,
            KEY: self.key,
            AUTHORITY: self.authority,
            AUTHORITY_KEY: self.authority_key,
        }


def chain_of(data: Mapping[str, bytes]) -> Chain:
    """What a Secret holds; entries may be absent."""
    return Chain(
        certificate=data.get(CERTIFICATE, b""),
        key=data.get(KEY, b""),
        authority=data.get(AUTHORITY, b""),
        authority_key=data.get(AUTHORITY_KEY, b""),
    )


def renewed(chain: Chain, names: Sequence[str], now: datetime) -> Chain:
    """The chain as it should be now; the same where nothing is to be done.

    1. Without a usable authority: a new one; others that are trusted stay so.
    2. Past two thirds of the authority's life: the same.
    3. The leaf is signed anew where it is not usable, past two thirds, for other names, or of an
       older authority once the new one is known everywhere.
    """
    trusted = [one for one in _certificates(chain.authority) if one.not_valid_after_utc > now]
    key = _key(chain.authority_key)
    own = key is not None and trusted and trusted[0].public_key() == key.public_key()
    if key is None or not own or _is_due(trusted[0], now):
        authority, key = _new_authority(now)
        trusted = [authority, *trusted]
    newest = trusted[0]
    known = now - newest.not_valid_before_utc - SKEW >= KNOWN_AFTER
    leaf = next(iter(_certificates(chain.certificate)), None)
    keep = leaf is not None and _usable(leaf, chain.key, trusted, names, now)
    if keep and leaf is not None and (_signed(leaf, newest) or not known):
        certificate, leaf_key = chain.certificate, chain.key
    else:
        certificate, leaf_key = _new_leaf(names, newest, key, now)
    return Chain(
        certificate=certificate,
        key=leaf_key,
        authority=b"".join(_pem(one) for one in trusted),
        authority_key=_key_pem(key),
    )


def _usable(
    leaf: x509.Certificate,
    key_pem: bytes,
    trusted: Sequence[x509.Certificate],
    names: Sequence[str],
    now: datetime,
) -> bool:
    """Whether a leaf can be shown for a while: its key, its names, its signer and its time."""
    key = _key(key_pem)
    if key is None or key.public_key() != leaf.public_key() or _is_due(leaf, now):
        return False
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    if list(found) != [_name(name) for name in names]:
        return False
    return any(_signed(leaf, one) for one in trusted)


def _signed(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * 2 / 3


def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    mark = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()[:16]
    subject = _subject(f"QuantFleet status server {mark}")  # two of them are never mixed up
    builder = _builder(subject, subject, key.public_key(), now, AUTHORITY_LIFE)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _new_leaf(
    names: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("quantfleet-server")
    builder = _builder(subject, authority.subject, key.public_key(), now, LEAF_LIFE)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(one) for one in names]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + life)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return list(x509.load_pem_x509_certificates(pem)) if pem.strip() else []
    except ValueError:
        return []


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
