"""The inputs of a job's endpoints: served files, certificates, URLs, environment (docs/contract.md), the reference
page."""

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from types import MappingProxyType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runner.model.run import CaseRecord
from runner.model.stack import BOXES, PARAMETERS, Role
from runner.units import MIB

# The inputs of a job's endpoints: served files, certificates, URLs, environment (docs/contract.md).

SERVER_NAMES = ("server", "server4", "server6", "server46")
VALIDITY = timedelta(days=10)
_FILLING_NAMES = 9  # number of unused names in each intermediate certificate
_CLOCK_SKEW = timedelta(hours=1)  # a container has the host's clock, but a stack may use another time zone
_LEAST_LIMIT = 16 * MIB  # much more than cases with small files need; decoding takes about ten times as much memory
_LIMIT_PER_BYTE = 8  # bytes of a capture per byte of the files
_NAME_LENGTH = 16  # letters of a file's name
# No digits and no hexadecimal letters: when a path is a number, quicly and aioquic answer with that number of bytes.
_NAME_LETTERS = "ghijklmnopqrstuvwxyz"
_ORGANISATION = "bentpipe"
_MUTUAL = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)  # each box may open the connection


@dataclass(frozen=True, order=True, kw_only=True)
class ServedFile:
    """A file below /www. The content follows from the seed and the name, so that equal values mean equal files."""

    name: str
    size: int  # size in bytes
    seed: int

    def content(self) -> bytes:
        """`size` bytes that can't be compressed: SHAKE-256 of seed and name, which any language can compute."""
        return hashlib.shake_256(f"{self.seed}/{self.name}".encode()).digest(self.size)


@dataclass(frozen=True, order=True, kw_only=True)
class GivenFile(ServedFile):
    """A file below /www with given content."""

    data: bytes = field(repr=False)

    def content(self) -> bytes:
        """The given content."""
        return self.data


def served_files(seed: int, sizes: Sequence[int], *, name_length: int = _NAME_LENGTH) -> tuple[ServedFile, ...]:
    """Files of `sizes` bytes. Their random names follow from `seed`, so that no image knows them in advance."""
    names = (_file_name(f"{seed}/{index}/{size}", name_length) for index, size in enumerate(sizes))
    return tuple(ServedFile(name=name, size=size, seed=seed) for name, size in zip(names, sizes, strict=True))


def flood_limit(file_sizes: Sequence[int]) -> int:
    """The most bytes that a capture of a case with these files needs. A job whose link carries more is ended."""
    return max(_LEAST_LIMIT, _LIMIT_PER_BYTE * sum(file_sizes))


def _file_name(seed: str, length: int) -> str:
    """`length` letters that follow from `seed`."""
    digest = hashlib.shake_256(seed.encode()).digest(length)
    return "".join(_NAME_LETTERS[byte % len(_NAME_LETTERS)] for byte in digest)


def request_urls(files: Iterable[ServedFile], *, host: str = "server4", port: int = 443) -> str:
    """The value of REQUESTS: absolute URLs separated by spaces."""
    return " ".join(f"https://{host}:{port}/{file.name}" for file in files)


def environment(
    role: Role,
    *,
    testcase: str,
    requests: str = "",
    parameters: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The variables of an endpoint. `parameters`: of a variant; only those for `role` are used."""
    variables = {
        "ROLE": role.value,
        "TESTCASE": testcase,
        "SSLKEYLOGFILE": "/logs/keys.log",
        "QLOGDIR": "/logs/qlog/",
        f"{role.value.upper()}_PARAMS": "",
    }
    if role is Role.CLIENT:
        variables["REQUESTS"] = requests
    return variables | {name: value for name, value in parameters.items() if role in PARAMETERS[name]}


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """The files of /certs, in PEM. `chain`: the leaf certificate, then intermediate certificates."""

    chain: bytes
    key: bytes
    ca: bytes

    def files(self) -> dict[str, bytes]:
        """Name in /certs → content."""
        return {"cert.pem": self.chain, "priv.key": self.key, "ca.pem": self.ca}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """SHA-256 of each certificate of the chain, in hexadecimal."""
        chain = x509.load_pem_x509_certificates(self.chain)
        return tuple(each.fingerprint(hashes.SHA256()).hex() for each in chain)


class _Draw:
    """Keys, serial numbers and the time of certificates. Keys and serial numbers are random or derived from a seed; the
    time is this moment or `now` (seconds since 1970)."""

    def __init__(self, seed: int | None = None, now: float | None = None, *, purpose: str = "certificates") -> None:
        self._seed = seed
        self._purpose = purpose
        self._count = 0
        self.deterministic = seed is not None  # signatures, too (RFC 6979)
        self.now = datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)

    def key(self) -> ec.EllipticCurvePrivateKey:
        if self._seed is None:
            return ec.generate_private_key(ec.SECP256R1())
        return ec.derive_private_key(self._number(31) + 1, ec.SECP256R1())  # smaller than the curve's order

    def serial(self) -> int:
        return x509.random_serial_number() if self._seed is None else self._number(19) + 1

    def _number(self, size: int) -> int:
        self._count += 1
        return int.from_bytes(hashlib.shake_256(f"{self._seed}/{self._purpose}/{self._count}".encode()).digest(size))


def certificates(
    *, chain_length: int = 1, names: Sequence[str] = SERVER_NAMES, seed: int | None = None, now: float | None = None
) -> Certificates:
    """A new CA and a leaf certificate for `names`, EC P-256.

    `chain_length` (at least 1) is the number of certificates in `cert.pem`. Intermediate certificates have about
    1,100 B each, like those of public authorities, so that a long chain exceeds the anti-amplification limit (RFC 9000
    §8.1). With `seed` and `now` (seconds since 1970), equal arguments give equal certificates. Use them for tests and
    virtual time, never for real secrets.
    """
    if chain_length < 1:
        raise ValueError("a chain holds at least the leaf")
    draw = _Draw(seed, now)
    ca_key = draw.key()
    ca_name = _name("CA")
    ca = _sign(draw, subject=ca_name, key=ca_key, issuer=ca_name, issuer_key=ca_key, below=chain_length - 1)
    issuer, issuer_key = ca_name, ca_key
    intermediates: list[x509.Certificate] = []
    for below in range(chain_length - 2, -1, -1):
        key = draw.key()
        subject = _name(f"intermediate {chain_length - 1 - below}")
        intermediate = _sign(
            draw, subject=subject, key=key, issuer=issuer, issuer_key=issuer_key, below=below, fill=True
        )
        intermediates.insert(0, intermediate)
        issuer, issuer_key = subject, key
    leaf_key = draw.key()
    leaf = _sign(draw, subject=_name(names[0]), key=leaf_key, issuer=issuer, issuer_key=issuer_key, names=names)
    return Certificates(
        chain=b"".join(_pem(certificate) for certificate in (leaf, *intermediates)),
        key=_private(leaf_key),
        ca=_pem(ca),
    )


def path_keys(*, seed: int | None = None, now: float | None = None) -> dict[str, bytes]:
    """The files of a middlebox's /keys: a new CA, and a certificate and a key for each box, EC P-256. `seed` and `now`
    as for `certificates`."""
    return mutual_keys([box.value for box in BOXES], draw=_Draw(seed, now, purpose="path"))


def mutual_keys(names: Iterable[str], *, validity: timedelta = VALIDITY, draw: _Draw | None = None) -> dict[str, bytes]:
    """Files for peers that authenticate each other: `ca.pem` of a new CA whose key is not kept, and `NAME.pem` and
    `NAME.key` for each peer, EC P-256."""
    draw = draw or _Draw()
    ca_key = draw.key()
    ca_name = _name("CA")
    ca = _sign(draw, subject=ca_name, key=ca_key, issuer=ca_name, issuer_key=ca_key, below=0, validity=validity)
    files = {"ca.pem": _pem(ca)}
    for name in names:
        key = draw.key()
        leaf = _sign(
            draw,
            subject=_name(name),
            key=key,
            issuer=ca_name,
            issuer_key=ca_key,
            names=[name],
            usages=_MUTUAL,
            validity=validity,
        )
        files |= {f"{name}.pem": _pem(leaf), f"{name}.key": _private(key)}
    return files


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _sign(
    draw: _Draw,
    *,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    below: int | None = None,
    names: Sequence[str] = (),
    fill: bool = False,
    usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH,),
    validity: timedelta = VALIDITY,
) -> x509.Certificate:
    """A certificate signed by `issuer`: a leaf for `names`, or an authority with `below` levels below it."""
    authority = below is not None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(draw.serial())
        .not_valid_before(draw.now - _CLOCK_SKEW)
        .not_valid_after(draw.now + validity)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=below), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_key_usage(authority=authority), critical=True)
    )
    if not authority:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        ).add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
    elif fill:
        unused = [x509.DNSName(f"{number:060}.invalid") for number in range(_FILLING_NAMES)]  # about 600 B
        builder = builder.add_extension(x509.SubjectAlternativeName(unused), critical=False)
    return builder.sign(issuer_key, hashes.SHA256(), ecdsa_deterministic=draw.deterministic)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


# The reference page. It has as many objects of each kind as ETSI's Kepler page, with the same total size, but other
# content.
#
# It has 75 objects with 815,804 B: one document, 9 style sheets, 32 texts in frames, 32 images, one blob. The total
# size of each kind and the sizes of the largest texts are as in the original; the other sizes are chosen here. The
# content follows from a seed and can't be compressed.

DOCUMENT = 17_323
STYLES = (10_000, 10_000, 10_000, 6_204, 500, 500, 500, 500, 500)
_TEXTS_LEFT = 446_613 - 115_600 - 97_100 - 61_000
TEXTS = (115_600, 97_100, 61_000, *(_TEXTS_LEFT // 29 + (1 if at < _TEXTS_LEFT % 29 else 0) for at in range(29)))
IMAGES = (46_000, 46_000, 46_000, *(1_600,) * 27, 966, 966)
BLOB = 130_032
OBJECTS = 1 + len(STYLES) + len(TEXTS) + len(IMAGES) + 1
TOTAL = DOCUMENT + sum(STYLES) + sum(TEXTS) + sum(IMAGES) + BLOB
INDEX = "index.html"


def names(seed: int) -> dict[str, int]:
    """Name → size in bytes of every object, the document first. Names follow from `seed`, so no cache has them."""
    mark = hashlib.shake_256(f"page/{seed}".encode()).hexdigest(4)
    sizes_by_name = {f"{mark}-{INDEX}": DOCUMENT}
    for kind, suffix, sizes in (
        ("style", "css", STYLES),
        ("text", "txt", TEXTS),
        ("image", "png", IMAGES),
        ("blob", "png", (BLOB,)),
    ):
        sizes_by_name |= {f"{mark}-{kind}{number}.{suffix}": size for number, size in enumerate(sizes, start=1)}
    return sizes_by_name


def objects(seed: int, places: Sequence[str] = ("",)) -> dict[str, bytes]:
    """Name → content of every object. The document takes the others from `places` in turn; "" is its origin."""
    listed = names(seed)
    document = next(iter(listed))
    made = {name: _content(name, size, seed) for name, size in listed.items() if name != document}
    addresses = [place + name for place, name in zip(cycle(places), made, strict=False)]
    return {document: _document(addresses, seed)} | made


def _noise(what: str, size: int, seed: int) -> bytes:
    return hashlib.shake_256(f"{seed}/{what}".encode()).digest(size)


def _words(what: str, size: int, seed: int) -> bytes:
    """Text of `size` bytes, in lines."""
    text = base64.urlsafe_b64encode(_noise(what, size, seed))
    return b"\n".join(text[at : at + 79] for at in range(0, size, 79))[:size]


def _content(name: str, size: int, seed: int) -> bytes:
    if name.endswith(".css"):
        head, tail = f"p.{name.partition('-')[2].removesuffix('.css')} {{ margin: 0 }}\n/*".encode(), b"*/"
        return head + _words(name, size - len(head) - len(tail), seed) + tail
    return _image(name, size, seed) if name.endswith(".png") else _words(name, size, seed)


def _image(name: str, size: int, seed: int) -> bytes:
    """A PNG of 8 × 8 grey dots with `size` bytes. Most of its bytes are in a chunk that no browser shows."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    dots = _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + _noise(name, 8, seed) for _ in range(8))))
    ends = b"\x89PNG\r\n\x1a\n", _chunk(b"IEND", b"")
    left = size - len(header) - len(dots) - len(ends[0]) - len(ends[1]) - 12
    return ends[0] + header + dots + _chunk(b"noIs", _noise(name, left, seed)) + ends[1]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _document(others: list[str], seed: int) -> bytes:
    """The document: references to all other objects, and text that a browser can paint without them."""
    styles = "".join(f'<link rel="stylesheet" href="{name}">\n' for name in others if name.endswith(".css"))
    images = "".join(f'<img src="{name}" width="32" height="32">\n' for name in others if name.endswith(".png"))
    frames = "".join(f'<iframe src="{name}" height="80"></iframe>\n' for name in others if name.endswith(".txt"))
    title = "<meta charset='utf-8'><title>reference</title>"
    head = f"<!doctype html>\n<html lang='en'><head>{title}\n{styles}</head><body>\n"
    body = f"<h1>Reference page</h1>\n{images}{frames}<p>"
    tail = "</p>\n</body></html>\n"
    left = DOCUMENT - len(head) - len(body) - len(tail)
    return (head + body).encode() + _words(INDEX, left, seed) + tail.encode()


# The inputs of downloads and page loads: served files, and the client's environment.

PORTS = {"clear": 80, "tls": 443}
_MORE_ORIGINS = 8441  # the first TLS port of further origins, see implementations/_workload/source/nginx.conf
_WARM_PAUSE = 2.0  # seconds between the two loads of a warm case, in which the last packets of the first load arrive
_BROWSER_SPARE = 10.0  # seconds of the time-out in which a browser can report a missing load event


@dataclass(frozen=True, kw_only=True)
class Load:
    """The inputs of one download or page load. `expected` files must be in /downloads at the end; `environment`:
    variables of the client. `server_port` is a TCP port."""

    files: tuple[ServedFile, ...]
    expected: tuple[ServedFile, ...]
    environment: dict[str, str]
    server_port: int


def secret(seed: int) -> str:
    """The secret that the client sends in a header: 32 hexadecimal digits."""
    return hashlib.shake_256(f"secret/{seed}".encode()).hexdigest(16)


def served(case: CaseRecord, seed: int) -> tuple[ServedFile, ...]:
    """The files of a case; the file that the client requests first comes first."""
    if case.page:
        more = range(_MORE_ORIGINS, _MORE_ORIGINS + case.origins - 1)
        contents = objects(seed, ("", *(f"https://{case.host}:{port}/" for port in more)))
        return tuple(GivenFile(name=name, size=len(data), seed=seed, data=data) for name, data in contents.items())
    return served_files(seed, case.file_sizes, name_length=case.name_length)


def load(case: CaseRecord, seed: int) -> Load:
    """The inputs of a case whose client is a downloader or a browser."""
    files = served(case, seed)
    scheme, port = ("https", PORTS["tls"]) if case.encrypted else ("http", PORTS["clear"])
    environment = {
        "PROTOCOL": case.protocol,
        "REQUESTS": f"{scheme}://{case.host}/{files[0].name}",
        "SECRET": secret(seed),
        "SSLKEYLOGFILE": "/logs/keys.log",
        "TESTCASE": case.wire_names["client"],
    }
    if case.warm:
        environment["WARM"] = f"{_WARM_PAUSE:g}"
    if case.page:
        once = case.timeout / 2 if case.warm else case.timeout
        environment |= {"OBJECTS": str(len(files)), "TIMEOUT": f"{once - _BROWSER_SPARE:g}"}
    return Load(files=files, expected=() if case.page else files, environment=environment, server_port=port)
