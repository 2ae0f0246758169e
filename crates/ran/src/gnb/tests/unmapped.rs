//! A UE reported to lose the packets that match no rule loses them, and others do not.

use super::*;
use crate::gnb::UnmappedPackets;

#[test]
fn packets_without_a_flow_are_reported_where_they_are_dropped() {
    let rule = |text: &str| serde_json::from_str::<QosRule>(text).unwrap();
    let tcp = r#"{"qfi": 3, "filter": {"protocol": "tcp"}}"#;
    let flow = |qfi, unmapped| FlowConfig { unmapped, ..FlowConfig::new(qfi, 1) };
    for (qos, flows, default_qfi, dropped) in [
        (vec![rule(tcp)], vec![flow(3, false)], 9, true),
        (vec![rule(tcp)], vec![flow(3, true)], 9, false),
        (vec![rule(tcp)], vec![flow(3, false), flow(9, false)], 9, false),
        (vec![rule(tcp)], vec![flow(3, false)], 3, false),
        (vec![rule(tcp), rule(r#"{"qfi": 3}"#)], vec![flow(3, false)], 9, false),
        (vec![], vec![flow(3, false)], 9, true),
    ] {
        let mut config = config(&[100.0], &[0], Algorithm::Vanilla);
        let ue = &mut config.ues[0];
        (ue.qos, ue.sdap.flows, ue.default_qfi) = (qos, flows, default_qfi);
        let case = format!("{ue:?}");
        let mut run = Run::new(&config);
        let said = run.gnb.unmapped_packets();
        run.offer(Gnb::N3, down(0, 5000, 60, 0), ms(1));
        run.until(ms(100));
        assert_eq!(
            run.gnb.flow_stats(0, Direction::Downlink).all(|(_, f)| f.forwarded_sdus == 0),
            dropped,
            "{case}"
        );
        assert_eq!(said == [UnmappedPackets { ue: "ue0".into(), qfi: 9 }], dropped, "{case}: {said:?}");
        assert_eq!(said.is_empty(), !dropped, "{case}: {said:?}");
    }
}

#[test]
fn with_tunnels_rules_are_of_the_uplink() {
    let mut config = config(&[100.0], &[0], Algorithm::Vanilla);
    config.n3 = N3::Gtpu;
    config.ues[0].uplink_sdap = Some(config.ues[0].sdap.clone());
    config.ues[0].sdap.flows = vec![FlowConfig::new(3, 1)];
    assert_eq!(build(&config).unwrap().unmapped_packets(), []);
    config.ues[0].uplink_sdap = None;
    assert_eq!(
        build(&config).unwrap().unmapped_packets()[0].to_string(),
        "ue \"ue0\": packets that match no rule of qos are dropped, because no flow of sdap has QFI 9: add the flow, give one \
         unmapped = true, or set default_qfi to the QFI of a flow"
    );
}
