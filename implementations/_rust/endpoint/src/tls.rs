//! TLS 1.3 with rustls, and the key log.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
    WebPkiServerVerifier,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, KeyLogFile, NamedGroup, RootCertStore, SignatureScheme};
use tokio::sync::Notify;

const CHAIN: &str = "/certs/cert.pem";
const KEY: &str = "/certs/priv.key";
const AUTHORITY: &str = "/certs/ca.pem";
/// The largest number of intermediate certificates that webpki accepts.
const LONGEST_CHAIN: usize = 6;

/// AES-128-GCM always protects Initial packets, whatever suite TLS negotiates (RFC 9001 §5.2). So the suite is fixed
/// here.
pub fn initial_suite() -> rustls::quic::Suite {
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    suite.tls13().and_then(|suite| suite.quic_suite()).expect("ring protects QUIC packets with AES-128-GCM")
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = fs::read(path).with_context(|| path.to_owned())?;
    CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().with_context(|| path.to_owned())
}

pub fn server(alpn: &[u8]) -> Result<rustls::ServerConfig> {
    let key = PrivateKeyDer::from_pem_file(KEY).context(KEY)?;
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates(CHAIN)?, key)?;
    config.alpn_protocols = vec![alpn.to_vec()];
    config.key_log = Arc::new(KeyLogFile::new());
    // The only value besides 0 that QUIC allows (RFC 9001 §4.6.1).
    config.max_early_data_size = u32::MAX;
    Ok(config)
}

/// The client's configuration for a test case, and the session tickets of its connections.
pub fn client(alpn: &[u8], case: &str) -> Result<(rustls::ClientConfig, Arc<Tickets>)> {
    let mut provider: CryptoProvider = ring::default_provider();
    if case == "chacha20" {
        provider.cipher_suites = vec![ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITY)? {
        roots.add(certificate).context(AUTHORITY)?;
    }
    let provider = Arc::new(provider);
    let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let verifier = Arc::new(Verifier { webpki });
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let tickets = Arc::new(Tickets::default());
    config.alpn_protocols = vec![alpn.to_vec()];
    config.key_log = Arc::new(KeyLogFile::new());
    config.enable_early_data = case == "zerortt";
    config.resumption = match case {
        "resumption" | "zerortt" => Resumption::store(tickets.clone()),
        _ => Resumption::disabled(),
    };
    Ok((config, tickets))
}

/// rustls' own verifier, except for chains that are too long for it.
#[derive(Debug)]
struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The test of the anti-amplification limit needs a chain that is too long for webpki. This test is not about
        // trust. The signature with the leaf's key is still verified.
        if intermediates.len() > LONGEST_CHAIN {
            return Ok(ServerCertVerified::assertion());
        }
        self.webpki.verify_server_cert(leaf, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// rustls' own cache of tickets, with a function that waits for a ticket: it may arrive long after the first file.
#[derive(Debug)]
pub struct Tickets {
    cache: ClientSessionMemoryCache,
    arrived: Notify,
}

impl Default for Tickets {
    fn default() -> Self {
        Self { cache: ClientSessionMemoryCache::new(16), arrived: Notify::new() }
    }
}

impl Tickets {
    /// Returns when a ticket has arrived since the last call.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.cache.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.cache.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.cache.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.cache.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.cache.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.cache.insert_tls13_ticket(server_name, value);
        self.arrived.notify_one();
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.cache.take_tls13_ticket(server_name)
    }
}
