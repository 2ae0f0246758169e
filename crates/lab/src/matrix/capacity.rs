//! Capacity of the accesses.

use super::is_of;
use crate::scenario::file;
use crate::scenario::model::{Action, Case, Directions, Flow, Security, Traffic, bps};
use anabranch_wire::tunnel::{PLAIN_OVERHEAD, SECURE_OVERHEAD};

/// Maximum packet size if the link does not set one, bytes.
const MTU_BYTES: f64 = 1500.0;
/// IPv4 and UDP headers around a tunnel packet, bytes.
const OUTER_BYTES: f64 = 28.0;
/// Inner IPv4 and TCP headers with timestamps, bytes.
const INNER_BYTES: f64 = 52.0;
/// Inner IPv4 and UDP headers of the call, bytes.
const CALL_BYTES: f64 = 28.0;

/// The sum over the accesses of the mean link rate from `from_s` to the end, minus the packets of the call, as TCP payload in
/// full-sized packets through the tunnel, Mbit/s.
pub(super) fn sum_mbps(spec: &file::Matrix, case: &Case, from_s: f64) -> f64 {
    let Some((_, bulk)) = case.flows.iter().find(|(name, _)| is_of(name, &spec.bulk)) else {
        return f64::NAN;
    };
    let Some(ue) = case.ues.get(&bulk.ue) else { return f64::NAN };
    let is_up = bulk.is_up();
    let call = spec.call.as_ref().and_then(|call| case.flows.get(call)).filter(|call| call.is_up() == is_up);
    let mut call_mbps = call.map_or(0.0, outer_mbps);
    let mut sum = 0.0;
    for access in &ue.accesses {
        let Some(link) = case.links.get(&access.link) else { continue };
        let of = if is_up { &link.up } else { &link.down };
        let mtu = of.mtu_bytes.map_or(MTU_BYTES, |mtu| mtu as f64).min(MTU_BYTES);
        let tunnel = match access.security {
            Security::Secure => SECURE_OVERHEAD,
            Security::Plain => PLAIN_OVERHEAD,
        };
        let payload = (mtu - OUTER_BYTES - tunnel as f64 - INNER_BYTES) / mtu;
        let rate = mean_rate_mbps(case, &access.link, bps(of.rate_mbps), is_up, from_s);
        let taken = call_mbps.min(rate);
        call_mbps -= taken;
        sum += (rate - taken) * payload;
    }
    sum
}

/// Mean rate of a link within the window, including its events.
fn mean_rate_mbps(case: &Case, link: &str, first_bps: u64, is_up: bool, from_s: f64) -> f64 {
    let end_s = case.duration.as_secs_f64();
    let other = if is_up { Directions::Down } else { Directions::Up };
    let (mut rate, mut since, mut bits) = (first_bps as f64, 0.0, 0.0);
    let mut until = |at: f64, rate: f64, since: f64| bits += (at - since.max(from_s)).max(0.0) * rate;
    for (at, action) in case.timeline(0) {
        if let Action::Rate { link: of, directions, rate_bps } = action
            && of == link
            && directions != other
        {
            until(at.as_secs_f64(), rate, since);
            (rate, since) = (rate_bps as f64, at.as_secs_f64());
        }
    }
    until(end_s, rate, since);
    bits * 1e-6 / (end_s - from_s)
}

/// The rate of a call on the links, Mbit/s.
fn outer_mbps(call: &Flow) -> f64 {
    let Traffic::Cbr { rate_bps, payload_bytes, .. } = call.traffic else { return 0.0 };
    let payload = f64::from(payload_bytes);
    rate_bps as f64 * 1e-6 * (payload + CALL_BYTES + OUTER_BYTES + SECURE_OVERHEAD as f64) / payload
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(sets: &[&str]) -> f64 {
        let text = "title = \"t\"\nduration_s = 13\n[link.a]\ndown.rate_mbps = 50\n[link.b]\ndown.rate_mbps = 10\n\
                    [ue.u]\naccesses = [{ name = \"a\", link = \"a\" }, { name = \"b\", link = \"b\" }]\n\
                    [flow.bulk]\nkind = \"bulk_tcp\"\n[flow.call]\nkind = \"cbr\"\nrate_mbps = 1.5\nenabled = false\n\
                    [[event]]\nkind = \"rate\"\nat_s = 8\nlink = \"a\"\nrate_mbps = 10\nenabled = false\n";
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        let scenario = crate::scenario::parse(std::path::Path::new("t.toml"), text, &sets).unwrap();
        let spec = file::Matrix { bulk: "bulk".into(), call: Some("call".into()), ..file::Matrix::default() };
        sum_mbps(&spec, &scenario.cases[0], 3.0)
    }

    #[test]
    fn headers_calls_and_steps_are_taken_off() {
        let payload = |mtu: f64| (mtu - 28.0 - SECURE_OVERHEAD as f64 - 52.0) / mtu;
        assert!((sum(&[]) - 60.0 * payload(1500.0)).abs() < 1e-6);
        // Half of the window at 50, half at 10.
        assert!((sum(&["event.0.enabled=true"]) - 40.0 * payload(1500.0)).abs() < 1e-6);
        let small = sum(&["link.b.down.mtu_bytes=1280"]);
        assert!((small - 50.0 * payload(1500.0) - 10.0 * payload(1280.0)).abs() < 1e-6);
        let call = 1.5 * (1200.0 + 56.0 + SECURE_OVERHEAD as f64) / 1200.0;
        assert!((sum(&["flow.call.enabled=true"]) - (60.0 - call) * payload(1500.0)).abs() < 1e-6);
    }
}
