//! Served files and received files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that are read or written at once. No file is held in memory completely.
pub const PIECE: usize = 64 * 1024;

const SERVED: &str = "/www";
const RECEIVED: &str = "/downloads";

/// Open the served file with the path of a request.
pub fn open_served(path: &str) -> io::Result<File> {
    let relative = Path::new(path.trim_start_matches('/'));
    if relative.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::open(Path::new(SERVED).join(relative))?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(file)
}

/// Create the file for a download. Only the last part of the path counts.
pub fn create_received(path: &str) -> io::Result<File> {
    let name = Path::new(path).file_name().ok_or(io::ErrorKind::InvalidInput)?;
    File::create(Path::new(RECEIVED).join(name))
}

/// Send a whole file. It is read in this thread: the files are in the page cache, and a switch to another thread for
/// each piece would take longer than the read.
pub async fn send(mut file: File, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length]).await?;
    }
}

/// Write all data of the stream to the file.
pub async fn receive(mut stream: impl AsyncRead + Unpin, mut file: File) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..length])?;
    }
}
