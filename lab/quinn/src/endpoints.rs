//! The configuration of both endpoints, with key logs.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig,
    ServerConfig, TransportConfig, VarInt,
};
use rustls::pki_types::PrivateKeyDer;

use crate::control::{Factory, Shared};
use crate::spec::Spec;

const ALPN: &[u8] = b"hq-interop";
/// More flow-control credit than any transfer uses.
const PLENTY: u32 = 1 << 30;

#[derive(Debug)]
struct KeyLog(Mutex<std::fs::File>);

impl rustls::KeyLog for KeyLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        writeln!(
            self.0.lock().unwrap(),
            "{label} {} {}",
            hex(client_random),
            hex(secret)
        )
        .unwrap();
    }
}

pub struct Endpoints {
    pub client: Endpoint,
    pub server: Endpoint,
    pub client_config: ClientConfig,
}

type Error = Box<dyn std::error::Error>;

pub fn configure(
    spec: &Spec,
    shared: Arc<Mutex<Shared>>,
    key_log: &std::path::Path,
) -> Result<Endpoints, Error> {
    let certified = rcgen::generate_simple_self_signed(vec!["server".to_string()])?;
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());

    let mut server_tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    server_tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server_tls)?));
    server.transport_config(Arc::new(server_transport(spec, shared)));

    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone())?;
    let mut client_tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client_tls.alpn_protocols = vec![ALPN.to_vec()];
    client_tls.key_log = Arc::new(KeyLog(Mutex::new(std::fs::File::create(key_log)?)));
    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client_tls)?));
    client.transport_config(Arc::new(client_transport(spec)));

    let seeded = |number: u64| {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&spec.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&number.to_le_bytes());
        Some(seed)
    };
    let endpoint = Arc::new(EndpointConfig::default());
    Ok(Endpoints {
        client: Endpoint::new(endpoint.clone(), None, true, seeded(1)),
        server: Endpoint::new(endpoint, Some(Arc::new(server)), true, seeded(2)),
        client_config: client,
    })
}

fn server_transport(spec: &Spec, shared: Arc<Mutex<Shared>>) -> TransportConfig {
    let settings = &spec.server;
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(60_000))))
        .send_window(u64::from(PLENTY) * 2)
        .packet_threshold(settings.packet_threshold)
        .time_threshold(settings.time_threshold)
        .enable_segmentation_offload(false)
        .mtu_discovery_config(settings.discovers_mtu.then(MtuDiscoveryConfig::default))
        .congestion_controller_factory(Arc::new(Factory {
            server: spec.server.clone(),
            shared,
        }));
    if settings.ack_every > 0 {
        let mut frequency = AckFrequencyConfig::default();
        frequency
            .ack_eliciting_threshold(VarInt::from_u32(settings.ack_every - 1))
            .max_ack_delay(Some(Duration::from_secs_f64(settings.ack_delay)))
            .reordering_threshold(VarInt::from_u32(2));
        transport.ack_frequency_config(Some(frequency));
    }
    transport
}

fn client_transport(spec: &Spec) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let credit = if spec.client.window > 0 {
        spec.client.window as u32
    } else {
        PLENTY
    };
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(60_000))))
        .stream_receive_window(VarInt::from_u32(credit))
        .receive_window(VarInt::from_u32(PLENTY))
        .enable_segmentation_offload(false)
        .mtu_discovery_config(None);
    transport
}
