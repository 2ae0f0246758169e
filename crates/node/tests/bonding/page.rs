//! Fenced blocks of a page, and comparing what came out with what the page says.

/// What a block is for.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// ` ```sh MACHINE `: run there.
    Run { machine: String },
    /// ` ```text ` right after it: comes out of it.
    Expect,
    /// ` ```console `: shown, not run.
    Show,
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    pub kind: Kind,
    /// Line of its fence, from 1.
    pub line: usize,
    pub text: String,
}

/// The blocks of a page, drawings left out.
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

/// The first expected line that is not in the output after the ones before it.
pub fn missing<'a>(expected: &'a str, output: &str) -> Option<&'a str> {
    let mut output = output.lines().map(normal);
    expected.lines().find(|line| {
        let line = normal(line);
        !output.any(|printed| printed == line)
    })
}

/// A line without what differs from run to run: numbers with their units, keys, and how many blanks there are.
fn normal(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let unit = ["B", "KiB", "MiB", "GiB"].contains(&word);
        if unit && words.last().is_some_and(|last| last == "#") {
            continue;
        }
        // A duration of two units is one.
        let word = if word.len() == 44 && word.ends_with('=') { "KEY".to_owned() } else { numbers(word) };
        if word == "#" && words.last().is_some_and(|last| last == "#") && line.contains(", up ") {
            continue;
        }
        words.push(word);
    }
    words.join(" ")
}

/// Runs of digits as `#`, with the points between them; addresses and names of interfaces stay.
fn numbers(word: &str) -> String {
    let bare = word.trim_end_matches(',');
    let address = bare.split(':').next().unwrap_or_default().parse::<std::net::IpAddr>().is_ok();
    if address || bare.starts_with(|c: char| c.is_ascii_alphabetic()) && !bare.starts_with("time") {
        return word.to_owned();
    }
    // "5g" is a name, "2003ms" is not.
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
fn numbers_and_keys_may_differ_and_nothing_else() {
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
