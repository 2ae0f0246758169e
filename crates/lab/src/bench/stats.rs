//! Order statistics.

/// The quantile `share` (0 to 1) of the values; 0 if there are none. Sorts them.
pub fn quantile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).round() as usize).copied().unwrap_or(0)
}

/// The median; 0 if there are no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Minimum, median and maximum; zeros if there are no values. Sorts them.
pub fn spread(values: &mut [f64]) -> [f64; 3] {
    let middle = median(values);
    [values.first().copied().unwrap_or(0.0), middle, values.last().copied().unwrap_or(0.0)]
}

/// Nanoseconds as microseconds with one decimal.
pub fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values() {
        let mut values: Vec<u64> = (0..101).rev().collect();
        assert_eq!(quantile(&mut values, 0.5), 50);
        assert_eq!(quantile(&mut values, 0.99), 99);
        assert_eq!(quantile(&mut [], 0.5), 0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(spread(&mut [3.0, 1.0, 2.0, 9.0]), [1.0, 3.0, 9.0]);
        assert_eq!(spread(&mut []), [0.0; 3]);
    }
}
