"""Inputs of endpoints: equal files for equal seeds, certificates that a verifier accepts, the contract's variables."""

import hashlib
import string
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from runner.inputs.inputs import SERVER_NAMES, certificates, environment, path_keys, request_urls, served_files
from runner.model.stack import Role

SIZES = (1024, 0, 3_000_000)


def test_files_follow_from_the_seed() -> None:
    first, again, other = (served_files(seed, SIZES) for seed in (5, 5, 6))
    assert first == again
    assert [file.content() for file in first] == [file.content() for file in again]
    assert [len(file.content()) for file in first] == list(SIZES)
    assert {file.name for file in first}.isdisjoint(file.name for file in other)
    assert first[2].content() != other[2].content()


def test_content_is_pinned() -> None:
    """A run that is resumed with a newer bentpipe must serve the same bytes."""
    (file,) = served_files(1, (1000,))
    assert file.name == "hitoxmhvtqtvukzy"
    assert file.content() == hashlib.shake_256(f"1/{file.name}".encode()).digest(1000)


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(0, 100), max_size=6))
def test_equal_sizes_get_different_names(seed: int, sizes: list[int]) -> None:
    files = served_files(seed, sizes)
    assert len({file.name for file in files}) == len(sizes)
    # A digit anywhere can make a server take the name for a size: quicly reads the digits that a path begins with.
    assert all(set(file.name) <= set(string.ascii_lowercase) - set("abcdef") for file in files)


def test_urls_are_absolute_and_separated_by_blanks() -> None:
    files = served_files(1, (1, 2))
    assert request_urls(files, host="server6").split(" ") == [f"https://server6:443/{file.name}" for file in files]


def parse(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_every_server_name_is_verified_against_the_ca(length: int) -> None:
    made = certificates(chain_length=length)
    leaf, *intermediates = parse(made.chain)
    assert len(intermediates) == length - 1
    builder = PolicyBuilder().store(Store(parse(made.ca))).max_chain_depth(length)
    for name in SERVER_NAMES:
        chain = builder.build_server_verifier(x509.DNSName(name)).verify(leaf, intermediates)
        assert len(chain) == length + 1
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("example.org")).verify(leaf, intermediates)
    for below, above in zip((leaf, *intermediates), (*intermediates, *parse(made.ca)), strict=True):
        below.verify_directly_issued_by(above)


def test_a_chain_without_its_intermediates_is_not_verified() -> None:
    made = certificates(chain_length=3)
    leaf, *_ = parse(made.chain)
    verifier = PolicyBuilder().store(Store(parse(made.ca))).build_server_verifier(x509.DNSName("server4"))
    with pytest.raises(VerificationError):
        verifier.verify(leaf, [])


def test_the_leaf_is_p256_and_lasts_ten_days() -> None:
    made = certificates()
    (leaf,) = parse(made.chain)
    key = load_pem_private_key(made.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == leaf.public_key()
    now = datetime.now(UTC)
    assert leaf.not_valid_before_utc < now
    assert timedelta(days=9, hours=23) < leaf.not_valid_after_utc - now <= timedelta(days=10)
    assert set(made.files()) == {"cert.pem", "priv.key", "ca.pem"}


def test_both_sides_of_a_path_have_a_certificate_of_one_ca() -> None:
    files = path_keys()
    ca = x509.load_pem_x509_certificate(files["ca.pem"])
    for side in ("terminal", "gateway"):
        leaf = x509.load_pem_x509_certificate(files[f"{side}.pem"])
        leaf.verify_directly_issued_by(ca)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [side]
        key = load_pem_private_key(files[f"{side}.key"], None)
        assert key.public_key() == leaf.public_key()


def test_a_chain_holds_at_least_the_leaf() -> None:
    with pytest.raises(ValueError, match="at least the leaf"):
        certificates(chain_length=0)


def test_the_environment_is_that_of_the_contract() -> None:
    client = environment(Role.CLIENT, testcase="transfer", requests="https://server4:443/a")
    assert client == {
        "ROLE": "client",
        "TESTCASE": "transfer",
        "REQUESTS": "https://server4:443/a",
        "CLIENT_PARAMS": "",
        "SSLKEYLOGFILE": "/logs/keys.log",
        "QLOGDIR": "/logs/qlog/",
    }
    requested = {"CCA": "bbr", "IW": "32", "SERVER_PARAMS": "-v", "CLIENT_PARAMS": "-q"}
    server = environment(Role.SERVER, testcase="retry", parameters=requested)
    assert "REQUESTS" not in server
    assert "CLIENT_PARAMS" not in server
    assert (server["SERVER_PARAMS"], server["CCA"], server["IW"]) == ("-v", "bbr", "32")
