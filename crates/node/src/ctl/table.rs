//! Plain aligned columns: separated by two spaces, numbers aligned to the right, no borders.

use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;

/// A table with these columns; a column whose name begins with `>` is aligned to the right.
pub fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(columns.iter().map(|c| c.trim_start_matches('>')));
    table.add_rows(rows);
    for (column, name) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, 2));
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Appends a remark to a table that shows only `shown` of `total` rows.
pub fn with_rest(mut table: String, shown: usize, total: u64) -> String {
    if (shown as u64) < total {
        table.push_str(&format!("{shown} of {total}; --offset and --limit select others\n"));
    }
    table
}

/// The counters that are not 0, with their names.
pub fn counted(all: &BTreeMap<String, u64>) -> String {
    let some: Vec<String> =
        all.iter().filter(|(_, n)| **n > 0).map(|(what, n)| format!("{what} {n}")).collect();
    if some.is_empty() { "none".to_owned() } else { some.join(", ") }
}

/// Names and values, one pair per line.
pub fn list(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// A number of bytes such as 1.5 MiB; exact below 1 KiB.
pub fn bytes(count: u64) -> String {
    scaled(count as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A rate such as 12.3 Mbit/s.
pub fn rate(bps: f64) -> String {
    scaled(bps, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

/// A duration such as 2 d 03:04:05.
pub fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days} d {clock}") } else { clock }
}

/// UTC, ISO 8601 with milliseconds, from Unix milliseconds.
pub fn time(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": civil_from_days.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (s, ms) = (ms / 1000, ms % 1000);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

/// The value, or a dash if there is none.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // Otherwise 999.95 would be shown as 1000.0.
    while value >= step - 0.05 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = usize::from(unit > 0);
    format!("{value:.decimals$} {}", units.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_with_their_text() {
        let text = table(
            &["access", ">RTT"],
            [vec!["5g".into(), "20.1".into()], vec!["wifi-home".into(), "8.0".into()]],
        );
        assert_eq!(text, "access      RTT\n5g         20.1\nwifi-home   8.0\n");
    }

    #[test]
    fn numbers_are_short_and_right() {
        assert_eq!((bytes(1023), bytes(1536)), ("1023 B".into(), "1.5 KiB".into()));
        assert_eq!((rate(999.97), rate(12_345_678.0)), ("1.0 kbit/s".into(), "12.3 Mbit/s".into()));
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!((duration(59), duration(183_845)), ("00:00:59".into(), "2 d 03:04:05".into()));
        assert_eq!(time(951_782_400_123), "2000-02-29T00:00:00.123Z");
        assert_eq!(time(1_767_225_599_999), "2025-12-31T23:59:59.999Z");
    }
}
