//! The state that a session needs only while it is in use: path states, per-rule state, reordering, queues.

use super::coding::Coding;
use super::control::Message;
use super::fast::Fast;
use super::send::RuleState;
use super::{Profile, SessionEvent};
use crate::config_channel::Allowance;
use crate::fragment::Assembler;
use crate::keyring::Confirmed;
use crate::mtu::PathMtu;
use crate::path::{FlapControl, FlapEvent};
use crate::reorder::{FlowReorder, StreamReorder};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::Instant;
use anabranch_steer::{PathSet, PathState, PathStates};
use anabranch_wire::control::{Control, Notify};
use std::collections::VecDeque;

/// Most outgoing messages, events, ICMP answers and documents that are kept between two polls.
const MAX_OUTBOX: usize = 256;
const MAX_EVENTS: usize = 256;
const MAX_ICMP: usize = 16;
const MAX_DOCUMENTS: usize = 4;

/// See the top of this file. All of it can be derived from the session, or is worth only a few packets of
/// measurements.
pub(super) struct Active {
    /// The unified steering structure (JUNCTION §V-C2) in the steady view, with flap control applied. Not
    /// updated at rest.
    pub states: PathStates,
    /// The same in the live view.
    pub live: PathStates,
    pub flap: FlapControl,
    pub per_rule: Vec<RuleState>,
    pub flow_reorder: FlowReorder,
    pub stream_reorder: StreamReorder,
    /// State of coded mode; allocated by its first packet.
    pub coding: Option<Box<Coding>>,
    mtu: [Option<Box<PathMtu>>; MAX_PATHS],
    /// Messages fragmented so far, by path: the number of the next one.
    pub cuts: [u32; MAX_PATHS],
    /// Incomplete messages of the peer.
    pub assembler: Assembler,
    notices: [Notice; MAX_PATHS],
    /// UPF: for each path that an address of the TCP lane names, the path on which its newest packet arrived.
    pub lane_by: [PathId; MAX_PATHS],
    pub outbox: VecDeque<(PathId, Message)>,
    pub icmp: VecDeque<Vec<u8>>,
    events: VecDeque<SessionEvent>,
    /// Complete documents of the peer.
    documents: VecDeque<Vec<u8>>,
    /// Limit of the documents that the peer may still send.
    allowance: Allowance,
    confirmed: Option<Confirmed>,
    closed: Option<u8>,
    /// When unused flows are searched for next.
    pub sweep_at: Instant,
    /// When the rules are reviewed next.
    pub review_at: Instant,
    /// Flows handed over to a faster data path.
    pub fast: Fast,
}

/// Notifications about one path, sent and received.
#[derive(Clone, Copy, Default)]
struct Notice {
    /// Number of the newest notification received.
    heard: Option<u32>,
    /// Number of the last notification sent; its reason and the remaining repetitions follow.
    told: u32,
    reason: u8,
    left: u8,
}

/// Number of repetitions of a notification that a path is down, which may be lost on a lossy path.
const REPEATS: u8 = 3;

impl Active {
    /// The state in `slot`; created if there is none.
    #[inline]
    pub fn of<'a>(slot: &'a mut Option<Box<Self>>, profile: &Profile) -> &'a mut Self {
        slot.get_or_insert_with(|| Self::new(profile))
    }

    #[cold]
    fn new(profile: &Profile) -> Box<Self> {
        Box::new(Self {
            states: PathStates::default(),
            live: PathStates::default(),
            flap: FlapControl::new(&profile.flap),
            per_rule: Vec::new(),
            flow_reorder: FlowReorder::new(),
            stream_reorder: StreamReorder::new(),
            coding: None,
            mtu: Default::default(),
            cuts: [0; MAX_PATHS],
            assembler: Assembler::default(),
            notices: Default::default(),
            lane_by: std::array::from_fn(|path| path as PathId),
            outbox: VecDeque::new(),
            icmp: VecDeque::new(),
            events: VecDeque::new(),
            documents: VecDeque::new(),
            allowance: Allowance::default(),
            confirmed: None,
            closed: None,
            sweep_at: Instant::ZERO,
            review_at: Instant::ZERO,
            fast: Fast::default(),
        })
    }

    /// Whether nothing is waiting for the next poll or for the owner.
    pub fn is_empty(&self) -> bool {
        self.outbox.is_empty()
            && self.icmp.is_empty()
            && self.events.is_empty()
            && self.documents.is_empty()
            && self.confirmed.is_none()
            && self.closed.is_none()
    }

    pub fn mtu(&self, path: PathId) -> Option<&PathMtu> {
        self.mtu.get(usize::from(path))?.as_deref()
    }

    pub fn mtu_mut(&mut self, path: PathId) -> Option<&mut PathMtu> {
        self.mtu.get_mut(usize::from(path))?.as_deref_mut()
    }

    #[cold]
    pub fn set_mtu(&mut self, path: PathId, mtu: PathMtu) {
        if let Some(slot) = self.mtu.get_mut(usize::from(path)) {
            *slot = Some(Box::new(mtu));
        }
    }

    /// Queues a message for the next poll.
    pub fn queue(&mut self, path: PathId, message: impl Into<Message>) {
        if self.outbox.len() < MAX_OUTBOX {
            self.outbox.push_back((path, message.into()));
        }
    }

    /// Updates the live state of a path, and the steady state if flap control allows it.
    ///
    /// A path that went down is marked at once, whatever flap control decides, so that no packet is lost on
    /// it. A path that came up again, or whose RTT changed, is held back until the user's paths are stable
    /// again, unless it is the only one.
    pub fn refresh(&mut self, path: PathId, fresh: PathState, now: Instant) {
        self.live.set(path, fresh);
        let live = &self.live;
        if let Some(FlapEvent::Suspended(pause)) = self.flap.on_rtts(|p| live.get(p).rtt_us, now) {
            self.event(SessionEvent::Flapping { pause });
        }
        if !self.flap.is_suspended() {
            self.states = self.live;
        } else if !fresh.is_up() {
            self.states.set(path, fresh);
        }
        if self.states.none_up() {
            self.states = self.live;
        }
    }

    /// Flap control ends the suspension.
    pub fn resume(&mut self) {
        self.states = self.live;
    }

    /// Notifies the peer, on `paths`, that `notify.path` is up or down.
    pub fn notify(&mut self, notify: Notify, paths: PathSet) {
        for other in paths.iter().filter(|other| *other != notify.path) {
            self.queue(other, Control::Notify(notify));
        }
        if let Some(notice) = self.notices.get_mut(usize::from(notify.path)) {
            (notice.told, notice.reason) = (notify.sequence, notify.reason);
            notice.left = if notify.up { 0 } else { REPEATS };
        }
    }

    /// `path` works again: its failure is no longer repeated.
    pub fn forget_notice(&mut self, path: PathId) {
        if let Some(notice) = self.notices.get_mut(usize::from(path)) {
            notice.left = 0;
        }
    }

    /// Repeats on `path` notifications that may have been lost.
    pub fn repeat_notices(&mut self, path: PathId) {
        for about in (0..MAX_PATHS as PathId).filter(|about| *about != path) {
            let notice = &mut self.notices[usize::from(about)];
            if let Some(left) = notice.left.checked_sub(1) {
                notice.left = left;
                let Notice { told: sequence, reason, .. } = *notice;
                self.queue(path, Control::Notify(Notify { path: about, up: false, reason, sequence }));
            }
        }
    }

    /// Whether a notification is new: it may be a repetition, or older than one already received.
    pub fn is_new(&mut self, notify: &Notify) -> bool {
        let Some(notice) = self.notices.get_mut(usize::from(notify.path)) else { return false };
        let news = notice.heard.is_none_or(|last| notify.sequence.wrapping_sub(last) as i32 > 0);
        if news {
            notice.heard = Some(notify.sequence);
        }
        news
    }

    /// The peer numbers its notifications from the beginning again.
    pub fn peer_restarted(&mut self) {
        self.notices.iter_mut().for_each(|notice| notice.heard = None);
    }

    /// Queues an answer to an inner packet that cannot be sent.
    pub fn queue_icmp(&mut self, message: impl FnOnce() -> Option<Vec<u8>>) {
        if self.icmp.len() < MAX_ICMP {
            self.icmp.extend(message());
        }
    }

    /// Queues an event. If there are too many, the oldest is lost. Events on which the owner must act have
    /// places of their own.
    pub fn event(&mut self, event: SessionEvent) {
        if let SessionEvent::Endpoint { path, .. } = event {
            let same = |e: &SessionEvent| matches!(e, SessionEvent::Endpoint { path: p, .. } if *p == path);
            self.events.retain(|e| !same(e));
        }
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub fn confirm(&mut self, confirmed: Confirmed) {
        let fresh_peer = confirmed.fresh_peer || self.confirmed.is_some_and(|c| c.fresh_peer);
        self.confirmed = Some(Confirmed { fresh_peer, ..confirmed });
    }

    pub fn close(&mut self, reason: u8) {
        self.closed = Some(reason);
    }

    /// Whether a document fragment of this size is accepted; it may complete one more document.
    pub fn takes_document(&mut self, bytes: usize, now: Instant) -> bool {
        self.documents.len() < MAX_DOCUMENTS && self.allowance.take(bytes, now)
    }

    pub fn document(&mut self, document: Vec<u8>) {
        self.documents.push_back(document);
    }

    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        if let Some(Confirmed { local_index, fresh_peer }) = self.confirmed.take() {
            return Some(SessionEvent::Rekeyed { local_index, fresh_peer });
        }
        let document = self.documents.pop_front().map(SessionEvent::Config);
        document
            .or_else(|| self.events.pop_front())
            .or_else(|| self.closed.take().map(|reason| SessionEvent::Closed { reason }))
    }
}
