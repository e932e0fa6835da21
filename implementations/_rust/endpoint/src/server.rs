//! The server side of HTTP/0.9.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::files;

/// UDP port of the contract.
pub const PORT: u16 = 443;
/// Application error code of a refused HTTP/0.9 request.
pub const REFUSED: u32 = 1;

/// Longest HTTP/0.9 request line in bytes.
const LONGEST_REQUEST: u64 = 4096;

/// Read a request and write the requested file. The caller ends or resets the stream.
pub async fn answer_hq(send: &mut (impl AsyncWrite + Unpin), receive: impl AsyncRead + Unpin) -> Result<()> {
    let mut request = String::new();
    receive.take(LONGEST_REQUEST + 1).read_to_string(&mut request).await?;
    ensure!(request.len() as u64 <= LONGEST_REQUEST, "a request longer than {LONGEST_REQUEST} bytes");
    let line = request.trim_end();
    let path = line.strip_prefix("GET ").with_context(|| format!("not a request: {line}"))?;
    let file = files::open_served(path).with_context(|| path.to_owned())?;
    Ok(files::send(file, send).await?)
}
