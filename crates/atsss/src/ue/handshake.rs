//! The UE's side of the handshake: when to start one, by which access, and how to handle answers.

use super::{Ue, UeEvent};
use crate::crypto::{Cookie, Established, HandshakeError, Initiator};
use crate::drops::DropReason;
use crate::keyring::{Epoch, MAX_UNCONFIRMED};
use crate::path::DownReason;
use crate::session::{Addresses, PeerSettings};
use crate::{DatagramSink, PathId};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::handshake::{Access, Hello, Refused};
use rand_core::RngCore;
use std::collections::VecDeque;

/// Time until the first retry. It doubles with every try, up to [`MAX_RETRY`].
const RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY: Duration = Duration::from_secs(4);
/// A session without any path that is up is replaced after this time: the UPF may have restarted and lost it.
const ALL_DOWN: Duration = Duration::from_millis(100);
/// First pause after a refusal. It doubles up to 16 times this value.
const REFUSED_RETRY: Duration = Duration::from_secs(5);
/// A cookie is used for this time at most (its secret changes every two minutes).
const COOKIE_LIFE: Duration = Duration::from_secs(110);
/// Number of earlier tries whose answers are still accepted: those for which a UPF keeps keys.
const EARLIER_TRIES: usize = MAX_UNCONFIRMED - 1;
/// If the clock is set by more than this, an earlier refusal may have been due to the clock.
const CLOCK_STEP_NS: u64 = 1_000_000_000;

pub(super) struct Handshake {
    waiting: Option<Waiting>,
    /// Tries that were followed by another one, oldest first. The first answer to any of them counts.
    earlier: VecDeque<Waiting>,
    next_try: Instant,
    tries: u32,
    refusals: u32,
    access: PathId,
    cookie: Option<(Cookie, Instant)>,
    all_down_since: Option<Instant>,
    last_timestamp_ns: u64,
    /// The largest one that a UPF accepted.
    accepted_timestamp_ns: u64,
}

struct Waiting {
    initiator: Initiator,
    local_index: u32,
    path: PathId,
    sent: Instant,
    deadline: Instant,
}

impl Handshake {
    /// `last_timestamp_ns`: the largest one used so far.
    pub(super) fn new(last_timestamp_ns: u64, now: Instant) -> Self {
        Self {
            waiting: None,
            earlier: VecDeque::new(),
            next_try: now,
            tries: 0,
            refusals: 0,
            access: 0,
            cookie: None,
            all_down_since: None,
            last_timestamp_ns,
            accepted_timestamp_ns: last_timestamp_ns,
        }
    }

    /// Conditions have improved: tries now instead of at the end of the back-off.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.tries = 0;
        self.next_try = now;
        self.give_up();
    }

    /// The time of the newest try is over.
    fn give_up(&mut self) {
        if self.earlier.len() == EARLIER_TRIES {
            self.earlier.pop_front();
        }
        self.earlier.extend(self.waiting.take());
    }

    /// From now on no answer is accepted.
    fn forget(&mut self) {
        self.waiting = None;
        self.earlier.clear();
    }

    /// The try that this answers, and the answer. A forged answer does not end a try.
    fn answered(&mut self, datagram: &[u8]) -> Option<(Waiting, Answer)> {
        let tries = self.earlier.iter_mut().chain(&mut self.waiting);
        let (at, result) =
            tries.enumerate().find_map(|(at, try_)| match try_.initiator.finish(datagram) {
                Ok(established) => Some((at, Ok(Box::new(established)))),
                Err(HandshakeError::Refused(refused)) => Some((at, Err(refused))),
                Err(_) => None,
            })?;
        let answered = if at < self.earlier.len() { self.earlier.remove(at) } else { self.waiting.take() }?;
        let answer = match result {
            Ok(established) => Answer::Established(established),
            // A later try by another access may have arrived first.
            Err(Refused::CLOCK_BEHIND)
                if self
                    .earlier
                    .iter()
                    .skip(at)
                    .chain(&self.waiting)
                    .any(|later| later.path != answered.path) =>
            {
                Answer::Overtaken
            }
            Err(refused) => Answer::Refused(refused),
        };
        Some((answered, answer))
    }
}

/// The UPF's answer to a try.
enum Answer {
    Established(Box<Established>),
    Refused(Refused),
    /// The UPF has seen a later try.
    Overtaken,
}

impl Ue {
    pub(super) fn handshake_timeout(&self) -> (Instant, Reason) {
        if let Some(waiting) = &self.handshake.waiting {
            return (waiting.deadline, "handshake retry");
        }
        if !self.connected {
            return (self.handshake.next_try, "handshake");
        }
        if let Some(since) = self.handshake.all_down_since {
            return ((since + ALL_DOWN).max(self.handshake.next_try), "session rebuild");
        }
        if self.session.states().up().is_empty() {
            return (self.handshake.next_try, "session rebuild");
        }
        let rekey = self.session.rekey_at().unwrap_or(Instant::ZERO);
        (rekey.max(self.handshake.next_try), "rekey")
    }

    /// Starts or repeats a handshake if one is due.
    pub(super) fn drive_handshake(&mut self, now: Instant, out: &mut impl DatagramSink) {
        let none_up = self.session.states().up().is_empty();
        if self.connected && none_up {
            self.handshake.all_down_since.get_or_insert(now);
        } else {
            self.handshake.all_down_since = None;
        }
        if let Some(waiting) = &self.handshake.waiting {
            if now < waiting.deadline {
                return;
            }
            self.handshake.give_up();
            let (path, tries) = (self.handshake.access, self.handshake.tries);
            self.event(UeEvent::HandshakeTimeout { path, tries });
            self.handshake.access = self.next_access(self.handshake.access);
        } else if now < self.handshake.next_try {
            return;
        } else {
            let rebuild = self.handshake.all_down_since.is_some_and(|since| now >= since + ALL_DOWN);
            let has_keys = self.session.rekey_at().is_some();
            if self.connected && has_keys && !rebuild && !self.session.keys().needs_rekey(now) {
                return;
            }
            self.handshake.access = self.first_access();
        }
        self.start_handshake(now, out);
    }

    /// The access for a handshake: one that is up, otherwise one with a carrier.
    fn first_access(&self) -> PathId {
        self.session.states().fastest(self.session.states().up()).unwrap_or_else(|| {
            self.usable().find(|&p| p >= self.handshake.access).or_else(|| self.usable().next()).unwrap_or(0)
        })
    }

    fn next_access(&self, after: PathId) -> PathId {
        self.usable().find(|&p| p > after).or_else(|| self.usable().next()).unwrap_or(0)
    }

    fn usable(&self) -> impl Iterator<Item = PathId> + '_ {
        (0..self.config.accesses.len() as u8).filter(|&p| {
            self.session.path(p).is_some_and(|path| path.monitor.down_reason() != Some(DownReason::Carrier))
        })
    }

    fn start_handshake(&mut self, now: Instant, out: &mut impl DatagramSink) {
        let path = self.handshake.access;
        let back_off = RETRY.saturating_mul(1 << self.handshake.tries.min(4)).min(MAX_RETRY);
        self.handshake.tries += 1;
        self.handshake.next_try = now + back_off;
        let local_index = self.rng.next_u32();
        let clock = self.config.unix_epoch_ns.saturating_add(now.as_nanos());
        let timestamp_ns = clock.max(self.handshake.last_timestamp_ns.saturating_add(1));
        self.handshake.last_timestamp_ns = timestamp_ns;
        let hello = Hello {
            path,
            accesses: (0u8..)
                .zip(&self.config.accesses)
                .map(|(path, a)| Access { path, name: a.name.clone() })
                .collect(),
            mtu: self.config.params.inner_mtu,
            resume: self.session.keys().peer_index(),
            plain: self.session.profile().plain(),
            features: self.session.profile().own_features(),
        };
        let cookie = self.handshake.cookie.as_ref().filter(|(_, until)| now < *until).map(|(c, _)| c);
        let started = Initiator::start(
            &self.config.private_key,
            &self.config.upf_key,
            self.config.suite,
            local_index,
            timestamp_ns,
            &hello,
            cookie,
            &mut self.rng,
        );
        let Ok((initiator, datagram)) = started else {
            self.drops.count(DropReason::HandshakeInvalid);
            return;
        };
        self.handshake.waiting =
            Some(Waiting { initiator, local_index, path, sent: now, deadline: now + back_off });
        let Some(remote) = self.session.path(path).and_then(|p| p.endpoint()) else { return };
        match out.reserve(path, remote, datagram.len()) {
            Some(slot) => slot.copy_from_slice(&datagram),
            None => self.drops.count(DropReason::NoRoom),
        }
    }

    pub(super) fn on_response(&mut self, datagram: &[u8], now: Instant) {
        let Some((answered, answer)) = self.handshake.answered(datagram) else {
            self.drops.count(DropReason::HandshakeInvalid);
            return;
        };
        let established = match answer {
            Answer::Established(established) => established,
            Answer::Overtaken => return,
            Answer::Refused(refused) => return self.on_refused(refused.as_str(), now),
        };
        let (local_index, rtt) = (answered.local_index, now - answered.sent);
        self.handshake.forget();
        self.handshake.tries = 0;
        self.handshake.refusals = 0;
        let timestamp_ns = self.handshake.last_timestamp_ns;
        self.handshake.accepted_timestamp_ns = timestamp_ns;
        self.event(UeEvent::Handshake { timestamp_ns });
        self.handshake.all_down_since = None;
        self.handshake.next_try = now + RETRY;
        let welcome = established.welcome;
        let epoch = Epoch::new(local_index, established.peer_index, established.keys, now);
        let expired = !self.session.keys().can_seal(now);
        self.session.keys().install_now(epoch, now);
        let addresses = Addresses { v4: welcome.ipv4.map(|(a, _)| a), v6: welcome.ipv6.map(|(a, _)| a) };
        let mtu = welcome.inner_mtu.max(1280).min(self.config.params.inner_mtu);
        let restarted = self.instance.is_some_and(|instance| instance != welcome.instance);
        let changed = self.session.addresses() != addresses || self.session.profile().inner_mtu() != mtu;
        let fresh = !self.connected || changed;
        self.session.set_addresses(addresses);
        self.instance = Some(welcome.instance);
        self.connected = true;
        let peer = PeerSettings { plain: welcome.plain, inner_mtu: mtu, features: welcome.features };
        self.session.set_peer(peer, now);
        if self.session.profile().is_refused(established.path) {
            // The access leads to the UPF but carries nothing; another try at once would not change that.
            self.handshake.next_try = now + REFUSED_RETRY;
        }
        self.session.confirm_path(established.path, Some(rtt), now);
        if fresh {
            self.event(UeEvent::Connected { addresses, mtu });
        }
        if restarted {
            // After the keys have expired, the UPF has a new session although it was probably not restarted.
            if !expired {
                self.event(UeEvent::UpfRestarted);
            }
            self.session.peer_restarted(now, &mut self.pool);
        }
        if fresh || restarted {
            // The UPF has no rules of ours; they must be sent only if there are any.
            self.rules_untold = !self.config.rules.is_empty();
        }
    }

    /// The UPF refuses a session for now: the UE asks again, with increasing pauses.
    fn on_refused(&mut self, reason: &'static str, now: Instant) {
        let retry_in = REFUSED_RETRY.saturating_mul(1 << self.handshake.refusals.min(4));
        self.handshake.forget();
        self.handshake.tries = 0;
        self.handshake.refusals = self.handshake.refusals.saturating_add(1);
        // The UPF remembers only accepted timestamps, so a clock that was ahead must not affect timestamps
        // after it was corrected.
        self.handshake.last_timestamp_ns = self.handshake.accepted_timestamp_ns;
        self.handshake.next_try = now + retry_in;
        self.event(UeEvent::Refused { reason, retry_in });
    }

    /// The clock may have been set. A wrong clock may be the reason for an earlier refusal.
    pub(super) fn on_clock(&mut self, unix_epoch_ns: u64, now: Instant) {
        let step_ns = self.config.unix_epoch_ns.abs_diff(unix_epoch_ns);
        self.config.unix_epoch_ns = unix_epoch_ns;
        if step_ns > CLOCK_STEP_NS && !self.connected && self.handshake.refusals > 0 {
            self.handshake.hurry(now);
        }
    }

    /// The UPF ended the session: nothing can be sent any more, and a new session is requested.
    pub(super) fn on_closed(&mut self, now: Instant) {
        self.session.peer_left(now);
        self.connected = false;
        self.handshake.forget();
        self.handshake.next_try = now + RETRY;
    }

    pub(super) fn on_cookie(&mut self, datagram: &[u8], now: Instant) {
        let handshake = &mut self.handshake;
        let is_for_newest = handshake.waiting.as_ref().map(|newest| newest.initiator.on_cookie(datagram));
        let cookie = match is_for_newest {
            Some(Ok(cookie)) => Some(cookie),
            // A cookie for an earlier try is equally good if it is the first one.
            Some(Err(_)) if handshake.cookie.as_ref().is_none_or(|(_, until)| *until <= now) => {
                handshake.earlier.iter().find_map(|earlier| earlier.initiator.on_cookie(datagram).ok())
            }
            // Not an answer to any try.
            _ => None,
        };
        match cookie {
            Some(cookie) => {
                handshake.cookie = Some((cookie, now + COOKIE_LIFE));
                handshake.waiting = None;
                handshake.next_try = now;
            }
            None => self.drops.count(DropReason::HandshakeInvalid),
        }
    }
}
