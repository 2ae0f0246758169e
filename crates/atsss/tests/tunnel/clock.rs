//! Clocks of UE and UPF that are wrong, go back, or are set later: handshakes carry timestamps.

use super::world::{Setup, World};
use anabranch_atsss::drops::DropReason;
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_atsss::upf::{UpfCommand, UpfEvent};

/// Hours by which the UE's clock is ahead, in nanoseconds.
fn hours(w: &World, ahead: i64) -> u64 {
    w.upf_config.unix_epoch_ns.saturating_add_signed(ahead * 3600 * 1_000_000_000)
}

/// A UPF whose clock may be behind by days, and a UE that has never connected.
fn on_a_late_day() -> World {
    let mut w = World::new(Setup::default());
    w.upf_config.unix_epoch_ns = 1_000_000 * 3600 * 1_000_000_000;
    w.restart_upf(3);
    w
}

fn newest_ns(w: &World) -> u64 {
    let stamp = |e: &UeEvent| match e {
        UeEvent::Handshake { timestamp_ns } => Some(*timestamp_ns),
        _ => None,
    };
    w.ue_events.iter().filter_map(|(_, e)| stamp(e)).max().unwrap_or(0)
}

fn why_refused(w: &World) -> (Option<&'static str>, Option<&'static str>) {
    let at_ue = |e: &UeEvent| match e {
        UeEvent::Refused { reason, .. } => Some(*reason),
        _ => None,
    };
    let at_upf = |e: &UpfEvent| match e {
        UpfEvent::Refused { reason, .. } => Some(*reason),
        _ => None,
    };
    (
        w.ue_events.iter().rev().find_map(|(_, e)| at_ue(e)),
        w.upf_events.iter().rev().find_map(|(_, e)| at_upf(e)),
    )
}

#[test]
fn a_wrong_clock_connects_or_is_refused_with_a_reason_at_both_ends() {
    for ahead in [-100_000, -24, -1, 0, 1, 12, 23, 25, 48, 100_000] {
        let mut w = on_a_late_day();
        w.ue_config.unix_epoch_ns = hours(&w, ahead);
        w.restart_ue(1);
        w.run_ms(1_000);
        assert_eq!(w.ue.is_connected(), ahead < 24, "{ahead} hours");
        if ahead > 24 {
            let (ue, upf) = why_refused(&w);
            assert!(
                ue.is_some_and(|why| why.contains("more than a day ahead")) && ue == upf,
                "{ue:?} {upf:?}"
            );
            assert!(w.upf.drops().get(DropReason::HandshakeClock) > 0);
            // The UPF's clock was wrong, and is set.
            let unix_epoch_ns = hours(&w, ahead);
            w.upf.command(UpfCommand::Clock { unix_epoch_ns }, w.now).unwrap();
            w.run_ms(20_000);
            assert!(w.ue.is_connected(), "{ahead} hours, and set right");
        }
    }
}

#[test]
fn a_ue_whose_clock_went_back_continues_or_is_refused_until_the_operator_admits_it() {
    for ahead in [1, 12, 23] {
        let mut w = on_a_late_day();
        w.ue_config.unix_epoch_ns = hours(&w, ahead);
        w.restart_ue(1);
        w.run_ms(1_000);
        assert!(w.ue.is_connected());
        let stamp = newest_ns(&w);
        // The clock is corrected, and the UE restarted: first with its stored timestamp, then without.
        w.ue_config.unix_epoch_ns = hours(&w, 0);
        w.ue_config.last_timestamp_ns = stamp;
        w.restart_ue(2);
        w.run_ms(1_000);
        assert!(w.ue.is_connected(), "{ahead} hours: it remembers");
        w.ue_config.last_timestamp_ns = 0;
        w.restart_ue(3);
        w.run_ms(1_000);
        assert!(!w.ue.is_connected(), "{ahead} hours: it forgot");
        let (ue, upf) = why_refused(&w);
        assert!(ue.is_some_and(|why| why.contains("reset-clock")) && ue == upf, "{ue:?} {upf:?}");
        w.upf.command(UpfCommand::ForgetTimestamp(w.entry.key), w.now).unwrap();
        w.run_ms(20_000);
        assert!(w.ue.is_connected(), "{ahead} hours: the operator let it in");
    }
}

/// An init that was sent by one access and arrives after the next one by another.
#[test]
fn a_late_handshake_is_not_reported_to_the_operator() {
    for (behind_s, told) in [(5, false), (25, false), (600, true)] {
        let mut w = on_a_late_day();
        w.ue_config.unix_epoch_ns = hours(&w, 0);
        w.restart_ue(1);
        w.run_ms(1_000);
        assert!(w.ue.is_connected());
        w.ue_config.last_timestamp_ns = 0;
        w.ue_config.unix_epoch_ns = hours(&w, 0) - behind_s * 1_000_000_000;
        w.restart_ue(2);
        w.run_ms(1_000);
        let (ue, upf) = why_refused(&w);
        assert!(ue.is_some() && !w.ue.is_connected(), "{behind_s} s");
        assert_eq!(upf.is_some(), told, "{behind_s} s");
        assert!(w.upf.drops().get(DropReason::HandshakeReplayed) > 0);
        w.run_ms(120_000);
        assert_eq!(w.ue.is_connected(), !told, "{behind_s} s: it has caught up");
    }
}

/// A clock that is wrong when the UE starts, and is set later (NTP): timestamps of refused handshakes do not
/// count.
#[test]
fn a_ue_whose_clock_is_set_while_it_runs_is_let_in_at_once() {
    for (ahead, remembered) in [(48, false), (100_000, true), (-48, true)] {
        let mut w = on_a_late_day();
        w.ue_config.unix_epoch_ns = hours(&w, 0);
        w.restart_ue(1);
        w.run_ms(1_000);
        assert!(w.ue.is_connected());
        // Behind: the stored timestamp is lost, and the UPF has seen later ones.
        w.ue_config.last_timestamp_ns = if ahead > 0 && remembered { newest_ns(&w) } else { 0 };
        w.ue_config.unix_epoch_ns = hours(&w, ahead);
        w.restart_ue(2);
        w.run_ms(7 * 60_000);
        assert!(!w.ue.is_connected(), "{ahead} hours");
        // A small step does not count.
        let unix_epoch_ns = hours(&w, ahead) + 500_000_000;
        w.ue.on_command(UeCommand::Clock { unix_epoch_ns }, w.now);
        w.run_ms(1_000);
        assert!(!w.ue.is_connected(), "{ahead} hours");
        let unix_epoch_ns = hours(&w, 0);
        w.ue.on_command(UeCommand::Clock { unix_epoch_ns }, w.now);
        w.run_ms(1_000);
        assert!(w.ue.is_connected(), "{ahead} hours: {:?}", why_refused(&w));
        // Timestamps continue from the accepted one, even if the clock goes back again.
        let stamp = newest_ns(&w);
        w.ue.on_command(UeCommand::Clock { unix_epoch_ns: hours(&w, -3) }, w.now);
        w.run_ms(200_000);
        assert!(w.ue.is_connected() && newest_ns(&w) > stamp, "{ahead} hours: rekeyed");
    }
}
