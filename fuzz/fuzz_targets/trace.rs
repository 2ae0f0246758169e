//! Rate traces, both formats: nothing panics, and work and time are each other's inverse.
#![no_main]

use anabranch_link::trace::Trace;
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    work: [u64; 2],
    times_ns: [u64; 2],
    repeat: bool,
    text: &'a str,
}

fuzz_target!(|input: Input| {
    let Ok(mut trace) = Trace::parse("t", input.text) else { return };
    if input.repeat {
        match trace.repeating("t") {
            Ok(repeating) => trace = repeating,
            Err(_) => return,
        }
    }
    let _ = trace.mean_bps();
    let [a, b] = input.times_ns;
    assert!(trace.work_before(a.min(b)) <= trace.work_before(a.max(b)));
    // The first time at which the work has been on offer, and not before.
    for work in input.work.map(|w| u128::from(w) << 10) {
        let Some(at_ns) = trace.time_of(work) else { continue };
        assert!(trace.work_before(at_ns.saturating_add(1)) >= work || at_ns == u64::MAX);
        assert!(at_ns == 0 || trace.work_before(at_ns - 1) < work);
    }
});
