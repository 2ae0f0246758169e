//! Scenario files: topology, traffic, events and claims, in TOML.
//!
//! ```text
//! text ─ walk (unknown keys, ranges; with lines) ─ overlay (--set, variants) ─ serde ─ resolve ─▶ Scenario
//! ```
//!
//! `docs/scenarios.md` is the reference; its tables are written by [`reference`] from the declarations in
//! [`file`].

pub mod file;
pub mod gnb;
pub mod lwip;
pub mod matrix;
pub mod model;
pub mod overlay;
pub mod reference;
mod resolve;
mod rules;
pub mod schema;
pub mod walk;

pub use matrix::Select;
pub use model::{Case, Scenario};

use crate::claims;
use anabranch_kern::file::read_text;
use file::File;
use matrix::Matrix;
use schema::Described;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use walk::{MOST_PROBLEMS, Problem, Problems};

/// The form of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The file without changes.
    Full,
    /// The file with the changes of its `[quick]`, if there is one.
    Quick,
}

/// Reads and checks a scenario file; `sets` are `key=value` changes from the command line. Of a matrix, the chosen cells are
/// included.
///
/// # Errors
/// Everything that is wrong with the file, each with its line.
pub fn load(path: &Path, sets: &[String], form: Form) -> Result<Scenario, Problems> {
    load_cells(path, sets, form, &Select::Chosen)
}

/// As [`load`], with the cells of a matrix selected by `select`.
///
/// # Errors
/// Everything that is wrong with the file, each with its line.
pub fn load_cells(path: &Path, sets: &[String], form: Form, select: &Select) -> Result<Scenario, Problems> {
    let text = read_text(path).map_err(|e| {
        let message = format!("cannot be read: {e}");
        Problems::new(path, vec![Problem { line: None, path: String::new(), message }])
    })?;
    parse_form(path, &text, sets, form, select).map_err(|problems| Problems::new(path, problems))
}

/// As [`load`], from text, in its full form; `path` determines the name and the folder of traces.
///
/// # Errors
/// Everything that is wrong with the text.
pub fn parse(path: &Path, text: &str, sets: &[String]) -> Result<Scenario, Vec<Problem>> {
    parse_form(path, text, sets, Form::Full, &Select::Chosen)
}

fn parse_form(
    path: &Path,
    text: &str,
    sets: &[String],
    form: Form,
    select: &Select,
) -> Result<Scenario, Vec<Problem>> {
    let shape = File::shape();
    walk::check(text, &shape)?;
    let mut base: toml::Table = toml::from_str(text).map_err(|e| vec![walk::from_toml(text, &e)])?;
    let mut right = CheckedSections::default();
    // The quick form is checked even if it is not requested.
    let quick = match base.remove("quick") {
        Some(toml::Value::Table(changes)) => {
            let mut changed = base.clone();
            let merged = overlay::merge(&mut changed, &changes).map_err(|m| format!("quick: {m}"));
            merged.map_err(|message| vec![without_place(message)])?;
            right.typed(changed.clone()).map_err(|ps| in_file(ps, text, None))?;
            (form == Form::Quick).then_some(changed)
        }
        _ => None,
    };
    let is_quick = quick.is_some();
    base = quick.unwrap_or(base);
    for set in sets {
        overlay::assign(&mut base, set).map_err(|message| vec![without_place(message)])?;
    }
    let mut whole = right.typed(base.clone()).map_err(|ps| in_file(ps, text, None))?;
    let name = path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let folder = path.parent().unwrap_or(Path::new("."));

    let missing: Vec<_> = whole.needs.iter().map(|n| folder.join(n)).filter(|n| !n.exists()).collect();
    if !missing.is_empty() {
        return Ok(scenario(path, name, whole, is_quick, Vec::new(), missing, None));
    }
    let mut problems = Vec::new();
    let mut cases = Vec::new();
    let mut matrix = None;
    if whole.matrix.is_none() && matches!(select, Select::Fit(_)) {
        problems.push(without_place(
            "--filter: there is no [matrix] in this file, so no cells to choose from".into(),
        ));
    }
    if let Some(spec) = whole.matrix.take() {
        if !whole.variant.is_empty() {
            problems.push(without_place("a file has `variant` or `matrix`, not both".into()));
        }
        base.remove("matrix");
        let each = |one: matrix::Expanded| {
            match one_case(one.table, &name, folder, Some(&one.variant), &mut right) {
                Ok(case) => cases.push(case),
                // Finding lines takes time, and further problems are not shown.
                Err(_) if problems.len() >= MOST_PROBLEMS => {}
                Err(ps) => problems.extend(in_file(ps, text, Some(&one.variant.name))),
            }
        };
        let cells = matrix::expand(&spec, &base, &whole.backends, select, each);
        matrix = Some(cells.map_err(|ps| in_file(ps, text, None))?);
        whole.matrix = Some(spec);
    } else if whole.variant.is_empty() {
        match one_case(base, &name, folder, None, &mut right) {
            Ok(case) => cases.push(case),
            Err(ps) => problems.extend(in_file(ps, text, None)),
        }
    } else {
        problems.extend(in_file(variant_names(&whole), text, None));
        base.remove("variant");
        for variant in &whole.variant {
            match one_case(base.clone(), &name, folder, Some(variant), &mut right) {
                Ok(case) => cases.push(case),
                Err(_) if problems.len() >= MOST_PROBLEMS => {}
                Err(ps) => problems.extend(in_file(ps, text, Some(&variant.name))),
            }
        }
    }
    // Metrics of a case that could not be resolved are not known.
    let resolved = problems.is_empty().then_some(cases.as_slice());
    problems.extend(in_file(claims::check(&whole, resolved), text, None));
    // A wrong value of an axis is reported for every cell that has it.
    problems.truncate(MOST_PROBLEMS);
    if !problems.is_empty() {
        return Err(problems);
    }
    if is_quick && !whole.variant.is_empty() {
        claims::retain_evaluated(&whole, &mut cases);
    }
    if matrix.is_some() {
        whole.backends.retain(|b| cases.iter().any(|case| case.backends.contains(b)));
    }
    Ok(scenario(path, name, whole, is_quick, cases, missing, matrix))
}

fn scenario(
    path: &Path,
    name: String,
    whole: File,
    quick: bool,
    cases: Vec<Case>,
    missing: Vec<PathBuf>,
    matrix: Option<Matrix>,
) -> Scenario {
    Scenario {
        file: path.to_owned(),
        name,
        title: whole.title,
        paper: whole.paper,
        description: whole.description,
        seed: whole.seed,
        runs: whole.runs,
        quick,
        missing,
        backends: whole.backends,
        cases,
        claims: whole.claim,
        plots: whole.plot,
        matrix,
    }
}

/// Keys that a variant may not change, because they concern all variants together.
const OF_THE_WHOLE: [&str; 12] = [
    "title",
    "paper",
    "description",
    "seed",
    "runs",
    "needs",
    "backends",
    "quick",
    "variant",
    "matrix",
    "claim",
    "plot",
];

fn variant_names(file: &File) -> Vec<Problem> {
    let (mut problems, mut names) = (Vec::new(), BTreeSet::new());
    for v in &file.variant {
        let path = format!("variant.{}", v.name);
        let mut problem = |message: &str| {
            problems.push(Problem { line: None, path: path.clone(), message: message.to_owned() });
        };
        if !walk::valid_name(&v.name) {
            problem("a name has letters, digits, `_` and `-` only");
        }
        if !names.insert(&v.name) {
            problem("there is another variant of this name");
        }
        if v.backends.as_ref().is_some_and(|b| b.iter().any(|b| !file.backends.contains(b))) {
            problem("runs on a backend that `backends` of the file does not name");
        }
        for key in v.set.keys().filter(|k| OF_THE_WHOLE.contains(&k.split('.').next().unwrap_or_default())) {
            problem(&format!("`{key}` concerns all variants together; a variant cannot set it"));
        }
    }
    problems
}

fn one_case(
    mut table: toml::Table,
    scenario: &str,
    folder: &Path,
    variant: Option<&file::Variant>,
    right: &mut CheckedSections,
) -> Result<Case, Vec<Problem>> {
    if let Some(variant) = variant {
        overlay::merge(&mut table, &variant.set).map_err(|message| vec![without_place(message)])?;
    }
    let mut file = right.typed(table)?;
    if let Some(backends) = variant.and_then(|v| v.backends.clone()) {
        file.backends = backends;
    }
    for trace in file.gnb.values_mut().flat_map(super::scenario::gnb::Gnb::files) {
        *trace = folder.join(&*trace).to_string_lossy().into_owned();
    }
    for link in file.link.values_mut() {
        for direction in [&mut link.up, &mut link.down] {
            if let Some(trace) = &mut direction.trace {
                *trace = folder.join(&*trace).to_string_lossy().into_owned();
            }
        }
    }
    let title = variant.map(|v| (v.name.as_str(), v.title.as_deref().unwrap_or(&v.name)));
    resolve::resolve(file, scenario, title)
}

/// Sections of merged tables that passed the checks, by the hash of their name and content. The cells of a matrix have most of
/// them in common.
#[derive(Default)]
struct CheckedSections(BTreeMap<u64, Vec<(String, toml::Value)>>);

impl CheckedSections {
    /// Checks a merged table again and deserializes it.
    fn typed(&mut self, table: toml::Table) -> Result<File, Vec<Problem>> {
        let wrong = |e: &dyn std::fmt::Display| vec![without_place(e.to_string().replace('\n', "; "))];
        let schema::Shape::Table(root) = File::shape() else { return Err(wrong(&"a file is a table")) };
        let is_required = |name: &str| root.keys.iter().any(|key| key.required && key.name == name);
        let (mut unknown, mut new) = (BTreeMap::new(), Vec::new());
        for (name, value) in &table {
            let hash = hash_of(name, value);
            let is_checked =
                self.0.get(&hash).is_some_and(|all| all.iter().any(|(n, v)| n == name && v == value));
            if is_required(name) || !is_checked {
                unknown.insert(name, value);
            }
            if !is_checked {
                new.push((hash, (name.clone(), value.clone())));
            }
        }
        let text = toml::to_string(&unknown).map_err(|e| wrong(&e))?;
        walk::check(&text, &File::shape()).map_err(|mut problems| {
            problems.iter_mut().for_each(|problem| problem.line = None);
            problems
        })?;
        for (hash, section) in new {
            self.0.entry(hash).or_default().push(section);
        }
        table.try_into().map_err(|e: toml::de::Error| wrong(&e.message()))
    }
}

fn hash_of(name: &str, value: &toml::Value) -> u64 {
    fn add(value: &toml::Value, hasher: &mut DefaultHasher) {
        std::mem::discriminant(value).hash(hasher);
        match value {
            toml::Value::String(text) => text.hash(hasher),
            toml::Value::Integer(number) => number.hash(hasher),
            toml::Value::Float(number) => number.to_bits().hash(hasher),
            toml::Value::Boolean(flag) => flag.hash(hasher),
            toml::Value::Datetime(time) => time.to_string().hash(hasher),
            toml::Value::Array(list) => {
                list.len().hash(hasher);
                list.iter().for_each(|element| add(element, hasher));
            }
            toml::Value::Table(table) => {
                table.len().hash(hasher);
                for (key, element) in table {
                    key.hash(hasher);
                    add(element, hasher);
                }
            }
        }
    }
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    add(value, &mut hasher);
    hasher.finish()
}

fn without_place(message: String) -> Problem {
    Problem { line: None, path: String::new(), message }
}

/// Assigns problems of a merged table to the most specific line of the file as written.
fn in_file(problems: Vec<Problem>, text: &str, variant: Option<&str>) -> Vec<Problem> {
    if problems.is_empty() {
        return problems;
    }
    let lines = walk::Lines::new(text);
    problems
        .into_iter()
        .take(MOST_PROBLEMS)
        .map(|mut p| {
            let of_variant = || variant.and_then(|v| lines.of_path(&format!("variant.{v}")));
            p.line = p.line.or_else(|| lines.of_path(&p.path)).or_else(of_variant);
            if let Some(variant) = variant {
                p.message = format!("{} (in variant `{variant}`)", p.message);
            }
            p
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::model::{Action, Traffic, Via};
    use super::*;

    const SMALL: &str = r#"
title = "two accesses"
[link.wifi]
[link.nr]
[ue.phone]
accesses = [{ name = "wifi", link = "wifi" }, { name = "5g", link = "nr" }]
[flow.down]
kind = "bulk_tcp"
[[event]]
kind = "link_down"
at_s = 5
link = "wifi"
"#;

    fn parse_text(text: &str, sets: &[&str]) -> Result<Scenario, String> {
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        let path = Path::new("folder/small.toml");
        parse(path, text, &sets).map_err(|p| Problems::new(path, p).to_string())
    }

    #[test]
    fn metrics_may_refer_to_each_other_but_not_to_themselves() {
        let case = |metrics: &str| parse_text(&format!("{SMALL}\n[metric]\n{metrics}"), &[]);
        for cycle in ["a = \"metric.a\"", "a = \"metric.b + 1\"\nb = \"metric.c\"\nc = \"metric.a\""] {
            let wrong = case(cycle).unwrap_err();
            assert!(wrong.contains("metric.a: refers to itself"), "{wrong}");
        }
        // In any order of the names.
        let scenario = case(
            "a = \"metric.b + 1\"\nb = \"metric.c * 2\"\nc = \"flow.down.goodput_mbps\"\nd = \"metric.a\"",
        )
        .unwrap();
        let mut outcome = crate::backend::Outcome::default();
        outcome.metrics.insert("flow.down.goodput_mbps".to_owned(), 5.0);
        crate::claims::derive(&scenario.cases[0], &mut outcome);
        let values = ["a", "b", "c", "d"].map(|name| outcome.metrics[&format!("metric.{name}")]);
        assert_eq!(values, [11.0, 10.0, 5.0, 11.0]);
    }

    #[test]
    fn a_trace_with_a_default_queue_is_warned_of() {
        let trace =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers/lwip/traces/wifi-shared.csv");
        let warnings = |more: &str| {
            let down = format!("link.wifi.down={{trace=\"{trace}\"{more}}}");
            parse_text(SMALL, &[&down]).unwrap().cases[0].warnings.join("\n")
        };
        assert!(warnings("").contains("link.wifi.down: the queue is sized for rate_mbps = 100"));
        for more in [", queue_packets=50", ", queue_bytes=60000", ", rate_mbps=20"] {
            assert_eq!(warnings(more), "", "{more}");
        }
    }

    #[test]
    fn defaults_fill_in_the_rest() {
        let scenario = parse_text(SMALL, &[]).unwrap();
        let case = &scenario.cases[0];
        assert_eq!((scenario.name.as_str(), case.ues["phone"].rules.len()), ("small", 1));
        assert_eq!(case.flows["down"].via, Via::Atsss);
        assert!(matches!(case.flows["down"].traffic, Traffic::BulkTcp { bytes: None, .. }));
        assert!(matches!(case.timeline(1)[0].1, Action::LinkDown { .. }));
        assert!(case.servers.contains_key("server") && case.upfs.contains_key("upf"));
    }

    #[test]
    fn variants_and_sets_change_the_file() {
        let text = format!(
            "{SMALL}\n[[variant]]\nname = \"plain\"\nset.ue.phone.security = \"plain\"\n\
             [[variant]]\nname = \"one\"\nset.\"flow.down.via\" = \"direct:5g\"\n"
        );
        let scenario = parse_text(&text, &["link.nr.up.rate_mbps=3"]).unwrap();
        assert_eq!(scenario.cases.len(), 2);
        assert_eq!(scenario.cases[0].ues["phone"].accesses[0].security, file::Security::Plain);
        assert_eq!(scenario.cases[1].flows["down"].via, Via::Direct("5g".into()));
        assert!(scenario.cases.iter().all(|c| c.links["nr"].up.rate_mbps == 3.0));
    }

    #[test]
    fn the_quick_form_changes_what_it_says() {
        let text = format!("{SMALL}\n[quick]\nruns = 3\n\"event.0.at_s\" = 1\nduration_s = 2\n");
        let path = Path::new("small.toml");
        let quick = parse_form(path, &text, &["runs=4".into()], Form::Quick, &Select::Chosen).unwrap();
        assert!(quick.quick && quick.runs == 4 && quick.cases[0].timeline(1)[0].0.as_secs() == 1);
        let full = parse(path, &text, &[]).unwrap();
        assert!(!full.quick && full.runs == 1 && full.cases[0].duration.as_secs() == 10);
        let wrong = text.replace("runs = 3", "run = 3");
        assert!(parse_text(&wrong, &[]).unwrap_err().contains("did you mean"));
    }

    #[test]
    fn the_quick_form_runs_only_variants_of_claims() {
        let text = format!(
            "backends = [\"virtual\", \"netns\"]\n{SMALL}\n[[variant]]\nname = \"one\"\n[[variant]]\nname = \"one-more\"\n[[claim]]\nid = \"c\"\nwhat = \"w\"\n\
             metric = \"one-more.flow.down.goodput_mbps\"\nmin = 1\nbackends = [\"netns\"]\n[quick]\nruns = 2\n"
        );
        let path = Path::new("small.toml");
        let quick = parse_form(path, &text, &[], Form::Quick, &Select::Chosen).unwrap();
        let runs_on: Vec<_> = quick.cases.iter().map(|case| case.backends.as_slice()).collect();
        assert_eq!(runs_on, [&[][..], &[file::BackendName::Netns]]);
        let full = parse(path, &text, &[]).unwrap();
        assert!(full.cases.iter().all(|case| case.backends == full.backends));
    }

    #[test]
    fn a_scenario_without_its_files_is_skipped() {
        let text = format!("needs = [\"no-such.csv\"]\n{SMALL}");
        let scenario = parse_text(&text, &[]).unwrap();
        assert!(scenario.cases.is_empty() && scenario.missing == [Path::new("folder/no-such.csv")]);
        assert!(parse_text(SMALL, &[]).unwrap().missing.is_empty());
    }

    #[test]
    fn two_flows_do_not_listen_at_one_port() {
        let two = |more: &str| format!("{SMALL}{}", more.replacen("[flow.", "\n[flow.", 1));
        let both = |sets: &[&str]| {
            let text = two("[flow.other]\nkind = \"bulk_tcp\"\nport = 443\n");
            parse_text(&text, &[&["flow.down.port=443"], sets].concat())
        };
        let says = both(&[]).unwrap_err();
        assert!(
            says.contains("flow.other.port: 443 is the port of flow `down` at the same server"),
            "{says}"
        );
        both(&["flow.other.enabled=false"]).unwrap();
        both(&["flow.other.kind=cbr"]).unwrap();
        let servers = ["server.a={}", "server.b={}", "flow.down.server=a", "flow.other.server=b"];
        both(&servers).unwrap();
        // In namespaces, the local UDP port of a UE equals the server's port.
        let udp = |backend| both(&[&servers[..], &["flow.*.kind=cbr", backend]].concat());
        udp("backends=[\"virtual\"]").unwrap();
        let says = udp("backends=[\"netns\"]").unwrap_err();
        assert!(says.contains("at the same UE"), "{says}");
    }

    #[test]
    fn too_many_points_or_events_are_refused() {
        parse_text(SMALL, &["duration_s=1000", "sample_ms=1"]).unwrap();
        let says = parse_text(SMALL, &["duration_s=3600", "sample_ms=1"]).unwrap_err();
        assert!(says.contains("sample_ms: makes 3600000 points of each series: take 4 or more"), "{says}");
        let says = parse_text(SMALL, &["backends=[]"]).unwrap_err();
        assert!(says.contains("backends: names none; there is virtual, netns"), "{says}");
        let plot = format!(
            "{SMALL}[[plot]]\nkind = \"time\"\ntitle = \"t\"\nseries = [\"flow.down.goodput_mbps\"]\n"
        );
        parse_text(&plot, &["plot.0.x_min=0", "plot.0.x_max=1e15"]).unwrap();
        for (ends, wrong) in [("0", "x_min: is not below"), ("1e300", "1e15 at most")] {
            let says = parse_text(&plot, &["plot.0.x_min=0", &format!("plot.0.x_max={ends}")]).unwrap_err();
            assert!(says.contains(wrong), "{says}");
        }
        let says = parse_text(SMALL, &["duration_s=3600", "event.0.every_s=0.001"]).unwrap_err();
        assert!(says.contains("event.0.every_s: happens 3595000 times"), "{says}");
    }

    #[test]
    fn packets_in_transit_at_the_end_have_time_to_arrive() {
        let most = |sets: &[&str]| parse_text(SMALL, sets).unwrap().cases[0].under_way(1000.0).as_millis();
        // 100 ms of queue, 5 ms, 0.5 ms to the server, and 200 ms.
        assert_eq!(most(&[]), 305);
        assert_eq!(most(&["link.nr.up.delay_ms=10000", "link.nr.up.jitter_ms=30"]), 10_330);
        let slower = ["event.0.kind=rate", "event.0.rate_mbps=1", "event.0.link=nr"];
        assert_eq!(most(&slower), 1205);
        assert_eq!(most(&["flow.down.kind=ping"]), 411);
    }

    #[test]
    fn errors_of_a_run_are_found_by_the_check() {
        let many = |ues: usize| {
            let one = |i| format!("[ue.u{i}]\naccesses = [{{ name = \"a\", link = \"a\" }}]\n");
            let ues: String = (0..ues).map(one).collect();
            format!("title = \"t\"\n[link.a]\n{ues}[flow.f]\nkind = \"bulk_tcp\"\nue = \"u0\"\n")
        };
        assert!(parse_text(&many(2000), &[]).is_ok());
        let says = parse_text(&many(2001), &[]).unwrap_err();
        assert!(says.contains("2001 UEs: the virtual backend has addresses for 2000"), "{says}");
        let says = parse_text(&many(30), &["flow.f.ue=v"]).unwrap_err();
        assert!(says.contains("there is no ue `v`") && says.contains("and 10 more"), "{says}");
        let says = parse_text(SMALL, &["event.0.link=x", "event.0.gnb=x", "event.0.kind=share"]).unwrap_err();
        assert!(!says.contains("there is \n") && !says.ends_with("there is "), "{says}");
    }

    #[test]
    fn wrong_references_are_found_with_their_line() {
        let wrong = SMALL.replace("link = \"nr\"", "link = \"n\"");
        let says = parse_text(&wrong, &[]).unwrap_err();
        assert!(says.contains("small.toml:6: ue.phone.accesses.5g: there is no link `n`"), "{says}");
        assert!(says.contains("link.nr: is used by no UE"), "{says}");
        let says = parse_text(SMALL, &["flow.down.vai=x"]).unwrap_err();
        assert!(says.contains("did you mean \"via\""), "{says}");
        let says = parse_text(SMALL, &["flow.down.via=mptcp"]).unwrap_err();
        assert!(says.contains("no MPTCP"), "{says}");
        let says = parse_text(SMALL, &["flow.down.telemetry.every=4"]).unwrap_err();
        assert!(says.contains("it needs `ipv6 = true`"), "{says}");
        let says = parse_text(SMALL, &["flow.down.ipv6=true", "flow.down.via=mptcp"]).unwrap_err();
        assert!(says.contains("IPv6 goes by `via = \"atsss\"`"), "{says}");
        let v6 = ["flow.down.ipv6=true", "flow.down.via=direct:5g", "flow.down.telemetry.every=4"];
        assert_eq!(
            parse_text(SMALL, &v6).unwrap().cases[0].flows["down"].telemetry.as_ref().unwrap().every,
            4
        );
        let text = format!("{SMALL}\n[[variant]]\nname = \"v\"\nset.flow.down.start_s = 99\n");
        let says = parse_text(&text, &[]).unwrap_err();
        assert!(says.contains("after the end of the run (duration_s) (in variant `v`)"), "{says}");
    }
}
