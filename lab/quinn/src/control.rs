//! Our own congestion controllers, and a wrapper that removes the pacer of any controller.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{self, Controller, ControllerFactory};

use crate::spec::Server;

/// The values that the driver may use: the window and the bytes in flight.
#[derive(Default)]
pub struct Shared {
    pub window: u64,
    pub in_flight: u64,
    pub losses: u64,
}

/// A window that follows the specification. It doubles in each round trip up to `window`, even after losses.
#[derive(Clone)]
struct Told {
    now: u64,
    initial: u64,
    window: u64,
    growth: f64,
    collapse: Option<(u64, u64)>,
    sent: u64,
    grown: f64,
}

impl Controller for Told {
    fn on_sent(&mut self, _: Instant, bytes: u64, _: u64) {
        self.sent += bytes;
        if let Some((after, window)) = self.collapse {
            if self.sent >= after {
                (self.now, self.window, self.growth) = (window, window, 0.0);
            }
        }
    }

    fn on_ack(&mut self, _: Instant, _: Instant, bytes: u64, app_limited: bool, _: &RttEstimator) {
        if app_limited {
            return;
        }
        if self.now < self.window {
            self.now = (self.now + bytes).min(self.window);
        } else if self.growth > 0.0 {
            self.grown += self.growth * 1200.0 * bytes as f64 / self.now as f64;
            if self.grown >= 1.0 {
                self.now += self.grown as u64;
                self.grown -= self.grown.floor();
            }
        }
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}
    fn on_mtu_update(&mut self, _: u16) {}
    fn window(&self) -> u64 {
        self.now
    }
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }
    fn initial_window(&self) -> u64 {
        self.initial
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Gives the decisions of the inner controller to the driver. Without pacing it hides the window from quinn's pacer.
struct Watched {
    inner: Box<dyn Controller>,
    shared: Arc<Mutex<Shared>>,
    paced: bool,
}

impl Watched {
    fn tell(&self) {
        self.shared.lock().unwrap().window = self.inner.window();
    }
}

impl Controller for Watched {
    fn on_sent(&mut self, now: Instant, bytes: u64, number: u64) {
        self.inner.on_sent(now, bytes, number);
        self.shared.lock().unwrap().in_flight += bytes;
        self.tell();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        // When the window is hidden, quinn can't know whether its application was the limit.
        let full = self.shared.lock().unwrap().in_flight * 2 >= self.inner.window();
        let app_limited = if self.paced { app_limited } else { !full };
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
        self.tell();
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.shared.lock().unwrap().in_flight = in_flight;
        self.tell();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        persistent: bool,
        lost_bytes: u64,
    ) {
        self.inner
            .on_congestion_event(now, sent, persistent, lost_bytes);
        let mut shared = self.shared.lock().unwrap();
        shared.in_flight = shared.in_flight.saturating_sub(lost_bytes);
        shared.losses += 1;
        drop(shared);
        self.tell();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
        self.tell();
    }

    fn window(&self) -> u64 {
        if self.paced {
            self.inner.window()
        } else {
            u64::from(u32::MAX) * 4
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Watched {
            inner: self.inner.clone_box(),
            shared: self.shared.clone(),
            paced: self.paced,
        })
    }
    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

pub struct Factory {
    pub server: Server,
    pub shared: Arc<Mutex<Shared>>,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let settings = &self.server;
        let initial = settings.initial_window;
        let inner: Box<dyn Controller> = match settings.controller.as_str() {
            "cubic" => {
                let mut config = congestion::CubicConfig::default();
                if initial > 0 {
                    config.initial_window(initial);
                }
                Arc::new(config).build(now, mtu)
            }
            "newreno" => {
                let mut config = congestion::NewRenoConfig::default();
                if initial > 0 {
                    config.initial_window(initial);
                }
                Arc::new(config).build(now, mtu)
            }
            "bbr" => {
                let mut config = congestion::BbrConfig::default();
                if initial > 0 {
                    config.initial_window(initial);
                }
                Arc::new(config).build(now, mtu)
            }
            "fixed" | "lingering" => Box::new(Told {
                now: if initial > 0 { initial } else { 12_000 },
                initial: if initial > 0 { initial } else { 12_000 },
                window: settings.window,
                growth: if settings.controller == "lingering" {
                    settings.growth
                } else {
                    0.0
                },
                collapse: settings.collapse,
                sent: 0,
                grown: 0.0,
            }),
            other => {
                panic!("server.controller: `{other}` isn't cubic, newreno, bbr, fixed or lingering")
            }
        };
        let watched = Watched {
            inner,
            shared: self.shared.clone(),
            paced: settings.paced,
        };
        watched.tell();
        Box::new(watched)
    }
}
