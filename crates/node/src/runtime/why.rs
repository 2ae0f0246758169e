//! Decisions of rules and their reasons as text.

use super::api;
use super::views::event;
use anabranch_atsss::PathId;
use anabranch_atsss::session::{CodingStats, RuleEvent, RuleView};
use anabranch_element::time::Instant;
use anabranch_steer::{Cause, Exclusion, LawView, Treatment};
use std::collections::BTreeMap;

/// The decisions of a rule of `ue`; `access` returns the name of a path id.
pub fn rule_use(ue: &str, view: &RuleView, now: Instant, access: &impl Fn(PathId) -> String) -> api::RuleUse {
    let excluded = view.explanation.iter().flat_map(|explanation| (0..).zip(&explanation.excluded));
    let not_used = excluded.filter_map(|(path, why)| {
        let why = why.as_ref()?;
        let (reason, why) = (why.name().to_owned(), exclusion(why, access));
        Some(api::NotUsed { access: access(path), reason, why })
    });
    let by_access = |of: &[u64]| -> BTreeMap<String, u64> {
        (0..).zip(of).filter(|(_, n)| **n > 0).map(|(path, n)| (access(path), *n)).collect()
    };
    api::RuleUse {
        ue: ue.to_owned(),
        rule: view.rule.clone(),
        mode: view.mode.to_owned(),
        definition: view.definition.clone(),
        origin: view.origin.name().to_owned(),
        follows: view.follows.clone(),
        access: view.path.map(access),
        switches: view.switches,
        switches_waited: view.denied,
        state: view.explanation.map_or("unused", |explanation| explanation.treatment.name()).to_owned(),
        why: doing(view, now, access),
        not_used: not_used.collect(),
        packets: by_access(&view.packets),
        law: view.law.as_ref().map(|law| law_of(law, now, access)),
    }
}

/// Statistics of coded redundancy in a session; `None` if it was not used.
pub fn coded(stats: &CodingStats) -> Option<api::CodingCounters> {
    (*stats != CodingStats::default()).then_some(api::CodingCounters {
        tx_packets: stats.sent.sources,
        tx_repairs: stats.sent.repairs,
        rx_packets: stats.received.sources,
        rx_repairs: stats.received.repairs,
        restored: stats.received.recovered,
        late: stats.received.late,
        given_up: stats.received.given_up,
    })
}

/// The event record of an event about a rule.
pub fn rule_event(
    ue: &str,
    rule: String,
    what: &RuleEvent,
    access: &impl Fn(PathId) -> String,
) -> api::Event {
    let about = |kind: &str, path: Option<PathId>, message: String| {
        let event = event(kind, Some(ue), format!("rule {rule} {message}"));
        api::Event { rule: Some(rule.clone()), access: path.map(access), ..event }
    };
    match *what {
        RuleEvent::Excluded { path, why } => {
            about("access-left", Some(path), format!("leaves {}: {}", access(path), exclusion(&why, access)))
        }
        RuleEvent::Included { path, state } => {
            let (loss, rtt) = (percent(state.loss_ppm), ms(state.rtt_us.into()));
            let figures = format!("steady loss {} %, loss {loss}, RTT {rtt}", state.steady_loss_percent);
            about("access-back", Some(path), format!("may use {} again: {figures}", access(path)))
        }
        RuleEvent::OverflowPaused { remaining_ms, sent_bps, capacity_bps } => {
            let (s, sent, capacity) = (remaining_ms.div_ceil(1000), mbit(sent_bps), mbit(capacity_bps));
            let message = format!("does not overflow for {s} s: it sent {sent} of {capacity} Mbit/s");
            about("overflow-paused", None, message)
        }
        RuleEvent::OverflowResumed => {
            about("overflow-resumed", None, "may overflow again: the pause is over".to_owned())
        }
        RuleEvent::FlowsLeft { path, flows, loss_ppm } => {
            let (access, loss) = (access(path), percent(loss_ppm));
            let flows = if flows == 1 { "a bulk flow".to_owned() } else { format!("{flows} bulk flows") };
            about("flows-left", Some(path), format!("moved {flows} away from {access}: random loss {loss}"))
        }
    }
}

/// The reason why an access is not used, to be placed after its name.
pub fn exclusion(why: &Exclusion, access: &impl Fn(PathId) -> String) -> String {
    match *why {
        Exclusion::Down { reason: Some(reason) } => format!("down: {}", reason.as_str()),
        Exclusion::Down { reason: None } => "down: no answer yet".to_owned(),
        Exclusion::Held => "held back while accesses flap".to_owned(),
        Exclusion::SteadyLoss { loss, limit } => format!("steady loss {loss} %, limit {limit} %"),
        Exclusion::Loss { loss_ppm, limit_ppm } => {
            format!("loss {}, limit {}", percent(loss_ppm), percent(limit_ppm))
        }
        Exclusion::RoundTrip { rtt_us, limit_us } => {
            format!("RTT {}, limit {}", ms(rtt_us.into()), ms(limit_us.into()))
        }
        Exclusion::NoShare => "no share".to_owned(),
        Exclusion::Standby => "standby".to_owned(),
        Exclusion::Slower { rtt_us, than_us } => {
            format!("slower: RTT {}, that in use {}", ms(rtt_us.into()), ms(than_us.into()))
        }
        Exclusion::RandomLoss { loss_ppm, limit_ppm } => {
            format!("random loss {}, limit {}", percent(loss_ppm), percent(limit_ppm))
        }
        Exclusion::Dropping { queue_us, drop_us } => {
            format!("full: queue {}, drops at {}", ms(queue_us.into()), ms(drop_us.into()))
        }
        Exclusion::HasQueue { queue_us, limit_us } => {
            format!("queue {}, limit {} where no drop was seen", ms(queue_us.into()), ms(limit_us.into()))
        }
        Exclusion::TooSmall { bps, home_bps } => {
            format!("carries {} Mbit/s, the home {}", mbit(bps), mbit(home_bps))
        }
        Exclusion::TooFar { later_us, limit_us } => {
            format!("{} later without any queue, limit {}", ms(later_us.into()), ms(limit_us.into()))
        }
        Exclusion::Later { later_us } => format!("packets would arrive {} later", ms(later_us.into())),
        Exclusion::HomeNotFull { home, queue_us } => {
            format!("{} is not full: its queue is {}", access(home), ms(queue_us.into()))
        }
    }
}

fn doing(view: &RuleView, now: Instant, access: &impl Fn(PathId) -> String) -> String {
    let Some(explanation) = view.explanation else {
        return match &view.follows {
            Some(rule) => format!("its traffic follows {rule}"),
            None => "no packet yet".to_owned(),
        };
    };
    let text = match explanation.treatment {
        Treatment::NoPath => "no access is up".to_owned(),
        Treatment::One(path, because) => {
            let because = match because {
                Cause::Only => "no other may be used",
                Cause::Preferred => "preferred",
                Cause::Fallback => "the preferred one may not be used",
                Cause::Fastest => "the fastest",
                Cause::Turn => "its turn",
                Cause::LittleLoss => "too little loss for copies",
                Cause::Home => "no gain by others",
            };
            format!("{} alone: {because}", access(path))
        }
        Treatment::Coded { source, repair } => {
            format!("packets by {}, repairs by {}", access(source), access(repair))
        }
        Treatment::Shares => "by fixed shares".to_owned(),
        Treatment::Copies => "a copy by each".to_owned(),
        Treatment::Homes => "each flow keeps to its access".to_owned(),
        Treatment::Spills => "packets spill, and come no later".to_owned(),
        Treatment::Overflows => "packets overflow, and may come later".to_owned(),
    };
    match view.law.and_then(|law| law.paused) {
        Some(pause) => {
            let left = seconds_until(pause.until, now);
            let (sent, capacity) = (mbit(pause.sent_bps), mbit(pause.capacity_bps));
            format!("{text}; no overflow for {left} s: it sent {sent} of {capacity} Mbit/s")
        }
        None => text,
    }
}

fn law_of(law: &LawView, now: Instant, access: &impl Fn(PathId) -> String) -> api::Law {
    let counts = &law.counts;
    let path = |path: usize| api::LawPath {
        at_home: counts.at_home[path],
        spilled: counts.spilled[path],
        overflowed: counts.overflowed[path],
        placed: counts.placed[path],
        moved: counts.moved[path],
        left: counts.left[path],
        bulk_flows: law.bulk[path],
    };
    let paths = (0..counts.at_home.len()).map(|i| (i as PathId, path(i)));
    let used = paths.filter(|(_, path)| *path != api::LawPath::default());
    api::Law {
        paths: used.map(|(id, path)| (access(id), path)).collect(),
        pauses: counts.pauses,
        paused_s: law.paused.map(|pause| seconds_until(pause.until, now)),
    }
}

fn seconds_until(at: Instant, now: Instant) -> u64 {
    at.saturating_since(now).as_millis().div_ceil(1000) as u64
}

fn ms(us: i64) -> String {
    format!("{:.1} ms", us as f64 / 1000.0)
}

fn percent(ppm: u32) -> String {
    let percent = f64::from(ppm) / 10_000.0;
    if percent < 1.0 { format!("{percent:.2} %") } else { format!("{percent:.1} %") }
}

fn mbit(bps: u64) -> String {
    format!("{:.1}", bps as f64 / 1e6)
}
