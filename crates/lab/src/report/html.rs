//! The HTML page. Styles and drawings are embedded; nothing is loaded from elsewhere.

use super::Written;
use super::plots::Figure;
use crate::claims::{Checked, Verdict, band};
use crate::output::{holds, measured, paper, reason_number, reasons, short};
use crate::runner::Finished;
use crate::scenario::Scenario;
use crate::scenario::file::PaperValue;
use crate::scenario::model::{Case, LinkDirection};
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");

/// The report of one scenario; `source` is the text of its file.
#[must_use]
pub fn page(scenario: &Scenario, done: &Finished, figures: &[Figure], source: &str) -> String {
    let mut body = String::new();
    let paper_line =
        scenario.paper.as_deref().map_or(String::new(), |p| format!("<p class=paper>{}</p>", escape(p)));
    let _ = write!(
        body,
        "<header>{}<h1>{}</h1>{paper_line}{}</header>",
        pill(&done.claims),
        escape(&scenario.title),
        facts(scenario, done)
    );
    if let Some(text) = &scenario.description {
        let _ = write!(body, "<p class=lead>{}</p>", marked(text.trim()));
    }
    body.push_str(&claims(&done.claims));
    for figure in figures {
        body.push_str(&drawn(figure));
    }
    if let Some(of) = &scenario.matrix {
        body.push_str(&super::matrix::section(of, done));
    }
    // In a matrix, each case has a network of its own.
    let mut of_one = scenario.cases.iter().filter(|_| scenario.matrix.is_none());
    if let Some(case) = of_one.find(|c| c.backends.contains(&done.backend)) {
        body.push_str(&topology(case));
    }
    body.push_str(&metrics(done));
    if !source.is_empty() {
        let _ =
            write!(body, "<details><summary>Scenario file</summary><pre>{}</pre></details>", escape(source));
    }
    document(&scenario.title, &body)
}

/// The list of several reports.
#[must_use]
pub fn index(reports: &[Written]) -> String {
    let mut body = String::from(
        "<header><h1>Reports</h1></header><table class=claims><thead><tr><th>scenario<th>backend<th>claims</thead><tbody>",
    );
    for r in reports {
        let file = r.html.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
        let [good, differ, bad] = r.verdicts;
        let class = if bad > 0 {
            "fails"
        } else if differ > 0 {
            "differs"
        } else {
            "holds"
        };
        let _ = write!(
            body,
            "<tr><td><a href=\"{}\">{}</a><td>{}<td><span class=\"pill {class}\">{good} of {} hold</span>",
            escape(&file),
            escape(&r.title),
            escape(&r.backend),
            good + differ + bad,
        );
    }
    body.push_str("</tbody></table>");
    document("Reports", &body)
}

fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <meta name=color-scheme content=\"light dark\"><title>{} · anabranch</title>\
         <style>{STYLE}</style></head><body><main>{body}</main></body></html>\n",
        escape(title)
    )
}

fn pill(claims: &[Checked]) -> String {
    let count = |v: Verdict| claims.iter().filter(|c| c.verdict == v).count();
    let (good, differ, bad) = (count(Verdict::Holds), count(Verdict::Differs), count(Verdict::Fails));
    let (class, text) = match (claims.len(), differ, bad) {
        (0, ..) => return String::new(),
        (1, 0, 0) => ("holds", "the claim holds".to_owned()),
        (n, 0, 0) => ("holds", format!("all {n} claims hold")),
        (n, _, 0) => ("differs", format!("{good} of {n} claims hold, {differ} differ")),
        (n, ..) => ("fails", format!("{bad} of {n} claims do not hold")),
    };
    format!("<span class=\"pill {class}\">{text}</span>")
}

fn facts(scenario: &Scenario, done: &Finished) -> String {
    let seeds = match done.seeds {
        1 => done.seed.to_string(),
        n => format!("{} to {} (medians)", done.seed, done.seed + n as u64 - 1),
    };
    let mut rows: Vec<(&str, String)> = vec![("backend", done.backend.to_string()), ("seed", seeds)];
    if scenario.runs > 1 {
        rows.push(("runs", scenario.runs.to_string()));
    }
    if scenario.quick {
        rows.push(("form", "quick".to_owned()));
    }
    rows.extend(done.facts.iter().map(|(k, v)| (k.as_str(), v.clone())));
    let mut text = String::from("<dl class=facts>");
    for (key, value) in rows {
        let _ = write!(text, "<div><dt>{}<dd>{}</div>", escape(key), escape(&value));
    }
    text.push_str("</dl>");
    text
}

fn claims(claims: &[Checked]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<h2>Claims</h2><table class=claims><thead><tr><th>claim<th>paper<th>measured<th>band<th>holds</thead><tbody>",
    );
    let reasons = reasons(claims);
    for c in claims {
        let class = match c.verdict {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
            Verdict::Fails => "fails",
        };
        let note = reason_number(c, &reasons).map(|n| format!("<sup>{n}</sup>")).unwrap_or_default();
        let _ = write!(
            text,
            "<tr><td>{}<td{}>{}<td><b>{}</b><td>{}<td><span class=\"pill {class}\">{}</span>{note}",
            escape(&c.claim.what),
            if matches!(c.claim.paper, Some(PaperValue::Text(_))) { " class=words" } else { "" },
            escape(&paper(c)),
            escape(&measured(c)),
            escape(&band(&c.claim)),
            escape(&holds(c)),
        );
    }
    text.push_str("</tbody></table>");
    if !reasons.is_empty() {
        text.push_str("<ol class=why>");
        for (why, _) in &reasons {
            let _ = write!(text, "<li>{}", escape(why));
        }
        text.push_str("</ol>");
    }
    text
}

fn drawn(figure: &Figure) -> String {
    let mut text = format!("<figure><figcaption>{}</figcaption>", escape(&figure.title));
    if !figure.legend.is_empty() {
        text.push_str("<ul class=legend>");
        for (i, label) in figure.legend.iter().enumerate() {
            let _ = write!(text, "<li><i class=\"b-{}\"></i>{}", i % super::svg::COLOURS, escape(label));
        }
        text.push_str("</ul>");
    }
    text.push_str(&figure.svg);
    if !figure.note.is_empty() {
        let _ = write!(text, "<p class=note>{}</p>", escape(&figure.note));
    }
    text.push_str("</figure>");
    text
}

/// The network as a table with one row per access.
fn topology(case: &Case) -> String {
    if case.ues.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<h2>Network</h2><table class=claims><thead><tr><th>UE<th>access<th>up<th>down<th>tunnel<th>steering</thead><tbody>",
    );
    for (name, ue) in &case.ues {
        let rules: Vec<String> =
            ue.rules.iter().map(|r| format!("{}: {}", r.name, r.steering.name())).collect();
        for (i, access) in ue.accesses.iter().enumerate() {
            let cell = |down: bool| {
                let gnb = case.gnbs.get(&access.link)?;
                let (queue, scheduler) =
                    if down { (gnb.queue, gnb.scheduler) } else { (gnb.uplink_queue, gnb.uplink_scheduler) };
                Some(format!("{} {} RBs, {queue}, {scheduler}", gnb.rat, gnb.rbs))
            };
            let link = case.links.get(&access.link).cloned().unwrap_or_default();
            let _ = write!(
                text,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
                if i == 0 { escape(name) } else { String::new() },
                escape(&access.name),
                cell(false).unwrap_or_else(|| direction(&link.up)),
                cell(true).unwrap_or_else(|| direction(&link.down)),
                access.security,
                if i == 0 { escape(&rules.join(", ")) } else { String::new() },
            );
        }
    }
    text.push_str("</tbody></table>");
    text
}

fn direction(d: &LinkDirection) -> String {
    let rate = match &d.trace {
        Some(trace) => format!("trace {}", escape(trace.rsplit('/').next().unwrap_or(trace))),
        None => format!("{} Mbit/s", short(d.rate_mbps)),
    };
    let jitter = if d.jitter_ms > 0.0 { format!(" + 0…{}", short(d.jitter_ms)) } else { String::new() };
    let loss = d.loss.model().mean() * 100.0;
    let loss = if loss > 0.0 { format!(", {} % loss", short(loss)) } else { String::new() };
    format!("{rate}, {}{jitter} ms{loss}", short(d.delay_ms))
}

fn metrics(done: &Finished) -> String {
    let mut text =
        format!("<details><summary>All {} metrics</summary><table class=metrics><tbody>", done.metrics.len());
    for (name, value) in &done.metrics {
        let _ = write!(text, "<tr><td>{}<td>{}", escape(name), short(*value));
    }
    text.push_str("</tbody></table></details>");
    text
}

/// Formats `` `code` `` and `*emphasis*` in a description.
fn marked(text: &str) -> String {
    between(text, '`', |plain| between(plain, '*', escape, "em"), "code")
}

/// Encloses the text between two `mark`s in `tag`, and passes other text through `plain`. A mark without a second one is text.
fn between(text: &str, mark: char, plain: impl Fn(&str) -> String, tag: &str) -> String {
    let mut parts = text.split(mark).collect::<Vec<_>>();
    let odd = parts.len().is_multiple_of(2).then(|| parts.pop()).flatten();
    let mut out = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        out += &if i % 2 == 1 { format!("<{tag}>{}</{tag}>", escape(part)) } else { plain(part) };
    }
    out + &odd.map(|rest| format!("{mark}{}", plain(rest))).unwrap_or_default()
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
