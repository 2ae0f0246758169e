//! Sessions of UEs at the UPF.

use super::{Manager, Write};
use crate::record::{Attachment, Ue};
use std::collections::BTreeMap;

impl Manager {
    /// UEs whose session the UPF has not yet created or ended.
    pub fn open_sessions(&self) -> impl Iterator<Item = &Ue> {
        self.ues.values().filter(|ue| !matches!(ue.session_state, None | Some(Attachment::Active)))
    }

    /// Records the result of sending the session of `ue` to the UPF. No effect if the session has changed since.
    #[must_use]
    pub fn record_session_result(&self, ue: &Ue, state: Option<Attachment>) -> Vec<Write> {
        let same = |now: &&Ue| now.session == ue.session && now.leaving == ue.leaving;
        let now = self.ue(&ue.id).ok().filter(same).filter(|now| now.session_state != state);
        now.map(|now| Ue { session_state: state, ..now.clone() }.written()).into_iter().collect()
    }

    /// Sessions to send to the UPF again, because it has no session for the UE or one with another key. `there`: the keys of its
    /// sessions by UE.
    #[must_use]
    pub fn sessions_lost(&self, there: &BTreeMap<String, String>) -> Vec<Write> {
        let is_lost = |ue: &&Ue| {
            ue.session_state == Some(Attachment::Active)
                && ue.session.as_ref().is_some_and(|session| {
                    there.get(&ue.id).map(String::as_str) != Some(session.public_key.trim())
                })
        };
        let lost = self.ues.values().filter(is_lost);
        lost.map(|ue| Write::ue(Ue { session_state: Some(Attachment::Pending), ..ue.clone() })).collect()
    }
}
