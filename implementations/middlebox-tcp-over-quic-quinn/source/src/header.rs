//! The header of a stream, written by the terminal: the destination of the TCP connection. The connection's own bytes
//! follow at once, in both directions. The gateway writes no header.
//!
//! | offset | size    | field                                  |
//! |--------|---------|----------------------------------------|
//! | 0      | 1       | 4 or 6, the address family             |
//! | 1      | 4 or 16 | address                                |
//! | 5, 17  | 2       | port; all fields in network byte order |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The header of a stream to `destination`.
pub fn of(destination: SocketAddr) -> Vec<u8> {
    let mut header = match destination.ip() {
        IpAddr::V4(address) => [&[4][..], &address.octets()].concat(),
        IpAddr::V6(address) => [&[6][..], &address.octets()].concat(),
    };
    header.extend(destination.port().to_be_bytes());
    header
}

/// Read exactly one header.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<SocketAddr> {
    let address = match stream.read_u8().await? {
        4 => IpAddr::V4(Ipv4Addr::from_bits(stream.read_u32().await?)),
        6 => IpAddr::V6(Ipv6Addr::from_bits(stream.read_u128().await?)),
        family => bail!("no stream header: address family {family}"),
    };
    Ok(SocketAddr::new(address, stream.read_u16().await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_nothing_beyond_it() {
        for (text, wire) in [
            ("93.184.216.34:443", &b"\x04\x5d\xb8\xd8\x22\x01\xbb"[..]),
            ("[2001:db8::1]:80", b"\x06\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50"),
        ] {
            let destination = text.parse().unwrap();
            assert_eq!(of(destination), wire);
            let stream = [wire, b"payload"].concat();
            let mut rest = &stream[..];
            assert_eq!(read(&mut rest).await.unwrap(), destination);
            assert_eq!(rest, b"payload");
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        for wire in [&b""[..], b"\x05", b"\x04\x5d\xb8\xd8\x22\x01", b"\x06\0"] {
            assert!(read(&mut &wire[..]).await.is_err());
        }
    }
}
