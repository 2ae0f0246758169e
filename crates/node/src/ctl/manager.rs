//! `anabranch ctl slice-manager`: accesses, slices and UEs of a slice manager, as its REST interface shows them.

use super::Output;
use super::client::Client;
use super::error::CtlError;
use super::sessions::Page;
use super::table::{or_dash, rate, table, with_rest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What to show; by default accesses and slices.
#[derive(Debug, clap::Subcommand)]
pub enum Action {
    /// List UEs: their slices, and the state of their sessions at the UPF.
    #[command(after_help = "Example:\n  anabranch ctl slice-manager ues --limit 1000")]
    Ues {
        #[command(flatten)]
        page: Page,
    },
}

/// The fields of a slice that are shown; `rest` holds the others, for `--json`.
#[derive(Debug, Serialize, Deserialize)]
struct Slice {
    id: String,
    name: String,
    state: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    guarantees: BTreeMap<String, Guarantee>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Guarantee {
    downlink_bps: u64,
    uplink_bps: u64,
    share_ppm: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Access {
    name: String,
    downlink_bps: u64,
    downlink_free_bps: u64,
    uplink_bps: u64,
    uplink_free_bps: u64,
    share_free_ppm: u64,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Overview {
    #[serde(default)]
    accesses: Vec<Access>,
    #[serde(default)]
    slices: Vec<Slice>,
    #[serde(default)]
    total: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Ue {
    id: String,
    #[serde(default)]
    slices: Vec<SliceMembership>,
    #[serde(default)]
    session_state: Option<Attachment>,
    #[serde(default)]
    registered_ms: Option<u64>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SliceMembership {
    slice: String,
    #[serde(flatten)]
    state: Attachment,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// Progress of a membership or of a session at the UPF.
#[derive(Debug, Serialize, Deserialize)]
struct Attachment {
    attachment: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl std::fmt::Display for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.attachment)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Ues {
    ues: Vec<Ue>,
    total: u64,
}

/// Runs the query and prints the answer.
pub async fn run(
    client: &Client,
    action: Option<&Action>,
    page: &Page,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    if let Some(Action::Ues { page }) = action {
        let ues: Ues = client.get(&["v1", "ues"], &page.query()).await?;
        return output.show(&ues, || ues_text(&ues));
    }
    let mut all: Overview = client.get(&["v1", "slices"], &page.query()).await?;
    all.accesses = client.get::<Overview>(&["v1", "accesses"], &[]).await?.accesses;
    output.show(&all, || overview_text(&all))
}

fn percent(ppm: u64) -> String {
    format!("{:.1} %", ppm as f64 / 10_000.0)
}

fn overview_text(all: &Overview) -> String {
    let columns = ["access", ">downlink", ">of it free", ">uplink", ">of it free", ">RBs free"];
    let accesses = all.accesses.iter().map(|a| {
        let rates = [a.downlink_bps, a.downlink_free_bps, a.uplink_bps, a.uplink_free_bps];
        let mut row = vec![a.name.clone()];
        row.extend(rates.map(|bps| rate(bps as f64)));
        row.push(percent(a.share_free_ppm));
        row
    });
    let mut text = table(&columns, accesses);
    let columns = ["slice", "id", "state", "access", ">downlink", ">uplink", ">RBs"];
    let mut rows = Vec::new();
    for slice in &all.slices {
        let state = match &slice.reason {
            Some(why) => format!("{}: {why}", slice.state),
            None => slice.state.clone(),
        };
        let head = vec![slice.name.clone(), slice.id.clone(), state];
        if slice.guarantees.is_empty() {
            rows.push([head, vec!["-".to_owned(); 4]].concat());
            continue;
        }
        for (n, (access, promised)) in slice.guarantees.iter().enumerate() {
            let head = if n == 0 { head.clone() } else { vec![String::new(); 3] };
            let rates = [promised.downlink_bps, promised.uplink_bps].map(|bps| rate(bps as f64));
            let share = percent(promised.share_ppm);
            rows.push([head, vec![access.clone()], rates.to_vec(), vec![share]].concat());
        }
    }
    text.push('\n');
    text.push_str(&with_rest(table(&columns, rows), all.slices.len(), all.total));
    text
}

fn ues_text(ues: &Ues) -> String {
    let rows = ues.ues.iter().map(|ue| {
        let places: Vec<String> =
            ue.slices.iter().map(|place| format!("{} ({})", place.slice, place.state)).collect();
        vec![
            ue.id.clone(),
            or_dash((!places.is_empty()).then(|| places.join(", "))),
            or_dash(ue.session_state.as_ref().map(Attachment::to_string)),
            if ue.registered_ms.is_some() { "yes" } else { "no" }.to_owned(),
        ]
    });
    with_rest(
        table(&["UE", "slices", "session", "registered"], rows.collect::<Vec<_>>()),
        ues.ues.len(),
        ues.total,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_manager_answers_is_shown_and_kept_whole() {
        let accesses = r#"{"name":"cell-1","downlink_bps":100000000,"downlink_free_bps":80000000,"uplink_bps":50000000,
            "uplink_free_bps":40000000,"share_free_ppm":750000,"location":"pier"}"#;
        let slices = r#"{"id":"6149","name":"cranes","state":"Degraded","reason":"cell-1 does not answer","sst":2,
            "guarantees":{"cell-1":{"downlink_bps":20000000,"uplink_bps":10000000,"share_ppm":200000}}},
            {"id":"7000","name":"new","state":"Init","guarantees":{},"reason":null}"#;
        let text = format!(r#"{{"accesses":[{accesses}],"slices":[{slices}],"total":3}}"#);
        let all: Overview = serde_json::from_str(&text).unwrap();
        let shown = overview_text(&all);
        for line in [
            "cell-1  100.0 Mbit/s  80.0 Mbit/s  50.0 Mbit/s  40.0 Mbit/s    75.0 %",
            "cranes  6149  Degraded: cell-1 does not answer  cell-1  20.0 Mbit/s  10.0 Mbit/s  20.0 %",
            "new     7000  Init                              -                 -            -       -",
        ] {
            assert!(shown.contains(line), "{line}\n{shown}");
        }
        assert!(shown.contains("2 of 3"), "{shown}");
        let json = serde_json::to_string(&all).unwrap();
        assert!(json.contains(r#""sst":2"#) && json.contains(r#""location":"pier""#), "{json}");
    }

    /// The answer is the slice manager's own, so that both change together.
    #[cfg(feature = "slice-manager")]
    #[test]
    fn ues_are_shown_with_the_progress_of_memberships_and_session() {
        use anabranch_slice::{Assignment, Attachment};
        let membership = |attachment| Assignment {
            slice: "6149".to_owned(),
            cell_ue: Some("imsi-1".to_owned()),
            attachment,
        };
        for (session, attachment, expected) in [
            (None, Attachment::Active, "phone 6149 (active) - no"),
            (Some(Attachment::Pending), Attachment::Active, "phone 6149 (active) pending no"),
            (Some(Attachment::Active), Attachment::Pending, "phone 6149 (pending) active no"),
            (
                Some(Attachment::Failed("no such rule".to_owned())),
                Attachment::Failed("full".to_owned()),
                "phone 6149 (failed: full) failed: no such rule no",
            ),
        ] {
            let mut ue = anabranch_slice::Ue::new("phone".to_owned(), String::new());
            (ue.session_state, ue.slices) = (session, vec![membership(attachment)]);
            let answer = crate::slice_manager::shown_ue(&ue);
            let answer: Ues =
                serde_json::from_value(serde_json::json!({"total": 1, "ues": [answer]})).unwrap();
            let shown = ues_text(&answer).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(shown.contains(expected), "{expected}\n{shown}");
            let json = serde_json::to_string(&answer).unwrap();
            assert!(json.contains("imsi-1") && json.contains("leaving"), "{json}");
        }
    }
}
