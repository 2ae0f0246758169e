//! NESTs and service profiles: nothing panics, what is accepted stays as it was sent, and what is promised is finite.
#![no_main]

use anabranch_slice::{Nest, ServiceProfile, SliceRequest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(document) = serde_json::from_str::<serde_json::Value>(text) else { return };
    // A descriptor that refers to itself, too.
    let base = |_: &str| document.get("base_slice_descriptor")?.as_object().cloned();
    match Nest::parse(&document, &base) {
        Ok(nest) => {
            assert_eq!(serde_json::Value::Object(nest.document.clone()), document);
            let order = SliceRequest::from(&nest);
            let (dl, ul) = order.profile.rates_bps();
            assert!(dl <= 1_000_000_000_000 && ul <= 1_000_000_000_000);
        }
        Err(error) => assert!(!error.path.is_empty() && !error.what.is_empty()),
    }
    if let Ok(profile) = serde_json::from_str::<ServiceProfile>(text) {
        let _ = profile.check();
    }
});
