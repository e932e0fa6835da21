//! One qlog per connection, whole at the end of the program.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use quinn::{QlogConfig, QlogStream};

pub struct Directory {
    path: Option<PathBuf>,
    role: String,
    open: Mutex<Vec<Shared>>,
}

impl Directory {
    pub fn from_environment() -> Self {
        Self {
            path: env::var_os("QLOGDIR").filter(|path| !path.is_empty()).map(PathBuf::from),
            role: env::var("ROLE").unwrap_or_default(),
            open: Mutex::default(),
        }
    }

    pub fn role(&self) -> &str {
        &self.role
    }

    /// The stream of a new connection; None when no qlog is wanted or the file can't be made.
    pub fn stream(&self, connection: &str) -> Option<QlogStream> {
        let path = self.path.as_ref()?.join(format!("{connection}_{}.sqlog", self.role));
        let file = File::create(&path).inspect_err(|error| eprintln!("{}: {error}", path.display())).ok()?;
        let writer = Shared(Arc::new(Mutex::new(BufWriter::new(file))));
        self.open.lock().unwrap().push(writer.clone());
        let mut config = QlogConfig::default();
        config.writer(Box::new(writer)).title(Some(format!("quinn {}", self.role)));
        config.into_stream()
    }

    /// Connections still alive keep their writers, which nobody would flush when the program ends.
    pub fn flush(&self) {
        for writer in self.open.lock().unwrap().iter_mut() {
            if let Err(error) = writer.flush() {
                eprintln!("qlog: {error}");
            }
        }
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<BufWriter<File>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().flush()
    }
}
