//! CAMARA bookings and QoS sessions: a booking is a slice for a limited time, a QoS session a UE's place in a slice for a limited
//! time.
//!
//! ```text
//!  booking  created with its slice ─▶ expired, deleted, or slice removed ─▶ ended, shown for a while ─▶ removed
//!  session  created ─▶ expired ─▶ ended, shown for a while ─▶ removed;  deleted ─▶ removed
//! ```
//!
//! Each is a JSON document: `request` and `owner` as received, `slice`, `end_ms`, `ended_ms` once it has ended, and `told`, the
//! last status sent to its sink. A session also has `ue`, `started_ms`, and `had`: whether the place remains when the session
//! ends. All sessions of a UE in a slice have the same `had`.

use super::{Manager, Refusal, SliceRequest, Write};
use crate::lifecycle::State;
use crate::record::{Attachment, Kind, Record};
use serde_json::{Value, json};

/// Time for which an ended booking or session is shown, milliseconds (Quality on Demand: at least 360 s).
pub const KEPT_MS: u64 = 360_000;
/// Maximum duration of a QoS session, seconds (the default of CAMARA's profiles).
pub const MAX_DURATION_S: u64 = 86_400;
/// Maximum clock difference between instances, milliseconds.
const SKEW_MS: u64 = 60_000;
/// Maximum number of items of each kind processed at a time.
const AT_A_TIME: usize = 1000;

/// A change of status to be sent to the `sink` of a booking or QoS session, as a CloudEvent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkNotification {
    /// `REQUESTED`, `AVAILABLE` or `UNAVAILABLE`.
    pub status: &'static str,
    /// Status information, such as `DURATION_EXPIRED`.
    pub info: Option<&'static str>,
    /// Explanation as text.
    pub reason: Option<String>,
}

/// Whether it has ended and is only shown.
fn has_ended(v: &Value) -> bool {
    v["ended_ms"].is_u64()
}

fn text<'v>(v: &'v Value, key: &str) -> &'v str {
    v[key].as_str().unwrap_or_default()
}

fn document(kind: Kind, id: &str, v: Value) -> Write {
    Write { kind, id: id.to_owned(), record: Some(Record::Document(v)) }
}

impl Manager {
    /// The CAMARA status of a slice, and the reason.
    #[must_use]
    pub fn slice_status(&self, slice: &str) -> (&'static str, Option<String>) {
        match self.slices.get(slice).map(|s| &s.state) {
            None => ("UNAVAILABLE", Some("the slice is gone".to_owned())),
            Some(State::Running) => ("AVAILABLE", None),
            Some(State::Degraded(why)) => ("AVAILABLE", Some(format!("degraded: {why}"))),
            Some(State::Failed(why)) => ("UNAVAILABLE", Some(why.clone())),
            Some(State::Terminating) => ("UNAVAILABLE", Some("the slice is being removed".to_owned())),
            Some(_) => ("REQUESTED", None),
        }
    }

    /// The CAMARA status of a booking or QoS session: that of its slice, and for a session also of the device's place in it.
    #[must_use]
    pub fn camara_status(&self, kind: Kind, v: &Value) -> (&'static str, Option<String>) {
        let slice = text(v, "slice");
        let (status, why) = self.slice_status(slice);
        if kind != Kind::Qod || status != "AVAILABLE" {
            return (status, why);
        }
        let ue = self.ues.get(text(v, "ue"));
        let place = ue.and_then(|ue| ue.slices.iter().find(|place| place.slice == slice));
        match place.map(|place| (&place.attachment, &place.cell_ue)) {
            None => {
                ("UNAVAILABLE", Some("the operator took the device's place in the slice away".to_owned()))
            }
            Some((Attachment::Failed(why), _)) => ("UNAVAILABLE", Some(why.clone())),
            // Without a name at the cells, there is nothing to send to them.
            Some((Attachment::Pending, Some(_))) => ("REQUESTED", why),
            Some(_) => (status, why),
        }
    }

    /// Creates a booking: its slice, and a document that includes `given`.
    ///
    /// # Errors
    /// Those of [`Self::create`].
    pub fn book(
        &self,
        id: &str,
        order: SliceRequest,
        (mut given, end_ms): (Value, Option<u64>),
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let mut writes = self.create(id, order, now_ms)?;
        given["slice"] = json!(id);
        given["end_ms"] = json!(end_ms);
        given["told"] = json!("REQUESTED");
        writes.push(document(Kind::Booking, id, given));
        Ok(writes)
    }

    /// Ends a booking and its slice; it is no longer shown.
    #[must_use]
    pub fn unbook(&self, id: &str, now_ms: u64) -> Vec<Write> {
        let mut writes = vec![Write { kind: Kind::Booking, id: id.to_owned(), record: None }];
        // A slice that is being removed, or is gone, needs no further action.
        writes.extend(self.remove(id, false, now_ms).unwrap_or_default());
        writes
    }

    /// Creates a QoS session of `duration_s` seconds: the UE's place in a slice, unless it has one, and a document that includes
    /// `given`.
    ///
    /// # Errors
    /// Those of [`Self::assign`].
    pub fn open_session(
        &self,
        id: &str,
        (ue, slice): (&str, &str),
        (mut given, duration_s): (Value, u64),
        now_ms: u64,
    ) -> Result<Vec<Write>, Refusal> {
        let is_placed = self.ue(ue)?.slices.iter().any(|a| a.slice == slice);
        // A place created by another session ends with the last of them.
        let had =
            is_placed && self.live(ue, slice).next().is_none_or(|(_, other)| other["had"] == json!(true));
        let mut writes = Vec::new();
        if !is_placed {
            writes = self.assign(ue, slice, None)?;
            writes.extend(self.place_stays(ue, slice, false));
        }
        for (key, value) in [
            ("slice", json!(slice)),
            ("ue", json!(ue)),
            ("had", json!(had)),
            ("started_ms", json!(now_ms)),
            ("end_ms", json!(now_ms.saturating_add(duration_s.saturating_mul(1000)))),
            ("told", json!(self.slice_status(slice).0)),
        ] {
            given[key] = value;
        }
        writes.push(document(Kind::Qod, id, given));
        Ok(writes)
    }

    /// Extends a QoS session by `more_s` seconds, to a total of at most [`MAX_DURATION_S`]: returns the document with new `end_ms` and
    /// `request.duration`. `None` if the session is not available or has expired.
    #[must_use]
    pub fn extended(&self, v: &Value, more_s: u64, now_ms: u64) -> Option<Value> {
        let is_over = has_ended(v) || v["end_ms"].as_u64().is_some_and(|end| end <= now_ms);
        if is_over || self.camara_status(Kind::Qod, v).0 != "AVAILABLE" {
            return None;
        }
        let mut v = v.clone();
        let duration =
            v["request"]["duration"].as_u64().unwrap_or(0).saturating_add(more_s).min(MAX_DURATION_S);
        v["request"]["duration"] = json!(duration);
        v["end_ms"] = json!(v["started_ms"].as_u64().unwrap_or(0).saturating_add(duration * 1000));
        Some(v)
    }

    /// Ends a QoS session; a place that the UE had before remains. The session is no longer shown.
    #[must_use]
    pub fn close_session(&self, id: &str, v: &Value) -> Vec<Write> {
        let mut writes = vec![Write { kind: Kind::Qod, id: id.to_owned(), record: None }];
        if has_ended(v) {
            return writes;
        }
        let (ue, slice) = (text(v, "ue"), text(v, "slice"));
        let shared = self.live(ue, slice).any(|(other, _)| other != id);
        if v["had"] != json!(true)
            && !shared
            // The slice or the UE may be gone. The limit of released names does not apply here.
            && let Some(mut ue) = self.ues.get(ue).cloned()
            && ue.release(|place| place.slice == slice)
        {
            writes.push(ue.written());
        }
        writes
    }

    /// The QoS sessions of a UE in a slice that have not ended.
    fn live<'m>(&'m self, ue: &'m str, slice: &'m str) -> impl Iterator<Item = (&'m str, &'m Value)> {
        let of = move |v: &Value| v["ue"] == *ue && v["slice"] == *slice && !has_ended(v);
        self.documents(Kind::Qod).filter(move |(_, v)| of(v))
    }

    /// Sets whether a UE's place in a slice remains when its QoS sessions there end; the operator's last request applies.
    #[must_use]
    pub fn place_stays(&self, ue: &str, slice: &str, stays: bool) -> Vec<Write> {
        let others = self.live(ue, slice).filter(|(_, v)| v["had"] != json!(stays));
        let changed = others.map(|(id, v)| {
            let mut v = v.clone();
            v["had"] = json!(stays);
            document(Kind::Qod, id, v)
        });
        changed.collect()
    }

    /// Bookings and QoS sessions that have expired, whose sink is to be notified of a new status, or whose time of being shown is
    /// over: kind, identifier and document.
    #[must_use]
    pub fn camara_due(&self, now_ms: u64) -> Vec<(Kind, String, Value)> {
        let of = |kind| {
            let due = self.documents(kind).filter(move |(_, v)| self.is_due(kind, v, now_ms));
            due.take(AT_A_TIME).map(move |(id, v)| (kind, id.to_owned(), v.clone()))
        };
        of(Kind::Booking).chain(of(Kind::Qod)).collect()
    }

    fn is_due(&self, kind: Kind, v: &Value, now_ms: u64) -> bool {
        if let Some(at) = v["ended_ms"].as_u64() {
            // Later than now: the clock was ahead when it ended.
            return at.saturating_add(KEPT_MS) <= now_ms || at > now_ms.saturating_add(SKEW_MS);
        }
        // A booking ends with its slice, whatever its end time.
        let lost = kind == Kind::Booking && self.slice(text(v, "slice")).is_err();
        let over = v["end_ms"].as_u64().is_some_and(|end| end <= now_ms);
        over || lost || v["told"] != self.camara_status(kind, v).0
    }

    /// Processes one item of [`Self::camara_due`], unless it has changed since: the records to store, and the notification.
    #[must_use]
    pub fn camara_settled(
        &self,
        (kind, id, known): &(Kind, String, Value),
        now_ms: u64,
    ) -> (Vec<Write>, Option<SinkNotification>) {
        let kind = *kind;
        let Some(v) = self.document(kind, id).filter(|v| *v == known && self.is_due(kind, v, now_ms)) else {
            return (Vec::new(), None);
        };
        let mut new = v.clone();
        if let Some(at) = v["ended_ms"].as_u64() {
            new["ended_ms"] = json!(now_ms);
            let record = (at > now_ms).then_some(Record::Document(new));
            return (vec![Write { kind, id: id.clone(), record }], None);
        }
        if v["end_ms"].as_u64().is_some_and(|end| end <= now_ms) {
            let mut writes =
                if kind == Kind::Booking { self.unbook(id, now_ms) } else { self.close_session(id, v) };
            new["ended_ms"] = json!(now_ms);
            new["told"] = json!("UNAVAILABLE");
            writes[0] = document(kind, id, new);
            let info = Some("DURATION_EXPIRED");
            return (writes, Some(SinkNotification { status: "UNAVAILABLE", info, reason: None }));
        }
        let (status, reason) = self.camara_status(kind, v);
        new["told"] = json!(status);
        if kind == Kind::Booking && self.slice(text(v, "slice")).is_err() {
            new["ended_ms"] = json!(now_ms);
        }
        let info = (status == "UNAVAILABLE").then_some("NETWORK_TERMINATED");
        let notification = (v["told"] != status).then_some(SinkNotification { status, info, reason });
        (vec![document(kind, id, new)], notification)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_ended_while_the_clock_was_ahead_are_not_shown_longer() {
        let now = 1_700_000_000_000;
        let mut m = Manager::default();
        let ended = |at: u64| json!({"ue": "phone", "slice": "none", "end_ms": now, "ended_ms": at});
        for kind in [Kind::Booking, Kind::Qod] {
            m.put(document(kind, "ahead", ended(now + 86_400_000)));
            m.put(document(kind, "just now", ended(now)));
        }
        let settle = |m: &mut Manager, now: u64| {
            let due = m.camara_due(now);
            let names: Vec<String> = due.iter().map(|(_, id, _)| id.clone()).collect();
            for due in due {
                let (writes, notification) = m.camara_settled(&due, now);
                assert_eq!(notification, None);
                // Processing an item again has no effect on the new state.
                writes.into_iter().for_each(|write| m.put(write));
                assert_eq!(m.camara_settled(&due, now).0, []);
            }
            names
        };
        assert_eq!(settle(&mut m, now), ["ahead", "ahead"]);
        assert_eq!(settle(&mut m, now + 1), [""; 0]);
        assert_eq!(settle(&mut m, now + KEPT_MS).len(), 4);
        assert_eq!(m.documents(Kind::Qod).count() + m.documents(Kind::Booking).count(), 0);
    }

    #[test]
    fn a_session_is_extended_while_available_up_to_a_day() {
        let m = Manager::default();
        // The slice is gone.
        let v = json!({"ue": "phone", "slice": "none", "started_ms": 0, "end_ms": 60_000, "request": {"duration": 60}});
        assert_eq!(m.extended(&v, 60, 1_000), None);
        assert_eq!(m.camara_status(Kind::Qod, &v).0, "UNAVAILABLE");
    }
}
