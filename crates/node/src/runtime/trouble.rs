//! Who has no session, and why, as `ctl status` shows it: the UPF's word on UEs it refuses, the UE's on itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rows kept; the oldest gives way.
const MOST: usize = 32;
/// A row that nothing confirms is dropped after this long. A UE that is refused asks again within 80 s.
const LIFE: Duration = Duration::from_secs(300);

/// The reasons by name of UE, each with the time it was last confirmed.
#[derive(Default)]
pub struct Troubles(BTreeMap<String, (String, Instant)>);

impl Troubles {
    /// Notes why this UE has no session. Returns whether that is news: worth an event.
    pub fn note(&mut self, ue: &str, why: &str, now: Instant) -> bool {
        self.0.retain(|_, (_, at)| now.saturating_duration_since(*at) < LIFE);
        if let Some((known, at)) = self.0.get_mut(ue) {
            *at = now;
            let news = known != why;
            if news {
                why.clone_into(known);
            }
            return news;
        }
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, (_, at))| *at).map(|(ue, _)| ue.clone());
            oldest.and_then(|ue| self.0.remove(&ue));
        }
        self.0.insert(ue.to_owned(), (why.to_owned(), now));
        true
    }

    /// This UE has a session, or is forgotten.
    pub fn clear(&mut self, ue: &str) {
        self.0.remove(ue);
    }

    /// The rows that still hold.
    pub fn rows(&self, now: Instant) -> BTreeMap<String, String> {
        let holds = |at: &Instant| now.saturating_duration_since(*at) < LIFE;
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
    fn a_reason_is_news_once_and_is_gone_when_nothing_confirms_it() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        assert!(troubles.note("tv", "full", start));
        assert!(!troubles.note("tv", "full", start + LIFE / 2));
        assert_eq!(troubles.rows(start + LIFE)["tv"], "full", "confirmed meanwhile");
        assert!(troubles.note("tv", "security", start + LIFE));
        assert_eq!(troubles.rows(start + 2 * LIFE), BTreeMap::new());
        assert!(troubles.note("tv", "security", start + 2 * LIFE), "a new trouble");
        troubles.clear("tv");
        assert_eq!(troubles.rows(start + 2 * LIFE), BTreeMap::new());
    }

    #[test]
    fn no_more_rows_than_people_read() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        for n in 0..MOST as u64 + 5 {
            troubles.note(&format!("ue{n}"), "full", start + Duration::from_secs(n));
        }
        let rows = troubles.rows(start);
        assert_eq!((rows.len(), rows.contains_key("ue4"), rows.contains_key("ue5")), (MOST, false, true));
    }
}
