//! The requested settings as a configuration of msquic.

use std::env;
use std::sync::Arc;

use anyhow::{Context, Result};
use endpoint::congestion::{Congestion, Controller};
use msquic::ffi::{
    QUIC_CONGESTION_CONTROL_ALGORITHM_QUIC_CONGESTION_CONTROL_ALGORITHM_BBR as BBR,
    QUIC_CONGESTION_CONTROL_ALGORITHM_QUIC_CONGESTION_CONTROL_ALGORITHM_CUBIC as CUBIC,
};
use msquic::{
    AllowedCipherSuiteFlags, Api, BufferRef, CertificateFile, Configuration, Credential, CredentialConfig,
    Registration, ServerResumptionLevel,
};

use crate::keylog::KeyLog;

/// The first controller is msquic's default.
const CONTROLLERS: [Controller; 2] = [Controller { name: "cubic", window: 10 }, Controller { name: "bbr", window: 10 }];

pub const ALPN: &str = "hq-interop";
const CHAIN: &str = "/certs/cert.pem";
const KEY: &str = "/certs/priv.key";
const AUTHORITY: &str = "/certs/ca.pem";
/// Number of requests that a client may send at once. msquic's default is 0.
const STREAMS: u16 = 100;

pub struct Settings {
    /// Wire name of the test case.
    pub case: String,
    pub congestion: Congestion,
    pub key_log: Arc<KeyLog>,
}

impl Settings {
    pub fn from_environment() -> Result<Self> {
        Ok(Self {
            case: env::var("TESTCASE").context("TESTCASE is not set")?,
            congestion: Congestion::from_environment(&CONTROLLERS),
            key_log: Arc::new(KeyLog::from_environment()?),
        })
    }

    pub fn client(&self, registration: &Registration) -> Result<Configuration> {
        let configuration = Configuration::open(registration, &[BufferRef::from(ALPN)], Some(&self.both()))?;
        let mut credential = CredentialConfig::new_client().set_ca_certificate_file(AUTHORITY.to_owned());
        if self.case == "chacha20" {
            credential = credential.set_allowed_cipher_suites(AllowedCipherSuiteFlags::CHACHA20_POLY1305_SHA256);
        }
        configuration.load_credential(&credential).context(AUTHORITY)?;
        Ok(configuration)
    }

    pub fn server(&self, registration: &Registration) -> Result<Configuration> {
        if self.case == "retry" {
            retry_always()?;
        }
        let settings = self.both().set_PeerBidiStreamCount(STREAMS);
        let settings = settings.set_ServerResumptionLevel(ServerResumptionLevel::ResumeAndZerortt);
        let configuration = Configuration::open(registration, &[BufferRef::from(ALPN)], Some(&settings))?;
        let files = CertificateFile::new(KEY.to_owned(), CHAIN.to_owned());
        let credential = CredentialConfig::new().set_credential(Credential::CertificateFile(files));
        configuration.load_credential(&credential).with_context(|| format!("{CHAIN} and {KEY}"))?;
        Ok(configuration)
    }

    fn both(&self) -> msquic::Settings {
        let algorithm = if self.congestion.controller == "bbr" { BBR } else { CUBIC };
        let settings = msquic::Settings::new()
            .set_CongestionControlAlgorithm(algorithm as u16)
            .set_InitialWindowPackets(self.congestion.window as u32);
        if self.case == "ecn" { settings.set_EcnEnabled() } else { settings }
    }
}

/// msquic validates addresses by Retry when handshakes use more than a share of its memory. Here this share is 0.
fn retry_always() -> Result<()> {
    let percent: u16 = 0;
    let parameter = msquic::ffi::QUIC_PARAM_GLOBAL_RETRY_MEMORY_PERCENT;
    // A global parameter has no handle. msquic copies the value.
    unsafe { Api::set_param(std::ptr::null_mut(), parameter, 2, (&raw const percent).cast())? };
    Ok(())
}
