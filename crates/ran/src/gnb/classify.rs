//! Plain IP on N3: finds the UE of a packet by address, and its QoS flow by rule.

use super::config::{QosRule, UeError};
use crate::amc::Direction;
use anabranch_rules::{Filter, PortRange, Protocol};
use anabranch_wire::ip::{FlowKey, IpPacket};

/// Checks that a gNB can evaluate the rules.
pub(super) fn check(rules: &[QosRule]) -> Result<(), UeError> {
    for rule in rules {
        if rule.qfi > 63 {
            return Err(UeError::value("qos.qfi", rule.qfi, "0 to 63"));
        }
        if let Some(dscp @ 64..) = rule.dscp {
            return Err(UeError::value("qos.dscp", dscp, "0 to 63"));
        }
        let Filter { domain, uid, cgroup, .. } = &rule.filter;
        let unknown = domain.is_some() || uid.is_some() || cgroup.is_some();
        if unknown {
            let remedy = "without domain, uid and cgroup: a gNB does not know them";
            return Err(UeError::value("qos.filter", "a filter of those", remedy));
        }
    }
    Ok(())
}

/// The QoS flow of a packet: the first rule that matches, or the default.
pub(super) fn qfi_of(rules: &[QosRule], default: u8, direction: Direction, packet: &[u8]) -> u8 {
    if rules.is_empty() {
        return default;
    }
    let protocol = IpPacket::parse(packet).ok().map(|ip| ip.protocol);
    let mut flow = None;
    let matches = |rule: &&QosRule| {
        rule.dscp.is_none_or(|dscp| dscp_of(packet) == Some(dscp))
            && rule.filter.protocol.is_none_or(|wanted| protocol.is_some_and(|p| is_number(wanted, p)))
            && filter_matches(&rule.filter, direction, || {
                *flow.get_or_insert_with(|| FlowKey::parse(packet).ok())
            })
    };
    rules.iter().find(matches).map_or(default, |rule| rule.qfi)
}

/// Whether a rule matches every packet.
pub(super) fn matches_all(rule: &QosRule) -> bool {
    rule.dscp.is_none() && rule.filter == Filter::default()
}

/// Whether `number` is the protocol number of `protocol`.
fn is_number(protocol: Protocol, number: u8) -> bool {
    match protocol {
        Protocol::Tcp => number == 6,
        Protocol::Udp => number == 17,
        Protocol::Icmp => matches!(number, 1 | 58),
    }
}

fn dscp_of(packet: &[u8]) -> Option<u8> {
    let (first, second) = (packet.first()?, packet.get(1)?);
    match first >> 4 {
        4 => Some(second >> 2),
        6 => Some((first << 4 | second >> 4) >> 2),
        _ => None,
    }
}

/// Whether addresses and ports match; the caller has matched the protocol. `flow` is called only if it is needed.
fn filter_matches(filter: &Filter, direction: Direction, flow: impl FnOnce() -> Option<FlowKey>) -> bool {
    let Filter { protocol, local, remote, local_port, remote_port, .. } = filter;
    if protocol.is_none()
        && local.is_none()
        && remote.is_none()
        && local_port.is_none()
        && remote_port.is_none()
    {
        return true;
    }
    let Some(flow) = flow() else { return false };
    let within =
        |range: &Option<PortRange>, port: u16| range.is_none_or(|r| (r.first..=r.last).contains(&port));
    // Filters are written from the UE's point of view: local is the UE.
    let ((own, own_port), (other, other_port)) = match direction {
        Direction::Uplink => ((&flow.src, flow.src_port), (&flow.dst, flow.dst_port)),
        Direction::Downlink => ((&flow.dst, flow.dst_port), (&flow.src, flow.src_port)),
    };
    local.is_none_or(|net| net.contains(own))
        && remote.is_none_or(|net| net.contains(other))
        && within(local_port, own_port)
        && within(remote_port, other_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ip::udp_datagram;

    fn rule(qfi: u8, text: &str) -> QosRule {
        QosRule { qfi, ..serde_json::from_str(&format!("{{\"qfi\": 0, {text}}}")).unwrap() }
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let mut down =
            udp_datagram("10.0.0.9:5000".parse().unwrap(), "10.45.0.2:7000".parse().unwrap(), b"x").unwrap();
        let rules = [
            rule(1, r#""filter": {"protocol": "tcp"}"#),
            rule(2, r#""filter": {"remote": "10.0.0.0/24", "remote_port": 5000, "local_port": "7000-7001"}"#),
            rule(3, r#""filter": {"protocol": "udp"}"#),
            rule(4, r#""dscp": 46"#),
        ];
        assert_eq!(qfi_of(&rules, 9, Direction::Downlink, &down), 2);
        assert_eq!(qfi_of(&rules, 9, Direction::Uplink, &down), 3, "the other way round it is another flow");
        assert_eq!(qfi_of(&rules[..1], 9, Direction::Downlink, &down), 9);
        assert_eq!(qfi_of(&[], 5, Direction::Downlink, &down), 5);
        down[1] = 46 << 2;
        assert_eq!(qfi_of(&rules[3..], 9, Direction::Downlink, &down), 4);
        assert_eq!(qfi_of(&rules[..3], 9, Direction::Downlink, b"no packet"), 9);
        let mut v6 = vec![0; 60];
        (v6[0], v6[1]) = (0x6b, 0x80);
        assert_eq!(dscp_of(&v6), Some(46));
    }

    #[test]
    fn filters_only_a_ue_can_evaluate_are_refused() {
        let why = |text: &str| check(&[rule(1, text)]).unwrap_err().to_string();
        assert!(why(r#""filter": {"domain": "example.org"}"#).contains("without domain, uid and cgroup"));
        assert!(why(r#""dscp": 64"#).contains("qos.dscp = 64: must be 0 to 63"));
        assert!(check(&[rule(64, r#""dscp": 1"#)]).is_err());
    }
}
