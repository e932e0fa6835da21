//! `virtual-quinn SPEC.json FOLDER`: one download between two endpoints of quinn-proto, in virtual time, over a calculated link.
//!
//! Writes `client.pcap`, `server.pcap`, `keys.log`, `link.csv` (every packet and its fate) and `application.csv` (how
//! many bytes the server's application had produced, and how many of them it could write).

mod capture;
mod control;
mod endpoints;
mod link;
mod spec;
mod world;

use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() < 3 || arguments.len() % 2 == 0 {
        eprintln!("usage: virtual-quinn SPEC.json FOLDER [SPEC.json FOLDER]…");
        std::process::exit(2);
    }
    for pair in arguments[1..].chunks(2) {
        if let Err(error) = transfer(Path::new(&pair[0]), Path::new(&pair[1])) {
            eprintln!("{}: {error}", pair[0]);
            std::process::exit(1);
        }
    }
}

fn transfer(spec: &Path, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let spec: spec::Spec = serde_json::from_slice(&std::fs::read(spec)?)?;
    std::fs::create_dir_all(folder)?;
    world::World::new(spec, folder)?.run()
}
