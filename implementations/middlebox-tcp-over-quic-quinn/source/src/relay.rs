//! A TCP connection and a QUIC stream, joined so that they behave as one TCP connection.
//!
//! | TCP            | QUIC stream (RFC 9000, section 3)                             |
//! |----------------|---------------------------------------------------------------|
//! | FIN            | FIN of that direction; the other one goes on                  |
//! | RST, time-out  | RESET_STREAM and STOP_SENDING; bytes still on their way go    |
//! | window is full | nothing is read from the stream, so flow control stops sender |

use std::future::pending;

use anyhow::{Result, bail};
use quinn::{RecvStream, SendStream, VarInt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;

/// Error code of a stream whose TCP connection broke, or never was.
const BROKEN: VarInt = VarInt::from_u32(1);
/// Bytes that are read from TCP at once.
const PIECE: usize = 32 << 10;

/// Relay until both directions have ended. An error is an end without FIN: then both are reset.
pub async fn join(mut tcp: TcpStream, mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    // What the other side has waited for goes on at once. A connection that broke meanwhile is told by its first read.
    let _ = tcp.set_nodelay(true);
    let over = Notify::new();
    let (reader, writer) = tcp.split();
    let outcome = tokio::try_join!(up(reader, &mut send, &over), down(&mut receive, writer, &over));
    if outcome.is_err() {
        abort(Some(tcp), send, receive);
    }
    outcome.map(drop)
}

/// Give both up.
pub fn abort(tcp: Option<TcpStream>, mut send: SendStream, mut receive: RecvStream) {
    // Errors are those of directions that had ended already.
    let _ = send.reset(BROKEN);
    let _ = receive.stop(BROKEN);
    if let Some(tcp) = tcp {
        let _ = tcp.set_zero_linger();
    }
}

/// TCP to stream; then watch the connection until the other direction is `over`, for it may still be reset.
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
                    // The other side may not read for long, and who doesn't read TCP isn't told.
                    _ = reader.ready(Interest::ERROR) => bail!("TCP: reset"),
                },
            }
        }
    };
    // Nobody else would wake a read of TCP when the other side, or the tunnel, has gone.
    tokio::select! {
        outcome = copy => outcome?,
        _ = stopped => bail!("the other side has gone"),
    }
    tokio::select! {
        _ = reader.ready(Interest::ERROR) => bail!("TCP: reset after its FIN"),
        () = over.notified() => Ok(()),
    }
}

/// Stream to TCP.
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

/// Ends when the stream is reset, or the tunnel dies: who waits for TCP doesn't read the stream, and isn't told.
async fn broken(receive: &mut RecvStream) {
    if matches!(receive.received_reset().await, Ok(None)) {
        pending().await
    }
}
