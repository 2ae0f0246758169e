//! Queue disciplines of a bearer: a [`Limiter`] between SDAP and RLC, and a [`Buffer`] in RLC.
//!
//! ```text
//!   SDAP queues ──▶ admits(next)? ──▶ push ▯▯▯▯▯▯ pop ──▶ segmentation ──▶ MAC
//!                     Limiter            Buffer                             │
//!                        ▲                                                  │
//!                        └── on_tti(report) ◀──────── once per TTI ─────────┘
//! ```
//!
//! A name selects both ([`Algorithm`]): `codel`, `fq_codel` and `l4s` are buffers behind an open limiter, the pacers are
//! limiters in front of a FIFO, and `vanilla` is an open limiter in front of a FIFO. The parameters of each are a struct in
//! the same file. [`QueueConfig`] is the configuration:
//!
//! ```toml
//! queue = "e5g_bdp"                                  # the defaults
//! queue = { algorithm = "codel", target_us = 5000 }   # or some of them changed
//! ```
//!
//! Calls of a limiter, in the order in which they happen:
//!
//! 1. [`Limiter::admits`] for the packet that SDAP's scheduler would send next: when a packet arrives, at each poll of SDAP,
//!    and at the time requested by [`Limiter::wake_at`]. A later answer may differ.
//! 2. [`Limiter::on_forwarded`] when that packet has been passed to RLC.
//! 3. At each pull of the MAC: [`Limiter::on_sent`] for each SDU whose last byte left the buffer, then one
//!    [`Limiter::on_tti`].
//!
//! In the uplink, a grant also takes packets that wait in SDAP, whatever the limiter's answer; the limiter receives
//! `on_forwarded` for them. It decides only what is passed to RLC earlier, and cannot leave a grant empty
//! (docs/ran-limiter.md).
//!
//! To add an algorithm: a file with its parameters, an implementation of one of the traits and of [`Discipline`]; one
//! line in the registry below (docs/add-an-algorithm.md).

#[cfg(test)]
mod tests;

pub use crate::registry::{NoParams, OutOfRange};

use crate::amc::{Direction, Pulls};
use crate::registry::{configs, in_range};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};
use vanilla::Fifo;

/// A packet below SDAP, with its time stamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sdu {
    /// The bytes carried by RLC. Its `at` is the arrival time at its present place.
    pub packet: Packet,
    /// Bytes in front of the IP packet (SDAP and PDCP headers), needed for ECN marking and flow classification.
    pub ip_offset: u8,
    /// QoS flow identifier, 0..=63.
    pub qfi: u8,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// When SDAP passed it to RLC.
    pub forwarded: Instant,
}

impl Sdu {
    /// An IP packet that entered at `packet.at` and was passed to RLC at once.
    #[must_use]
    #[inline]
    pub fn new(packet: Packet, qfi: u8) -> Self {
        let at = packet.at;
        Self { packet, ip_offset: 0, qfi, arrived: at, forwarded: at }
    }

    /// Its size in bytes as RLC counts it.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u32 {
        u32::try_from(self.packet.len()).unwrap_or(u32::MAX)
    }

    /// The IP packet; empty if `ip_offset` is beyond the end.
    #[must_use]
    pub fn ip(&self) -> &[u8] {
        self.packet.get(usize::from(self.ip_offset)..).unwrap_or_default()
    }

    /// The IP packet, mutable.
    pub fn ip_mut(&mut self) -> &mut [u8] {
        self.packet.get_mut(usize::from(self.ip_offset)..).unwrap_or_default()
    }
}

/// The packet that SDAP would pass to RLC next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its size in bytes as RLC will count it.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// Bytes waiting in SDAP for this bearer, including the candidate.
    pub backlog_bytes: u64,
    /// Whether a later packet could overtake it while it stays in SDAP, or precede it on a bearer that the MAC serves first.
    pub overtakable: bool,
    /// Time until SDAP's next poll, up to which a refusal may stand.
    pub next_poll_in: Duration,
}

impl Candidate {
    /// An overtakable packet of `bytes` that arrived at `arrived` and is the whole backlog, with continuous polling.
    #[must_use]
    pub fn alone(bytes: u32, arrived: Instant) -> Self {
        Self {
            bytes,
            arrived,
            backlog_bytes: u64::from(bytes),
            overtakable: true,
            next_poll_in: Duration::ZERO,
        }
    }

    /// Time since the pull at `last`, in nanoseconds of the [clock](Pulls::clock), for limiters that admit more as a round
    /// passes. It is at most one round, plus what is pulled between `now` and the next poll.
    ///
    /// SDAP passes nothing to RLC between two polls. RLC §V-A polls five times per TTI, so the last poll before the tick is in
    /// the last fifth. If a round has one pull, the last poll before it is treated as being at 4/5 of the round or later;
    /// otherwise a single early poll per TTI would never fill the TTI. If a round has several pulls, a poll is treated as being
    /// at the last pull before the next poll.
    #[must_use]
    pub fn time_in_round(&self, pulls: &Pulls, last: Instant, now: Instant) -> u64 {
        let (round, clock) = (nanos(pulls.round()), pulls.clock(now));
        let since = clock.saturating_sub(pulls.clock(last)).min(round);
        let next_look = now + self.next_poll_in;
        if pulls.of_round() == 1 {
            let to_look = pulls.clock(next_look).saturating_sub(clock);
            return if since.saturating_add(to_look) >= round { since.max(round / 5 * 4) } else { since };
        }
        since.saturating_add(pulls.clock(pulls.last_until(next_look)).saturating_sub(clock))
    }
}

/// Report of the MAC and RLC about one bearer after a TTI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TtiReport {
    /// The tick at which the MAC pulled.
    pub at: Instant,
    /// Slots since the last report of this bearer, including those without a pull; 0 is treated as 1.
    pub elapsed_ttis: u32,
    /// Room in the transport block for this bearer, bytes, RLC headers included.
    pub granted_bytes: u32,
    /// SDU bytes that left the buffer, without headers.
    pub served_bytes: u32,
    /// SDU bytes remaining in the buffer, including the rest of a segmented SDU.
    pub buffer_bytes: u32,
    /// SDUs remaining, including a partly sent one.
    pub buffer_sdus: u32,
    /// The MAC's forecast of the next pull, if available.
    pub next: Option<Forecast>,
}

/// The MAC's forecast of its next pull from a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Time of the pull.
    pub at: Instant,
    /// Bytes the pull would take, RLC headers included, if the bearer had enough data: the TBS at the current MCS of the RBs
    /// that are used neither by HARQ retransmissions already due nor by other UEs.
    pub bytes: u32,
    /// The TBS of the whole carrier at that MCS, an upper bound of any pull.
    pub most_bytes: u32,
}

/// Decides when SDAP passes its next packet to RLC. One instance per bearer.
pub trait Limiter {
    /// Whether `next` may be passed to RLC at `now`. A refusal must be temporary: with an empty RLC buffer and passing TTIs,
    /// a packet of any size must eventually be admitted, wherever in the TTI the polls are.
    fn admits(&mut self, next: &Candidate, now: Instant) -> bool;
    /// A packet of `bytes` was passed to the RLC buffer.
    fn on_forwarded(&mut self, bytes: u32, now: Instant);
    /// The last byte of an SDU left the RLC buffer, `sojourn` after the SDU entered it.
    fn on_sent(&mut self, _bytes: u32, _sojourn: Duration, _now: Instant) {}
    /// A TTI passed.
    fn on_tti(&mut self, _report: &TtiReport) {}
    /// The MAC's forecast of its next pull has changed since the last report.
    fn on_forecast(&mut self, _next: Forecast) {}
    /// A bearer of the same UE that the MAC serves first passed `bytes` to RLC, so the next pull takes that much less here.
    fn on_taken(&mut self, _bytes: u32) {}
    /// Whether the result of [`admits`](Self::admits) changes with time alone, so that SDAP must poll.
    fn needs_polling(&self) -> bool {
        true
    }
    /// The time after `now` at which SDAP must call [`admits`](Self::admits) in addition to its polls.
    fn wake_at(&self, _now: Instant) -> Option<Instant> {
        None
    }
    /// Whether it passes the amount given by a [`Forecast`] before each pull.
    fn follows_forecast(&self) -> bool {
        false
    }
}

/// A queue of SDUs. All drops are counted: `pushed = popped + dropped + remaining`.
pub trait Buffer {
    /// Appends an SDU; drops it or others if there is no room.
    fn push(&mut self, sdu: Sdu, now: Instant);
    /// Removes the next SDU to send; `None` only if the buffer is empty. May drop or mark others.
    fn pop(&mut self, now: Instant) -> Option<Sdu>;
    /// Number of waiting SDUs.
    fn len_sdus(&self) -> usize;
    /// Waiting bytes.
    fn len_bytes(&self) -> u64;
    /// Appends the sizes in bytes of the next SDUs, in order, at most `max_sdus`; an estimate if the discipline drops or
    /// reorders.
    fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>);
    /// The counters.
    fn stats(&self) -> BufferStats;
}

/// Counters of a [`Buffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct BufferStats {
    /// SDUs offered.
    pub pushed_sdus: u64,
    /// SDUs handed on.
    pub popped_sdus: u64,
    /// SDUs dropped because the buffer was full.
    pub full_drops: u64,
    /// SDUs dropped by the discipline as a congestion signal.
    pub aqm_drops: u64,
    /// SDUs marked with CE instead of being dropped.
    pub ce_marks: u64,
    /// Maximum number of bytes that ever waited.
    pub max_bytes: u64,
}

/// Capacity of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimit {
    /// Maximum number of waiting bytes.
    pub bytes: u64,
    /// Maximum number of waiting SDUs.
    pub sdus: usize,
}

impl Default for BufferLimit {
    /// 1 MB as in OAI LTE, and as many SDUs of 64 bytes. For comparison: srsRAN 6.17 MB, OAI NR 100 MB, ns-3 10 kB.
    fn default() -> Self {
        Self { bytes: 1_000_000, sdus: 15_625 }
    }
}

/// Properties of the bearer, from which a limiter or buffer is built together with its own parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BearerParams {
    /// Direction. In the uplink, a grant fetches packets from SDAP; no limiter has to fill RLC for it.
    pub direction: Direction,
    /// Minimum time a packet waits for a grant on an empty queue; zero in the downlink. A queue must be this long for grants
    /// of the whole carrier, so disciplines with a target delay add it to the target.
    pub grant_wait: Duration,
    /// When the MAC pulls.
    pub pulls: Pulls,
    /// Largest expected SDU in bytes, at least 1. Packets may exceed it; it is only used as a reference size.
    pub mtu_bytes: u32,
    /// Capacity of the buffer.
    pub limit: BufferLimit,
    /// Seed of random numbers and hashes.
    pub seed: u64,
}

impl Default for BearerParams {
    fn default() -> Self {
        Self {
            direction: Direction::Downlink,
            grant_wait: Duration::ZERO,
            pulls: Pulls::every(Duration::from_millis(1)),
            mtu_bytes: 1500,
            limit: BufferLimit::default(),
            seed: 0,
        }
    }
}

impl BearerParams {
    /// A target delay plus the wait for a grant, microseconds.
    pub(super) fn target_us(&self, target_us: u32) -> u32 {
        target_us.saturating_add(u32::try_from(self.grant_wait.as_micros()).unwrap_or(u32::MAX))
    }
}

/// Construction of a limiter or a buffer for the registry, in addition to [`Limiter`] or [`Buffer`].
pub trait Discipline: Sized {
    /// Parameters as configured, with defaults.
    type Params;

    /// Checks that every parameter is in range.
    ///
    /// # Errors
    /// The first parameter that is not, with its range.
    fn check(_: &Self::Params) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Builds an instance for a bearer from checked parameters.
    fn build(params: &Self::Params, bearer: BearerParams) -> Self;
}

impl<T: Discipline> Discipline for Box<T> {
    type Params = T::Params;

    fn check(params: &T::Params) -> Result<(), OutOfRange> {
        T::check(params)
    }

    fn build(params: &T::Params, bearer: BearerParams) -> Self {
        Self::new(T::build(params, bearer))
    }
}

fn at_least_1(key: &'static str, value: u32) -> Result<(), OutOfRange> {
    in_range(key, value, value > 0, "at least 1")
}

/// A parameter of a queue discipline is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("queue {algorithm}: {wrong}")]
pub struct QueueError {
    /// The discipline.
    pub algorithm: Algorithm,
    /// The fault.
    pub wrong: OutOfRange,
}

/// Declares the queue disciplines: their files, names and parameters, and the enums that dispatch to them.
macro_rules! registry {
    (
        limiters { $( $l_module:ident $l_name:literal $L:ident($Limiter:ty) $l_about:literal; )+ }
        buffers { $( $b_module:ident $b_name:literal $B:ident($Buffer:ty) $b_about:literal; )+ }
    ) => {
        $( pub mod $l_module; )+
        $( pub mod $b_module; )+

        configs! {
            /// The disciplines by name.
            Algorithm("queue discipline");
            /// A discipline and its parameters. Unset parameters have the defaults in the discipline's file.
            QueueConfig {
                $( $L(<$Limiter as Discipline>::Params) = $l_name, $l_about; )+
                $( $B(<$Buffer as Discipline>::Params) = $b_name, $b_about; )+
            }
        }

        impl QueueConfig {
            /// The names of disciplines without a limiter, for messages.
            pub(crate) const UNLIMITED: &str = concat!("vanilla" $(, " or ", $b_name)+);

            /// Checks that every parameter is in range.
            ///
            /// # Errors
            /// The first parameter that is not, with its range.
            pub fn check(&self) -> Result<(), QueueError> {
                match self {
                    $( Self::$L(params) => <$Limiter>::check(params), )+
                    $( Self::$B(params) => <$Buffer>::check(params), )+
                }
                .map_err(|wrong| QueueError { algorithm: self.algorithm(), wrong })
            }

            /// Builds the limiter and the buffer of a bearer: a limiter with a FIFO, or a buffer with an open limiter.
            ///
            /// # Errors
            /// Those of [`check`](Self::check).
            pub fn build(&self, bearer: BearerParams) -> Result<(AnyLimiter, AnyBuffer), QueueError> {
                self.check()?;
                Ok(match self {
                    $( Self::$L(params) => {
                        let limiter = AnyLimiter::$L(<$Limiter>::build(params, bearer));
                        (limiter, AnyBuffer::Fifo(Fifo::new(bearer.limit)))
                    } )+
                    $( Self::$B(params) => (AnyLimiter::UNLIMITED, AnyBuffer::$B(<$Buffer>::build(params, bearer))), )+
                })
            }
        }

        /// Any limiter, without a virtual call.
        #[derive(Debug, Clone)]
        pub enum AnyLimiter { $( #[doc = $l_about] $L($Limiter), )+ }

        impl Limiter for AnyLimiter {
            fn admits(&mut self, next: &Candidate, now: Instant) -> bool {
                match self { $( Self::$L(l) => l.admits(next, now), )+ }
            }
            fn on_forwarded(&mut self, bytes: u32, now: Instant) {
                match self { $( Self::$L(l) => l.on_forwarded(bytes, now), )+ }
            }
            #[inline]
            fn on_sent(&mut self, bytes: u32, sojourn: Duration, now: Instant) {
                match self { $( Self::$L(l) => l.on_sent(bytes, sojourn, now), )+ }
            }
            #[inline]
            fn on_tti(&mut self, report: &TtiReport) {
                match self { $( Self::$L(l) => l.on_tti(report), )+ }
            }
            fn on_forecast(&mut self, next: Forecast) {
                match self { $( Self::$L(l) => l.on_forecast(next), )+ }
            }
            fn on_taken(&mut self, bytes: u32) {
                match self { $( Self::$L(l) => l.on_taken(bytes), )+ }
            }
            #[inline]
            fn needs_polling(&self) -> bool {
                match self { $( Self::$L(l) => l.needs_polling(), )+ }
            }
            fn wake_at(&self, now: Instant) -> Option<Instant> {
                match self { $( Self::$L(l) => l.wake_at(now), )+ }
            }
            #[inline]
            fn follows_forecast(&self) -> bool {
                match self { $( Self::$L(l) => l.follows_forecast(), )+ }
            }
        }

        /// Any buffer, without a virtual call.
        #[derive(Debug, Clone)]
        pub enum AnyBuffer {
            /// First in, first out; used with every limiter.
            Fifo(Fifo),
            $( #[doc = $b_about] $B($Buffer), )+
        }

        impl Buffer for AnyBuffer {
            // Not inlined: an SDU is large, and inlining would copy it several times.
            #[inline(always)]
            fn push(&mut self, sdu: Sdu, now: Instant) {
                match self { Self::Fifo(b) => b.push(sdu, now), $( Self::$B(b) => b.push(sdu, now), )+ }
            }
            #[inline(always)]
            fn pop(&mut self, now: Instant) -> Option<Sdu> {
                match self { Self::Fifo(b) => b.pop(now), $( Self::$B(b) => b.pop(now), )+ }
            }
            #[inline]
            fn len_sdus(&self) -> usize {
                match self { Self::Fifo(b) => b.len_sdus(), $( Self::$B(b) => b.len_sdus(), )+ }
            }
            #[inline]
            fn len_bytes(&self) -> u64 {
                match self { Self::Fifo(b) => b.len_bytes(), $( Self::$B(b) => b.len_bytes(), )+ }
            }
            fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>) {
                match self { Self::Fifo(b) => b.sizes(max_sdus, out), $( Self::$B(b) => b.sizes(max_sdus, out), )+ }
            }
            fn stats(&self) -> BufferStats {
                match self { Self::Fifo(b) => b.stats(), $( Self::$B(b) => b.stats(), )+ }
            }
        }
    };
}

// One line per discipline: file, name, variant, type, description.
registry! {
    limiters {
        vanilla "vanilla" Vanilla(vanilla::Unlimited) "No limit: every packet is passed to RLC immediately.";
        dynrlc "dynrlc" DynRlc(dynrlc::DynRlc) "Limit in SDUs, adapted to the sojourn time.";
        drql "drql" Drql(drql::Drql) "Limit in bytes, adapted to the bytes that the MAC leaves in RLC.";
        bdp "5g_bdp" Bdp(bdp::Bdp) "Pacing at the rate of the last TTI.";
        e5g_bdp "e5g_bdp" E5gBdp(e5g_bdp::E5gBdp) "Pacing by average bandwidth and packet size.";
        jit "jit" Jit(jit::Jit) "Fills RLC up to the announced grant just before the TTI; developed in this project.";
    }
    buffers {
        codel "codel" CoDel(codel::CoDelQueue) "CoDel in RLC (RFC 8289).";
        fq_codel "fq_codel" FqCoDel(Box<fq_codel::FqCoDel>) "FQ-CoDel in RLC (RFC 8290).";
        l4s "l4s" L4s(Box<l4s::L4s>) "Dual-queue coupled AQM in RLC (RFC 9332).";
    }
}

impl AnyLimiter {
    /// Admits every packet.
    pub const UNLIMITED: Self = Self::Vanilla(vanilla::Unlimited);

    /// Whether it is [`UNLIMITED`](Self::UNLIMITED).
    #[must_use]
    #[inline]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Vanilla(_))
    }
}
