//! HTTP/3 for both roles, with h3 and h3-quinn.

use std::fs::File;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, Bytes};
use endpoint::client;
use endpoint::files::{self, PIECE};
use h3::server::RequestResolver;
use http::Uri;
use http::header::CONTENT_LENGTH;
use quinn::{Connection, VarInt};
use tokio::task::JoinSet;
use tokio::time::timeout;

const H3_NO_ERROR: VarInt = VarInt::from_u32(0x100);
/// Time in which the driver closes the connection because of a failed request. An error of the stream alone closes nothing.
const CLOSE: Duration = Duration::from_millis(50);

type SendRequest = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// Fetch all URLs at once, and close the connection.
pub async fn fetch(connection: &Connection, urls: &[Uri]) -> Result<()> {
    let (mut driver, sender) = h3::client::new(h3_quinn::Connection::new(connection.clone())).await?;
    let mut fetches = JoinSet::new();
    for url in urls {
        let (sender, url) = (sender.clone(), url.clone());
        fetches.spawn(async move { fetch_file(sender, &url).await.with_context(|| url.to_string()) });
    }
    let outcome = tokio::select! {
        outcome = client::all(fetches) => outcome,
        error = poll_fn(|context| driver.poll_close(context)) => Err(error.into()),
    };
    if outcome.is_err() {
        let _ = timeout(CLOSE, poll_fn(|context| driver.poll_close(context))).await;
    }
    // Close before the driver is dropped. Dropping it ends the control stream, which is an error in HTTP/3 (RFC 9114
    // §6.2.1).
    connection.close(H3_NO_ERROR, b"");
    outcome
}

async fn fetch_file(mut sender: SendRequest, url: &Uri) -> Result<()> {
    let mut stream = sender.send_request(http::Request::get(url.clone()).body(())?).await?;
    stream.finish().await?;
    let mut response = stream.recv_response().await?;
    while response.status().is_informational() {
        response = stream.recv_response().await?;
    }
    if response.status() != http::StatusCode::OK {
        bail!("status {}", response.status());
    }
    let mut file = files::create_received(url.path())?;
    let mut received: u64 = 0;
    while let Some(mut data) = stream.recv_data().await? {
        while data.has_remaining() {
            let length = file.write(data.chunk())?;
            received += length as u64;
            data.advance(length);
        }
    }
    stream.recv_trailers().await?;
    // h3 leaves this comparison to its user (RFC 9114 §4.1.2).
    for announced in response.headers().get_all(CONTENT_LENGTH) {
        ensure!(announced.to_str()?.parse() == Ok(received), "{received} bytes, but Content-Length is {announced:?}");
    }
    Ok(())
}

/// Answer requests until the connection ends.
pub async fn serve(connection: Connection) -> Result<()> {
    let mut connection = h3::server::builder().build(h3_quinn::Connection::new(connection)).await?;
    loop {
        match connection.accept().await {
            Ok(Some(request)) => {
                tokio::spawn(async move {
                    if let Err(error) = answer(request).await {
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

async fn answer(request: RequestResolver<h3_quinn::Connection, Bytes>) -> Result<()> {
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

fn next_piece(file: &mut File) -> Result<Option<Bytes>> {
    let mut buffer = vec![0; PIECE];
    let length = file.read(&mut buffer)?;
    buffer.truncate(length);
    Ok((length > 0).then(|| buffer.into()))
}
