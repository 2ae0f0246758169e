//! What DIDA does with each ACK (paper §IV-B, Fig. 6).
//!
//! ```text
//!                 ack > una: advance, what is held is superseded
//!             ┌────────────────────────────────────────────────────────┐
//!             ▼                                                        │
//!        ┌─────────┐  duplicate, not more    ┌─────────┐  duplicate  ┌─────────┐
//!   ───▶ │ in order│ ──────────────────────▶ │ letting │ ──────────▶ │ holding │
//!        └─────────┘  than let_through       │ through │             └─────────┘
//!             ▲                              └─────────┘                  │ timer, or something that is
//!             │  una ≥ recover               ┌─────────┐                  │ not to be held: all are sent
//!             └───────────────────────────── │ passing │ ◀────────────────┘
//!                                            └─────────┘
//! ```
//!
//! The paper does not specify what happens after the timer. The sender is then retransmitting: it needs duplicate
//! ACKs and their SACK blocks to clock out more data, and does not reduce its window again for the data in flight
//! at that time. The end of that data is therefore remembered as `recover`, as in RFC 6582, and nothing is held
//! until it has been acknowledged.
//!
//! Held ACKs are sent in the order of their arrival and before any later packet of the flow, or not at all: the
//! missing ACK makes them redundant, since it has a later acknowledgment and newer SACK blocks, window and
//! timestamp. Information that later ACKs may not repeat is never held; see [`Track::decide`].

use super::events::ReleaseReason;
use super::pool::Queue;
use super::sack::{RetainedBlocks, can_hide};
use super::stats::PassReason;
use anabranch_element::time::Instant;
use anabranch_wire::ip::IpPacket;
use anabranch_wire::tcp::{TcpFlags, TcpOption, TcpView};

/// Sequence numbers are compared within half of their space. A number that is further ahead than the largest
/// possible window does not belong to this connection.
const FAR: u32 = 1 << 30;

/// MPTCP option (RFC 8684). Of its subtypes, only the data sequence signal is repeated in later ACKs.
const OPTION_MPTCP: u8 = 30;
const MPTCP_DSS: u8 = 2;
const OPTION_MD5: u8 = 19;
const OPTION_AO: u8 = 29;

/// Whether `a` precedes `b`, modulo 2³².
pub(super) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The treatment of an uplink packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Forward it; held ACKs stay.
    Pass,
    /// Forward it as a duplicate; it counts towards the sender's threshold.
    PassDuplicate,
    /// Send the held ACKs, then forward it.
    Release(ReleaseReason),
    /// Drop the held ACKs, which are superseded, and forward it.
    Advance,
    /// Hold the ACK.
    Hold,
    /// Forward its duplicate SACK, hold its other blocks.
    Divide,
}

/// The state of one flow: the sender's variables as the node infers them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Track {
    /// End of the data sent so far.
    pub snd_max: u32,
    /// The highest acknowledgment forwarded to the sender.
    pub una: u32,
    /// While `passing`: duplicates are forwarded until this is acknowledged.
    recover: u32,
    /// When `una` last advanced.
    pub advanced_at: Instant,
    /// When the first held ACK was received.
    pub held_since: Instant,
    pub held: Queue,
    /// Duplicates since the last advance.
    pub dups: u16,
    /// Of these, the ones forwarded at once or released.
    pub dups_sent: u16,
    /// Window of the last ACK, not scaled.
    window: u16,
    ecn: u8,
    /// Window scale from the UE's SYN; `None` if it was not seen.
    shift: Option<u8>,
    data_seen: bool,
    ack_seen: bool,
    passing: bool,
}

impl Track {
    /// Bytes in flight.
    pub(super) const fn in_flight(&self) -> u32 {
        if self.data_seen && self.ack_seen { self.snd_max.wrapping_sub(self.una) } else { 0 }
    }

    /// Whether the sender was informed of a gap, and the data in flight at that time has not been fully
    /// acknowledged yet.
    pub(super) const fn is_recovering(&self) -> bool {
        self.passing && before(self.una, self.recover)
    }

    /// Whether data and an acknowledgment of it have been seen.
    pub(super) const fn is_proven(&self) -> bool {
        self.data_seen && self.ack_seen
    }

    /// Whether a downlink segment repeats data.
    pub(super) fn is_retransmission(&self, tcp: &TcpView<'_>) -> bool {
        self.data_seen && tcp.sequence_len() > 0 && before(tcp.seq(), self.snd_max)
    }

    /// Whether a downlink segment contains the data that the UE is missing.
    pub(super) fn fills(&self, tcp: &TcpView<'_>) -> bool {
        let end = tcp.seq().wrapping_add(tcp.sequence_len());
        self.ack_seen && !before(self.una, tcp.seq()) && before(self.una, end)
    }

    /// Processes a downlink segment.
    pub(super) fn on_segment(&mut self, tcp: &TcpView<'_>) {
        if tcp.flags().contains(TcpFlags::SYN) {
            let is_answer = tcp.flags().contains(TcpFlags::ACK);
            let scales = tcp.options().any(|option| matches!(option, Ok(TcpOption::WindowScale(_))));
            // The UE's scale is in force only if both SYNs have one (RFC 7323 §2.2).
            let shift = self.shift.filter(|_| is_answer).map(|shift| if scales { shift } else { 0 });
            self.renew();
            self.shift = shift;
        }
        let len = tcp.sequence_len();
        let end = tcp.seq().wrapping_add(len);
        if !self.data_seen {
            // A pure ACK of an upload does not make the flow a download.
            if len > 0 {
                self.data_seen = true;
                self.snd_max = end;
            }
        } else if end.wrapping_sub(self.snd_max) < FAR {
            self.snd_max = end;
        } else if before(end, self.una.wrapping_sub(FAR)) && self.ack_seen {
            // Too far behind: this is a new connection whose SYN was not seen.
            self.renew();
            (self.data_seen, self.snd_max) = (len > 0, end);
        }
    }

    /// The connection ended or was replaced. Held ACKs must have been taken out.
    pub(super) fn renew(&mut self) {
        *self = Self { held: self.held, held_since: self.held_since, ..Self::default() };
    }

    /// Decides what to do with an uplink packet of the flow.
    ///
    /// Only ACKs without data are held that repeat the last acknowledgment while data is in flight, and whose information a
    /// later ACK repeats. Besides packets that are no duplicates, never held are:
    ///
    /// - SYN and RST: the held ACKs belong to the connection that ends. FIN and data: order is kept, and their SACK blocks
    ///   report the gap anyway;
    /// - a change of the ECN bits, in the classic or the accurate form;
    /// - a duplicate SACK (RFC 2883): it is sent only once, and lets the sender undo a reduction;
    /// - a window that the sender may be waiting for: less than a full segment of the last one was unused, or it was or is
    ///   zero. A zero window is forwarded each time: it may answer a window probe, and unanswered probes end a connection
    ///   (RFC 9293 §3.8.6.1);
    /// - urgent data, and options other than timestamps, SACK, MPTCP's DSS, MD5 or AO.
    pub(super) fn decide(
        &mut self,
        ip: &IpPacket,
        tcp: &TcpView<'_>,
        let_through: Option<u16>,
        hides: bool,
    ) -> (Verdict, Option<PassReason>) {
        let flags = tcp.flags();
        if flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST) {
            return (Verdict::Release(ReleaseReason::Handshake), None);
        }
        if !flags.contains(TcpFlags::ACK) {
            return (Verdict::Release(ReleaseReason::Data), None);
        }
        if !self.data_seen {
            return (Verdict::Release(ReleaseReason::Resync), Some(PassReason::UnknownFlow));
        }
        let ack = tcp.ack();
        let (window, ecn) = (tcp.window(), tcp.ecn_bits());
        let ahead = ack.wrapping_sub(self.snd_max);
        if ahead != 0 && ahead < FAR {
            if !tcp.verifies(ip) {
                return (Verdict::Release(ReleaseReason::Resync), Some(PassReason::BadChecksum));
            }
            // It acknowledges data that did not pass the node. What the UE has received was sent.
            (self.snd_max, self.una, self.ack_seen) = (ack, ack, true);
            (self.window, self.ecn) = (window, ecn);
            self.dups = 0;
            return (Verdict::Release(ReleaseReason::Resync), None);
        }
        if !self.ack_seen {
            if self.snd_max.wrapping_sub(ack) < FAR {
                (self.una, self.ack_seen, self.window, self.ecn) = (ack, true, window, ecn);
            }
            return (Verdict::Release(ReleaseReason::Resync), None);
        }
        let has_data = tcp.payload_len() > 0 || flags.contains(TcpFlags::FIN);
        if before(self.una, ack) {
            // This ACK causes held ACKs to be dropped, so the sender must be certain to accept it.
            return if self.held.is_empty() || tcp.verifies(ip) {
                (Verdict::Advance, None)
            } else {
                (Verdict::Pass, Some(PassReason::BadChecksum))
            };
        }
        if has_data || flags.contains(TcpFlags::URG) {
            return (Verdict::Release(ReleaseReason::Data), None);
        }
        if ack != self.una {
            // It was overtaken on its way. While ACKs are held, its SACK blocks would reveal the gap.
            return (if self.held.is_empty() { Verdict::Pass } else { Verdict::Hold }, None);
        }
        if self.snd_max == self.una {
            // Nothing is in flight: a keep-alive or a window update.
            (self.window, self.ecn) = (window, ecn);
            return (Verdict::Release(ReleaseReason::Window), None);
        }
        if ecn != self.ecn {
            self.ecn = ecn;
            return (Verdict::Release(ReleaseReason::Ecn), None);
        }
        let is_new = window != self.window;
        let awaited = self.window == 0 || self.is_window_used_up();
        self.window = window;
        if window == 0 || (is_new && awaited) {
            return (Verdict::Release(ReleaseReason::Window), None);
        }
        self.dups = self.dups.saturating_add(1);
        let Some(let_through) = let_through else { return (Verdict::PassDuplicate, None) };
        if self.passing {
            if before(self.una, self.recover) {
                return (Verdict::PassDuplicate, None);
            }
            self.passing = false;
        }
        match one_time_info(tcp, self.una) {
            // While ACKs are held, a duplicate must not overtake them.
            OneTimeInfo::No
                if self.dups <= let_through && self.held.is_empty() && !(hides && can_hide(tcp)) =>
            {
                (Verdict::PassDuplicate, None)
            }
            OneTimeInfo::No => (Verdict::Hold, None),
            OneTimeInfo::Dsack if hides && can_hide(tcp) => (Verdict::Divide, None),
            OneTimeInfo::Dsack => (Verdict::Release(ReleaseReason::Dsack), None),
            OneTimeInfo::Option => (Verdict::Release(ReleaseReason::Option), None),
            OneTimeInfo::Unreadable => {
                (Verdict::Release(ReleaseReason::Option), Some(PassReason::BadOptions))
            }
        }
    }

    /// An ACK that advances has been forwarded.
    pub(super) fn advance(&mut self, tcp: &TcpView<'_>, now: Instant) {
        self.una = tcp.ack();
        (self.window, self.ecn) = (tcp.window(), tcp.ecn_bits());
        (self.dups, self.dups_sent) = (0, 0);
        self.advanced_at = now;
        self.passing &= before(self.una, self.recover);
    }

    /// If the gap reported by this ACK, which has advanced, is to be hidden: the SACK blocks with which it is
    /// forwarded. A duplicate SACK stays, because it is sent only once.
    pub(super) fn retained_blocks(&self, tcp: &TcpView<'_>) -> Option<RetainedBlocks> {
        let bare = tcp.payload_len() == 0 && !tcp.flags().contains(TcpFlags::FIN);
        match one_time_info(tcp, self.una) {
            _ if self.passing || !bare || !can_hide(tcp) => None,
            OneTimeInfo::No => Some(RetainedBlocks::None),
            OneTimeInfo::Dsack => Some(RetainedBlocks::First),
            OneTimeInfo::Option | OneTimeInfo::Unreadable => None,
        }
    }

    /// The sender has been informed of the gap: nothing is held until the data in flight has been acknowledged.
    pub(super) const fn gave_up(&mut self) {
        self.passing = true;
        self.recover = self.snd_max;
    }

    /// The UE's SYN: a new connection begins, possibly with another window scale.
    pub(super) fn on_uplink_syn(&mut self, tcp: &TcpView<'_>) {
        self.renew();
        self.shift = Some(0);
        for option in tcp.options().map_while(Result::ok) {
            if let TcpOption::WindowScale(shift) = option {
                self.shift = Some(shift);
            }
        }
    }

    /// Whether less than a full segment fits into the last window. If the SYN was not seen, the scale is unknown,
    /// and no sender is assumed to be waiting.
    fn is_window_used_up(&self) -> bool {
        const SEGMENT: u64 = 1460;
        self.shift
            .is_some_and(|shift| u64::from(self.in_flight()) + SEGMENT > u64::from(self.window) << shift)
    }
}

enum OneTimeInfo {
    No,
    Dsack,
    Option,
    Unreadable,
}

/// Whether an ACK carries information that no later one repeats.
fn one_time_info(tcp: &TcpView<'_>, una: u32) -> OneTimeInfo {
    for option in tcp.options() {
        match option {
            Ok(TcpOption::Timestamps(..)) => {}
            Ok(TcpOption::Sack(blocks)) => {
                // RFC 2883 §4: a first block at or below the acknowledgment, or within the second, is a duplicate.
                if let Some((left, right)) = blocks.as_slice().first() {
                    let within = blocks
                        .as_slice()
                        .get(1)
                        .is_some_and(|(l, r)| !before(*left, *l) && !before(*r, *right));
                    if !before(una, *right) || within {
                        return OneTimeInfo::Dsack;
                    }
                }
            }
            Ok(TcpOption::Other(OPTION_MD5 | OPTION_AO, _)) => {}
            Ok(TcpOption::Other(OPTION_MPTCP, data)) if data.first().is_some_and(|b| b >> 4 == MPTCP_DSS) => {
            }
            Ok(_) => return OneTimeInfo::Option,
            Err(_) => return OneTimeInfo::Unreadable,
        }
    }
    OneTimeInfo::No
}
