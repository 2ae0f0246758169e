//! Everything Transport Services read as JSON: properties, endpoints, NEAT's policies, CIB nodes and questions, route
//! selection policies. Nothing panics; what is written is read again as it was; an answer keeps its bounds.
#![no_main]

use anabranch_element::time::Instant;
use anabranch_selection::neat::{Manager, Node, Policy};
use anabranch_selection::ursp::Ursp;
use anabranch_selection::{Endpoint, Host, Interface, Properties, Request, select};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

const NOW: u64 = 1_800_000_000;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    properties: &'a str,
    remote: &'a str,
    profile: &'a str,
    policy: &'a str,
    nodes: [&'a str; 2],
    question: &'a str,
    ursp: &'a str,
}

fuzz_target!(|input: Input| {
    if let Ok(properties) = serde_json::from_str(input.properties)
        && let Ok(properties) = Properties::from_json(properties)
    {
        let written = serde_json::to_value(&properties).expect("properties are written");
        assert_eq!(Properties::from_json(written).expect("what was written is read"), properties);
        let remote: Vec<Endpoint> = serde_json::from_str(input.remote).unwrap_or_default();
        let mut host = Host::with_all_protocols();
        let addresses =
            vec!["10.0.0.2".parse().expect("an address"), "2001:db8::2".parse().expect("an address")];
        host.interfaces.insert("a".into(), Interface { up: true, addresses, ..Interface::default() });
        match select(&Request { properties, remote, ..Request::default() }, &host, Instant::ZERO) {
            Ok(selection) => assert!(!selection.candidates.is_empty()),
            Err(refusal) => assert!(!refusal.failed.is_empty()),
        }
    }

    let mut manager = Manager::default();
    for (text, is_profile) in [(input.profile, true), (input.policy, false)] {
        let Ok(policy) = Policy::from_json(text) else { continue };
        assert_eq!(Policy::from_value(&policy.json()).as_ref(), Ok(&policy));
        let into = if is_profile { &mut manager.profiles } else { &mut manager.policies };
        into.insert(policy).expect("there is room");
    }
    for text in input.nodes {
        let Ok(node) = Node::from_json(text, NOW) else { continue };
        assert_eq!(Node::from_value(&node.json(), NOW).as_ref(), Ok(&node));
        manager.cib.insert(node).expect("there is room");
    }
    if let Ok(candidates) = manager.query(input.question, NOW) {
        for candidate in candidates {
            assert!(!candidate.properties.json().to_string().contains("Infinity"), "no bare Infinity");
        }
    }

    if let Ok(ursp) = Ursp::from_json(input.ursp) {
        assert_eq!(Ursp::from_json(&ursp.json().to_string()), Ok(ursp));
    }
});
