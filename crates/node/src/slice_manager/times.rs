//! Times as RFC 3339 writes them.

/// A time as RFC 3339, in UTC.
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

/// Unix milliseconds of a time in RFC 3339; fractions of a second are left out.
pub fn from_rfc3339(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let b = text.as_bytes();
    let fits =
        b.len() >= 20 && b[4] == b'-' && b[7] == b'-' && b[10] | 32 == b't' && b[13] == b':' && b[16] == b':';
    let (y, m, d) = fits.then_some((number(0, 4)?, number(5, 7)?, number(8, 10)?))?;
    let (h, min, s) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let zone = text.get(19..)?.trim_start_matches(['.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    let offset_min = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let minutes = zone.get(1..3)?.parse::<i64>().ok()? * 60 + zone.get(4..6)?.parse::<i64>().ok()?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    if !((1..=12).contains(&m) && (1..=31).contains(&d) && h < 24 && min < 60 && s <= 60) || y < 1970 {
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
    fn times_go_there_and_back() {
        for ms in [0, 951_782_400_000, 1_795_000_000_000, 4_102_444_799_000] {
            assert_eq!(from_rfc3339(&rfc3339(ms)), Some(ms), "{}", rfc3339(ms));
        }
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(from_rfc3339("2000-02-29T02:30:00.123+02:30"), Some(951_782_400_000));
        for wrong in [
            "",
            "2030",
            "2030-13-01T00:00:00Z",
            "2030-01-01 00:00:00",
            "2030-01-01T00:00:00+0x:00",
            "ü030-01-01T00:00:00Z",
        ] {
            assert_eq!(from_rfc3339(wrong), None, "{wrong}");
        }
    }
}
