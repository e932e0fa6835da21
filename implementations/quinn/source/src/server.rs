//! The server: HTTP/0.9 or HTTP/3 over `/www`.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use h3::server::RequestResolver;
use quinn::{Connection, Endpoint, RecvStream, SendStream, ServerConfig, VarInt};

use crate::files::{self, PIECE};
use crate::{Settings, tls};

const PORT: u16 = 443;
/// Longest HTTP/0.9 request line in bytes.
const LONGEST_REQUEST: usize = 4096;
/// Application error code of a refused HTTP/0.9 request.
const REFUSED: VarInt = VarInt::from_u32(1);

/// Serve until the program is told to stop.
pub async fn run(settings: &Settings) -> Result<()> {
    let config = ServerConfig::with_crypto(Arc::new(tls::server(settings.alpn)?));
    // One socket for both families, unless the host has no IPv6.
    let endpoint = Endpoint::server(config.clone(), SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)))
        .or_else(|_| Endpoint::server(config.clone(), SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))))
        .context("UDP port 443")?;
    while let Some(incoming) = endpoint.accept().await {
        if settings.case == "retry" && incoming.may_retry() && !incoming.remote_address_validated() {
            incoming.retry()?;
            continue;
        }
        let mut config = config.clone();
        config.transport_config(Arc::new(settings.transport(&incoming.orig_dst_cid().to_string())));
        let connecting = match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => connecting,
            Err(error) => {
                eprintln!("connection refused: {error}");
                continue;
            }
        };
        let http3 = settings.alpn == b"h3";
        tokio::spawn(async move {
            let outcome = if http3 {
                // Not before the handshake is complete: a ClientHello in two datagrams has not said yet how many streams
                // h3 may open for control, and quinn wakes nobody who asked before.
                match connecting.await {
                    Ok(connection) => serve_h3(connection).await,
                    Err(error) => Err(error.into()),
                }
            } else {
                // Responses to 0-RTT requests leave before the handshake is complete.
                match connecting.into_0rtt() {
                    Ok((connection, _)) => serve_hq(connection).await,
                    Err(_) => unreachable!("a server can always send 0.5-RTT data"),
                }
            };
            if let Err(error) = outcome {
                eprintln!("connection: {error:#}");
            }
        });
    }
    bail!("the endpoint was closed")
}

async fn serve_hq(connection: Connection) -> Result<()> {
    loop {
        let (mut send, receive) = match connection.accept_bi().await {
            Ok(streams) => streams,
            Err(quinn::ConnectionError::ApplicationClosed(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        tokio::spawn(async move {
            if let Err(error) = answer_hq(&mut send, receive).await {
                eprintln!("request: {error:#}");
                let _ = send.reset(REFUSED);
            }
        });
    }
}

async fn answer_hq(send: &mut SendStream, mut receive: RecvStream) -> Result<()> {
    let request = receive.read_to_end(LONGEST_REQUEST).await?;
    let line = std::str::from_utf8(&request)?.trim_end();
    let path = line.strip_prefix("GET ").with_context(|| format!("not a request: {line}"))?;
    let mut file = files::open_served(path).with_context(|| path.to_owned())?;
    while let Some(piece) = next_piece(&mut file)? {
        send.write_chunk(piece).await?;
    }
    send.finish()?;
    Ok(())
}

async fn serve_h3(connection: Connection) -> Result<()> {
    let mut connection = h3::server::builder().build(h3_quinn::Connection::new(connection)).await?;
    loop {
        match connection.accept().await {
            Ok(Some(request)) => {
                tokio::spawn(async move {
                    if let Err(error) = answer_h3(request).await {
                        eprintln!("request: {error:#}");
                    }
                });
            }
            Ok(None) => return Ok(()),
            Err(error) if error.is_h3_no_error() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn answer_h3(request: RequestResolver<h3_quinn::Connection, Bytes>) -> Result<()> {
    let (request, mut stream) = request.resolve_request().await?;
    let Ok(mut file) = files::open_served(request.uri().path()) else {
        stream.send_response(http::Response::builder().status(404).body(())?).await?;
        return Ok(stream.finish().await?);
    };
    let length = file.metadata()?.len();
    stream.send_response(http::Response::builder().header("content-length", length).body(())?).await?;
    while let Some(piece) = next_piece(&mut file)? {
        stream.send_data(piece).await?;
    }
    Ok(stream.finish().await?)
}

/// The next bytes of the file. Read in place: the files are small enough to stay in the page cache, and a hop to a
/// thread for each piece would cost more than the read.
fn next_piece(file: &mut File) -> Result<Option<Bytes>> {
    let mut buffer = vec![0; PIECE];
    let length = file.read(&mut buffer)?;
    buffer.truncate(length);
    Ok((length > 0).then(|| buffer.into()))
}
