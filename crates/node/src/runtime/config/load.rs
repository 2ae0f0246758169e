//! Reads configuration files, with error messages that state place and remedy.

use anabranch_element::names::did_you_mean;
use anabranch_kern::file::read_text;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::Path;

/// An error in a configuration. The program exits with code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// File name, or a description of the text.
    pub file: String,
    /// Line, counted from 1; `None` if the error concerns no single line.
    pub line: Option<usize>,
    /// Error and remedy.
    pub message: String,
}

impl ConfigError {
    /// An error that concerns the whole file.
    pub fn new(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self { file: file.into(), line: None, message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Reads a trace file by its configured name.
///
/// # Errors
/// The file cannot be read, or is larger than [`MAX_TEXT_BYTES`](anabranch_kern::file::MAX_TEXT_BYTES).
pub fn read_trace(file: &str) -> Result<String, String> {
    read_text(Path::new(file)).map_err(|e| e.to_string())
}

/// Checks of values that depend on each other, after parsing.
pub trait Check {
    /// Checks the values; the error describes the first problem with key and remedy.
    fn check(&self) -> Result<(), String>;
}

/// Reads and checks the file at `path`.
pub fn load<T: DeserializeOwned + Check>(path: &Path) -> Result<T, ConfigError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| {
        ConfigError::new(&name, format!("cannot be read: {e}; give another file with --config"))
    })?;
    parse(&name, &text)
}

/// Parses and checks `text`; `name` is its name in errors.
pub fn parse<T: DeserializeOwned + Check>(name: &str, text: &str) -> Result<T, ConfigError> {
    let value: T = toml::from_str(text).map_err(|error| ConfigError {
        file: name.to_owned(),
        line: error.span().map(|span| line_of(text, span.start)),
        message: explain_section(text, error.span(), error.message())
            .or_else(|| explain_value(text, error.span(), error.message()))
            .unwrap_or_else(|| explain(error.message())),
    })?;
    value.check().map_err(|message| ConfigError {
        file: name.to_owned(),
        line: line_hint(text, &message),
        message,
    })?;
    Ok(value)
}

/// The line with byte `at`, counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// The line of an error from a check: the first occurrence of the value that the message quotes.
fn line_hint(text: &str, message: &str) -> Option<usize> {
    let quoted = message.split('"').nth(1).filter(|q| !q.is_empty())?;
    text.find(&format!("\"{quoted}\"")).map(|at| line_of(text, at))
}

/// A better message for a section with too few or too many brackets: `[name]` occurs once, `[[name]]` may be
/// repeated.
fn explain_section(text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> Option<String> {
    let start = span?.start;
    let line = text.get(..start)?.rfind('\n').map_or(0, |at| at + 1);
    let header = text.get(line..)?.lines().next()?.split('#').next()?.trim();
    let name = header.trim_start_matches('[').trim_end_matches(']').trim();
    if name.is_empty() || !header.starts_with('[') || !header.ends_with(']') {
        return None;
    }
    let twice = header.starts_with("[[");
    if message.contains("duplicate key") {
        return Some(format!(
            "{header} occurs twice: merge both, or write [[{name}]] each time if it may be repeated"
        ));
    }
    match (message.strip_prefix("invalid type: "), twice) {
        (Some(rest), false) if rest.ends_with("expected a sequence") => {
            Some(format!("{header} may be repeated: write [[{name}]]"))
        }
        (Some(_), true) => Some(format!("{header} cannot be repeated: write [{name}]")),
        _ => None,
    }
}

/// A better message for an invalid value: adds section, key, value and valid values to errors of serde and of
/// the parsers of numbers and addresses.
fn explain_value(text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> Option<String> {
    let value = text.get(span.clone()?)?.trim();
    let before = text.get(..span?.start)?;
    // Not for syntax errors, nor for errors about a whole section.
    if !message.starts_with("invalid ") && !message.contains("out of range")
        || value.contains('\n')
        || value.is_empty()
    {
        return None;
    }
    // If keys of a section depend on each other, only its header is known.
    if value.starts_with('[') && text.lines().any(|line| line.trim() == value) {
        return Some(format!("{value}: one of its keys: {}", remedy(message)));
    }
    let written = before.lines().rev().filter(|line| !line.trim_start().starts_with('#'));
    let key = written.clone().find_map(|line| line.rsplit_once('=').map(|(key, _)| key))?.trim();
    // Within an inline table, it is the last key before the value.
    let key = key.rsplit(['{', ',', ' ']).next().filter(|key| !key.is_empty())?;
    let section = written.map(str::trim).find(|line| line.starts_with('[') && line.ends_with(']'));
    let place = section.map(|section| format!("{section} ")).unwrap_or_default();
    let value: String = value.chars().take(MOST_QUOTED).collect();
    Some(format!("{place}{key} = {value}: {}", remedy(message)))
}

/// Maximum number of characters of a value that an error quotes.
const MOST_QUOTED: usize = 60;

/// The valid values, without the names of Rust types.
fn remedy(message: &str) -> String {
    let range = |most: &dyn fmt::Display| format!("give a whole number from 0 to {most}");
    match message.rsplit_once(", expected ").map(|(_, wanted)| wanted) {
        Some("u8") => range(&u8::MAX),
        Some("u16") => range(&u16::MAX),
        Some("u32") => range(&u32::MAX),
        Some("u64" | "usize") => range(&i64::MAX),
        Some("i8" | "i16" | "i32" | "i64") => "give a whole number".to_owned(),
        Some("f32" | "f64") => "give a number".to_owned(),
        Some("a boolean") => "give true or false".to_owned(),
        Some(section) if section.starts_with("struct ") => "give a section, as in the example file".to_owned(),
        Some("a string") => "give a string in quotes".to_owned(),
        Some(other) => format!("give {}", other.replace('`', "\"")),
        None if message.contains("socket address") => {
            "give ADDRESS:PORT, as \"192.0.2.1:4500\" or \"[2001:db8::1]:4500\"".to_owned()
        }
        None if message.contains("IPv4 address") => "give an IPv4 address, as \"192.0.2.1\"".to_owned(),
        None if message.contains("IPv6 address") => "give an IPv6 address, as \"2001:db8::1\"".to_owned(),
        None if message.contains("IP address") || message.contains("prefix") => {
            "give an address or prefix of the right family and length, as \"10.45.0.0/16\" (0 to 32) or \"fd45::/64\" (0 to 128)"
                .to_owned()
        }
        None => message.replace('`', "\""),
    }
}

/// Adds the nearest valid name to serde's "unknown field `x`, expected one of `a`, `b`".
fn explain(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let what = if message.starts_with("unknown field") {
        "key"
    } else if message.starts_with("unknown variant") {
        "value"
    } else {
        return message.replace('`', "\"");
    };
    let Some(wrong) = names.next() else { return message.to_owned() };
    let valid: Vec<&str> = names.collect();
    if valid.is_empty() {
        return format!("unknown {what} \"{wrong}\"; no keys are valid here");
    }
    let hint = did_you_mean(wrong, valid.iter().copied());
    format!("unknown {what} \"{wrong}\"{hint} (valid here: {})", valid.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{GnbConfig, LwipConfig, ProxyConfig, SliceManagerConfig, UeConfig, UpfConfig};
    use super::*;

    const UE: &str = include_str!("../../../../../packaging/ue.example.toml");
    const GNB: &str = include_str!("../../../../../packaging/gnb.example.toml");
    const LWIP: &str = include_str!("../../../../../packaging/lwip.example.toml");
    const PROXY: &str = include_str!("../../../../../packaging/proxy.example.toml");
    const SLICES: &str = include_str!("../../../../../packaging/slice-manager.example.toml");
    const UPF: &str = include_str!("../../../../../packaging/upf.example.toml");

    /// Uncomments every `# key = value` line of an example, so that the documented options are checked, too.
    fn uncommented(text: &str) -> String {
        text.lines()
            .map(|line| {
                let bare = line.strip_prefix('#').unwrap_or(line);
                if bare.starts_with('[') || bare.split_once(" = ").is_some_and(|(k, _)| is_key(k)) {
                    bare
                } else {
                    line
                }
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn is_key(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    }

    #[test]
    fn errors_name_the_section_if_the_key_is_unknown() {
        let text =
            include_str!("../../../../../packaging/gnb.example.toml").replace("192.0.2.1:2152", "192.0.2.1");
        let error = parse::<GnbConfig>("gnb.toml", &text).unwrap_err().to_string();
        assert!(
            error.contains("[n3]: one of its keys: give ADDRESS:PORT") && !error.contains("real_time"),
            "{error}"
        );
    }

    #[test]
    fn wrong_numbers_of_brackets_are_explained() {
        let wrong = |text: &str| parse::<UeConfig>("ue.toml", text).unwrap_err().to_string();
        for (text, told) in [
            ("[access]\nname = \"x\"\n", "ue.toml:1: [access] may be repeated: write [[access]]"),
            ("[[ue]]\nname = \"x\"\n", "ue.toml:1: [[ue]] cannot be repeated: write [ue]"),
            ("[access]\nname = \"x\"\n[access]\nname = \"y\"\n", "[access] occurs twice"),
            ("ue = 3\n", "ue = 3: give a section"),
        ] {
            assert!(wrong(text).contains(told), "{text}: {}", wrong(text));
        }
    }

    #[test]
    fn the_examples_parse_as_they_are_and_with_every_option() {
        parse::<UeConfig>("ue.example.toml", UE).unwrap();
        parse::<UpfConfig>("upf.example.toml", UPF).unwrap();
        parse::<GnbConfig>("gnb.example.toml", GNB).unwrap();
        parse::<SliceManagerConfig>("slice-manager.example.toml", SLICES).unwrap();
        parse::<SliceManagerConfig>("slice-manager.example.toml", &uncommented(SLICES)).unwrap();
        parse::<GnbConfig>("gnb.example.toml", &uncommented(GNB)).unwrap();
        parse::<LwipConfig>("lwip.example.toml", LWIP).unwrap();
        parse::<LwipConfig>("lwip.example.toml", &uncommented(LWIP)).unwrap();
        parse::<ProxyConfig>("proxy.example.toml", PROXY).unwrap();
        parse::<ProxyConfig>("proxy.example.toml", &uncommented(PROXY)).unwrap();
        parse::<UeConfig>("ue.example.toml", &uncommented(UE)).unwrap();
        parse::<UpfConfig>("upf.example.toml", &uncommented(UPF)).unwrap();
    }

    #[test]
    fn an_unknown_key_names_file_line_key_and_the_nearest_name() {
        let text = UE.replace("private_key_file", "privat_key_file");
        let error = parse::<UeConfig>("ue.toml", &text).unwrap_err();
        let line = text.lines().position(|l| l.starts_with("privat_key_file")).unwrap() + 1;
        assert_eq!(error.line, Some(line));
        let text = error.to_string();
        assert!(text.starts_with(&format!("ue.toml:{line}: unknown key \"privat_key_file\"")), "{text}");
        assert!(text.contains("did you mean \"private_key_file\"?"), "{text}");
    }

    #[test]
    fn invalid_values_are_reported_with_key_value_and_range() {
        for (this, that, said) in [
            ("v4 = \"10.45.0.0/16\"", "v4 = \"10.45.0.0/33\"", ["[pool] v4 = \"10.45.0.0/33\"", "0 to 32"]),
            ("v4 = \"10.45.0.0/16\"", "v4 = \"10.45.0/16\"", ["[pool] v4 = \"10.45.0/16\"", "prefix"]),
            ("v4 = \"10.45.0.0/16\"", "v4 = \"fd45::/64\"", ["[pool] v4 = \"fd45::/64\"", "family"]),
            ("v4 = \"10.45.0.0/16\"", "v4 = 10", ["[pool] v4 = 10", "give"]),
            (
                "listen = \"0.0.0.0:4500\"",
                "listen = \"0.0.0.0:70000\"",
                ["[[access]] listen = \"0.0.0.0:70000\"", "ADDRESS:PORT"],
            ),
            (
                "[device]",
                "[device]\nbusy_poll_us = -1",
                ["[device] busy_poll_us = -1", "from 0 to 4294967295"],
            ),
            (
                "[device]",
                "[device]\nbusy_poll_us = 4294967296",
                ["[device] busy_poll_us = 4294967296", "from 0 to 4294967295"],
            ),
            ("[device]", "[device]\nbusy_poll_us = 1.5", ["[device] busy_poll_us = 1.5", "whole number"]),
            ("[device]", "[device]\nfast_path = \"no\"", ["[device] fast_path = \"no\"", "true or false"]),
            (
                "[n6]",
                "[n6]\nopen = [\"10.0.0.0/8\",\n  \"10.0.0.0/99\"]",
                ["[n6] open = \"10.0.0.0/99\"", "0 to 32"],
            ),
        ] {
            assert!(UPF.contains(this), "{this}");
            let error = parse::<UpfConfig>("upf.toml", &UPF.replacen(this, that, 1)).unwrap_err();
            let text = error.to_string();
            assert!(error.line.is_some() && said.iter().all(|piece| text.contains(piece)), "{text}");
        }
    }

    #[test]
    fn an_unknown_key_inside_a_rule_is_refused_too() {
        let text = format!(
            "{UE}\n[[rule]]\nname = \"x\"\nsteering = {{ mode = \"active-standby\", primry = \"5g\" }}\n"
        );
        let error = parse::<UeConfig>("ue.toml", &text).unwrap_err().to_string();
        assert!(error.contains("primry") && error.contains("did you mean \"primary\"?"), "{error}");
    }

    #[test]
    fn a_rule_about_an_access_that_does_not_exist_names_it() {
        let text = format!(
            "{UE}\n[[rule]]\nname = \"x\"\nsteering = {{ mode = \"active-standby\", primary = \"6g\" }}\n"
        );
        let error = parse::<UeConfig>("ue.toml", &text).unwrap_err();
        assert!(error.line.is_some() && error.message.contains("\"6g\""), "{error}");
    }

    #[test]
    fn values_shared_by_two_ues_are_reported() {
        let key = |id: u8| anabranch_atsss::crypto::PublicKey([id; 32]);
        let ue = |name: &str, id: u8, more: &str| {
            format!("[[ue]]\nname = \"{name}\"\npublic_key = \"{}\"\n{more}\n", key(id))
        };
        let with = |second: &str| {
            let first = ue("first", 1, "address_v4 = \"10.45.0.9\"\naddress_v6 = \"fd45::9\"");
            parse::<UpfConfig>("upf.toml", &format!("{UPF}\n{first}{second}"))
        };
        with(&ue("second", 2, "address_v4 = \"10.45.0.8\"\naddress_v6 = \"fd45::8\"")).unwrap();
        for (second, shared) in [
            (ue("first", 2, ""), "the name \"first\""),
            (ue("second", 1, ""), &*format!("public_key \"{}\"", key(1))),
            (ue("second", 2, "address_v4 = \"10.45.0.9\""), "address_v4 \"10.45.0.9\""),
            (ue("second", 2, "address_v6 = \"fd45::9\""), "address_v6 \"fd45::9\""),
        ] {
            let error = with(&second).unwrap_err();
            assert!(error.message.contains(&format!("share {shared}: it must be unique")), "{error}");
            assert!(error.message.starts_with("UEs first and ") && error.line.is_some(), "{error}");
        }
        for name in ["", ".", "..", &*"a".repeat(65)] {
            let error = with(&ue(name, 2, "")).unwrap_err();
            assert!(error.message.contains("use 1 to 64 bytes, not dots alone"), "{error}");
        }
    }

    #[test]
    fn a_plain_access_needs_the_address_of_the_upf() {
        for (remote, security, right) in [
            ("198.51.100.10:4500", "plain", true),
            ("[2001:db8::1]:4500", "plain", true),
            ("upf.example:4500", "secure", true),
            ("upf.example:4500", "plain", false),
            ("198.51.100.10.:4500", "plain", false),
        ] {
            let text = UE
                .replace("198.51.100.10:4500", remote)
                .replace("security = \"plain\"", &format!("security = \"{security}\""));
            let parsed = parse::<UeConfig>("ue.toml", &text);
            assert_eq!(parsed.is_ok(), right, "{remote} {security}: {parsed:?}");
            if let Err(error) = parsed {
                assert!(error.line.is_some() && error.message.contains("access 5g: remote"), "{error}");
            }
        }
    }

    #[test]
    fn both_ends_of_an_access_must_be_of_one_family() {
        for (local, remote, right) in [
            ("10.0.0.2", "198.51.100.10:4500", true),
            ("2001:db8::2", "[2001:db8::1]:4500", true),
            ("10.0.0.2", "[2001:db8::1]:4500", false),
            ("2001:db8::2", "198.51.100.10:4500", false),
        ] {
            let text = UE.replace("198.51.100.10:4500\"", &format!("{remote}\"\nlocal = \"{local}\""));
            let parsed = parse::<UeConfig>("ue.toml", &text);
            assert_eq!(parsed.is_ok(), right, "{local} {remote}: {parsed:?}");
            if let Err(error) = parsed {
                assert!(error.line.is_some() && error.message.contains(local), "{error}");
            }
        }
    }

    #[test]
    fn a_public_listener_needs_a_token() {
        let text = UE.replace("listen = \"unix:/run/anabranch/ue.sock\"", "listen = \"0.0.0.0:8080\"");
        assert_ne!(text, UE);
        let error = parse::<UeConfig>("ue.toml", &text).unwrap_err().to_string();
        assert!(error.contains("token_file"), "{error}");
    }
}
