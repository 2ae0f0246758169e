//! Flapping paths: what flap control holds back, and which modes use a path nevertheless.

use super::world::{Setup, World};
use super::{balance, connected, rule, standby};
use anabranch_atsss::session::SessionEvent;
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_steer::{Rule, SteeringMode, redundant};

fn flapping(w: &World) -> bool {
    let is = |e: &UeEvent| matches!(e, UeEvent::Session(SessionEvent::Flapping { .. }));
    w.ue_events.iter().any(|(_, e)| is(e))
}

/// Wi-Fi (path 1) goes down and up under traffic until it counts as flapping, and is up at the end.
fn flapped(rules: Vec<Rule>) -> (World, u32) {
    let mut w = connected(Setup { upf_rules: rules, ..Setup::default() });
    let mut n = 0;
    let mut send = |w: &mut World, ms: u64| {
        for _ in 0..ms / 5 {
            w.up(n, 200);
            n += 1;
            w.run_ms(5);
        }
    };
    for _ in 0..3 {
        w.ue.on_command(UeCommand::Carrier { path: 1, up: false }, w.now);
        w.channels[1].cut = true;
        send(&mut w, 500);
        w.channels[1].cut = false;
        w.ue.on_command(UeCommand::Carrier { path: 1, up: true }, w.now);
        send(&mut w, 500);
    }
    assert!(flapping(&w), "{:?}", w.ue_events);
    assert!(w.ue.paths().iter().all(|p| p.up), "{:?}", w.ue.paths());
    assert!(w.ue.state().paths.iter().all(|path| path.up), "what is held back is up: {:?}", w.ue.state());
    (w, n)
}

fn send_ms(w: &mut World, n: &mut u32, ms: u64) -> [usize; 2] {
    w.tap.clear();
    for _ in 0..ms / 5 {
        w.up(*n, 200);
        *n += 1;
        w.run_ms(5);
    }
    w.tapped(true, 200)
}

#[test]
fn redundant_mode_sends_on_a_path_held_back_and_loses_nothing_when_the_other_fails_silently() {
    let (mut w, mut n) =
        flapped(rule(SteeringMode::Redundant(redundant::Params { above_loss_percent: None })));
    assert_eq!(send_ms(&mut w, &mut n, 500), [100, 100]);
    let from = n;
    w.channels[0].cut = true;
    send_ms(&mut w, &mut n, 1_000);
    w.run_ms(100);
    let all = (from..n).collect::<Vec<_>>();
    assert!(w.server_numbers().ends_with(&all), "{:?}", w.server_numbers().len());
}

#[test]
fn packets_are_shared_with_a_path_held_back() {
    let (mut w, mut n) = flapped(balance(50, 50));
    assert_eq!(send_ms(&mut w, &mut n, 500), [50, 50]);
}

#[test]
fn flows_are_not_moved_to_a_path_held_back_until_it_is_the_only_one_or_the_hold_is_over() {
    let (mut w, mut n) = flapped(standby("wifi"));
    assert_eq!(send_ms(&mut w, &mut n, 500), [100, 0], "held");
    w.ue.on_command(UeCommand::Carrier { path: 0, up: false }, w.now);
    w.channels[0].cut = true;
    assert_eq!(send_ms(&mut w, &mut n, 50), [0, 10], "the only one: at once");

    let (mut w, mut n) = flapped(standby("wifi"));
    w.run_ms(6_000);
    assert_eq!(send_ms(&mut w, &mut n, 50), [0, 10], "the hold is over");
}
