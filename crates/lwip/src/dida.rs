//! What DIDA does with one ACK (paper §IV-B, Fig. 6).
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
//! The paper has no word for what happens after the timer. The sender is retransmitting then: it needs duplicate ACKs
//! (and their SACK blocks) to clock out more, and does not reduce its window again for what was under way at that
//! moment. So what is under way is remembered as `recover`, as RFC 6582 does it, and nothing is held until it has been
//! acknowledged.
//!
//! Held ACKs leave in the order in which they came, and before anything that came after them; or not at all, if the
//! missing ACK came, which says all that they say: a later acknowledgment, newer SACK blocks, window and timestamp.
//! What a later ACK need not say again is never held; see [`Track::judge`].

use super::events::ReleaseReason;
use super::pool::Queue;
use super::sack::{Keep, can_hide};
use super::stats::PassReason;
use anabranch_element::time::Instant;
use anabranch_wire::ip::IpPacket;
use anabranch_wire::tcp::{TcpFlags, TcpOption, TcpView};

/// Sequence numbers are compared within half of their space; what is further ahead than the largest window is not
/// of this connection.
const FAR: u32 = 1 << 30;

/// MPTCP (RFC 8684): only data sequence signals are said again.
const OPTION_MPTCP: u8 = 30;
const MPTCP_DSS: u8 = 2;
const OPTION_MD5: u8 = 19;
const OPTION_AO: u8 = 29;

/// `a` is before `b`.
pub(super) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// What to do with an uplink packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on; what is held stays.
    Pass,
    /// It goes on, and is one more duplicate for the sender.
    PassDuplicate,
    /// What is held is sent before it.
    Release(ReleaseReason),
    /// What is held is superseded; it goes on.
    Advance,
    /// It is to be held.
    Hold,
    /// Its duplicate SACK goes on, the rest of it is to be held.
    Divide,
}

/// What is known of one flow: the sender's side as the node sees it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Track {
    /// Behind the last byte sent.
    pub snd_max: u32,
    /// The highest acknowledgment that was sent on: the next expected ACK is beyond it.
    pub una: u32,
    /// Duplicates pass until this is acknowledged.
    recover: u32,
    /// When `una` was set.
    pub advanced_at: Instant,
    /// When the first of what is held came.
    pub held_since: Instant,
    pub held: Queue,
    /// Duplicates since the last advance.
    pub dups: u16,
    /// Of these, those that were sent on at once or released.
    pub dups_sent: u16,
    /// Window of the last ACK, unscaled.
    window: u16,
    ecn: u8,
    /// Shift of the window, as the UE's SYN said.
    shift: Option<u8>,
    data_seen: bool,
    ack_seen: bool,
    passing: bool,
}

impl Track {
    /// Bytes under way.
    pub(super) const fn in_flight(&self) -> u32 {
        if self.data_seen && self.ack_seen { self.snd_max.wrapping_sub(self.una) } else { 0 }
    }

    /// Whether the sender was told of a gap, and what was under way then has not been acknowledged yet.
    pub(super) const fn is_recovering(&self) -> bool {
        self.passing && before(self.una, self.recover)
    }

    /// Whether data was seen, and an acknowledgment of it.
    pub(super) const fn is_proven(&self) -> bool {
        self.data_seen && self.ack_seen
    }

    /// Whether some of a downlink segment was sent before.
    pub(super) fn is_again(&self, tcp: &TcpView<'_>) -> bool {
        self.data_seen && tcp.sequence_len() > 0 && before(tcp.seq(), self.snd_max)
    }

    /// Whether a downlink segment has what the UE waits for.
    pub(super) fn fills(&self, tcp: &TcpView<'_>) -> bool {
        let end = tcp.seq().wrapping_add(tcp.sequence_len());
        self.ack_seen && !before(self.una, tcp.seq()) && before(self.una, end)
    }

    /// A downlink segment.
    pub(super) fn on_segment(&mut self, tcp: &TcpView<'_>) {
        if tcp.flags().contains(TcpFlags::SYN) {
            let is_answer = tcp.flags().contains(TcpFlags::ACK);
            let scales = tcp.options().any(|option| matches!(option, Ok(TcpOption::WindowScale(_))));
            // The UE's shift counts if both sides have one (RFC 7323 §2.2).
            let shift = self.shift.filter(|_| is_answer).map(|shift| if scales { shift } else { 0 });
            self.renew();
            self.shift = shift;
        }
        let len = tcp.sequence_len();
        let end = tcp.seq().wrapping_add(len);
        if !self.data_seen {
            // A pure ACK of an upload does not make a download.
            if len > 0 {
                self.data_seen = true;
                self.snd_max = end;
            }
        } else if end.wrapping_sub(self.snd_max) < FAR {
            self.snd_max = end;
        } else if before(end, self.una.wrapping_sub(FAR)) && self.ack_seen {
            // So far behind: it is another connection, whose SYN was not seen.
            self.renew();
            (self.data_seen, self.snd_max) = (len > 0, end);
        }
    }

    /// The connection is another one, or none. What is held must have been taken out.
    pub(super) fn renew(&mut self) {
        *self = Self { held: self.held, held_since: self.held_since, ..Self::default() };
    }

    /// What to do with an uplink packet of the flow.
    ///
    /// Held are only ACKs without data that repeat the last acknowledgment while data is under way, and say nothing
    /// that the next one might not say again. Not held, besides what is no duplicate:
    ///
    /// - SYN, RST: what is held belongs to what ends. FIN and data: order is kept, and their SACK blocks say the same;
    /// - a change of the ECN bits, in either form of ECN: each is news;
    /// - a duplicate SACK (RFC 2883): it is said once, and lets the sender undo a reduction;
    /// - a window that the sender may be waiting for: the last one was used up to less than a full segment, or is
    ///   none. A closed one goes on each time: it may answer a probe, and unanswered probes end a connection
    ///   (RFC 9293 §3.8.6.1);
    /// - urgent data, and options that are not timestamps, SACK, MPTCP's DSS, MD5 or AO.
    pub(super) fn judge(
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
            // Acknowledges what we have not seen: it went another way. What the UE has, was sent.
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
            // What is held is dropped on the word of this one, so it must be one that the sender takes.
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
            // Overtaken on its way. While something is held its SACK blocks would tell of the gap.
            return (if self.held.is_empty() { Verdict::Pass } else { Verdict::Hold }, None);
        }
        if self.snd_max == self.una {
            // Nothing is under way: a keep-alive, or a window.
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
        match once_only(tcp, self.una) {
            // While something is held, nothing may overtake it.
            Once::No if self.dups <= let_through && self.held.is_empty() && !(hides && can_hide(tcp)) => {
                (Verdict::PassDuplicate, None)
            }
            Once::No => (Verdict::Hold, None),
            Once::Dsack if hides && can_hide(tcp) => (Verdict::Divide, None),
            Once::Dsack => (Verdict::Release(ReleaseReason::Dsack), None),
            Once::Option => (Verdict::Release(ReleaseReason::Option), None),
            Once::Unreadable => (Verdict::Release(ReleaseReason::Option), Some(PassReason::BadOptions)),
        }
    }

    /// An ACK that advances has been sent on.
    pub(super) fn advance(&mut self, tcp: &TcpView<'_>, now: Instant) {
        self.una = tcp.ack();
        (self.window, self.ecn) = (tcp.window(), tcp.ecn_bits());
        (self.dups, self.dups_sent) = (0, 0);
        self.advanced_at = now;
        self.passing &= before(self.una, self.recover);
    }

    /// Whether the gap that this ACK tells of is to be kept from the sender. It has advanced.
    /// Then which of its SACK blocks it goes on with: a duplicate SACK is said once only.
    pub(super) fn keeps_gap(&self, tcp: &TcpView<'_>) -> Option<Keep> {
        let bare = tcp.payload_len() == 0 && !tcp.flags().contains(TcpFlags::FIN);
        match once_only(tcp, self.una) {
            _ if self.passing || !bare || !can_hide(tcp) => None,
            Once::No => Some(Keep::None),
            Once::Dsack => Some(Keep::First),
            Once::Option | Once::Unreadable => None,
        }
    }

    /// The sender was told of the gap: nothing is held until what is under way has been acknowledged.
    pub(super) const fn gave_up(&mut self) {
        self.passing = true;
        self.recover = self.snd_max;
    }

    /// The UE's SYN: it may use another shift from now on, and another connection begins.
    pub(super) fn on_uplink_syn(&mut self, tcp: &TcpView<'_>) {
        self.renew();
        self.shift = Some(0);
        for option in tcp.options().map_while(Result::ok) {
            if let TcpOption::WindowScale(shift) = option {
                self.shift = Some(shift);
            }
        }
    }

    /// Whether less than a full segment fits the last window. Of a flow whose SYN was not seen the shift is not known;
    /// nobody waits then, as far as we can tell.
    fn is_window_used_up(&self) -> bool {
        const SEGMENT: u64 = 1460;
        self.shift
            .is_some_and(|shift| u64::from(self.in_flight()) + SEGMENT > u64::from(self.window) << shift)
    }
}

enum Once {
    No,
    Dsack,
    Option,
    Unreadable,
}

/// Whether an ACK says something that no later one will say.
fn once_only(tcp: &TcpView<'_>, una: u32) -> Once {
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
                        return Once::Dsack;
                    }
                }
            }
            Ok(TcpOption::Other(OPTION_MD5 | OPTION_AO, _)) => {}
            Ok(TcpOption::Other(OPTION_MPTCP, data)) if data.first().is_some_and(|b| b >> 4 == MPTCP_DSS) => {
            }
            Ok(_) => return Once::Option,
            Err(_) => return Once::Unreadable,
        }
    }
    Once::No
}
