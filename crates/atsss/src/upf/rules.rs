//! Rules of many users: compiled once per combination, sent to the UEs, with separate exceptions.

use super::Upf;
use super::api::{MAX_EXCEPTIONS, UpfError, UpfEvent};
use super::users::{OwnRules, User, UserIndex, UserSlot};
use crate::classify::{RuleIndex, RuleSet};
use crate::crypto::PublicKey;
use crate::document::Document;
use crate::session::{Definitions, Origin, PeerSettings, Profile};
use crate::table::session::Exception;
use anabranch_element::time::Instant;
use anabranch_rules::AccessName;
use anabranch_steer::PolicyError;
use anabranch_steer::{OF_ALL, OF_UPF, Rule, chained};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Users whose rules are renewed per poll after the rules for all have changed, so that the data path is not
/// delayed.
const RENEW_AT_A_TIME: u32 = 64;
/// Number of entries from which on unused ones are searched for.
const TIDY_FROM: usize = 64;

/// Compiled rule sets, one per combination of rules and access names, shared by all users that have it.
#[derive(Default)]
pub(super) struct RuleBook {
    sets: BTreeMap<(Vec<AccessName>, String), Arc<RuleSet>>,
    /// Rule sets of users without rules of their own, which are nearly all, by accesses.
    common: BTreeMap<Vec<AccessName>, Arc<RuleSet>>,
    /// Profiles by accesses and results of the handshake.
    profiles: BTreeMap<(Vec<AccessName>, PeerSettings), Arc<Profile>>,
    tidy_at: usize,
}

impl RuleBook {
    /// The shared properties of sessions with these accesses; one copy.
    pub fn profile(
        &mut self,
        accesses: &[AccessName],
        peer: PeerSettings,
        make: impl FnOnce() -> Profile,
    ) -> Arc<Profile> {
        let key = (accesses.to_vec(), peer);
        if let Some(profile) = self.profiles.get(&key) {
            return Arc::clone(profile);
        }
        self.tidy();
        let profile = Arc::new(make().with_peer(peer));
        self.profiles.insert(key, Arc::clone(&profile));
        profile
    }

    /// The rule set for these accesses and rules; `common`: the rules are those for all.
    fn set(
        &mut self,
        accesses: &[AccessName],
        common: bool,
        rules: impl FnOnce() -> Vec<Rule>,
        known: &[AccessName],
    ) -> Result<Arc<RuleSet>, PolicyError> {
        if let Some(set) = self.common.get(accesses).filter(|_| common) {
            return Ok(Arc::clone(set));
        }
        let rules = rules();
        let key = (accesses.to_vec(), serde_json::to_string(&rules).unwrap_or_default());
        let set = match self.sets.get(&key) {
            Some(set) => Arc::clone(set),
            None => {
                let set = Arc::new(RuleSet::compile_for(&rules, accesses, known)?);
                self.tidy();
                self.sets.insert(key, Arc::clone(&set));
                set
            }
        };
        if common {
            self.common.insert(accesses.to_vec(), Arc::clone(&set));
        }
        Ok(set)
    }

    /// Removes unused entries, rarely enough that the cost per entry is constant.
    fn tidy(&mut self) {
        if self.sets.len().max(self.profiles.len()) >= self.tidy_at {
            self.common.retain(|_, set| Arc::strong_count(set) > 2);
            self.sets.retain(|_, set| Arc::strong_count(set) > 1);
            self.profiles.retain(|_, profile| Arc::strong_count(profile) > 1);
            self.tidy_at = (self.sets.len().max(self.profiles.len()) * 2).max(TIDY_FROM);
        }
    }

    /// The rules for all have changed.
    fn clear(&mut self) {
        self.sets.clear();
        self.common.clear();
    }
}

/// The UPF's rules for one UE, as they are sent to it: first those for this UE, then those for all.
fn rules_for(record: &User, all: &[Rule]) -> Vec<Rule> {
    chained([record.rules(), all], OF_ALL)
}

/// The joint list of a UE with these rules of its `own`; `all`: the rules for all.
pub(super) fn definitions<'a>(record: &'a User, own: &'a [Rule], all: &'a [Rule]) -> Definitions<'a> {
    Definitions::new(own, &[(Origin::UpfForUe, record.rules()), (Origin::Upf, all)])
}

/// The place in the joint list of the first rule of the UPF with this name.
pub(super) fn place(
    record: &User,
    all: &[Rule],
    definitions: &Definitions<'_>,
    name: &str,
) -> Option<RuleIndex> {
    definitions.place(record.rules().iter().chain(all).find(|rule| rule.name == name)?)
}

impl Upf {
    /// New rules for all.
    pub(super) fn set_rules(&mut self, rules: Vec<Rule>) -> Result<(), UpfError> {
        RuleSet::compile(&rules, &self.access_names())?;
        self.config.rules = rules;
        self.rule_book.clear();
        self.renew_from = Some(0);
        Ok(())
    }

    /// Continues to renew the rules of users.
    pub(super) fn renew_rules(&mut self, now: Instant) {
        let Some(from) = self.renew_from else { return };
        let until = from.saturating_add(RENEW_AT_A_TIME);
        for slot in from..until.min(self.users.slab.slots()) {
            if let Some((user, _)) = self.users.slab.at_slot(slot) {
                self.refresh_rules(user, now);
            }
        }
        self.renew_from = (until < self.users.slab.slots()).then_some(until);
    }

    pub(super) fn set_exception(
        &mut self,
        key: PublicKey,
        application: String,
        rule: String,
        now: Instant,
    ) -> Result<(), UpfError> {
        let user = self.users.find(&key).ok_or(UpfError::UnknownUe(key))?;
        let record = self.users.slab.get_mut(user).ok_or(UpfError::UnknownUe(key))?;
        for name in [&application, &rule] {
            if !record.rules().iter().chain(&self.config.rules).any(|r| r.name == *name) {
                return Err(UpfError::UnknownRule(name.clone()));
            }
        }
        let known = record.exceptions().iter().any(|(a, _)| *a == application);
        if !known && record.exceptions().len() >= MAX_EXCEPTIONS {
            return Err(UpfError::TooManyExceptions { name: record.name.as_str().to_owned() });
        }
        if !known {
            self.users.table.room_for_exception()?;
        }
        record.exceptions_mut(|exceptions| {
            exceptions.retain(|(a, _)| *a != application);
            exceptions.push((application, rule));
        });
        self.refresh_rules(user, now);
        Ok(())
    }

    pub(super) fn clear_exception(
        &mut self,
        key: PublicKey,
        application: &str,
        now: Instant,
    ) -> Result<(), UpfError> {
        let user = self.users.find(&key).ok_or(UpfError::UnknownUe(key))?;
        if let Some(record) = self.users.slab.get_mut(user) {
            record.exceptions_mut(|exceptions| exceptions.retain(|(a, _)| a != application));
        }
        self.users.table.remove_exceptions_of(user);
        self.refresh_rules(user, now);
        Ok(())
    }

    /// The rule set for a user with these accesses; its exceptions are entered into the table.
    pub(super) fn rule_set(
        &mut self,
        user: UserIndex,
        profile: &Profile,
        own: &[Rule],
    ) -> Result<Arc<RuleSet>, PolicyError> {
        let known = self.access_names();
        let Some(record) = self.users.slab.get(user) else {
            return self.rule_book.set(profile.accesses(), false, Vec::new, &known);
        };
        let common = own.is_empty() && record.rules().is_empty();
        let rules = || chained([own, &rules_for(record, &self.config.rules)], OF_UPF);
        let set = self.rule_book.set(profile.accesses(), common, rules, &known)?;
        let mut resolved = Vec::new();
        if !record.exceptions().is_empty() {
            let definitions = definitions(record, own, &self.config.rules);
            let place = |name: &str| place(record, &self.config.rules, &definitions, name);
            let found = |(application, rule): &(String, String)| Some((place(application)?, place(rule)?));
            resolved.extend(record.exceptions().iter().filter_map(found));
        }
        if record.user_config.is_some() {
            self.users.table.remove_exceptions_of(user);
        }
        for (application, rule) in resolved {
            // There is room, as `set_exception` has checked, unless other UEs have used it since. In that
            // case the application follows the common rule.
            let _ = self.users.table.set_exception(user, application, Exception { rule, sequence: 0 });
        }
        Ok(set)
    }

    /// Updates the rules of a user's session, and sends them to the UE.
    pub(super) fn refresh_rules(&mut self, user: UserIndex, now: Instant) {
        if self.apply_rules(user) && self.users.user_slot(user).is_some_and(|user_slot| user_slot.confirmed) {
            self.push_rules(user, now);
        }
    }

    /// Updates the rules of a user's session. Returns whether they are in force.
    pub(super) fn apply_rules(&mut self, user: UserIndex) -> bool {
        let Some(user_slot) = self.users.user_slot(user) else { return false };
        let profile = Arc::clone(user_slot.session.profile());
        let own = user_slot.own_rules().to_vec();
        match self.rule_set(user, &profile, &own) {
            Ok(set) => {
                if let Some(user_slot) = self.users.user_slot_mut(user) {
                    user_slot.session.set_rules(set);
                }
                true
            }
            Err(error) => {
                let ue = self.users.name(user);
                self.event(UpfEvent::BadConfig { ue, error: error.to_string() });
                false
            }
        }
    }

    /// Sends the UE the rules for all and its own, exceptions included.
    pub(super) fn push_rules(&mut self, user: UserIndex, now: Instant) {
        let Some(record) = self.users.slab.get(user) else { return };
        let mut rules = rules_for(record, &self.config.rules);
        for (application, rule) in record.exceptions() {
            let other = rules.iter().find(|r| r.name == *rule).map(|r| (r.steering.clone(), r.reorder));
            let this = rules.iter_mut().find(|r| r.name == *application);
            if let (Some((steering, reorder)), Some(this)) = (other, this) {
                (this.steering, this.reorder) = (steering, reorder);
            }
        }
        let tcp_lane = self.config.params.tcp_lane;
        let document = Document { rules: Some(rules), tcp_lane, flows: Vec::new() }.encode();
        if let Some(user_slot) = self.users.user_slot_mut(user) {
            user_slot.session.push_config(document, now);
            self.mark(user);
        }
    }

    /// Processes a document of the UE.
    pub(super) fn on_document(&mut self, user: UserIndex, bytes: &[u8], now: Instant) {
        let document = match Document::decode(bytes) {
            Ok(document) => document,
            Err(error) => {
                let ue = self.users.name(user);
                return self.event(UpfEvent::BadConfig { ue, error });
            }
        };
        let known = self.access_names();
        let Some(User { user_slot: Some(user_slot), accept_rules: true, .. }) = self.users.slab.get_mut(user)
        else {
            return;
        };
        if let Some(rules) = document.rules {
            if let Err(error) = RuleSet::compile_for(&rules, user_slot.session.accesses(), &known) {
                let ue = self.users.name(user);
                return self.event(UpfEvent::BadConfig { ue, error: error.to_string() });
            }
            if user_slot.own_rules() != rules {
                user_slot.own_rules = (!rules.is_empty()).then(|| Box::new(OwnRules(rules)));
                // The rules to be sent to the UE have not changed.
                self.apply_rules(user);
            }
        }
        let Some(UserSlot { session, .. }) = self.users.user_slot_mut(user) else { return };
        for hint in &document.flows {
            if session.addresses().contains(hint.local) {
                session.assign_hint(&hint.key(), &hint.rule, now);
            }
        }
    }

    pub(super) fn access_names(&self) -> Vec<AccessName> {
        self.config.accesses.iter().map(|a| a.name.clone()).collect()
    }
}
