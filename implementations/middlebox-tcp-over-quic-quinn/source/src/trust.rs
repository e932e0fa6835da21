//! Authentication of the other side: mutual TLS 1.3, the authority of /keys, and one pinned certificate.

use std::env;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use quinn::{Connection, EndpointConfig};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{KeyLogFile, RootCertStore, version};

pub type Certificate = CertificateDer<'static>;

const ALPN: &[u8] = b"bentpipe-tcp";

/// The certificate of a box.
pub fn certificate(side: &str) -> Result<Certificate> {
    read(&format!("/keys/{side}.pem"))
}

fn read(path: &str) -> Result<Certificate> {
    CertificateDer::from_pem_file(path).with_context(|| path.to_owned())
}

fn own() -> Result<(Vec<Certificate>, PrivateKeyDer<'static>)> {
    let side = env::var("ROLE")?;
    let key = format!("/keys/{side}.key");
    Ok((vec![certificate(&side)?], PrivateKeyDer::from_pem_file(&key).context(key)?))
}

fn roots() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(read("/keys/ca.pem")?)?;
    Ok(roots)
}

pub fn client() -> Result<rustls::ClientConfig> {
    let (chain, key) = own()?;
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots()?)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.key_log = Arc::new(KeyLogFile::new());
    // Without tickets there is no 0-RTT, which could be replayed.
    config.resumption = Resumption::disabled();
    Ok(config)
}

pub fn server() -> Result<rustls::ServerConfig> {
    let (chain, key) = own()?;
    let provider = Arc::new(default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots()?), provider.clone()).build()?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.key_log = Arc::new(KeyLogFile::new());
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// An endpoint that answers packets to the connection IDs of an earlier process with a valid stateless reset (RFC 9000
/// §10.3.2). For this, both keys are derived from the TLS key. Otherwise terminals would wait for their idle time-out.
pub fn lasting() -> Result<EndpointConfig> {
    let (_, key) = own()?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.secret_der());
    let reset = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, b"stateless reset").as_ref());
    let id = u64::from_be_bytes(hmac::sign(&key, b"connection IDs").as_ref()[..8].try_into()?);
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(id)));
    Ok(config)
}

/// Require the pinned certificate: the authority has signed the certificates of both boxes.
pub fn require(connection: &Connection, pinned: &Certificate) -> Result<()> {
    let identity = connection.peer_identity().and_then(|chain| chain.downcast::<Vec<Certificate>>().ok());
    let leaf = identity.as_deref().and_then(|chain| chain.first());
    ensure!(leaf == Some(pinned), "the other side has a certificate of the authority, but not its own");
    Ok(())
}
