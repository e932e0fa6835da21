//! Joins a TCP connection and a QUIC stream, so that they behave as one TCP connection.
//!
//! | TCP            | QUIC stream (RFC 9000 §3)                                     |
//! |----------------|---------------------------------------------------------------|
//! | FIN            | FIN of that direction; the other direction continues          |
//! | RST, time-out  | RESET_STREAM and STOP_SENDING; bytes in flight are lost       |
//! | window is full | nothing is read from the stream, so flow control stops sender |

use std::future::pending;

use anyhow::{Result, bail};
use quinn::{RecvStream, SendStream, VarInt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;

/// Error code of a stream whose TCP connection broke or could not be made.
const BROKEN: VarInt = VarInt::from_u32(1);
/// Bytes that are read from TCP at once.
const PIECE: usize = 32 << 10;

/// Relay until both directions have ended. After an end without FIN, both are reset, and an error is returned.
pub async fn join(mut tcp: TcpStream, mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    // Data is passed on at once. If the connection is already broken, this call fails, and the first read reports the
    // error.
    let _ = tcp.set_nodelay(true);
    let over = Notify::new();
    let (reader, writer) = tcp.split();
    let outcome = tokio::try_join!(up(reader, &mut send, &over), down(&mut receive, writer, &over));
    if outcome.is_err() {
        abort(Some(tcp), send, receive);
    }
    outcome.map(drop)
}

/// Reset both.
pub fn abort(tcp: Option<TcpStream>, mut send: SendStream, mut receive: RecvStream) {
    // Errors come from directions that had already ended.
    let _ = send.reset(BROKEN);
    let _ = receive.stop(BROKEN);
    if let Some(tcp) = tcp {
        let _ = tcp.set_zero_linger();
    }
}

/// Copy from TCP to the stream. After the FIN, watch the connection for a reset until the other direction is `over`.
async fn up(mut reader: ReadHalf<'_>, send: &mut SendStream, over: &Notify) -> Result<()> {
    let stopped = send.stopped();
    let copy = async {
        let mut buffer = vec![0; PIECE];
        loop {
            match reader.read(&mut buffer).await? {
                0 => return anyhow::Ok(send.finish()?),
                length => tokio::select! {
                    biased;
                    written = send.write_all(&buffer[..length]) => written?,
                    // The other side may stop reading for a long time. Without a read of TCP, only this event reports a
                    // reset.
                    _ = reader.ready(Interest::ERROR) => bail!("TCP: reset"),
                },
            }
        }
    };
    // A read of TCP doesn't notice that the other side or the tunnel has ended, so both are watched here.
    tokio::select! {
        outcome = copy => outcome?,
        _ = stopped => bail!("the other side has gone"),
    }
    tokio::select! {
        _ = reader.ready(Interest::ERROR) => bail!("TCP: reset after its FIN"),
        () = over.notified() => Ok(()),
    }
}

/// Copy from the stream to TCP.
async fn down(receive: &mut RecvStream, mut writer: WriteHalf<'_>, over: &Notify) -> Result<()> {
    while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
        tokio::select! {
            biased;
            written = writer.write_all(&chunk.bytes) => written?,
            () = broken(receive) => bail!("the other side has gone"),
        }
    }
    writer.shutdown().await?;
    over.notify_one();
    Ok(())
}

/// Ends when the stream is reset or the tunnel dies. It is needed while a write to TCP waits, because the stream is
/// then not read.
async fn broken(receive: &mut RecvStream) {
    if matches!(receive.received_reset().await, Ok(None)) {
        pending().await
    }
}
