//! The key log. msquic gives its secrets to the program, for each connection that requests them.

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

/// The secrets of one connection. msquic writes them into this memory until the handshake has ended, in the thread that
/// calls the connection's callback.
pub struct Secrets {
    log: Arc<KeyLog>,
    // A raw pointer: msquic writes to this memory, so it must not be a Box at the same time.
    secrets: *mut QUIC_TLS_SECRETS,
}

impl Secrets {
    pub fn new(log: Arc<KeyLog>) -> Self {
        // The structure has only numbers, so zeros are valid.
        Self { log, secrets: Box::into_raw(Box::new(unsafe { std::mem::zeroed() })) }
    }

    /// A function that requests the secrets. It can be called after this object was moved into the connection's
    /// callback.
    pub fn request(&self) -> impl FnOnce(&Connection) -> Result<()> + use<> {
        let secrets = self.secrets;
        move |connection| {
            let (parameter, size) = (msquic::ffi::QUIC_PARAM_CONN_TLS_SECRETS, size_of::<QUIC_TLS_SECRETS>() as u32);
            // The callback owns this memory and exists longer than the connection.
            unsafe { Api::set_param(connection.as_raw(), parameter, size, secrets.cast())? };
            Ok(())
        }
    }

    /// Write the known secrets to the key log. Call it once, in the connection's callback.
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
        // The callback is dropped only after the connection has ended.
        drop(unsafe { Box::from_raw(self.secrets) });
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
