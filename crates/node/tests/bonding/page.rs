//! Fenced blocks of a page, and comparison of their expected with their actual output.

/// Purpose of a block.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// ` ```sh MACHINE `: executed on that machine.
    Run { machine: String },
    /// ` ```text ` immediately after it: expected output.
    Expect,
    /// ` ```console `: not executed.
    Show,
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    pub kind: Kind,
    /// Line of its fence, counted from 1.
    pub line: usize,
    pub text: String,
}

/// The blocks of a page, without drawings.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    let mut skip = false;
    for (number, line) in page.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        let Some(info) = line.strip_prefix("```") else {
            if let Some(block) = &mut open {
                block.text.push_str(line);
                block.text.push('\n');
            }
            continue;
        };
        if let Some(block) = open.take() {
            blocks.push(block);
            continue;
        }
        if skip {
            skip = false;
            continue;
        }
        let after_run = blocks.last().is_some_and(|last| matches!(last.kind, Kind::Run { .. }));
        let kind = match info.split(' ').collect::<Vec<_>>()[..] {
            ["sh", machine] => Kind::Run { machine: machine.to_owned() },
            ["text"] if after_run => Kind::Expect,
            ["text"] => {
                skip = true;
                continue;
            }
            ["console", _] => Kind::Show,
            _ => panic!("line {number}: a fence ```{info} says neither sh MACHINE, text nor console MACHINE"),
        };
        open = Some(Block { kind, line: number, text: String::new() });
    }
    assert!(open.is_none() && !skip, "a fence is not closed");
    blocks
}

/// The first expected line that does not occur in the output after the previous ones.
pub fn missing<'a>(expected: &'a str, output: &str) -> Option<&'a str> {
    let mut output = output.lines().map(normal);
    expected.lines().find(|line| {
        let line = normal(line);
        !output.any(|printed| printed == line)
    })
}

/// A line in which variable parts are normalised: numbers with their units, keys, and the number of blanks.
fn normal(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let unit = ["B", "KiB", "MiB", "GiB"].contains(&word);
        if unit && words.last().is_some_and(|last| last == "#") {
            continue;
        }
        // A duration with two units is one number.
        let word = if word.len() == 44 && word.ends_with('=') { "KEY".to_owned() } else { numbers(word) };
        if word == "#" && words.last().is_some_and(|last| last == "#") && line.contains(", up ") {
            continue;
        }
        words.push(word);
    }
    words.join(" ")
}

/// Replaces runs of digits, with decimal points, by `#`; addresses and interface names are kept.
fn numbers(word: &str) -> String {
    let bare = word.trim_end_matches(',');
    let address = bare.split(':').next().unwrap_or_default().parse::<std::net::IpAddr>().is_ok();
    if address || bare.starts_with(|c: char| c.is_ascii_alphabetic()) && !bare.starts_with("time") {
        return word.to_owned();
    }
    // "5g" is a name, "2003ms" is a number.
    if bare == "5g" || bare.contains('-') && !bare.ends_with('Z') && bare.len() > 1 {
        return word.to_owned();
    }
    let mut text = String::new();
    for c in word.chars() {
        if c.is_ascii_digit() || c == '.' && text.ends_with('#') {
            if !text.ends_with('#') {
                text.push('#');
            }
        } else {
            text.push(c);
        }
    }
    text
}

#[test]
fn only_numbers_and_keys_may_differ() {
    let same = |a: &str, b: &str| missing(a, b).is_none();
    assert!(same("up 2 s, 12.5 MiB", "up 71 s,   3 KiB"));
    assert!(same("3 packets, time 2003ms", "3 packets, time 7ms"));
    assert!(same(
        "q2kPPoy5fKHpZsrvFhiOsNgjSJg9lx1FrFDx0OXHFS8=",
        "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o="
    ));
    assert!(same("b\nc", "a\nb\nx\nc"));
    assert!(!same("c\nb", "a\nb\nc"));
    assert!(!same("5g up 42.1", "5g down 42.1"));
    assert!(!same("5g up 42.1", "5g up -"));
    assert!(!same("dev 10.45.0.2", "dev 10.45.0.3"));
}
