//! What RFC 9114 asks of the fields of a message. quiche leaves this to the application.

use anyhow::{Context, Result, ensure};
use quiche::h3::{Header, NameValue};

/// Error code of a malformed message (H3_MESSAGE_ERROR).
pub const MALFORMED: u64 = 0x10e;
/// Fields of HTTP/1.1 connections (RFC 9110 §7.6.1).
const OF_CONNECTIONS: [&[u8]; 5] = [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

pub enum Section {
    Request,
    Response,
    Trailers,
}

/// Refuse a malformed field section (RFC 9114 §4.2 to §4.4, §10.3). Returns its Content-Length.
pub fn check(list: &[Header], section: Section) -> Result<Option<u64>> {
    let is_connect = list.iter().any(|field| field.name() == b":method" && field.value() == b"CONNECT");
    let (defined, required): (&[&[u8]], &[&[u8]]) = match section {
        Section::Request if is_connect => (&[b":method", b":authority"], &[b":method", b":authority"]),
        Section::Request => (&[b":method", b":scheme", b":authority", b":path"], &[b":method", b":scheme", b":path"]),
        Section::Response => (&[b":status"], &[b":status"]),
        Section::Trailers => (&[], &[]),
    };
    let (pseudo, fields): (Vec<_>, Vec<_>) = list.iter().partition(|field| field.name().starts_with(b":"));
    let leading = list.iter().take_while(|field| field.name().starts_with(b":")).count();
    ensure!(leading == pseudo.len(), "a pseudo-header field after other fields");
    let count = |name: &[u8]| pseudo.iter().filter(|field| field.name() == name).count();
    ensure!(pseudo.iter().all(|field| defined.contains(&field.name())), "an undefined pseudo-header field");
    ensure!(defined.iter().all(|name| count(name) <= 1), "a pseudo-header field twice");
    ensure!(required.iter().all(|name| count(name) == 1), "a pseudo-header field is missing");
    ensure!(!pseudo.iter().any(|field| field.value().is_empty()), "an empty pseudo-header field");
    let has_host = list.iter().any(|field| matches!(field.name(), b":authority" | b"host"));
    ensure!(has_host || !matches!(section, Section::Request), "a request without :authority and Host");
    let mut length = None;
    for field in &fields {
        ensure!(!field.name().is_empty() && field.name().iter().all(is_of_name), "a wrong field name");
        ensure!(!OF_CONNECTIONS.contains(&field.name()), "a field of HTTP/1.1 connections");
        if field.name() == b"content-length" {
            length = Some(std::str::from_utf8(field.value())?.parse().context("Content-Length")?);
        }
    }
    ensure!(!list.iter().any(|field| field.value().iter().any(|byte| b"\0\r\n".contains(byte))), "a wrong field value");
    Ok(length)
}

/// Whether a byte may be in a field name of HTTP/3: a token (RFC 9110 §5.6.2) in lowercase.
fn is_of_name(byte: &u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(byte)
}
