//! One qlog per connection, complete at the end of the program.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

pub struct Directory {
    path: Option<PathBuf>,
    role: String,
    open: Mutex<Vec<Writer>>,
}

impl Directory {
    pub(crate) fn from_environment() -> Self {
        Self {
            path: env::var_os("QLOGDIR").filter(|path| !path.is_empty()).map(PathBuf::from),
            role: env::var("ROLE").unwrap_or_default(),
            open: Mutex::default(),
        }
    }

    /// The qlog file of a new connection. None: no qlog is requested, or the file can't be created.
    pub fn writer(&self, connection: &str) -> Option<Writer> {
        let path = self.path.as_ref()?.join(format!("{connection}_{}.sqlog", self.role));
        let file = File::create(&path).inspect_err(|error| eprintln!("{}: {error}", path.display())).ok()?;
        let writer = Writer(Arc::new(Mutex::new(BufWriter::new(file))));
        self.open.lock().unwrap().push(writer.clone());
        Some(writer)
    }

    /// Flush all writers. Connections that still exist keep their writers, and the end of the program does not flush
    /// them.
    pub(crate) fn flush(&self) {
        for writer in self.open.lock().unwrap().iter_mut() {
            if let Err(error) = writer.flush() {
                eprintln!("qlog: {error}");
            }
        }
    }
}

#[derive(Clone)]
pub struct Writer(Arc<Mutex<BufWriter<File>>>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().flush()
    }
}
