//! `anabranch ctl rules`: rules from flags or a TOML file, changes to the list, and its display.

use super::error::CtlError;
use super::table::{or_dash, table};
use crate::runtime::api::{CodingCounters, Law, LawPath, RuleUse, Rules};
use crate::runtime::config::{self, Check};
use anabranch_rules::Filter;
use anabranch_steer::{ModeName, ParamKind, Rule, SteeringMode};
use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Actions on rules; without one, they are shown.
#[derive(Debug, clap::Subcommand)]
pub enum Change {
    /// Add a rule, or the rules of a file; by default before all others.
    #[command(after_help = "\
Examples:
  anabranch ctl rules add calls --mode redundant \\
      --protocol udp --remote-port 3478-3481
  anabranch ctl rules add office --mode active-standby --primary wifi \\
      --remote 192.0.2.0/24 --before everything-else
  anabranch ctl rules add --file more.toml --last        [[rule]] sections")]
    Add {
        #[command(flatten)]
        new: New,
        /// Insert before this rule.
        #[arg(long, value_name = "NAME", conflicts_with = "last")]
        before: Option<String>,
        /// Insert after all others. The first match wins: after a rule that matches everything it has no effect.
        #[arg(long)]
        last: bool,
    },
    /// Replace one rule in place or, with --file, all rules.
    #[command(after_help = "\
Examples:
  anabranch ctl rules replace downloads --mode load-balance \\
      --weights 5g=40,wifi=60
  anabranch ctl rules replace --file rules.toml                  the whole list")]
    Replace {
        #[command(flatten)]
        new: New,
    },
    /// Remove rules.
    #[command(after_help = "\
Examples:
  anabranch ctl rules remove calls office
  anabranch ctl rules remove --all            a UE then uses the UPF's rules")]
    Remove {
        /// Names of the rules.
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "NAME")]
        names: Vec<String>,
        /// Remove all rules.
        #[arg(long)]
        all: bool,
    },
}

/// A rule given by flags, or a file of rules.
#[derive(Debug, Default, clap::Args)]
pub struct New {
    /// Name of the rule.
    #[arg(required_unless_present = "file", conflicts_with = "file", requires = "mode")]
    name: Option<String>,
    /// TOML file with [[rule]] sections instead of the flags.
    #[arg(long, value_name = "FILE", conflicts_with = "mode")]
    file: Option<PathBuf>,
    #[command(flatten)]
    steering: SteeringFlags,
    #[command(flatten)]
    filter: FilterFlags,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "How the traffic is steered")]
struct SteeringFlags {
    /// Steering mode.
    #[arg(long, value_parser = PossibleValuesParser::new(ModeName::NAMES))]
    mode: Option<String>,
    #[command(flatten)]
    params: ParamFlags,
    /// Do not restore packet order at the receiver; for traffic that tolerates reordering.
    #[arg(long, requires = "mode")]
    no_reorder: bool,
}

/// Parameters of the modes in flags, whose names are the keys of the TOML form with `-` for `_`.
#[derive(Debug, Default)]
struct ParamFlags(Map<String, Value>);

impl clap::Args for ParamFlags {
    fn augment_args(command: Command) -> Command {
        command.args(ModeName::all_params().into_iter().map(|(param, modes)| {
            let default = param.default.as_ref().filter(|value| value.is_number());
            let default = default.map(|value| format!("; default {value}")).unwrap_or_default();
            let unit = param.name.rsplit('_').next().unwrap_or_default().to_uppercase();
            let arg = Arg::new(param.name).long(param.name.replace('_', "-")).requires("mode").help(format!(
                "{}: {}{default}",
                modes.join(", "),
                param.about
            ));
            match param.kind {
                ParamKind::Bool => arg.action(ArgAction::SetTrue),
                ParamKind::Words(words) => {
                    arg.value_parser(PossibleValuesParser::new(words).map(Value::from))
                }
                ParamKind::Access => {
                    arg.value_name("ACCESS").value_parser(StringValueParser::new().map(Value::from))
                }
                ParamKind::Number => arg.value_name(unit).value_parser(number),
                ParamKind::Integer(max) => {
                    let number = clap::value_parser!(u32).range(0..=i64::from(max));
                    arg.value_name(unit).value_parser(number.map(Value::from))
                }
                ParamKind::Weights => {
                    let arg = arg.value_name("ACCESS=PERCENT").value_delimiter(',').value_parser(weight);
                    arg.action(ArgAction::Append)
                }
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ParamFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = ModeName::all_params().into_iter().filter_map(|(param, _)| {
            let value = match param.kind {
                ParamKind::Bool => matches.get_flag(param.name).then_some(Value::Bool(true)),
                ParamKind::Weights => {
                    let values = matches.get_many::<Value>(param.name);
                    values.map(|values| Value::Array(values.cloned().collect()))
                }
                _ => matches.get_one(param.name).cloned(),
            };
            value.map(|value| (param.name.to_owned(), value))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

#[derive(Debug, Default, clap::Args, Serialize)]
#[command(next_help_heading = "Which traffic; all given must match (local: the UE's side)")]
struct FilterFlags {
    /// Transport protocol.
    #[arg(long, value_parser = ["tcp", "udp", "icmp"], requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    /// Address or prefix at the UE's side.
    #[arg(long, value_name = "PREFIX", value_parser = prefix, requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<IpNet>,
    /// Address or prefix of the remote side.
    #[arg(long, value_name = "PREFIX", value_parser = prefix, requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<IpNet>,
    /// Port or port range at the UE's side: 443 or 5000-5100.
    #[arg(long, value_name = "PORTS", requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    local_port: Option<String>,
    /// Port or port range of the remote side.
    #[arg(long, value_name = "PORTS", requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_port: Option<String>,
    /// Domain name, including its subdomains.
    #[arg(long, requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    /// Numeric user id on the UE.
    #[arg(long, requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    /// cgroup on the UE, relative to the cgroup root.
    #[arg(long, value_name = "PATH", requires = "mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<String>,
}

impl Change {
    /// The list after the change.
    pub fn apply(&self, mut rules: Vec<Rule>) -> Result<Vec<Rule>, CtlError> {
        match self {
            Self::Add { new, before, last } => {
                let added = new.rules()?;
                if let Some(rule) = added.iter().find(|new| rules.iter().any(|r| r.name == new.name)) {
                    let remedy =
                        format!("anabranch ctl rules replace {0}, or choose another name", rule.name);
                    return Err(CtlError::failed(
                        format!("rule \"{}\"", rule.name),
                        format!("exists: {remedy}"),
                    ));
                }
                let at = match before {
                    Some(name) => position(&rules, name)?,
                    None if *last => rules.len(),
                    None => 0,
                };
                rules.splice(at..at, added);
                Ok(rules)
            }
            Self::Replace { new } if new.file.is_some() => new.rules(),
            Self::Replace { new } => {
                for rule in new.rules()? {
                    let at = position(&rules, &rule.name)?;
                    rules[at] = rule;
                }
                Ok(rules)
            }
            Self::Remove { all: true, .. } => Ok(Vec::new()),
            Self::Remove { names, .. } => {
                for name in names {
                    rules.remove(position(&rules, name)?);
                }
                Ok(rules)
            }
        }
    }
}

impl New {
    fn rules(&self) -> Result<Vec<Rule>, CtlError> {
        match (&self.file, &self.name) {
            (Some(file), _) => read(file),
            (None, Some(name)) => self.rule(name).map(|rule| vec![rule]),
            (None, None) => Err(CtlError::Usage("give the name of a rule, or --file".into())),
        }
    }

    /// Uses the parser of files and REST, so that all three accept the same rules.
    fn rule(&self, name: &str) -> Result<Rule, CtlError> {
        let wrong = |e: serde_json::Error| {
            // serde names keys `like_this`; the command-line options are --like-this.
            let pieces = e.to_string();
            let text: String = pieces
                .split('`')
                .enumerate()
                .map(
                    |(i, piece)| {
                        if i % 2 == 1 { format!("--{}", piece.replace('_', "-")) } else { piece.into() }
                    },
                )
                .collect();
            let mode = self.steering.mode.as_deref().unwrap_or_default();
            CtlError::Usage(
                format!("rule \"{name}\", --mode {mode}: {text}").replace("field --", "option --"),
            )
        };
        let mut filter = serde_json::to_value(&self.filter).map_err(wrong)?;
        for key in ["local_port", "remote_port"] {
            // In files, a single port is a number; only a range is text.
            if let Some(port) = filter.get(key).and_then(Value::as_str).and_then(|p| p.parse::<u16>().ok()) {
                filter[key] = port.into();
            }
        }
        let mut rule = Map::new();
        rule.insert("name".into(), name.into());
        rule.insert("filter".into(), filter);
        let mut steering = self.steering.params.0.clone();
        steering.insert("mode".into(), self.steering.mode.as_deref().into());
        rule.insert("steering".into(), steering.into());
        rule.insert("reorder".into(), (!self.steering.no_reorder).into());
        serde_json::from_value(Value::Object(rule)).map_err(wrong)
    }
}

/// The `[[rule]]` sections of a file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    #[serde(default)]
    rule: Vec<Rule>,
}

impl Check for RulesFile {
    fn check(&self) -> Result<(), String> {
        if self.rule.is_empty() {
            return Err("the file has no rules: write [[rule]] sections as in ue.toml".into());
        }
        Ok(())
    }
}

/// Reads `[[rule]]` sections from a TOML file.
pub fn read(file: &Path) -> Result<Vec<Rule>, CtlError> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|e| CtlError::Usage(format!("{name}: {e}")))?;
    Ok(config::parse::<RulesFile>(&name, &text)?.rule)
}

/// The rules as `[[rule]]` sections of a configuration file.
pub fn to_toml(rules: &[Rule]) -> Result<String, CtlError> {
    toml::to_string(&RulesFile { rule: rules.to_vec() }).map_err(|e| CtlError::failed("rules as TOML", e))
}

/// The rules as a table in the order of matching, with the current decisions of a session and remarks below.
pub fn show(rules: &Rules, coded: Option<&CodingCounters>) -> String {
    if rules.uses.is_empty() {
        let row = |rule: &Rule| [vec![rule.name.clone()], definition(rule).into()].concat();
        return table(&["rule", "traffic", "steering"], rules.rules.iter().map(row));
    }
    let idle = rules.rules.iter().filter(|rule| rules.uses.iter().all(|used| used.rule != rule.name));
    let idle = idle.map(|rule| {
        let [traffic, steering] = definition(rule);
        vec![rule.name.clone(), "-".into(), traffic, steering, "-".into(), "-".into(), "-".into()]
    });
    let used = rules.uses.iter().map(|used| {
        let [traffic, steering] = match &used.definition {
            Some(rule) => definition(rule),
            None => ["everything else".into(), used.mode.clone()],
        };
        vec![
            used.rule.clone(),
            used.origin.clone(),
            traffic,
            steering,
            or_dash(accesses(used)),
            used.switches.to_string(),
            used.why.clone(),
        ]
    });
    let columns = ["rule", "from", "traffic", "steering", "on", ">switches", "now"];
    let mut text = table(&columns, used.chain(idle));
    let reasons: Vec<Vec<String>> = rules.uses.iter().flat_map(not_used).collect();
    if !reasons.is_empty() {
        text.push('\n');
        text.push_str(&table(&["rule", "not by", "because"], reasons));
    }
    for used in &rules.uses {
        if let Some(law) = &used.law {
            text.push('\n');
            text.push_str(&law_text(&used.rule, law));
        }
    }
    if let Some(coded) = coded {
        text.push('\n');
        text.push_str(&coded_text(coded));
    }
    text
}

/// Statistics of coded redundancy, both directions.
pub fn coded_text(coded: &CodingCounters) -> String {
    let CodingCounters { tx_packets, tx_repairs, rx_packets, rx_repairs, restored, late, given_up } = *coded;
    let row = [tx_packets, tx_repairs, rx_packets, rx_repairs, restored, late, given_up];
    table(
        &["coded", ">sent", ">repairs", ">received", ">repairs", ">restored", ">too late", ">given up"],
        [["packets".to_owned()].into_iter().chain(row.map(|n| n.to_string())).collect()],
    )
}

/// The access that carries a rule's packets, or the share of each access.
fn accesses(used: &RuleUse) -> Option<String> {
    let all: u64 = used.packets.values().sum();
    let share = |(access, n): (&String, &u64)| format!("{access} {:.0} %", *n as f64 * 100.0 / all as f64);
    let shares = || used.packets.iter().map(share).collect::<Vec<_>>().join(", ");
    used.access.clone().or_else(|| (all > 0).then(shares))
}

/// Reasons why a rule does not use an access, except for the path state and for standby accesses.
fn not_used(used: &RuleUse) -> Vec<Vec<String>> {
    let is_shown = |reason: &str| !matches!(reason, "down" | "standby");
    let rows = used.not_used.iter().filter(|not| is_shown(&not.reason));
    rows.map(|not| vec![used.rule.clone(), not.access.clone(), not.why.clone()]).collect()
}

fn law_text(rule: &str, law: &Law) -> String {
    let rows = law.paths.iter().map(|(access, path)| {
        let LawPath { at_home, spilled, overflowed, placed, moved, left, bulk_flows } = path;
        let flows = [u64::from(*bulk_flows), *placed, *moved, *left];
        let packets = [at_home, spilled, overflowed].map(|n| n.to_string());
        [access.clone()].into_iter().chain(packets).chain(flows.map(|n| n.to_string())).collect()
    });
    let columns = [
        rule,
        ">packets at home",
        ">spilled",
        ">overflowed",
        ">bulk flows",
        ">placed",
        ">moved here",
        ">left for loss",
    ];
    table(&columns, rows)
}

/// The traffic that a rule matches, and its steering.
fn definition(rule: &Rule) -> [String; 2] {
    let order = if rule.reorder { "" } else { ", unordered" };
    [filter(&rule.filter), steering(&rule.steering) + order]
}

/// A filter as text on one line.
fn filter(filter: &Filter) -> String {
    let keys = pairs(&serde_json::to_value(filter).unwrap_or_default());
    if keys.is_empty() { "everything".into() } else { keys }
}

/// A mode and its parameters as text on one line.
fn steering(mode: &SteeringMode) -> String {
    let mut value = serde_json::to_value(mode).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.remove("mode");
        if let Some(Value::Array(weights)) = map.get("weights") {
            let text: Vec<String> = weights
                .iter()
                .map(|w| format!("{}={}", w["access"].as_str().unwrap_or_default(), w["percent"]))
                .collect();
            map.insert("weights".into(), text.join(",").into());
        }
        // Parameters that are not set are not shown.
        map.retain(|_, v| *v != json!("") && *v != json!(false));
    }
    format!("{} {}", mode.name(), pairs(&value)).trim_end().to_owned()
}

fn pairs(value: &Value) -> String {
    let Some(map) = value.as_object() else { return String::new() };
    let one = |(key, value): (&String, &Value)| match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    };
    map.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn position(rules: &[Rule], name: &str) -> Result<usize, CtlError> {
    rules.iter().position(|r| r.name == name).ok_or_else(|| {
        let names: Vec<&str> = rules.iter().map(|r| r.name.as_str()).collect();
        let there = if names.is_empty() { "there are none".into() } else { names.join(", ") };
        CtlError::failed(format!("rule \"{name}\""), format!("is not among the agent's own rules ({there})"))
    })
}

/// Parses a prefix such as `192.0.2.0/24`, or a single address.
fn prefix(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<std::net::IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| "write 192.0.2.0/24, 192.0.2.1 or 2001:db8::/32".into())
}

fn number(text: &str) -> Result<Value, String> {
    text.parse::<f64>().map(Value::from).map_err(|e| e.to_string())
}

/// Parses a weight such as `wifi=60`; the share is a percentage.
fn weight(text: &str) -> Result<Value, String> {
    let parsed = text.split_once('=').and_then(|(access, p)| Some((access, p.parse::<u8>().ok()?)));
    let (access, percent) = parsed.ok_or("write ACCESS=PERCENT, as in 5g=40,wifi=60")?;
    Ok(json!({ "access": access, "percent": percent }))
}
