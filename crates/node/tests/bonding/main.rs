//! Execution of docs/bonding.md: every `sh` block is run in order on the machine that its fence names, and
//! every line of a `text` block must appear in order in the output of the block before it, except for numbers
//! and keys. Only the two public keys are substituted for their placeholders, as the page asks its reader to.
//! `console` blocks are not run, because their requirements (a release build, a second machine over ssh,
//! systemd-resolved) are not met.

// This test runs in real time.
#![allow(clippy::disallowed_methods)]

mod machine;
mod page;

use machine::{Machine, World};
use page::{Block, Kind};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("../../../../docs/bonding.md");

#[test]
fn the_page_can_be_executed_as_written() {
    let blocks = page::blocks(PAGE);
    let Some(world) = World::new() else { return };
    let before = [world.laptop.picture(), world.vps.picture()];
    let mut keys = [String::new(), String::new()];
    let mut walked = 0;
    for (i, block) in blocks.iter().enumerate() {
        let Kind::Run { machine } = &block.kind else { continue };
        let machine = match machine.as_str() {
            "vps" => &world.vps,
            "laptop" => &world.laptop,
            other => panic!("docs/bonding.md:{}: there is no machine {other}", block.line),
        };
        let commands = block
            .text
            .replace("PUBLIC-KEY-OF-THE-VPS", &keys[0])
            .replace("PUBLIC-KEY-OF-THE-LAPTOP", &keys[1]);
        let before = commands.contains("iperf3 --client").then(|| world.laptop.sent());
        let expected =
            blocks.get(i + 1).filter(|next| matches!(next.kind, Kind::Expect)).map(|b| b.text.as_str());
        let output = follow(machine, block, &commands, expected);
        if commands.contains("anabranch keygen") {
            let key = output.lines().last().unwrap().to_owned();
            keys[usize::from(machine.name == "laptop")] = key;
        }
        check(&world, &commands, &output);
        if commands.contains("iperf3 --server") {
            // It detaches from its terminal before it listens; a reader takes longer to switch machines.
            machine.run("until ss -ltn | grep -q :5201; do sleep 0.05; done").unwrap();
        }
        if let Some(before) = before {
            // Both links carried a considerable share.
            for (access, bytes) in world.laptop.sent() {
                let bytes = bytes - before[&access];
                assert!(bytes > 5_000_000, "{access} carried {bytes} bytes\n{}", world.laptop.logs());
            }
        }
        walked += 1;
    }
    assert!(walked >= 14, "{walked}");
    assert!(keys.iter().all(|key| key.len() == 44), "{keys:?}");
    // According to the page everything is removed then, except for manual additions.
    world.laptop.run("nft delete table ip bonding; sysctl -qw net.ipv4.ip_forward=0").unwrap();
    assert_eq!([world.laptop.picture(), world.vps.picture()], before);
}

/// Limits the number of blocks that are not run.
#[test]
fn few_blocks_are_not_run() {
    let blocks = page::blocks(PAGE);
    let shown = blocks.iter().filter(|block| matches!(block.kind, Kind::Show)).count();
    assert_eq!(shown, 2, "docs/bonding.md: console blocks");
}

/// Commands that change nothing.
const LOOKS: [&str; 4] = ["anabranch ctl status", "anabranch ctl paths", "anabranch ctl events", "ip "];

/// Runs a block. A command that only shows a state is repeated until the expected state is reached, as a
/// reader would do.
#[track_caller]
fn follow(machine: &Machine, block: &Block, commands: &str, expected: Option<&str>) -> String {
    let start = Instant::now();
    let place = format!("docs/bonding.md:{} on the {}", block.line, machine.name);
    let mut commands = commands.to_owned();
    loop {
        let output = machine.run(&commands).unwrap_or_else(|output| panic!("{place}:\n{commands}\n{output}"));
        let Some(missing) = expected.and_then(|expected| page::missing(expected, &output)) else {
            println!("{place}, {:.1} s:\n{commands}\n{output}", start.elapsed().as_secs_f64());
            return output;
        };
        let last = commands.lines().last().unwrap_or_default().to_owned();
        let looks = LOOKS.iter().any(|prefix| last.starts_with(prefix));
        if !looks || start.elapsed() > Duration::from_secs(20) {
            panic!(
                "{place}:\n{commands}\nshould print\n  {missing}\nand prints\n{output}\n{}",
                machine.logs()
            );
        }
        std::thread::sleep(Duration::from_millis(200));
        // The other commands have been executed.
        commands = last;
    }
}

/// Checks statements of the page that no block covers.
fn check(world: &World, commands: &str, output: &str) {
    if commands.contains("iperf3 --client") {
        let received = output.lines().find(|line| line.contains("receiver")).expect(output);
        let words: Vec<&str> = received.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "Mbits/sec").expect(received);
        let mbps: f64 = words[at - 1].parse().unwrap();
        let one = f64::from(machine::LINK_MBPS);
        println!("{mbps} Mbit/s over two links of {one}");
        assert!(mbps > 1.3 * one, "{mbps} Mbit/s over two links of {one}\n{}", world.laptop.logs());
    }
    if commands.contains("> ping.txt") {
        let received: u32 = output
            .lines()
            .find_map(|line| line.split(", ").nth(1)?.strip_suffix(" received")?.parse().ok())
            .expect(output);
        assert!(received >= 36, "{output}\n{}", world.laptop.logs());
    }
    if commands.contains("ip bonding") {
        world.behind_the_laptop();
    }
}
