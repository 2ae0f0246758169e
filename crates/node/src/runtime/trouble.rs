//! UEs without a session, with the reason, for `ctl status`: at a UPF the UEs that it refuses, at a UE
//! itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum number of rows; the oldest is replaced.
const MAX_ROWS: usize = 32;
/// Time after which an unconfirmed row is dropped. A refused UE repeats its request within 80 s.
const ROW_LIFETIME: Duration = Duration::from_secs(300);

/// The reasons by name of the UE, each with the time of its last confirmation.
#[derive(Default)]
pub struct Troubles(BTreeMap<String, (String, Instant)>);

impl Troubles {
    /// Records why this UE has no session. True if that is new, and should be recorded as an event.
    pub fn note(&mut self, ue: &str, why: &str, now: Instant) -> bool {
        self.0.retain(|_, (_, at)| now.saturating_duration_since(*at) < ROW_LIFETIME);
        if let Some((known, at)) = self.0.get_mut(ue) {
            *at = now;
            let news = known != why;
            if news {
                why.clone_into(known);
            }
            return news;
        }
        if self.0.len() >= MAX_ROWS {
            let oldest = self.0.iter().min_by_key(|(_, (_, at))| *at).map(|(ue, _)| ue.clone());
            oldest.and_then(|ue| self.0.remove(&ue));
        }
        self.0.insert(ue.to_owned(), (why.to_owned(), now));
        true
    }

    /// Removes the row of a UE that has a session or was removed.
    pub fn clear(&mut self, ue: &str) {
        self.0.remove(ue);
    }

    /// The current rows.
    pub fn rows(&self, now: Instant) -> BTreeMap<String, String> {
        let holds = |at: &Instant| now.saturating_duration_since(*at) < ROW_LIFETIME;
        self.0
            .iter()
            .filter(|(_, (_, at))| holds(at))
            .map(|(ue, (why, _))| (ue.clone(), why.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_new_once_and_expires_without_confirmation() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        assert!(troubles.note("tv", "full", start));
        assert!(!troubles.note("tv", "full", start + ROW_LIFETIME / 2));
        assert_eq!(troubles.rows(start + ROW_LIFETIME)["tv"], "full", "confirmed meanwhile");
        assert!(troubles.note("tv", "security", start + ROW_LIFETIME));
        assert_eq!(troubles.rows(start + 2 * ROW_LIFETIME), BTreeMap::new());
        assert!(troubles.note("tv", "security", start + 2 * ROW_LIFETIME), "a new trouble");
        troubles.clear("tv");
        assert_eq!(troubles.rows(start + 2 * ROW_LIFETIME), BTreeMap::new());
    }

    #[test]
    fn the_number_of_rows_is_bounded() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        for n in 0..MAX_ROWS as u64 + 5 {
            troubles.note(&format!("ue{n}"), "full", start + Duration::from_secs(n));
        }
        let rows = troubles.rows(start);
        assert_eq!((rows.len(), rows.contains_key("ue4"), rows.contains_key("ue5")), (MAX_ROWS, false, true));
    }
}
