use super::*;
use serde_json::json;

fn none(_: &str) -> Option<Map<String, Value>> {
    None
}

/// Every key of Katana's model, plus two that it does not have.
fn full() -> Value {
    json!({
        "base_slice_descriptor": {
            "base_slice_des_id": "harbour", "base_slice_des_ref": null, "coverage": ["Pier", "Crane"],
            "delay_tolerance": false,
            "deterministic_communication": {"availability": true, "periodicity": [0.01, 1]},
            "network_DL_throughput": {"guaranteed": 130000, "maximum": 200000},
            "ue_DL_throughput": {"guaranteed": 10000.5},
            "network_UL_throughput": {"guaranteed": 50000, "maximum": 50000},
            "ue_UL_throughput": {"guaranteed": 60000},
            "group_communication_support": 0, "isolation": 2, "mtu": 1400,
            "mission_critical_support": {"availability": true, "mc_service": [1, 3]},
            "mmtel_support": false, "nb_iot": false, "number_of_connections": 200, "number_of_terminals": 100,
            "positional_support": {"availability": [1, 2], "frequency": 1, "accuracy": 0.5},
            "radio_spectrum": ["n78"], "simultaneous_nsi": 0,
            "qos": [{"qi": 82, "resource_type": 1, "priority_level": 19, "packet_delay_budget": 0.01,
                     "packet_error_rate": 0.01, "jitter": 0.002, "max_packet_loss_rate": 0.1}],
            "nonIP_traffic": false, "device_velocity": 2, "terminal_density": 1000.5,
            "s_nssai": {"sst": 2, "sd": "00A1B2"}, "dnn": "harbour.lan", "crane_colour": "red"
        },
        "service_descriptor": {"ns_list": [{"nsd-id": "a", "ns-name": "b", "placement": 1, "optional": false}]},
        "test_descriptor": {"probe_list": ["p"], "performance_monitoring": {"availability": [1], "frequency": 5}},
        "vendor": {"kept": true}
    })
}

#[test]
fn every_key_is_read_or_preserved() {
    let document = full();
    let nest = Nest::parse(&document, &none).unwrap();
    assert_eq!(Value::Object(nest.document.clone()), document);
    assert_eq!((nest.name.as_str(), nest.sst, nest.sd.as_deref()), ("harbour", 2, Some("00a1b2")));
    assert_eq!(nest.coverage, ["pier", "crane"]);
    assert_eq!(nest.network_dl.guaranteed_bps, Some(130_000_000));
    assert_eq!(nest.ue_dl.guaranteed_bps, Some(10_000_500));
    assert_eq!((nest.isolation, nest.mtu, nest.terminals), (2, Some(1400), Some(100)));
    assert_eq!(nest.qos[0].packet_delay_budget_ms, Some(10.0));
    assert_eq!(nest.services().len(), 1);
    assert_eq!(nest.dnn.as_deref(), Some("harbour.lan"));
}

/// Katana's shortest published form, whose uplink guarantees a UE more than the slice.
#[test]
fn a_short_one_gets_katanas_defaults() {
    let nest = json!({"base_slice_descriptor": {
        "base_slice_des_id": "g", "coverage": ["edge"], "delay_tolerance": true,
        "network_DL_throughput": {"guaranteed": 1500000}, "network_UL_throughput": {"guaranteed": 50000},
        "ue_UL_throughput": {"guaranteed": 60000}, "mtu": 1500}, "service_descriptor": {}});
    let nest = Nest::parse(&nest, &none).unwrap();
    assert_eq!((nest.sst, nest.sd, nest.isolation), (1, None, 0));
}

/// Cells accept no slice without a name.
#[test]
fn an_empty_name_counts_as_absent() {
    for name in [json!(""), json!(null)] {
        let nest = json!({"base_slice_descriptor": {"base_slice_des_id": name, "delay_tolerance": true,
            "network_DL_throughput": {}}});
        assert_eq!(Nest::parse(&nest, &none).unwrap().name, "slice");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let why = |change: &dyn Fn(&mut Value)| {
        let mut document = full();
        change(&mut document["base_slice_descriptor"]);
        Nest::parse(&document, &none).unwrap_err().to_string()
    };
    let set = |key: &'static str, value: Value| why(&move |base| base[key] = value.clone());
    let error = set("network_DL_throughput", json!({"guaranteed": "130 Mbit/s"}));
    assert_eq!(
        error,
        "base_slice_descriptor.network_DL_throughput.guaranteed: is \"130 Mbit/s\": must be a number of 0 to \
         1000000000, in kbit/s"
    );
    assert!(set("network_UL_throughput", json!({"guaranteed": -1})).contains("is -1: must be"));
    let error = set("ue_DL_throughput", json!({"guaranteed": 2000, "maximum": 1000}));
    assert!(error.contains("maximum: is 1000 kbit/s, below the guaranteed 2000"), "{error}");
    assert!(
        set("qos", json!([{"qi": 9, "packet_delay_budget": 300}])).contains("qos[0].packet_delay_budget")
    );
    assert!(set("qos", json!([{"qi": 9, "packet_delay_budget": 300}])).contains("in seconds"));
    assert!(set("isolation", json!(4)).contains("isolation: is 4"));
    assert!(set("mtu", json!(1500.5)).contains("whole number"));
    assert!(set("delay_tolerance", json!("yes")).contains("true or false"));
    assert!(set("s_nssai", json!({"sd": "xyz"})).contains("s_nssai.sd: is \"xyz\""));
    assert!(set("network_DL_throughput", Value::Null).contains("network_DL_throughput: is missing"));
    let none_at_all = Nest::parse(&json!({"service_descriptor": {}}), &none).unwrap_err();
    assert_eq!(none_at_all.to_string(), "base_slice_descriptor: is missing");
    assert_eq!(Nest::parse(&json!([1]), &none).unwrap_err().to_string(), "body: must be an object");
}

#[test]
fn base_descriptors_complete_each_other_without_cycles() {
    let base = |name: &str, next: Option<&str>, extra: Value| {
        let mut map = json!({"base_slice_des_id": name, "base_slice_des_ref": next});
        map.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        map.as_object().unwrap().clone()
    };
    let find = |name: &str| match name {
        "low" => Some(base("low", Some("lower"), json!({"mtu": 1300, "isolation": 1, "x": 1}))),
        "lower" => Some(base(
            "lower",
            None,
            json!({"mtu": 1200, "delay_tolerance": true, "coverage": ["here"],
                "network_DL_throughput": {"guaranteed": 1}}),
        )),
        "a" => Some(base("a", Some("b"), json!({}))),
        "b" => Some(base("b", Some("a"), json!({}))),
        _ => None,
    };
    let with = |name: &str| {
        json!({"base_slice_descriptor": {"base_slice_des_id": "own", "base_slice_des_ref": name,
            "coverage": [], "isolation": 3}})
    };
    let nest = Nest::parse(&with("low"), &find).unwrap();
    assert_eq!((nest.name.as_str(), nest.mtu, nest.isolation), ("own", Some(1300), 3));
    assert_eq!((nest.coverage.as_slice(), nest.base["x"].clone()), (&["here".to_owned()][..], json!(1)));
    assert!(Nest::parse(&with("a"), &find).unwrap_err().what.contains("circle: a -> b -> a"));
    assert!(Nest::parse(&with("c"), &find).unwrap_err().what.contains("no base slice descriptor \"c\""));
    let stored = base("c", Some("c"), json!({}));
    assert!(check_base(&stored, &find).unwrap_err().what.contains("circle"));
    assert_eq!(check_base(&base("c", Some("low"), json!({})), &find).unwrap(), "c");
}

proptest::proptest! {
    /// Any values in any place: a result, never a panic.
    #[test]
    fn nothing_panics(key in 0_usize..26, value in "[\\[\\]{}\",:a-z0-9.eE+-]{0,24}", number in proptest::num::f64::ANY) {
        let mut document = full();
        let base = document["base_slice_descriptor"].as_object_mut().unwrap();
        let name = base.keys().nth(key % base.len()).unwrap().clone();
        let value = serde_json::from_str(&value).unwrap_or_else(|_| json!(number));
        base.insert(name, value);
        let _ = Nest::parse(&document, &none);
    }
}
