//! Writes captures like libpcap, with times in nanoseconds and raw IPv4 packets.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::{Path, PathBuf};

use crate::link::Time;

/// Unix time at which each transfer begins. The captures of both sides have the same clock.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
const RAW_IP: u32 = 101;
pub const HEADERS: usize = 28;

pub struct Capture {
    path: PathBuf,
    /// A datagram is recorded when the interface gets it. The interface may send it later, so the records are sorted at the end.
    records: Vec<(Time, Vec<u8>)>,
}

pub struct Ends {
    pub source: ([u8; 4], u16),
    pub target: ([u8; 4], u16),
}

impl Capture {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            records: Vec::new(),
        }
    }

    pub fn add(&mut self, time: Time, ends: &Ends, ecn: u8, payload: &[u8]) {
        let length = payload.len() + HEADERS;
        let mut header = [0u8; HEADERS];
        header[0] = 0x45;
        header[1] = ecn;
        header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        header[6] = 0x40; // don't fragment
        header[8] = 64;
        header[9] = 17;
        header[12..16].copy_from_slice(&ends.source.0);
        header[16..20].copy_from_slice(&ends.target.0);
        let sum: u32 = header[..20]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        header[10..12]
            .copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
        header[20..22].copy_from_slice(&ends.source.1.to_be_bytes());
        header[22..24].copy_from_slice(&ends.target.1.to_be_bytes());
        header[24..26].copy_from_slice(&((length - 20) as u16).to_be_bytes());
        let mut packet = header.to_vec();
        packet.extend_from_slice(payload);
        self.records.push((time, packet));
    }

    pub fn save(mut self) -> Result<()> {
        let mut file = BufWriter::new(File::create(self.path)?);
        file.write_all(&0xa1b2_3c4d_u32.to_le_bytes())?;
        file.write_all(&[2, 0, 4, 0])?;
        for word in [0, 0, 65_535, RAW_IP] {
            file.write_all(&word.to_le_bytes())?;
        }
        self.records.sort_by_key(|&(time, _)| time);
        for (time, packet) in self.records {
            let (unix, length) = (EPOCH_NS + time, packet.len() as u32);
            for word in [
                (unix / 1_000_000_000) as u32,
                (unix % 1_000_000_000) as u32,
                length,
                length,
            ] {
                file.write_all(&word.to_le_bytes())?;
            }
            file.write_all(&packet)?;
        }
        file.flush()
    }
}
