//! Expressions over metrics: `without.flow.up.retransmissions / max(with.flow.up.retransmissions, 1)`.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = factor (("*" | "/") factor)*
//! factor  = number | metric | function "(" sum ("," sum)* ")" | "(" sum ")" | "-" factor
//! ```
//!
//! `min`, `max`, `abs` and `jain` (fairness of its values, 1/n to 1) take values. `mean`, `lowest`, `highest` (series, from_s, to_s)
//! and `first_above`, `first_below` (series, level, from_s) take the name of a series; they return NaN if it has no such point.
//! `correlation` (series, series, lag_s) is Pearson's correlation of the first series with the second one `lag_s` later; `lag`
//! (series, series, most_s) is the lag at which it is furthest from 0.
//!
//! A metric's name may contain `-` and begin with a digit (`5g-only.flow.x`), so the operator `-` needs a space before it.

use super::correlate;
use std::fmt;

/// Finds the points of a series by its name.
pub type SeriesLookup<'f, 's> = &'f dyn Fn(&str) -> Option<&'s [(f64, f64)]>;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A constant.
    Number(f64),
    /// The value of a metric.
    Metric(String),
    /// A function of one or more values.
    Call(Function, Vec<Expr>),
    /// Two values and an operator.
    Binary(Operator, Box<Expr>, Box<Expr>),
}

/// What a [`Expr::Call`] computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The absolute value of the first.
    Abs,
    /// Jain's fairness index: (Σx)² / (n·Σx²).
    Jain,
    /// Mean of a series between two times, seconds.
    Mean,
    /// Smallest value of a series between two times, seconds.
    Lowest,
    /// Largest value of a series between two times, seconds.
    Highest,
    /// First time from a given one at which a series is at or above a level, seconds.
    FirstAbove,
    /// First time from a given one at which a series is at or below a level, seconds.
    FirstBelow,
    /// Pearson's correlation of a series with a later one.
    Correlation,
    /// The lag at which that is furthest from 0, seconds.
    Lag,
}

impl Function {
    const NAMES: [(&'static str, Self); 11] = [
        ("min", Self::Min),
        ("max", Self::Max),
        ("abs", Self::Abs),
        ("jain", Self::Jain),
        ("mean", Self::Mean),
        ("lowest", Self::Lowest),
        ("highest", Self::Highest),
        ("first_above", Self::FirstAbove),
        ("first_below", Self::FirstBelow),
        ("correlation", Self::Correlation),
        ("lag", Self::Lag),
    ];

    /// Number of its first arguments that are series.
    #[must_use]
    pub const fn of_series(self) -> usize {
        match self {
            Self::Min | Self::Max | Self::Abs | Self::Jain => 0,
            Self::Correlation | Self::Lag => 2,
            _ => 1,
        }
    }

    /// Evaluates a function of the points of a series, with the second and third argument.
    fn over(self, points: &[(f64, f64)], a: f64, b: f64) -> f64 {
        let between = || points.iter().filter(|(t, _)| (a..b).contains(t)).map(|(_, v)| *v);
        let first = |found: &dyn Fn(f64) -> bool| {
            points.iter().find(|(t, v)| *t >= b && found(*v)).map_or(f64::NAN, |(t, _)| *t)
        };
        let or_nan = |found: f64| if found.is_finite() { found } else { f64::NAN };
        match self {
            Self::Mean => between().sum::<f64>() / between().count() as f64,
            Self::Lowest => or_nan(between().fold(f64::INFINITY, f64::min)),
            Self::Highest => or_nan(between().fold(f64::NEG_INFINITY, f64::max)),
            Self::FirstAbove => first(&|v| v >= a),
            Self::FirstBelow => first(&|v| v <= a),
            _ => f64::NAN,
        }
    }
}

/// What a [`Expr::Binary`] computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// a + b
    Add,
    /// a - b
    Subtract,
    /// a * b
    Multiply,
    /// a / b
    Divide,
}

/// Why a text is not a valid expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(pub String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Maximum nesting depth.
const MAX_DEPTH: u32 = 32;

impl Expr {
    /// Parses `text`.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let expr = parser.sum()?;
        parser.space();
        if parser.at < text.len() {
            return Err(parser.wrong("an operator"));
        }
        Ok(expr)
    }

    /// The names of all metrics in the expression, in order.
    #[must_use]
    pub fn metrics(&self) -> Vec<&str> {
        match self {
            Self::Number(_) => Vec::new(),
            Self::Metric(name) => vec![name],
            Self::Call(f, args) => args.iter().skip(f.of_series()).flat_map(Self::metrics).collect(),
            Self::Binary(_, a, b) => [a.metrics(), b.metrics()].concat(),
        }
    }

    /// The names of all series in the expression, in order.
    #[must_use]
    pub fn series(&self) -> Vec<&str> {
        match self {
            Self::Number(_) | Self::Metric(_) => Vec::new(),
            Self::Call(f, args) => {
                let (series, values) = args.split_at(f.of_series().min(args.len()));
                let names = series.iter().filter_map(|arg| match arg {
                    Self::Metric(name) => Some(name.as_str()),
                    _ => None,
                });
                names.chain(values.iter().flat_map(Self::series)).collect()
            }
            Self::Binary(_, a, b) => [a.series(), b.series()].concat(),
        }
    }

    /// The value of the expression; `lookup` returns the value of a metric. Series have no points.
    ///
    /// # Errors
    /// The name of the first metric for which `lookup` returns `None`.
    pub fn value(&self, lookup: &dyn Fn(&str) -> Option<f64>) -> Result<f64, String> {
        self.value_with(lookup, &|_| None)
    }

    /// As [`Expr::value`], with the points of series.
    ///
    /// # Errors
    /// The name of the first metric or series that does not exist.
    pub fn value_with<'s>(
        &self,
        lookup: &dyn Fn(&str) -> Option<f64>,
        series: SeriesLookup<'_, 's>,
    ) -> Result<f64, String> {
        Ok(match self {
            Self::Number(x) => *x,
            Self::Metric(name) => lookup(name).ok_or_else(|| name.clone())?,
            Self::Call(function, args) if function.of_series() == 2 => {
                let [Self::Metric(a), Self::Metric(b), lag] = args.as_slice() else { return Ok(f64::NAN) };
                let points = |name: &String| series(name).ok_or_else(|| name.clone());
                let lag = lag.value_with(lookup, series)?;
                match function {
                    Function::Lag => correlate::lag(points(a)?, points(b)?, lag),
                    _ => correlate::correlation(points(a)?, points(b)?, lag),
                }
            }
            Self::Call(function, args) if function.of_series() == 1 => {
                let [Self::Metric(name), a, b] = args.as_slice() else { return Ok(f64::NAN) };
                let points = series(name).ok_or_else(|| name.clone())?;
                function.over(points, a.value_with(lookup, series)?, b.value_with(lookup, series)?)
            }
            Self::Call(function, args) => {
                let values =
                    args.iter().map(|a| a.value_with(lookup, series)).collect::<Result<Vec<_>, _>>()?;
                match function {
                    Function::Min => values.into_iter().fold(f64::INFINITY, f64::min),
                    Function::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
                    Function::Jain => correlate::jain(&values),
                    _ => values.first().copied().unwrap_or(f64::NAN).abs(),
                }
            }
            Self::Binary(operator, a, b) => {
                let (a, b) = (a.value_with(lookup, series)?, b.value_with(lookup, series)?);
                match operator {
                    Operator::Add => a + b,
                    Operator::Subtract => a - b,
                    Operator::Multiply => a * b,
                    Operator::Divide => a / b,
                }
            }
        })
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, token: char) -> bool {
        self.space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len_utf8();
        }
        found
    }

    fn wrong(&self, wanted: &str) -> ParseError {
        let rest: String = self.rest().chars().take(20).collect();
        let found = if rest.is_empty() { "the end".to_owned() } else { format!("`{rest}`") };
        ParseError(format!("{wanted} is wanted at {found} in `{}`", self.text))
    }

    fn sum(&mut self) -> Result<Expr, ParseError> {
        let mut left = self.product()?;
        loop {
            let operator = if self.eat('+') {
                Operator::Add
            } else if self.eat('-') {
                Operator::Subtract
            } else {
                return Ok(left);
            };
            left = Expr::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
    }

    fn product(&mut self) -> Result<Expr, ParseError> {
        let mut left = self.factor()?;
        loop {
            let operator = if self.eat('*') {
                Operator::Multiply
            } else if self.eat('/') {
                Operator::Divide
            } else {
                return Ok(left);
            };
            left = Expr::Binary(operator, Box::new(left), Box::new(self.factor()?));
        }
    }

    fn factor(&mut self) -> Result<Expr, ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ParseError(format!("nested more than {MAX_DEPTH} deep: `{}`", self.text)));
        }
        let factor = self.factor_inner();
        self.depth -= 1;
        factor
    }

    fn factor_inner(&mut self) -> Result<Expr, ParseError> {
        if self.eat('(') {
            let inner = self.sum()?;
            return if self.eat(')') { Ok(inner) } else { Err(self.wrong("`)`")) };
        }
        if self.eat('-') {
            let inner = self.factor()?;
            return Ok(Expr::Binary(Operator::Subtract, Box::new(Expr::Number(0.0)), Box::new(inner)));
        }
        self.space();
        let length =
            self.rest().bytes().take_while(|b| b.is_ascii_alphanumeric() || b"._-".contains(b)).count();
        let word = self.rest()[..length].to_owned();
        if word.is_empty() {
            return Err(self.wrong("a number or a metric"));
        }
        self.at += length;
        if word.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && let Ok(number) = word.parse()
        {
            return Ok(Expr::Number(number));
        }
        if !self.rest().starts_with('(') {
            return Ok(Expr::Metric(word));
        }
        let Some((_, function)) = Function::NAMES.iter().find(|(name, _)| *name == word) else {
            let all = Function::NAMES.map(|(name, _)| name).join(", ");
            return Err(ParseError(format!("`{word}` is no function; there is {all}")));
        };
        self.eat('(');
        let mut args = vec![self.sum()?];
        while self.eat(',') {
            args.push(self.sum()?);
        }
        if !self.eat(')') {
            return Err(self.wrong("`)`"));
        }
        if function.of_series() == 2 && !matches!(args.as_slice(), [Expr::Metric(_), Expr::Metric(_), _]) {
            return Err(ParseError(format!("`{word}` takes two series and a number in `{}`", self.text)));
        }
        if function.of_series() == 1 && !matches!(args.as_slice(), [Expr::Metric(_), _, _]) {
            return Err(ParseError(format!("`{word}` takes a series and two numbers in `{}`", self.text)));
        }
        if *function == Function::Abs && args.len() != 1 {
            return Err(ParseError(format!("`abs` takes one value in `{}`", self.text)));
        }
        Ok(Expr::Call(*function, args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> f64 {
        let lookup = |name: &str| match name {
            "5g-only.x" => Some(8.0),
            "wifi.x" => Some(2.0),
            _ => None,
        };
        Expr::parse(text).unwrap().value(&lookup).unwrap()
    }

    #[test]
    fn arithmetic_and_names() {
        assert_eq!(value("5g-only.x - wifi.x * 3"), 2.0);
        assert_eq!(value("(5g-only.x + wifi.x) / max(wifi.x, 1, 5)"), 2.0);
        assert_eq!(value("abs(wifi.x - 5g-only.x) + -1"), 5.0);
        assert_eq!(value("1e-3 * 1000"), 1.0);
        assert_eq!((value("jain(3, 3, 3)"), value("jain(1, 0, 0, 0)")), (1.0, 0.25));
    }

    #[test]
    fn series_have_means_and_times() {
        let points: Vec<(f64, f64)> = (0..10).map(|i| (f64::from(i), f64::from(i % 5))).collect();
        let value = |text: &str| {
            let expr = Expr::parse(text).unwrap();
            assert!(expr.series().iter().all(|name| *name == "a.b") && expr.metrics().is_empty());
            expr.value_with(&|_| None, &|name| (name == "a.b").then_some(points.as_slice())).unwrap()
        };
        assert_eq!(value("mean(a.b, 1, 4)"), 2.0);
        assert_eq!(value("highest(a.b, 0, 9)"), 4.0);
        assert_eq!(value("lowest(a.b, 2, 5)"), 2.0);
        assert_eq!(value("first_above(a.b, 3, 4) - 1"), 3.0);
        assert_eq!(value("first_below(a.b, 0, 1)"), 5.0);
        assert!((value("correlation(a.b, a.b, 0)") - 1.0).abs() < 1e-9);
        assert!((value("correlation(a.b, a.b, 5)")).is_nan(), "too few points");
        assert!(value("first_above(a.b, 9, 0)").is_nan() && value("mean(a.b, 50, 60)").is_nan());
        let missing = Expr::parse("mean(c, 0, 1)").unwrap().value(&|_| None);
        assert_eq!(missing, Err("c".to_owned()));
    }

    #[test]
    fn errors_state_the_position() {
        for (text, part) in [
            ("a +", "the end"),
            ("a b", "an operator is wanted at `b`"),
            ("median(a)", "there is min"),
            ("mean(a)", "a series and two numbers"),
            ("lag(a, 1, 2)", "two series and a number"),
            ("abs(1, 2)", "one value"),
            ("(a", "`)` is wanted"),
            ("", "a number or a metric"),
        ] {
            let wrong = Expr::parse(text).unwrap_err().to_string();
            assert!(wrong.contains(part), "{wrong}");
        }
        assert!(Expr::parse(&"(".repeat(10_000)).is_err());
        let missing = Expr::parse("a + b").unwrap().value(&|n| (n == "a").then_some(1.0));
        assert_eq!(missing, Err("b".to_owned()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[ -~é]{0,40}") {
            let _ = Expr::parse(&text);
        }
    }
}
