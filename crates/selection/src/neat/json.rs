//! JSON as read and written by NEAT's Python code, with bare `Infinity` and `NaN`.

use super::NeatError;
use serde_json::Value as Json;

/// Reads a document; bare `Infinity` and `-Infinity` become the texts `"Inf"` and `"-Inf"`.
pub(super) fn parse(text: &str, place: &str) -> Result<Json, NeatError> {
    serde_json::from_str(text)
        .or_else(|first| serde_json::from_str(&without_infinity(text)).map_err(|_| first))
        .map_err(|e| NeatError::new(place, format!("this is no JSON: {e}")))
}

/// The same; an object gets the name `uid`.
pub(super) fn parse_named(text: &str, place: &str, uid: &str) -> Result<Json, NeatError> {
    let mut json = parse(text, place)?;
    if let Json::Object(object) = &mut json {
        object.insert("uid".to_owned(), uid.into());
    }
    Ok(json)
}

fn without_infinity(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let (mut rest, mut quoted) = (text, false);
    while let Some(c) = rest.chars().next() {
        let found = ["-Infinity", "Infinity"].into_iter().find(|w| !quoted && rest.starts_with(w));
        if let Some(word) = found {
            out.push_str(if word.starts_with('-') { "\"-Inf\"" } else { "\"Inf\"" });
            rest = &rest[word.len()..];
            continue;
        }
        let escaped = if quoted && c == '\\' { rest[1..].chars().next() } else { None };
        if c == '"' {
            quoted = !quoted;
        }
        out.push(c);
        out.extend(escaped);
        rest = &rest[c.len_utf8() + escaped.map_or(0, char::len_utf8)..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_infinity_is_read_outside_of_texts_only() {
        let json = parse(r#"{"a": [-Infinity, Infinity], "b": "Infinity \" -Infinity"}"#, "x").unwrap();
        assert_eq!(json, serde_json::json!({"a": ["-Inf", "Inf"], "b": "Infinity \" -Infinity"}));
        assert!(parse("{\"a\": Infinite}", "x").unwrap_err().to_string().contains("no JSON"));
        assert!(parse("\"\\", "x").is_err());
    }
}
