//! Delay of a UE whose slice has other UEs with packets of fewer RBs.

use super::*;

/// The longest time in ms that a UE had data and got no block. The first slice has UEs that flood with packets of 100 bytes at
/// MCS 26, one with packets of 1500 bytes at MCS 4, and one with a call at MCS 8; the second has a bulk flow.
fn longest_wait(radio: &RadioConfig, scheduler: &InterConfig, share: f64, direction: Direction) -> u64 {
    let end = 1500;
    let mut config = config(&[share, 100.0 - share], &[0, 0, 0, 0, 1], Algorithm::Vanilla);
    config.radio = radio.clone();
    config.scheduler = scheduler.clone();
    config.mac.grant_delay_slots = Some(0);
    for (ue, mcs) in config.ues.iter_mut().zip([26, 26, 4, 8, 20]) {
        ue.channel = ChannelConfig::mcs(mcs);
    }
    let mut run = Run::new(&config);
    let carrier = u64::from(*run.gnb.amc().full().row(28).last().unwrap());
    let per_ms = carrier * 1_000_000 / run.gnb.amc().slot().as_nanos() as u64;
    let (mut since, mut bytes, mut longest) = ([0; 5], [0; 5], 0);
    for now in 0..end {
        for (ue, size) in (0..).zip([100, 100, 1500, 172, 1500]) {
            let sdap: u64 = run.gnb.flow_stats(ue, direction).map(|(_, f)| f.waiting_bytes).sum();
            let rlc: u64 = run.gnb.bearer_stats(ue, direction, ms(now)).map(|b| b.buffer_bytes).sum();
            let wanted = match ue {
                3 if now % 20 == 0 => sdap + rlc + size as u64,
                3 => 0,
                _ => 3000 + 3 * per_ms,
            };
            for number in 0..wanted.saturating_sub(sdap + rlc).div_ceil(size as u64) as u32 {
                let packet = down(ue, 5000, size, number);
                let (to, packet) = match direction {
                    Direction::Downlink => (Gnb::N3, packet),
                    Direction::Uplink => {
                        let from = SocketAddr::new(address(ue), 5000);
                        let to = "198.51.100.1:9".parse().unwrap();
                        (Gnb::ue(ue as u16), udp_datagram(from, to, &packet[28..]).unwrap())
                    }
                };
                run.offer(to, packet, ms(now));
            }
            let got = run.gnb.ue_link_stats(ue, direction).block_bytes;
            let place = ue as usize;
            if got > bytes[place] || sdap + rlc == 0 {
                (since[place], bytes[place]) = (now, got);
            }
            longest = longest.max(now - since[place]);
        }
        run.until(ms(now + 1));
    }
    longest
}

#[test]
fn packets_of_fewer_rbs_leave_nobody_without_any() {
    let mut wrong = Vec::new();
    for (radio, share) in [lte_carrier(25), nr_carrier(18, 1), nr_carrier(106, 3)]
        .into_iter()
        .flat_map(|r| [(r.clone(), 5.0), (r, 50.0)])
    {
        for (limit, idle) in [(25, Idle::IdleReset), (100, Idle::Strict), (500, Idle::Strict)] {
            let params = EqpParams { quantum_limit_rbs: limit, idle };
            for scheduler in [InterConfig::EqpExact(params), InterConfig::EqpPaper(params)] {
                for direction in Direction::ALL {
                    let wait = longest_wait(&radio, &scheduler, share, direction);
                    if wait >= 1000 {
                        wrong.push(format!("{wait} ms: {radio:?} {scheduler:?} {share} % {direction:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}
