//! What is asked: one JSON document. SI units: seconds, bytes, bit/s; fractions are 0…1.

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
    /// Packets that may wait.
    pub queue: usize,
    #[serde(default)]
    pub loss: f64,
    /// Gilbert-Elliott: probability per packet to turn bad (all are lost), and to turn good.
    #[serde(default)]
    pub bursty_loss: Option<(f64, f64)>,
    /// Packets of this direction, counted from 1, that are lost.
    #[serde(default)]
    pub lost: Vec<(u64, u64)>,
    /// Packets that are held back for `reorder_delay` and overtaken meanwhile.
    #[serde(default)]
    pub reorder: f64,
    #[serde(default)]
    pub reorder_delay: f64,
    /// Added to the delay, uniform from 0; the order stays.
    #[serde(default)]
    pub jitter: f64,
    /// CE for packets that leave as many or more waiting; 0: never.
    #[serde(default)]
    pub mark: usize,
    /// Token bucket before the queue: rate and bytes. What exceeds it is dropped.
    #[serde(default)]
    pub policer: Option<(f64, f64)>,
    /// Packets leave at multiples of this time only, as from a link that gives a terminal one slot a frame.
    #[serde(default)]
    pub frame: f64,
    /// From seconds after the first packet on: rate, delay.
    #[serde(default)]
    pub changes: Vec<(f64, f64, f64)>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Path {
    /// Start in seconds after the first 1-RTT packet, and duration. Both directions.
    pub outages: Vec<(f64, f64)>,
    /// Start in seconds after the first 1-RTT packet; bytes of the longest IP packet that still passes.
    pub mtu_fall: Option<(f64, usize)>,
}

#[derive(Deserialize, Clone)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// cubic, newreno, bbr, or one of ours: fixed, lingering.
    pub controller: String,
    /// Bytes; 0: the controller's own.
    pub initial_window: u64,
    /// Of ours: bytes to which the window doubles each round trip; no loss lowers it.
    pub window: u64,
    /// Of `lingering`: datagrams that the window grows by for each round trip after `window` was reached.
    pub growth: f64,
    /// Of ours: from so many sent bytes on the window is the second number.
    pub collapse: Option<(u64, u64)>,
    pub paced: bool,
    /// Rate of its interface.
    pub interface: f64,
    pub discovers_mtu: bool,
    pub packet_threshold: u32,
    pub time_threshold: f32,
    /// Ack-eliciting packets for one ACK and the longest delay that it asks the client for; 0: it doesn't ask.
    pub ack_every: u32,
    pub ack_delay: f64,
    /// Every datagram again after so many seconds; None: once.
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
    /// Bytes of credit for the stream; 0: without end.
    pub window: u64,
    /// What it doesn't see of ECN: empty, `ce` (takes CE for ECT(0)), `all`.
    pub blind: String,
    /// It reads so many bytes/s of what arrived; 0: at once.
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
    /// So many bytes every so many seconds; None: all at once.
    pub writes: Option<(u64, f64)>,
    /// When so many bytes were produced, nothing for so many seconds.
    pub pauses: Vec<(u64, f64)>,
    /// Each write of so many bytes leaves as a datagram of its own; 0: datagrams are filled.
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
