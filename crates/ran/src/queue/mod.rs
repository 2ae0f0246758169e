//! Queue disciplines of a bearer: a [`Limiter`] between SDAP and RLC, and a [`Buffer`] in RLC.
//!
//! ```text
//!   SDAP queues ──▶ admits(next)? ──▶ push ▯▯▯▯▯▯ pop ──▶ segmentation ──▶ MAC
//!                     Limiter            Buffer                             │
//!                        ▲                                                  │
//!                        └── on_tti(report) ◀──────── once per TTI ─────────┘
//! ```
//!
//! A name picks both ([`Algorithm`]): `codel`, `fq_codel` and `l4s` are buffers behind an open gate, the
//! pacers are gates before a FIFO, `vanilla` is an open gate before a FIFO. The parameters of a name are one
//! struct in its file; [`QueueConfig`] is how a person writes them:
//!
//! ```toml
//! queue = "e5g_bdp"                                  # the defaults
//! queue = { algorithm = "codel", target_us = 5000 }   # or some of them changed
//! ```
//!
//! What a limiter sees, in the order in which it happens:
//!
//! 1. [`Limiter::admits`] for the packet that SDAP's scheduler would send next, each time a packet arrives
//!    and at each poll of SDAP, or when it asked to be woken. It may answer differently later.
//! 2. [`Limiter::on_forwarded`] when that packet went down.
//! 3. At each TTI the MAC pulls: [`Limiter::on_sent`] for each SDU of which the last byte left the buffer,
//!    then one [`Limiter::on_tti`].
//!
//! In the uplink a grant also takes what waits in SDAP, whatever the limiter says; it hears of that by `on_forwarded`. So it decides
//! only what goes down before, and can leave no grant empty (docs/ran-limiter.md).
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

/// A packet below SDAP, with what its way has cost so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sdu {
    /// The bytes RLC carries. Its `at` is when the packet got to where it is.
    pub packet: Packet,
    /// Bytes in front of the IP packet (SDAP and PDCP headers), for whoever marks ECN or reads the flow.
    pub ip_offset: u8,
    /// QoS flow identifier, 0..=63.
    pub qfi: u8,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// When SDAP let it down to RLC.
    pub forwarded: Instant,
}

impl Sdu {
    /// An IP packet that entered at `packet.at` and went down at once.
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

    /// The IP packet inside; empty if `ip_offset` says there is none.
    #[must_use]
    pub fn ip(&self) -> &[u8] {
        self.packet.get(usize::from(self.ip_offset)..).unwrap_or_default()
    }

    /// The IP packet inside, to change.
    pub fn ip_mut(&mut self) -> &mut [u8] {
        self.packet.get_mut(usize::from(self.ip_offset)..).unwrap_or_default()
    }
}

/// The packet SDAP would send down next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its size in bytes as RLC will count it.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// Bytes that wait in SDAP for this bearer, the candidate included.
    pub backlog_bytes: u64,
    /// Whether a packet that arrives later could go before it, if it stayed.
    pub overtakable: bool,
    /// Time until SDAP's next poll: until then a refusal may stand.
    pub next_poll_in: Duration,
}

impl Candidate {
    /// A packet of `bytes` that came at `arrived`, is all there is, and may be overtaken; SDAP polls all the
    /// time.
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

    /// Time since the pull at `last`, nanoseconds of the [clock](Pulls::clock), as a limiter that lets down more as a
    /// round passes should take it: at most a round, and more only by what is pulled after it.
    ///
    /// Nothing goes down between two looks of SDAP. RLC §V-A polls five times per TTI, so its last look before
    /// the tick is in the last fifth. Where a round is one pull, the last look of rarer polls counts as at 4/5;
    /// otherwise polls early in the TTI would never let down what fills it. Where it is several, a look counts as at
    /// the last pull before the next look.
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

/// What the MAC and RLC tell about one bearer after each TTI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TtiReport {
    /// The tick at which the MAC pulled.
    pub at: Instant,
    /// Slots since the last report of this bearer, those without a pull included; 0 is taken as 1.
    pub elapsed_ttis: u32,
    /// Bytes the MAC had room for in this bearer's share of the transport block, RLC headers included.
    pub granted_bytes: u32,
    /// SDU bytes that left the buffer, headers not counted.
    pub served_bytes: u32,
    /// SDU bytes that stayed in the buffer, the rest of a segmented SDU included.
    pub buffer_bytes: u32,
    /// SDUs that stayed, a partly sent one included.
    pub buffer_sdus: u32,
    /// What the MAC expects to give next, if it says.
    pub next: Option<Forecast>,
}

/// The MAC's own expectation of its next pull from a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// When it will pull.
    pub at: Instant,
    /// Bytes it would then take, RLC headers included, if the bearer had that much: the TBS of the RBs that
    /// neither HARQ retransmissions already due nor the demand of other UEs take, at the MCS now in force.
    pub bytes: u32,
    /// The TBS of the whole carrier at that MCS: no pull takes more.
    pub most_bytes: u32,
}

/// Decides when SDAP's next packet goes down to RLC. One per bearer.
pub trait Limiter {
    /// Whether `next` may go down at `now`. A refusal must not be for ever: with an empty RLC buffer and
    /// TTIs passing, every packet of any size is admitted in the end, wherever in the TTI the polls are.
    fn admits(&mut self, next: &Candidate, now: Instant) -> bool;
    /// `bytes` went down to the RLC buffer.
    fn on_forwarded(&mut self, bytes: u32, now: Instant);
    /// The last byte of an SDU left the RLC buffer, `sojourn` after it went down.
    fn on_sent(&mut self, _bytes: u32, _sojourn: Duration, _now: Instant) {}
    /// A TTI passed.
    fn on_tti(&mut self, _report: &TtiReport) {}
    /// The MAC expects something else of its next pull than its last report said.
    fn on_forecast(&mut self, _next: Forecast) {}
    /// Whether the answer of [`admits`](Self::admits) changes with time alone, so that SDAP must poll.
    fn wants_polls(&self) -> bool {
        true
    }
    /// When after `now` to ask again in any case, beside the polls.
    fn wake_at(&self, _now: Instant) -> Option<Instant> {
        None
    }
    /// Whether it lets down what a [`Forecast`] says before each pull.
    fn follows_forecast(&self) -> bool {
        false
    }
}

/// Where SDUs wait. It counts everything it drops: `pushed = popped + dropped + still here`.
pub trait Buffer {
    /// Takes an SDU in, or drops it or another for lack of room.
    fn push(&mut self, sdu: Sdu, now: Instant);
    /// The next SDU to send; `None` only if there is none. May drop or mark others on the way.
    fn pop(&mut self, now: Instant) -> Option<Sdu>;
    /// SDUs waiting.
    fn len_sdus(&self) -> usize;
    /// Bytes waiting.
    fn len_bytes(&self) -> u64;
    /// Appends the sizes in bytes of the SDUs that would be popped next, nearest first, until `max_sdus`
    /// are named; a guess where the discipline drops or reorders.
    fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>);
    /// What happened so far.
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
    /// SDUs dropped by the discipline to tell the sender.
    pub aqm_drops: u64,
    /// SDUs marked with CE in place of a drop.
    pub ce_marks: u64,
    /// Most bytes that ever waited.
    pub max_bytes: u64,
}

/// How much may wait in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimit {
    /// Most bytes waiting.
    pub bytes: u64,
    /// Most SDUs waiting.
    pub sdus: usize,
}

impl Default for BufferLimit {
    /// 1 MB as OAI's LTE, and as many SDUs of 64 bytes. srsRAN has 6.17 MB, OAI's NR 100 MB, ns-3 10 kB.
    fn default() -> Self {
        Self { bytes: 1_000_000, sdus: 15_625 }
    }
}

/// What a limiter or buffer is built with, besides its own parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BearerParams {
    /// In the uplink RLC asks SDAP for what a grant has room for: no limiter has to see to that.
    pub direction: Direction,
    /// How long a packet waits for a grant at least, with nothing before it; zero in the downlink. So long a queue has to be for
    /// grants of the whole carrier: disciplines that keep a wait to a target do not count it.
    pub grant_wait: Duration,
    /// When the MAC pulls.
    pub pulls: Pulls,
    /// Largest SDU in bytes, at least 1; packets may exceed it, only shares of it are used.
    pub mtu_bytes: u32,
    /// Bounds of the buffer.
    pub limit: BufferLimit,
    /// For whatever the discipline draws or hashes.
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
    /// A target for the wait, microseconds, with the wait for a grant.
    pub(super) fn target_us(&self, target_us: u32) -> u32 {
        target_us.saturating_add(u32::try_from(self.grant_wait.as_micros()).unwrap_or(u32::MAX))
    }
}

/// What the registry needs of a limiter or a buffer beside [`Limiter`] or [`Buffer`].
pub trait Discipline: Sized {
    /// Its parameters as a person writes them, with defaults.
    type Params;

    /// Whether every parameter is in its range.
    ///
    /// # Errors
    /// The first that is not, with the range.
    fn check(_: &Self::Params) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// One for a bearer, of parameters that were checked.
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

/// A parameter of a queue discipline out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("queue {algorithm}: {wrong}")]
pub struct QueueError {
    /// The discipline.
    pub algorithm: Algorithm,
    /// What is wrong with it.
    pub wrong: OutOfRange,
}

/// The queue disciplines: their files, their names and parameters, and the enums to call them by.
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
            /// A discipline and its parameters. What is left out has the default of the discipline's own file.
            QueueConfig {
                $( $L(<$Limiter as Discipline>::Params) = $l_name, $l_about; )+
                $( $B(<$Buffer as Discipline>::Params) = $b_name, $b_about; )+
            }
        }

        impl QueueConfig {
            /// Those that let everything down to the buffer, for messages.
            pub(crate) const OPEN: &str = concat!("vanilla" $(, " or ", $b_name)+);

            /// Whether every parameter is in its range.
            ///
            /// # Errors
            /// The first that is not, with the range.
            pub fn check(&self) -> Result<(), QueueError> {
                match self {
                    $( Self::$L(params) => <$Limiter>::check(params), )+
                    $( Self::$B(params) => <$Buffer>::check(params), )+
                }
                .map_err(|wrong| QueueError { algorithm: self.algorithm(), wrong })
            }

            /// The limiter and the buffer of a bearer: a limiter stands before a FIFO, a buffer behind an open gate.
            ///
            /// # Errors
            /// As [`check`](Self::check).
            pub fn build(&self, bearer: BearerParams) -> Result<(AnyLimiter, AnyBuffer), QueueError> {
                self.check()?;
                Ok(match self {
                    $( Self::$L(params) => {
                        let limiter = AnyLimiter::$L(<$Limiter>::build(params, bearer));
                        (limiter, AnyBuffer::Fifo(Fifo::new(bearer.limit)))
                    } )+
                    $( Self::$B(params) => (AnyLimiter::OPEN, AnyBuffer::$B(<$Buffer>::build(params, bearer))), )+
                })
            }
        }

        /// Any of the limiters, without a virtual call.
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
            #[inline]
            fn wants_polls(&self) -> bool {
                match self { $( Self::$L(l) => l.wants_polls(), )+ }
            }
            fn wake_at(&self, now: Instant) -> Option<Instant> {
                match self { $( Self::$L(l) => l.wake_at(now), )+ }
            }
            #[inline]
            fn follows_forecast(&self) -> bool {
                match self { $( Self::$L(l) => l.follows_forecast(), )+ }
            }
        }

        /// Any of the buffers, without a virtual call.
        #[derive(Debug, Clone)]
        pub enum AnyBuffer {
            /// First in, first out: behind every limiter.
            Fifo(Fifo),
            $( #[doc = $b_about] $B($Buffer), )+
        }

        impl Buffer for AnyBuffer {
            // A packet is moved from place to place where these are called, and not inlined: it is large.
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

// One line for each: file, name, variant, type, what it is.
registry! {
    limiters {
        vanilla "vanilla" Vanilla(vanilla::Open) "Everything at once into a FIFO.";
        dynrlc "dynrlc" DynRlc(dynrlc::DynRlc) "Limit in SDUs by sojourn.";
        drql "drql" Drql(drql::Drql) "Limit in bytes by what the MAC leaves.";
        bdp "5g_bdp" Bdp(bdp::Bdp) "Pace of the last TTI.";
        e5g_bdp "e5g_bdp" E5gBdp(e5g_bdp::E5gBdp) "Pace by average bandwidth and packet size.";
        jit "jit" Jit(jit::Jit) "Filled to the announced grant just before the tick; ours.";
    }
    buffers {
        codel "codel" CoDel(codel::CoDelQueue) "Controlled delay in RLC (RFC 8289).";
        fq_codel "fq_codel" FqCoDel(Box<fq_codel::FqCoDel>) "Flow queueing with controlled delay in RLC (RFC 8290).";
        l4s "l4s" L4s(Box<l4s::L4s>) "Dual-queue coupled AQM in RLC (RFC 9332).";
    }
}

impl AnyLimiter {
    /// Lets everything down, whatever it is told.
    pub const OPEN: Self = Self::Vanilla(vanilla::Open);

    /// Whether it is [`OPEN`](Self::OPEN).
    #[must_use]
    #[inline]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Vanilla(_))
    }
}
