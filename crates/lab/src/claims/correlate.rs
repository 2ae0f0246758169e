//! Correlation and fairness of series and values.

/// Minimum number of pairs of a correlation.
const LEAST_PAIRS: usize = 8;

/// Pearson's correlation of `a` with `b` at a time `lag_s` later; NaN with fewer than eight pairs, or if one of them is constant.
#[must_use]
pub fn correlation(a: &[(f64, f64)], b: &[(f64, f64)], lag_s: f64) -> f64 {
    let near = step(b) / 2.0;
    let pairs: Vec<(f64, f64)> = a
        .iter()
        .filter_map(|(t, x)| {
            let from = b.partition_point(|(at, _)| *at < t + lag_s - near);
            b.get(from).filter(|(at, _)| *at <= t + lag_s + near).map(|(_, y)| (*x, *y))
        })
        .collect();
    if pairs.len() < LEAST_PAIRS {
        return f64::NAN;
    }
    let n = pairs.len() as f64;
    let (mx, my) = (pairs.iter().map(|p| p.0).sum::<f64>() / n, pairs.iter().map(|p| p.1).sum::<f64>() / n);
    let sum = |f: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|(x, y)| f(x - mx, y - my)).sum::<f64>();
    // 0/0 is NaN, as intended for a constant.
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// The lag from 0 to `most_s`, in steps of `a`, at which the correlation is furthest from 0; NaN if there is none.
#[must_use]
pub fn lag(a: &[(f64, f64)], b: &[(f64, f64)], most_s: f64) -> f64 {
    let step = step(a);
    let steps = (most_s / step).clamp(0.0, 10_000.0) as u32;
    let all = (0..=steps).map(|i| {
        let lag = f64::from(i) * step;
        (lag, correlation(a, b, lag).abs())
    });
    all.filter(|(_, c)| c.is_finite())
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map_or(f64::NAN, |(lag, _)| lag)
}

/// Jain's fairness index, 1/n (one has everything) to 1 (all equal); NaN if all values are 0.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    sum * sum / (values.len() as f64 * values.iter().map(|x| x * x).sum::<f64>())
}

/// Interval of a series, whose points are equidistant.
fn step(points: &[(f64, f64)]) -> f64 {
    match points {
        [a, b, ..] if b.0 > a.0 => b.0 - a.0,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_that_follows_is_found_with_its_sign_and_lag() {
        // No period within the range of the lags.
        let wave = |i: i32| f64::from((i * i) % 31);
        let a: Vec<(f64, f64)> = (0..60).map(|i| (f64::from(i) * 0.1, wave(i))).collect();
        let b: Vec<(f64, f64)> = (0..60).map(|i| (f64::from(i) * 0.1, 5.0 - 2.0 * wave(i - 3))).collect();
        assert!((correlation(&a, &b, 0.3) + 1.0).abs() < 1e-9);
        assert!(correlation(&a, &b, 0.0).abs() < 0.6);
        assert!((lag(&a, &b, 1.0) - 0.3).abs() < 1e-9);
        let flat: Vec<(f64, f64)> = a.iter().map(|(t, _)| (*t, 1.0)).collect();
        assert!(correlation(&a, &flat, 0.0).is_nan() && lag(&a, &flat, 1.0).is_nan());
        assert!(correlation(&a, &[], 0.0).is_nan() && lag(&[], &[], 1.0).is_nan());
    }
}
