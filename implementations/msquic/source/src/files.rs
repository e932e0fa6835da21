//! Files to serve and files received.

use std::fs::File;
use std::io;
use std::path::{Component, Path};

/// Bytes read from a file at a time: no file is ever held in memory.
pub const PIECE: usize = 64 * 1024;

const SERVED: &str = "/www";
const RECEIVED: &str = "/downloads";

/// Open the served file that a request's path names.
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

/// Make the file for what a request's path names; downloads are flat.
pub fn create_received(path: &str) -> io::Result<File> {
    let name = Path::new(path).file_name().ok_or(io::ErrorKind::InvalidInput)?;
    File::create(Path::new(RECEIVED).join(name))
}
