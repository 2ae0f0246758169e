//! Times in the format of RFC 3339.

/// Formats Unix time in milliseconds as RFC 3339, in UTC.
pub fn rfc3339(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Civil from days (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    let s = rest / 1000;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Parses a time of RFC 3339 into Unix time in milliseconds; fractions of a second are dropped. `None` if it
/// is invalid.
pub fn from_rfc3339(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
        digits.parse::<i64>().ok()
    };
    let b = text.as_bytes();
    let fits =
        b.len() >= 20 && b[4] == b'-' && b[7] == b'-' && b[10] | 32 == b't' && b[13] == b':' && b[16] == b':';
    let (y, m, d) = fits.then_some((number(0, 4)?, number(5, 7)?, number(8, 10)?))?;
    let (h, min, s) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let zone_at = match text.get(19..)?.strip_prefix('.') {
        Some(fraction) => {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return None;
            }
            20 + digits
        }
        None => 19,
    };
    let offset_min = match b.get(zone_at..)? {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(zone_at + 1, zone_at + 3)?, number(zone_at + 4, zone_at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = hours * 60 + minutes;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    let is_leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    let days = match m {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !((1..=days).contains(&d) && h < 24 && min < 60 && s <= 60) || y < 1970 {
        return None;
    }
    let (y, mp) = if m <= 2 { (y - 1, m + 9) } else { (y, m - 3) };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * mp + 2) / 5 + d - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    u64::try_from((((days * 24 + h) * 60 + min - offset_min) * 60 + s) * 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_a_round_trip() {
        for ms in [0, 951_782_400_000, 1_795_000_000_000, 4_102_444_799_000] {
            assert_eq!(from_rfc3339(&rfc3339(ms)), Some(ms), "{}", rfc3339(ms));
        }
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(from_rfc3339("2000-02-29T02:30:00.123+02:30"), Some(951_782_400_000));
        assert_eq!(from_rfc3339("2032-02-29t00:00:00.5-23:59"), from_rfc3339("2032-02-29T23:59:00Z"));
        for wrong in [
            "",
            "2030",
            "2030-13-01T00:00:00Z",
            "2030-01-01 00:00:00",
            "2030-01-01T00:00:00+0x:00",
            "ü030-01-01T00:00:00Z",
            "2030-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2030-04-31T00:00:00Z",
            "2030-00-01T00:00:00Z",
            "2030-01-00T00:00:00Z",
            "2030-+1-01T00:00:00Z",
            "2030-01-01T+1:00:00Z",
            "2030-01-01T00:00:00.Z",
            "2030-01-01T00:00:00..5Z",
            "2030-01-01T00:00:005Z",
            "2030-01-01T00:00:00+24:00",
            "2030-01-01T00:00:00+00:60",
            "2030-01-01T00:00:00+-1:-1",
            "2030-01-01T00:00:00Zü",
            "2030-01-01T00:00:00+ü:00",
        ] {
            assert_eq!(from_rfc3339(wrong), None, "{wrong}");
        }
    }
}
