//! Checks whether a claim can distinguish the paper's statement from its opposite. `anabranch-lab check` refuses claims that cannot,
//! in addition to invalid files. docs/scenarios.md lists the rules under *Honesty*.

use super::expr::{Expr, Function, Operator};
use super::{ends, in_band};
use crate::scenario::file::{Claim, CongestionControl, Differs, PaperValue};
use crate::scenario::gnb::{Queue, Scheduler};
use crate::scenario::model::Via;
use crate::scenario::walk::Problem;
use crate::scenario::{Case, Scenario};
use anabranch_lwip::{DidaConfig, Hold};
use anabranch_steer::{SteeringMode, coded, load_balance};

/// Problems of the claims of a scenario.
#[must_use]
pub fn audit(scenario: &Scenario) -> Vec<Problem> {
    let found = scenario.claims.iter().flat_map(|claim| {
        let says = of_claim(claim).into_iter().chain(of_algorithm(claim, &scenario.cases));
        says.map(|message| Problem { line: None, path: format!("claim.{}", claim.id), message })
    });
    found.collect()
}

fn of_claim(claim: &Claim) -> Vec<String> {
    let mut says = Vec::new();
    let (low, high) = ends(claim);
    if let Some(differs) = &claim.differs
        && low.is_some_and(|low| differs.min <= low)
        && high.is_some_and(|high| differs.max >= high)
    {
        says.push(
            "the band of its reason holds all of its own band: it would differ wherever it is".to_owned(),
        );
    }
    let (Some(paper), Ok(metric)) = (&claim.paper, Expr::parse(&claim.metric)) else { return says };
    if let Some(of) = guard(&metric) {
        says.push(format!("divides by at least {of}: where that decides, the figure is made up"));
    }
    let share = claim.unit == "%" && !matches!(metric, Expr::Binary(Operator::Subtract, ..));
    if share && low.is_none_or(|low| low <= 0.0) && high.is_none_or(|high| high >= 100.0) {
        says.push("takes every share from 0 to 100 %".to_owned());
    }
    let middle = middle(&metric);
    match paper {
        PaperValue::Number(paper) => {
            if low.is_none() || high.is_none() {
                says.push(format!("compares with {paper} and has one end only: give min and max"));
            }
            if !in_band(claim, *paper) {
                says.push(format!("the paper's {paper} is not in its band"));
            }
            if let Some(middle) = middle.filter(|middle| middle != paper) {
                both_sides(claim, middle, &mut says);
            }
        }
        PaperValue::Text(words) => match side(words) {
            Some(Side::Below(limit)) => {
                if high.is_none_or(|high| high > limit) {
                    says.push(format!("the paper says below {limit}: give max"));
                }
                if claim
                    .differs
                    .as_ref()
                    .is_some_and(|differs| differs.min < limit.min(high.unwrap_or(limit)))
                {
                    says.push(format!("the band of its reason reaches below {limit}, as the paper"));
                }
            }
            Some(Side::Above(limit)) => {
                if low.is_none_or(|low| low < limit) {
                    says.push(format!("the paper says above {limit}: give min"));
                }
                if claim.differs.as_ref().is_some_and(|differs| differs.max > limit.max(low.unwrap_or(limit)))
                {
                    says.push(format!("the band of its reason reaches above {limit}, as the paper"));
                }
            }
            None => {
                if let Some(middle) = middle.filter(|_| low.is_none() || high.is_none()) {
                    both_sides(claim, middle, &mut says);
                }
            }
        },
    }
    says
}

/// The claim's band must not contain values on both sides of the neutral value. The same applies to the band of its reason if it
/// overlaps the claim's own.
fn both_sides(claim: &Claim, middle: f64, says: &mut Vec<String>) {
    let (low, high) = ends(claim);
    let around = |low: Option<f64>, high: Option<f64>| {
        low.is_none_or(|low| low < middle) && high.is_none_or(|high| high > middle)
    };
    if around(low, high) {
        says.push(format!("its band holds both as the paper and the opposite: {middle} is inside"));
    }
    let mixes = |differs: &Differs| {
        let reaches = low.is_none_or(|low| differs.max >= low) && high.is_none_or(|high| differs.min <= high);
        reaches && around(Some(differs.min), Some(differs.max))
    };
    if claim.differs.as_ref().is_some_and(mixes) {
        says.push(format!(
            "the band of its reason holds both as the paper and the opposite: {middle} is inside"
        ));
    }
}

/// The neutral value of a comparison, if both sides are equal: 1 for a quotient, 0 for a difference.
fn middle(metric: &Expr) -> Option<f64> {
    let Expr::Binary(operator, a, b) = metric else { return None };
    let compares = !a.metrics().is_empty() && !b.metrics().is_empty();
    match operator {
        Operator::Divide => compares.then_some(1.0),
        Operator::Subtract => compares.then_some(0.0),
        _ => None,
    }
}

/// A lower bound of a denominator that is below 1, if there is one.
fn guard(metric: &Expr) -> Option<f64> {
    match metric {
        Expr::Number(_) | Expr::Metric(_) => None,
        Expr::Call(_, args) => args.iter().find_map(guard),
        Expr::Binary(operator, a, b) => {
            let held = match &**b {
                Expr::Call(Function::Max, args) if *operator == Operator::Divide => {
                    args.iter().find_map(|arg| match arg {
                        Expr::Number(least) if *least < 1.0 => Some(*least),
                        _ => None,
                    })
                }
                _ => None,
            };
            held.or_else(|| guard(a)).or_else(|| guard(b))
        }
    }
}

enum Side {
    Below(f64),
    Above(f64),
}

/// The side of a number that the paper's words denote: `below 1`, `98 at least`, `> 130`.
fn side(words: &str) -> Option<Side> {
    let mut rest = words.trim();
    let mut take = |word: &str| {
        let found = rest.strip_prefix(word);
        rest = found.unwrap_or(rest).trim_start();
        found.is_some()
    };
    let below = ["below", "at most", "less than", "<"].into_iter().any(&mut take);
    let above = !below && ["above", "at least", "more than", ">"].into_iter().any(&mut take);
    let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || b".-".contains(b)).count();
    let (number, after) = rest.split_at(digits);
    let number = number.parse().ok()?;
    if below || after.trim_start().starts_with("at most") {
        Some(Side::Below(number))
    } else if above || after.trim_start().starts_with("at least") {
        Some(Side::Above(number))
    } else {
        None
    }
}

/// A claim about an algorithm that is not in a paper must not have a figure of a paper.
fn of_algorithm(claim: &Claim, cases: &[Case]) -> Option<String> {
    claim.paper.as_ref()?;
    let metric = Expr::parse(&claim.metric).ok()?;
    let names = metric.metrics();
    let of = |case: &&Case| case.variant.is_none() || names.iter().any(|name| case.own_name(name).is_some());
    let own = cases.iter().filter(of).find_map(own_algorithm)?;
    Some(format!("has a figure of the paper, and {own} is not the paper's: leave `paper` out"))
}

/// The algorithm of this project, not of a paper, that a case uses.
fn own_algorithm(case: &Case) -> Option<&'static str> {
    let cells = || case.gnbs.values();
    if case.flows.values().any(|f| f.traffic.congestion_control() == Some(CongestionControl::IntRate)) {
        return Some("int_rate");
    }
    if cells().any(|gnb| gnb.queue == Queue::Jit || gnb.ue.values().any(|ue| ue.queue == Some(Queue::Jit))) {
        return Some("jit");
    }
    if cells().any(|gnb| gnb.scheduler == Scheduler::GpsPacking) {
        return Some("gps_packing");
    }
    if case
        .lwips
        .values()
        .any(|lwip| lwip.held().is_ok_and(|dida| dida.is_some_and(|dida| hides_sack(&dida))))
    {
        return Some("hide_sack");
    }
    let tunnelled = case.flows.values().any(|flow| flow.via == Via::Atsss);
    case.ues.values().filter(|_| tunnelled).flat_map(|ue| &ue.rules).find_map(|rule| match rule.steering {
        SteeringMode::LoadBalance(load_balance::Params { autonomous: true, .. }) => Some("autonomous"),
        SteeringMode::Coded(coded::Params { .. }) => Some("coded"),
        _ => None,
    })
}

fn hides_sack(dida: &DidaConfig) -> bool {
    dida.hide_sack && !matches!(dida.hold, Hold::Fixed { ms } if ms == 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::parse;
    use std::path::Path;

    /// Problems of a claim with these keys in a scenario with variants `a` (Reno) and `b` (`int_rate`).
    fn says(keys: &str) -> String {
        let text = format!(
            "title = \"t\"\n[link.w]\n[ue.u]\naccesses = [{{ name = \"w\", link = \"w\" }}]\n\
             [flow.f]\nkind = \"bulk_tcp\"\nvia = \"direct:w\"\nipv6 = true\n\
             [[variant]]\nname = \"a\"\nset.flow.f.congestion_control = \"reno\"\n\
             [[variant]]\nname = \"b\"\nset.flow.f.congestion_control = \"int_rate\"\n\
             set.flow.f.telemetry = {{ every = 8 }}\n\
             [[claim]]\nid = \"c\"\nwhat = \"w\"\n{keys}\n"
        );
        let scenario = parse(Path::new("s.toml"), &text, &[]).unwrap_or_else(|p| panic!("{p:?}"));
        audit(&scenario).into_iter().map(|p| p.message).collect::<Vec<_>>().join("; ")
    }

    const RATE: &str = "metric = \"a.flow.f.goodput_mbps\"\n";
    const RATIO: &str = "metric = \"a.flow.f.goodput_mbps / a.flow.f.retransmissions\"\n";
    const LESS: &str = "metric = \"a.flow.f.goodput_mbps - a.flow.f.retransmissions\"\n";

    #[test]
    fn a_figure_of_the_paper_needs_both_ends_around_it() {
        assert_eq!(says(&format!("{RATE}paper = 7\nmin = 6\nmax = 8")), "");
        assert_eq!(says(&format!("{RATE}paper = 7\nwithin_percent = 5")), "");
        assert!(says(&format!("{RATE}paper = 7\nmin = 6")).contains("one end only"));
        assert!(says(&format!("{RATE}paper = 7\nmax = 8")).contains("one end only"));
        assert!(says(&format!("{RATE}paper = 7\nmin = 8\nmax = 9")).contains("is not in its band"));
        assert!(says(&format!("{RATE}unit = \"%\"\npaper = 85\nmin = 0\nmax = 100")).contains("every share"));
        // Bands without a figure of the paper are free.
        assert_eq!(says(&format!("{RATE}max = 8")), "");
    }

    #[test]
    fn no_band_has_both_the_paper_and_the_opposite() {
        assert_eq!(says(&format!("{RATIO}paper = 0.85\nmin = 0.8\nmax = 0.9")), "");
        assert!(says(&format!("{RATIO}paper = 0.97\nwithin_percent = 5")).contains("1 is inside"));
        assert_eq!(says(&format!("{RATIO}paper = 1\nwithin_percent = 5")), "");
        assert!(says(&format!("{LESS}paper = -4\nmin = -10\nmax = 2")).contains("0 is inside"));
        let differs = |min: f64, max: f64| format!("differs = {{ why = \"w\", min = {min}, max = {max} }}");
        let of = |own: &str, min, max| says(&format!("{RATIO}{own}\n{}", differs(min, max)));
        assert_eq!(of("paper = 2\nmin = 1.9\nmax = 2.1", 1.0, 1.5), "");
        assert_eq!(of("paper = 2\nmin = 1.9\nmax = 2.1", 0.9, 1.5), "");
        assert!(of("paper = 2\nmin = 1.9\nmax = 2.1", 0.9, 2.0).contains("of its reason holds both"));
        assert!(of("paper = 2\nmin = 1.9\nmax = 2.1", 1.5, 2.5).contains("holds all of its own band"));
    }

    #[test]
    fn words_denote_a_side() {
        assert_eq!(says(&format!("{RATIO}paper = \"below 1\"\nmax = 0.9")), "");
        assert!(says(&format!("{RATIO}paper = \"below 1\"\nmax = 1.1")).contains("give max"));
        assert!(says(&format!("{RATE}paper = \"> 130\"\nmin = 100")).contains("give min"));
        assert!(says(&format!("{RATE}paper = \"98 at least\"\nmin = 97")).contains("give min"));
        let differs = "differs = { why = \"w\", min = 0.8, max = 1.2 }";
        assert!(says(&format!("{RATIO}paper = \"below 1\"\nmax = 1\n{differs}")).contains("as the paper"));
        // Other words: one side of the neutral value, or both ends.
        assert_eq!(says(&format!("{RATIO}paper = \"lower\"\nmax = 1")), "");
        assert!(says(&format!("{RATIO}paper = \"way before\"\nmax = 1.5")).contains("1 is inside"));
        assert_eq!(says(&format!("{RATIO}paper = \"comparable\"\nmin = 0.95\nmax = 1.05")), "");
    }

    #[test]
    fn a_guarded_division_and_an_algorithm_of_ours_are_found() {
        let guarded = "metric = \"a.flow.f.goodput_mbps / max(a.flow.f.timeouts, 0.01)\"\n";
        assert!(
            says(&format!("{guarded}paper = 155\nwithin_percent = 9")).contains("divides by at least 0.01")
        );
        let ours = "metric = \"b.flow.f.goodput_mbps / a.flow.f.goodput_mbps\"\n";
        assert!(
            says(&format!("{ours}paper = 7\nwithin_percent = 9")).contains("int_rate is not the paper's")
        );
        assert_eq!(says(&format!("{ours}min = 6")), "");
    }
}
