//! Begin and end of sessions, and their events.

use super::api::{SessionEnd, UpfError, UpfEvent};
use super::users::{UserIndex, UserSlot};
use super::{MAX_EVENTS, Upf};
use crate::classify::RuleSet;
use crate::crypto::PublicKey;
use crate::path::Role;
use crate::session::{PeerSettings, Profile, ReportFrom, Security, Session, SessionEvent};
use crate::table::Slab;
use anabranch_element::time::Instant;
use anabranch_rules::AccessName;
use rand_core::RngCore;
use std::sync::Arc;

/// Reason code of a CLOSE requested by the operator.
const CLOSED_BY_UPF: u8 = 1;

impl Upf {
    /// Adds a UE, or changes it.
    pub(super) fn add_ue(&mut self, entry: super::UeEntry, now: Instant) -> Result<(), UpfError> {
        RuleSet::compile(&entry.rules, &self.access_names())?;
        let (user, moved) = self.users.put(entry)?;
        if moved {
            // The UE receives its new addresses in the welcome of its next handshake.
            self.end_session(user, SessionEnd::AddressesChanged, true);
        } else {
            self.refresh_rules(user, now);
        }
        Ok(())
    }

    pub(super) fn remove_ue(&mut self, key: PublicKey) -> Result<(), UpfError> {
        let user = self.users.find(&key).ok_or(UpfError::UnknownUe(key))?;
        self.end_session(user, SessionEnd::Removed, true);
        self.users.remove(user);
        Ok(())
    }

    pub(super) fn close_session(&mut self, key: PublicKey) -> Result<(), UpfError> {
        let user = self.users.find(&key).ok_or(UpfError::UnknownUe(key))?;
        self.end_session(user, SessionEnd::Closed, true);
        Ok(())
    }

    /// The profile of sessions with these accesses and results of the handshake.
    pub(super) fn profile(&mut self, accesses: &[AccessName], peer: PeerSettings) -> Arc<Profile> {
        let (rule_book, config, probe) = (&mut self.rule_book, &self.config, &self.probe);
        rule_book.profile(accesses, peer, || {
            let security = |name: &AccessName| {
                let known = config.accesses.iter().find(|a| a.name == *name);
                known.map_or(Security::Secure, |a| a.security)
            };
            let accesses = accesses.iter().map(|name| (name.clone(), security(name)));
            Profile::new(Role::Upf, accesses, probe, &config.params)
        })
    }

    /// Creates a session for a user; the caller has checked that there is room.
    pub(super) fn open_session(&mut self, user: UserIndex, profile: Arc<Profile>, now: Instant) {
        let set = self.rule_set(user, &profile, &[]).unwrap_or_else(|error| {
            // Rules that are invalid for this UE must not lock it out.
            let ue = self.users.name(user);
            self.event(UpfEvent::BadConfig { ue, error: error.to_string() });
            Arc::clone(&self.no_rules)
        });
        let hash_key = self.rng.next_u64();
        let Some(record) = self.users.slab.get_mut(user) else { return };
        let mut session = Session::new(profile, record.addresses, set, hash_key, now);
        session.refuse_paths(now);
        let user_slot = UserSlot {
            session,
            own_rules: None,
            closed_from: ReportFrom::default(),
            confirmed: false,
            dirty: false,
        };
        record.user_slot = Some(Box::new(user_slot));
        self.users.sessions += 1;
    }

    /// Ends a user's session, if there is one. If `tell`, the UE is notified with the next poll.
    pub(super) fn end_session(&mut self, user: UserIndex, reason: SessionEnd, tell: bool) {
        let Some(record) = self.users.slab.get_mut(user) else { return };
        let Some(mut user_slot) = record.user_slot.take() else { return };
        let ue = record.name.as_str().to_owned();
        user_slot.session.release(&mut self.pool);
        for index in user_slot.session.keys().indices() {
            self.users.release_receiver(index);
        }
        self.users.sessions -= 1;
        self.connected -= usize::from(user_slot.confirmed);
        self.timers.disarm(Slab::<()>::slot_number(user));
        // A session whose UE never used its keys was not reported either.
        if user_slot.confirmed {
            let addresses = user_slot.session.addresses();
            self.event(UpfEvent::SessionDown { ue, addresses, reason });
            if tell {
                user_slot.session.close(CLOSED_BY_UPF);
                self.leaving.push(*user_slot);
            }
        }
    }

    /// Processes the events of a session. Returns whether the session has ended.
    pub(super) fn drain_session_events(&mut self, user: UserIndex, now: Instant) -> bool {
        loop {
            let Some(event) =
                self.users.user_slot_mut(user).and_then(|user_slot| user_slot.session.poll_event())
            else {
                return false;
            };
            match event {
                SessionEvent::Config(document) => {
                    self.on_document(user, &document, now);
                    continue;
                }
                SessionEvent::Closed { .. } => {
                    self.end_session(user, SessionEnd::ClosedByUe, false);
                    return true;
                }
                SessionEvent::Rekeyed { fresh_peer, .. } => self.on_confirmed(user, fresh_peer, now),
                SessionEvent::Endpoint { address, .. } => self.users.note_bound(address, user),
                _ => {}
            }
            let Some(user_slot) = self.users.user_slot(user) else { return true };
            let accesses = Arc::clone(user_slot.session.accesses());
            let ue = self.users.name(user);
            self.event(UpfEvent::Session { ue, accesses, event });
        }
    }

    /// The UE has used its new keys.
    fn on_confirmed(&mut self, user: UserIndex, fresh_peer: bool, now: Instant) {
        let Some(user_slot) = self.users.user_slot_mut(user) else { return };
        let first = !core::mem::replace(&mut user_slot.confirmed, true);
        let endpoints: Vec<_> = user_slot.session.path_views().filter_map(|path| path.endpoint).collect();
        endpoints.into_iter().for_each(|address| self.users.note_bound(address, user));
        if first {
            self.connected += 1;
            let ue = self.users.name(user);
            self.event(UpfEvent::SessionUp { ue });
        }
        if first || fresh_peer {
            self.key_conflicts.on_keys_replaced(user);
            // The UE sends its rules again, if it has any.
            if fresh_peer
                && self.users.user_slot_mut(user).is_some_and(|slot| slot.own_rules.take().is_some())
            {
                self.apply_rules(user);
            }
            self.push_rules(user, now);
        }
    }

    pub(super) fn event(&mut self, event: UpfEvent) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}
