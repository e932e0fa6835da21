//! The settings of a transfer: one JSON document. Units are seconds, bytes and bit/s; fractions are 0…1.

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub seed: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Seconds after which the transfer is given up.
    pub limit: f64,
    pub forward: Direction,
    #[serde(rename = "return")]
    pub back: Direction,
    #[serde(default)]
    pub path: Path,
    #[serde(default)]
    pub server: Server,
    #[serde(default)]
    pub client: Client,
    #[serde(default)]
    pub application: Application,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Direction {
    pub rate: f64,
    pub delay: f64,
    /// The most packets that wait.
    pub queue: usize,
    #[serde(default)]
    pub loss: f64,
    /// Gilbert-Elliott: probability per packet to change to the bad state (all packets are lost), and back to the good state.
    #[serde(default)]
    pub bursty_loss: Option<(f64, f64)>,
    /// Ranges of packets of this direction, counted from 1, that are lost.
    #[serde(default)]
    pub lost: Vec<(u64, u64)>,
    /// Share of packets that are held back for `reorder_delay`, so that others overtake them.
    #[serde(default)]
    pub reorder: f64,
    #[serde(default)]
    pub reorder_delay: f64,
    /// The largest additional delay. Each packet gets a random delay, uniform from 0 to this value. Packets stay in order.
    #[serde(default)]
    pub jitter: f64,
    /// A packet gets CE when at least this number of packets wait behind it; 0: never.
    #[serde(default)]
    pub mark: usize,
    /// Token bucket before the queue: rate and bytes. Packets above it are dropped.
    #[serde(default)]
    pub policer: Option<(f64, f64)>,
    /// Packets leave only at multiples of this time, as on a link that gives a terminal one slot per frame.
    #[serde(default)]
    pub frame: f64,
    /// Changes of the link: seconds after the first packet, new data rate, new delay.
    #[serde(default)]
    pub changes: Vec<(f64, f64, f64)>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Path {
    /// Outages of both directions: start in seconds after the first 1-RTT packet, and duration.
    pub outages: Vec<(f64, f64)>,
    /// Fall of the MTU: start in seconds after the first 1-RTT packet, and bytes of the longest IP packet that then passes.
    pub mtu_fall: Option<(f64, usize)>,
}

#[derive(Deserialize, Clone)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// cubic, newreno, bbr, or one of our own controllers: fixed, lingering.
    pub controller: String,
    /// Bytes; 0: the controller's default.
    pub initial_window: u64,
    /// Only for our own controllers: the window doubles each round trip up to these bytes; no loss lowers it.
    pub window: u64,
    /// Only for `lingering`: datagrams by which the window grows in each round trip after it reached `window`.
    pub growth: f64,
    /// Only for our own controllers: (sent bytes, window). After so many sent bytes the window has this value.
    pub collapse: Option<(u64, u64)>,
    pub paced: bool,
    /// Data rate of the server's interface.
    pub interface: f64,
    pub discovers_mtu: bool,
    pub packet_threshold: u32,
    pub time_threshold: f32,
    /// The server requests an ACK from the client for this number of ack-eliciting packets, or after `ack_delay`; 0: no request.
    pub ack_every: u32,
    pub ack_delay: f64,
    /// Seconds after which every datagram is sent again; None: each is sent once.
    pub twice: Option<f64>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            controller: "cubic".into(),
            initial_window: 0,
            window: 0,
            growth: 1.0,
            collapse: None,
            paced: true,
            interface: 1e9,
            discovers_mtu: true,
            packet_threshold: 3,
            time_threshold: 1.125,
            ack_every: 0,
            ack_delay: 0.025,
            twice: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Client {
    /// Bytes of flow-control credit for the stream; 0: no limit.
    pub window: u64,
    /// The ECN marks that the client doesn't see: empty, `ce` (takes CE for ECT(0)), `all`.
    pub blind: String,
    /// Bytes per second that the client's application reads; 0: it reads all data at once.
    pub reads: f64,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            window: 0,
            blind: String::new(),
            reads: 0.0,
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Application {
    /// Seconds from the request to the first byte.
    pub delay: f64,
    /// (bytes, seconds): the application produces so many bytes every so many seconds; None: all bytes at once.
    pub writes: Option<(u64, f64)>,
    /// (bytes, seconds): after so many produced bytes, the application produces nothing for so many seconds.
    pub pauses: Vec<(u64, f64)>,
    /// Each write of so many bytes leaves in its own datagram; 0: datagrams are filled.
    pub small: usize,
}

impl Default for Application {
    fn default() -> Self {
        Self {
            delay: 0.0,
            writes: None,
            pauses: Vec::new(),
            small: 0,
        }
    }
}
