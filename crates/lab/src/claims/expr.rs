//! Expressions over metrics: `without.flow.up.retransmissions / max(with.flow.up.retransmissions, 1)`.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = factor (("*" | "/") factor)*
//! factor  = number | metric | function "(" sum ("," sum)* ")" | "(" sum ")" | "-" factor
//! ```
//!
//! A metric's name may hold `-` and begin with a digit (`5g-only.flow.x`), so an operator `-` needs a
//! space before it.

use std::fmt;

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
    /// The first without its sign.
    Abs,
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

/// Why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Nesting beyond this is refused.
const MAX_DEPTH: u32 = 32;

impl Expr {
    /// Parses `text`.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let expr = parser.sum()?;
        parser.space();
        if parser.at < text.len() {
            return Err(parser.wrong("an operator"));
        }
        Ok(expr)
    }

    /// The names of all metrics in it, in order.
    #[must_use]
    pub fn metrics(&self) -> Vec<&str> {
        match self {
            Self::Number(_) => Vec::new(),
            Self::Metric(name) => vec![name],
            Self::Call(_, args) => args.iter().flat_map(Self::metrics).collect(),
            Self::Binary(_, a, b) => [a.metrics(), b.metrics()].concat(),
        }
    }

    /// Its value; `lookup` gives the value of a metric.
    ///
    /// # Errors
    /// The name of the first metric `lookup` does not have.
    pub fn value(&self, lookup: &impl Fn(&str) -> Option<f64>) -> Result<f64, String> {
        Ok(match self {
            Self::Number(x) => *x,
            Self::Metric(name) => lookup(name).ok_or_else(|| name.clone())?,
            Self::Call(function, args) => {
                let values = args.iter().map(|a| a.value(lookup)).collect::<Result<Vec<_>, _>>()?;
                match function {
                    Function::Min => values.into_iter().fold(f64::INFINITY, f64::min),
                    Function::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
                    Function::Abs => values.first().copied().unwrap_or(f64::NAN).abs(),
                }
            }
            Self::Binary(operator, a, b) => {
                let (a, b) = (a.value(lookup)?, b.value(lookup)?);
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

    fn wrong(&self, wanted: &str) -> Wrong {
        let rest: String = self.rest().chars().take(20).collect();
        let found = if rest.is_empty() { "the end".to_owned() } else { format!("`{rest}`") };
        Wrong(format!("{wanted} is wanted at {found} in `{}`", self.text))
    }

    fn sum(&mut self) -> Result<Expr, Wrong> {
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

    fn product(&mut self) -> Result<Expr, Wrong> {
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

    fn factor(&mut self) -> Result<Expr, Wrong> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Wrong(format!("nested more than {MAX_DEPTH} deep: `{}`", self.text)));
        }
        let factor = self.factor_inner();
        self.depth -= 1;
        factor
    }

    fn factor_inner(&mut self) -> Result<Expr, Wrong> {
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
        let function = match word.as_str() {
            "min" => Function::Min,
            "max" => Function::Max,
            "abs" => Function::Abs,
            other => return Err(Wrong(format!("`{other}` is no function; there is min, max, abs"))),
        };
        self.eat('(');
        let mut args = vec![self.sum()?];
        while self.eat(',') {
            args.push(self.sum()?);
        }
        if !self.eat(')') {
            return Err(self.wrong("`)`"));
        }
        Ok(Expr::Call(function, args))
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
    }

    #[test]
    fn wrong_ones_say_where() {
        for (text, part) in [
            ("a +", "the end"),
            ("a b", "an operator is wanted at `b`"),
            ("mean(a)", "there is min"),
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
