//! noq as an endpoint of the QUIC Interop Runner: one program for both roles, configured by the environment.

mod client;
mod server;
mod settings;

use endpoint::Role;

#[tokio::main]
async fn main() {
    endpoint::run(settings::LIBRARY, async |settings| match settings.role {
        Role::Client => client::run(settings).await,
        Role::Server => server::run(settings).await,
    })
    .await
}
