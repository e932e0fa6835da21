//! The key log: msquic hands its secrets to whoever asks for them, a connection at a time.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use msquic::ffi::QUIC_TLS_SECRETS;
use msquic::{Api, Connection};

pub struct KeyLog(Option<Mutex<File>>);

impl KeyLog {
    pub fn from_environment() -> Result<Self> {
        let Some(path) = env::var_os("SSLKEYLOGFILE").filter(|path| !path.is_empty()) else { return Ok(Self(None)) };
        let file = OpenOptions::new().create(true).append(true).open(&path);
        Ok(Self(Some(Mutex::new(file.with_context(|| path.display().to_string())?))))
    }

    fn write(&self, lines: &str) {
        let Some(file) = &self.0 else { return };
        if let Err(error) = file.lock().unwrap().write_all(lines.as_bytes()) {
            eprintln!("key log: {error}");
        }
    }
}

/// The secrets of one connection. msquic writes them behind our back, from the thread that calls the connection's
/// callback, until the handshake is over.
pub struct Secrets {
    log: Arc<KeyLog>,
    // By pointer, since memory that somebody else writes can't be a Box of ours at the same time.
    secrets: *mut QUIC_TLS_SECRETS,
}

impl Secrets {
    pub fn new(log: Arc<KeyLog>) -> Self {
        // Plain numbers, for which zeros are valid.
        Self { log, secrets: Box::into_raw(Box::new(unsafe { std::mem::zeroed() })) }
    }

    /// A way to ask for them when this object has been moved into the connection's callback already.
    pub fn request(&self) -> impl FnOnce(&Connection) -> Result<()> + use<> {
        let secrets = self.secrets;
        move |connection| {
            let (parameter, size) = (msquic::ffi::QUIC_PARAM_CONN_TLS_SECRETS, size_of::<QUIC_TLS_SECRETS>() as u32);
            // The callback, and with it these bytes, outlives the connection.
            unsafe { Api::set_param(connection.as_raw(), parameter, size, secrets.cast())? };
            Ok(())
        }
    }

    /// Write what is known so far; to be called once, from the connection's callback.
    pub fn log(&self) {
        let secrets = unsafe { self.secrets.read() };
        if secrets.IsSet.ClientRandom() == 0 {
            return;
        }
        let known = [
            (secrets.IsSet.ClientEarlyTrafficSecret(), "CLIENT_EARLY_TRAFFIC_SECRET", secrets.ClientEarlyTrafficSecret),
            (
                secrets.IsSet.ClientHandshakeTrafficSecret(),
                "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
                secrets.ClientHandshakeTrafficSecret,
            ),
            (
                secrets.IsSet.ServerHandshakeTrafficSecret(),
                "SERVER_HANDSHAKE_TRAFFIC_SECRET",
                secrets.ServerHandshakeTrafficSecret,
            ),
            (secrets.IsSet.ClientTrafficSecret0(), "CLIENT_TRAFFIC_SECRET_0", secrets.ClientTrafficSecret0),
            (secrets.IsSet.ServerTrafficSecret0(), "SERVER_TRAFFIC_SECRET_0", secrets.ServerTrafficSecret0),
        ];
        let random = hex(&secrets.ClientRandom);
        let lines = known.iter().filter(|(set, _, _)| *set != 0).map(|(_, label, secret)| {
            let secret = hex(&secret[..usize::from(secrets.SecretLength)]);
            format!("{label} {random} {secret}\n")
        });
        self.log.write(&lines.collect::<String>());
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        // Its callback is gone, so the connection is.
        drop(unsafe { Box::from_raw(self.secrets) });
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
