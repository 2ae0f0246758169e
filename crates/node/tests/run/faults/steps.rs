//! Programs killed at any moment of their start: right after each request to the kernel and to nft.

use super::{Day, SERVER, new_connections, start_broken};
use crate::live::{Flow, Live};
use crate::{Options, Program};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Whether a start has completed.
fn is_ready(day: &Day, part: &str) -> bool {
    if part == "ue" { day.world.paths_up("ue") == 2 } else { day.world.get("upf", "/v1/status").is_object() }
}

/// Number of steps of a start, as counted by the program itself.
fn steps(day: &Day, part: &str) -> usize {
    *day.world.environment.borrow_mut() = day.shim.count();
    let program = day.world.spawn(part);
    day.world.until("it is ready", || is_ready(day, part));
    // Routes follow the first paths.
    std::thread::sleep(Duration::from_millis(300));
    let steps = day.shim.steps();
    program.stop();
    steps
}

/// Kills `part` after every step of its start; after every other kill, starts it with a broken file. Traffic
/// beside the tunnel is not affected, and a regular start succeeds afterwards.
fn die_at_every_step(part: &str, options: &Options<'_>) {
    let Some(mut day) = Day::new(options) else { return };
    if part == "ue" {
        day.upf = Some(day.world.start_upf());
    }
    let from = |day: &Day| if part == "ue" { day.world.ue.picture() } else { day.world.upf.picture() };
    let before = from(&day);
    let steps = steps(&day, part);
    assert_eq!(from(&day), before);
    assert!((5..200).contains(&steps), "{steps} steps");
    // The UPF's machine is on the path of both.
    let beside = if part == "ue" { "10.1.0.1:7" } else { SERVER[0] };
    let ns = if part == "ue" { &day.world.ue } else { &day.world.upf };
    if part == "ue" {
        crate::live::serve(&day.world.upf, beside.parse().unwrap());
    }
    let traffic = Live::start(ns, beside.parse().unwrap());
    let mut longest = Duration::ZERO;
    for last in 1..=steps {
        *day.world.environment.borrow_mut() = day.shim.die_after(last);
        let mut program = day.world.spawn(part);
        day.world.until("it dies, or needs fewer steps", || !program.is_running() || is_ready(&day, part));
        if program.is_running() {
            program.signal(Signal::SIGKILL);
        }
        program.wait_killed();
        // A TUN interface disappears with the program; the kernel removes a network namespace with a short
        // delay.
        let gone = || !ns.sh("ip -o link").contains("anb0");
        assert!(options.device == "packet" || gone());
        longest = longest.max(day.world.until("the interface is gone", gone));
        day.world.environment.borrow_mut().clear();
        new_connections(ns, &format!("killed after step {last} of {steps}"));
        if last % 2 == 0 {
            start_broken(&day.world, part);
            new_connections(ns, &format!("killed after step {last} of {steps}, and a start that failed"));
        }
    }
    let program: Program = day.world.spawn(part);
    day.world.until("it works", || is_ready(&day, part));
    println!("{part}, {}: the interface was gone after at most {longest:?}", options.device);
    let name = format!("{part} killed after each of {steps} steps of its start; flows beside the tunnel");
    Flow::judge(&traffic.end(), &name, [500.0, 500.0], || day.world.logs());
    program.stop();
    assert_eq!(from(&day), before, "{}", day.world.logs());
    day.end();
}

#[test]
fn a_ue_killed_at_any_step_of_its_start_blocks_no_flow() {
    die_at_every_step("ue", &Options::default());
}

#[test]
fn a_upf_killed_at_any_step_of_its_start_blocks_no_flow() {
    die_at_every_step("upf", &Options::default());
}

#[test]
fn a_ue_without_tun_killed_at_any_step_of_its_start_blocks_no_flow() {
    die_at_every_step("ue", &Options { device: "packet", ..Options::default() });
}

#[test]
fn a_upf_without_tun_killed_at_any_step_of_its_start_blocks_no_flow() {
    die_at_every_step("upf", &Options { device: "packet", ..Options::default() });
}
