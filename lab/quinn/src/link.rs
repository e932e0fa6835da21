//! One direction of the link: policer, loss, queue, data rate, delay, in this order. It records the fate of every packet.

use crate::spec::Direction;

/// Nanoseconds since the transfer began.
pub type Time = u64;

pub fn nanoseconds(seconds: f64) -> Time {
    (seconds * 1e9).round() as Time
}

/// splitmix64: the same seed gives the same link everywhere.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.uniform() < probability
    }

    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Fate {
    Delivered,
    Marked,
    Loss,
    Queue,
    Policer,
    Outage,
    Mtu,
}

impl Fate {
    pub fn name(self) -> &'static str {
        match self {
            Fate::Delivered => "delivered",
            Fate::Marked => "marked",
            Fate::Loss => "loss",
            Fate::Queue => "queue",
            Fate::Policer => "policer",
            Fate::Outage => "outage",
            Fate::Mtu => "mtu",
        }
    }
}

/// The fate of one packet. For a lost packet, `arrival` is the time at which it would have arrived.
pub struct Passage {
    pub sent: Time,
    pub length: usize,
    pub wait: Time,
    pub waiting: usize,
    pub arrival: Time,
    pub fate: Fate,
    pub held_back: bool,
}

pub struct Link {
    spec: Direction,
    chance: Chance,
    bad: bool,
    tokens: f64,
    tokens_at: Time,
    /// The times at which the packets that wait or are being sent will have left.
    leaving: std::collections::VecDeque<Time>,
    free: Time,
    last_arrival: Time,
    first: Option<Time>,
    count: u64,
    pub passages: Vec<Passage>,
}

impl Link {
    pub fn new(spec: Direction, seed: u64) -> Self {
        let tokens = spec.policer.map_or(0.0, |(_, burst)| burst);
        Self {
            spec,
            chance: Chance(seed),
            bad: false,
            tokens,
            tokens_at: 0,
            leaving: Default::default(),
            free: 0,
            last_arrival: 0,
            first: None,
            count: 0,
            passages: Vec::new(),
        }
    }

    /// Takes an IP packet of `length` bytes at `now`. `path`: the effects of the whole path on it.
    pub fn pass(
        &mut self,
        now: Time,
        length: usize,
        ect: bool,
        path: Option<Fate>,
    ) -> (Time, Fate) {
        let first = *self.first.get_or_insert(now);
        self.count += 1;
        while self.leaving.front().is_some_and(|&leaves| leaves <= now) {
            self.leaving.pop_front();
        }
        let (mut rate, mut delay) = (self.spec.rate, self.spec.delay);
        for &(time, new_rate, new_delay) in &self.spec.changes {
            if now >= first + nanoseconds(time) {
                (rate, delay) = (new_rate, new_delay);
            }
        }
        let waiting = self.leaving.len().saturating_sub(1);
        let mut fate = path.unwrap_or(Fate::Delivered);
        if self.policed(now, length) {
            fate = Fate::Policer;
        } else if self.leaving.len() > self.spec.queue {
            fate = Fate::Queue;
        }
        let wait = self.free.saturating_sub(now);
        let leaves = now + wait + nanoseconds(length as f64 * 8.0 / rate);
        if !matches!(fate, Fate::Queue | Fate::Policer) {
            self.free = leaves;
            self.leaving.push_back(leaves);
        }
        let lost = self.chance_of_loss();
        if fate == Fate::Delivered && lost {
            fate = Fate::Loss;
        }
        if fate == Fate::Delivered && ect && self.spec.mark > 0 && waiting >= self.spec.mark {
            fate = Fate::Marked;
        }
        let mut arrival = leaves + nanoseconds(delay + self.spec.jitter * self.chance.uniform());
        if self.spec.frame > 0.0 {
            let frame = nanoseconds(self.spec.frame);
            arrival = arrival.div_ceil(frame) * frame;
        }
        let held_back = self.chance.below(self.spec.reorder);
        if held_back {
            arrival += nanoseconds(self.spec.reorder_delay);
        } else {
            arrival = arrival.max(self.last_arrival);
            if matches!(fate, Fate::Delivered | Fate::Marked) {
                self.last_arrival = arrival;
            }
        }
        self.passages.push(Passage {
            sent: now,
            length,
            wait,
            waiting,
            arrival,
            fate,
            held_back,
        });
        (arrival, fate)
    }

    fn policed(&mut self, now: Time, length: usize) -> bool {
        let Some((rate, burst)) = self.spec.policer else {
            return false;
        };
        self.tokens = (self.tokens + (now - self.tokens_at) as f64 * rate / 8e9).min(burst);
        self.tokens_at = now;
        if self.tokens < length as f64 {
            return true;
        }
        self.tokens -= length as f64;
        false
    }

    fn chance_of_loss(&mut self) -> bool {
        let listed = self
            .spec
            .lost
            .iter()
            .any(|&(from, to)| (from..=to).contains(&self.count));
        let mut bursty = false;
        if let Some((turns_bad, turns_good)) = self.spec.bursty_loss {
            self.bad = if self.bad {
                !self.chance.below(turns_good)
            } else {
                self.chance.below(turns_bad)
            };
            bursty = self.bad;
        }
        self.chance.below(self.spec.loss) || listed || bursty
    }
}
