//! Path MTU: what a path carries is found out, also when it changes under way.

use super::world::{Setup, World};
use super::{connected, standby};
use anabranch_core::access::drops::DropReason;
use anabranch_core::time::Duration;

/// A path that shrinks without a word while a bulk flow runs: the flow's sender is told within a few seconds.
fn black_hole(uplink: bool) {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    let send = |w: &mut World, n: u32, size: usize| if uplink { w.up(n, size) } else { w.down(n, size) };
    let got = |w: &World| if uplink { w.server_numbers() } else { w.device_numbers() };
    for i in 0..500 {
        send(&mut w, i, 1300);
        w.run_ms(2);
    }
    w.run_ms(100);
    assert_eq!(got(&w), (0..500).collect::<Vec<_>>());
    w.channels[1].mtu = 1300;
    let shrunk = w.now;
    let mut told = None;
    // What a TCP would do: a window is lost, then single retransmissions.
    for i in 500..4000u32 {
        send(&mut w, i, 1300);
        w.run_ms(if i < 520 { 1 } else { 200 });
        let drops = if uplink { w.ue.drops() } else { w.upf.drops() };
        if drops.get(DropReason::TooBig) > 0 {
            told = Some(w.now - shrunk);
            break;
        }
    }
    let told = told.expect("the sender is told");
    assert!(told <= Duration::from_secs(4), "{told:?}");
    // Both paths stayed up: it is not the path that is gone.
    assert!(w.ue.paths().iter().all(|p| p.up));
    let answers = if uplink { &w.at_device } else { &w.at_server };
    let icmp = &answers.iter().find(|(_, p)| p[9] == 1).expect("an ICMP message").1;
    let fits = usize::from(u16::from_be_bytes([icmp[26], icmp[27]]));
    send(&mut w, 9999, fits - 28);
    w.run_ms(100);
    assert_eq!(got(&w).last(), Some(&9999));
    // When the path widens again, so does the tunnel, by the raise timer.
    w.channels[1].mtu = 1500;
    w.run_ms(700_000);
    send(&mut w, 10_000, 1300);
    w.run_ms(100);
    assert_eq!(got(&w).last(), Some(&10_000));
}

#[test]
fn a_silent_black_hole_of_a_shrunken_path_is_found_uplink() {
    black_hole(true);
}

#[test]
fn a_silent_black_hole_of_a_shrunken_path_is_found_downlink() {
    black_hole(false);
}

#[test]
fn losses_of_a_congested_path_cost_a_probe_a_second_at_most() {
    let mut w = connected(Setup { upf_rules: standby("wifi"), ..Setup::default() });
    w.run_ms(5_000);
    w.channels[1].loss = 0.6;
    w.tap.clear();
    for i in 0..5000 {
        w.up(i, 1000);
        w.run_ms(1);
    }
    let probes = w.tap.iter().filter(|(_, up, _, p)| *up && p.len() >= 1490).count();
    assert!(probes <= 20, "{probes} MTU probes in 5 s");
}
