//! `anabranch ctl metrics`.

use super::Output;
use super::client::Client;
use super::error::CtlError;
use serde::Serialize;
use std::collections::BTreeMap;

/// Prints the lines that contain a text; as JSON, the samples.
pub async fn run(client: &Client, contains: Option<&str>, output: &mut Output<'_>) -> Result<(), CtlError> {
    let text = client.text(&["metrics"]).await?;
    let lines: Vec<&str> = text.lines().filter(|l| contains.is_none_or(|c| l.contains(c))).collect();
    if let (Some(text), true) = (contains, lines.is_empty()) {
        let remedy = "`anabranch ctl metrics` prints all lines";
        return Err(CtlError::Failed(format!("no line contains \"{text}\"; {remedy}")));
    }
    let samples: Vec<Sample<'_>> = lines.iter().filter_map(|line| sample(line)).collect();
    output.show(&samples, || lines.iter().map(|line| format!("{line}\n")).collect())
}

#[derive(Debug, PartialEq, Serialize)]
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, String>,
    value: f64,
}

/// A line of OpenMetrics text: `name{label="value",…} number`.
fn sample(line: &str) -> Option<Sample<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, mut rest)) = head.strip_suffix('}').and_then(|h| h.split_once('{')) else {
        return Some(Sample { name: head, labels: BTreeMap::new(), value });
    };
    let mut labels = BTreeMap::new();
    while let Some((label, quoted)) = rest.split_once("=\"") {
        let (text, length) = unquote(quoted)?;
        labels.insert(label, text);
        rest = quoted.get(length..)?.trim_start_matches(',');
    }
    Some(Sample { name, labels, value })
}

/// The unescaped text up to the closing quote, and the number of bytes consumed.
fn unquote(quoted: &str) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((text, at + 1)),
            '\\' => match chars.next()?.1 {
                'n' => text.push('\n'),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_quotes_in_labels() {
        let labels = BTreeMap::from([("ue", "a \"b\", c\\}".to_owned()), ("access", "5g".to_owned())]);
        let line = r#"anabranch_ue_path_rtt_seconds{ue="a \"b\", c\\}",access="5g"} 0.0125"#;
        assert_eq!(
            sample(line),
            Some(Sample { name: "anabranch_ue_path_rtt_seconds", labels, value: 0.0125 })
        );
        assert_eq!(sample("up 1").map(|s| s.value), Some(1.0));
        for other in ["# EOF", "", "x", r#"x{y="1} 2"#] {
            assert_eq!(sample(other), None, "{other}");
        }
    }
}
