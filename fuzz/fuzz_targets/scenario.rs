//! Scenario files, their claims and metrics: nothing panics, and a problem names a line that is there.
#![no_main]

use anabranch_lab::claims::expr::Expr;
use anabranch_lab::scenario::parse;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    let lines = text.lines().count().max(1);
    match parse(Path::new("fuzz.toml"), text, &[]) {
        Ok(_) => {}
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a word");
            for problem in &problems {
                assert!(problem.line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{problem:?}");
            }
        }
    }
    for line in text.lines().take(4) {
        let _ = Expr::parse(line);
    }
});
