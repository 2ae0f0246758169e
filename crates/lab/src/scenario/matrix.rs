//! A matrix: variants for the combinations of the values of several axes, and their references for comparison.
//!
//! ```text
//! axes ─ combinations ─ filters ─▶ cell ─ overlay of each value's `set` ─▶ variant
//!                                   └── reduced form (an access alone, MPTCP) ─▶ variant, shared by equal cells
//! ```

use super::file::{self, BackendName, CellFilter, Reference, Variant};
use super::walk::{Problem, valid_name};
use super::{overlay, without_place};
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// Selection of the cells of a matrix to run.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Select {
    /// The group that the file names as `chosen`.
    #[default]
    Chosen,
    /// All cells.
    Whole,
    /// Cells that match one of these filters.
    Fit(Vec<CellFilter>),
}

impl Select {
    /// Parses `axis=value,value axis=value`. With several texts, a cell must match one of them.
    ///
    /// # Errors
    /// The text that has another form.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let filter = |text: &String| {
            let parts = text.split_whitespace().map(|part| {
                let (axis, values) = part.split_once('=')?;
                Some((axis.to_owned(), values.split(',').map(str::to_owned).collect()))
            });
            parts
                .collect::<Option<CellFilter>>()
                .ok_or_else(|| format!("`{text}`: write axis=value,value, such as \"sender=bbr flows=1,4\""))
        };
        texts.iter().map(filter).collect::<Result<_, _>>().map(Self::Fit)
    }
}

/// Relations of the cases of a scenario.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The declaration in the file.
    pub spec: file::Matrix,
    /// The cells that are run, in order.
    pub cells: Vec<Cell>,
    /// Number of cells of a group that can run on a backend.
    pub sizes: BTreeMap<(String, BackendName), usize>,
}

/// One combination.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Name of its variant.
    pub name: String,
    /// Index of its value on each axis.
    pub values: Vec<usize>,
    /// Its references: kind, access (`None` for MPTCP), and name of the variant.
    pub references: Vec<(Reference, Option<String>, String)>,
    /// Name of the cell that differs only on the axis of `beside`, if it is run.
    pub beside: Option<String>,
    /// The same for the axis of `plain`.
    pub plain: Option<String>,
    /// Names of the groups it is in.
    pub groups: BTreeSet<String>,
    /// Backends on which it is run.
    pub backends: Vec<BackendName>,
}

impl Matrix {
    /// Cells of a group.
    pub fn group<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |c| c.groups.contains(name))
    }

    /// Whether a cell's value on this axis is shown as a row of the table.
    #[must_use]
    pub fn is_row(&self, axis: usize) -> bool {
        self.spec.axis.get(axis).is_some_and(|a| self.spec.rows.contains(&a.name))
    }

    /// Number of cells of a group that can run on a backend.
    #[must_use]
    pub fn size(&self, group: &str, backend: BackendName) -> usize {
        self.sizes.get(&(group.to_owned(), backend)).copied().unwrap_or(0)
    }

    /// Whether a group has cells on a backend and all of them are run.
    #[must_use]
    pub fn is_whole(&self, group: &str, backend: BackendName) -> bool {
        let run = self.group(group).filter(|c| c.backends.contains(&backend)).count();
        run > 0 && run == self.size(group, backend)
    }

    /// Titles of a cell's values on the axes of the rows, or of the columns.
    #[must_use]
    pub fn titles(&self, cell: &Cell, rows: bool) -> Vec<&str> {
        let on = |(axis, value): (usize, &usize)| {
            let of = self.spec.axis.get(axis)?.value.get(*value)?;
            (self.is_row(axis) == rows).then(|| of.title.as_deref().unwrap_or(&of.name))
        };
        cell.values.iter().enumerate().filter_map(on).collect()
    }
}

/// A variant and its file, which is typed and resolved like any other.
pub struct Expanded {
    /// Name, title and backends.
    pub variant: Variant,
    /// The file with its changes.
    pub table: Table,
}

/// Maximum number of combinations.
const MOST_COMBINATIONS: usize = 100_000;

/// Name of the group of all cells.
pub const ALL: &str = "all";

/// Expands a matrix. `base` is the file without it. `each` receives the variants one by one, since there may be many and each is
/// a whole file.
///
/// # Errors
/// Everything that is wrong with the matrix.
pub fn expand(
    spec: &file::Matrix,
    base: &Table,
    backends: &[BackendName],
    select: &Select,
    mut each: impl FnMut(Expanded),
) -> Result<Matrix, Vec<Problem>> {
    let mut problems = problems_of(spec, select);
    let flows = base.get("flow").and_then(Value::as_table);
    // One flow, or several with this name and a number, as `count` makes them.
    let is_flow = |name: &String| {
        let is_it = |flow: &String| {
            flow.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        flows.is_some_and(|flows| flows.keys().any(is_it))
    };
    for (key, flow) in [("bulk", Some(&spec.bulk)), ("call", spec.call.as_ref())] {
        if let Some(flow) = flow.filter(|flow| !is_flow(flow)) {
            problems.push(without_place(format!("matrix.{key}: there is no flow `{flow}`")));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut all = combinations(spec);
    if !spec.cells.is_empty() {
        all.retain(|values| fits(spec, &spec.cells, values));
    }
    // Backends on which a combination can run, and those on which it does.
    let places = |values: &[usize]| {
        let mut could = backends.to_vec();
        if !spec.netns.is_empty() && !fits(spec, &spec.netns, values) {
            could.retain(|b| *b != BackendName::Netns);
        }
        for of in values_of(spec, values) {
            could.retain(|b| of.backends.as_ref().is_none_or(|only| only.contains(b)));
        }
        let groups = groups_of(spec, values);
        let asked = |b: &BackendName| match select {
            Select::Whole => true,
            Select::Chosen => spec.chosen.get(b.name()).is_some_and(|group| groups.contains(group)),
            Select::Fit(filters) => fits(spec, filters, values),
        };
        let does: Vec<BackendName> = could.iter().copied().filter(asked).collect();
        (could, does)
    };
    let places: Vec<_> = all.iter().map(|values| places(values)).collect();
    let mut matrix = Matrix { spec: spec.clone(), cells: Vec::new(), sizes: BTreeMap::new() };
    let runs = all.iter().zip(&places).filter(|(_, (_, does))| !does.is_empty());
    let runs: BTreeSet<&[usize]> = runs.map(|(values, _)| values.as_slice()).collect();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for (values, (could, here)) in all.iter().zip(&places) {
        for group in groups_of(spec, values) {
            for backend in could {
                *matrix.sizes.entry((group.clone(), *backend)).or_default() += 1;
            }
        }
        if here.is_empty() {
            continue;
        }
        let mut table = base.clone();
        for of in values_of(spec, values) {
            overlay::merge(&mut table, &of.set)
                .map_err(|m| vec![without_place(format!("matrix: value `{}`: {m}", of.name))])?;
        }
        let name = name_of(spec, values);
        let other = |of| with(spec, values, of).filter(|v| runs.contains(&v[..])).map(|v| name_of(spec, &v));
        let titles: Vec<&str> =
            values_of(spec, values).map(|v| v.title.as_deref().unwrap_or(&v.name)).collect();
        let variant = |name: String, more: &str, backends: Vec<BackendName>| Variant {
            title: Some(format!("{}{more}", titles.join(" · "))),
            backends: Some(backends),
            set: Table::new(),
            name,
        };
        let mut cell = Cell {
            name: name.clone(),
            beside: other(&spec.beside),
            plain: other(&spec.plain),
            groups: groups_of(spec, values),
            backends: here.clone(),
            values: values.clone(),
            references: Vec::new(),
        };
        let mut of_cell = Vec::new();
        for (reference, access, less) in references(spec, &table)? {
            let mut on = here.clone();
            if reference == Reference::Mptcp {
                on.retain(|b| *b == BackendName::Netns);
            }
            if on.is_empty() {
                continue;
            }
            let key = format!("{on:?}\n{less}");
            let of = access.as_ref().map_or(String::new(), |a| format!("-{a}"));
            let named = known.entry(key).or_insert_with(|| {
                let of_name = format!("{name}_{reference}{of}");
                let more = format!(" · {reference} {}", access.as_deref().unwrap_or_default());
                of_cell.push(Expanded { variant: variant(of_name.clone(), &more, on), table: less });
                of_name
            });
            cell.references.push((reference, access, named.clone()));
        }
        each(Expanded { variant: variant(name, "", here.clone()), table });
        of_cell.into_iter().for_each(&mut each);
        matrix.cells.push(cell);
    }
    if let (Select::Fit(_), true) = (select, matrix.cells.is_empty()) {
        return Err(vec![without_place("--filter: there is no such cell".into())]);
    }
    Ok(matrix)
}

fn combinations(spec: &file::Matrix) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for axis in &spec.axis {
        let longer = |values: &Vec<usize>| {
            (0..axis.value.len()).map(|v| [values.as_slice(), &[v]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

fn values_of<'a>(spec: &'a file::Matrix, values: &'a [usize]) -> impl Iterator<Item = &'a Variant> {
    spec.axis.iter().zip(values).filter_map(|(axis, v)| axis.value.get(*v))
}

fn name_of(spec: &file::Matrix, values: &[usize]) -> String {
    values_of(spec, values).map(|v| v.name.as_str()).collect::<Vec<_>>().join("_")
}

fn fits(spec: &file::Matrix, filters: &[CellFilter], values: &[usize]) -> bool {
    let value = |axis: &str| {
        let i = spec.axis.iter().position(|a| a.name == axis)?;
        spec.axis[i].value.get(*values.get(i)?).map(|v| v.name.as_str())
    };
    let fit =
        |f: &CellFilter| f.iter().all(|(axis, of)| value(axis).is_some_and(|v| of.iter().any(|o| o == v)));
    filters.iter().any(fit)
}

fn groups_of(spec: &file::Matrix, values: &[usize]) -> BTreeSet<String> {
    let named = spec.group.iter().filter(|(_, filters)| fits(spec, filters, values));
    named.map(|(name, _)| name.clone()).chain([ALL.to_owned()]).collect()
}

/// The cell with the value of `of` on its axis, if it is another one.
fn with(spec: &file::Matrix, values: &[usize], of: &BTreeMap<String, String>) -> Option<Vec<usize>> {
    let (axis, value) = of.first_key_value()?;
    let i = spec.axis.iter().position(|a| a.name == *axis)?;
    let at = spec.axis[i].value.iter().position(|v| v.name == *value)?;
    let mut other = values.to_vec();
    (std::mem::replace(other.get_mut(i)?, at) != at).then_some(other)
}

/// A reference: kind, access, and file.
type ReducedReference = (Reference, Option<String>, Table);

/// The reduced file of each reference. Access and link have fixed names in it, so that equal references are equal files.
fn references(spec: &file::Matrix, table: &Table) -> Result<Vec<ReducedReference>, Vec<Problem>> {
    let wrong = |what: &str| vec![without_place(format!("matrix: {what}"))];
    if spec.references.is_empty() {
        return Ok(Vec::new());
    }
    let ue = table.get("ue").and_then(Value::as_table).filter(|ues| ues.len() == 1);
    let (ue, accesses) = ue
        .and_then(|ues| ues.iter().next())
        .and_then(|(name, ue)| Some((name, ue.get("accesses")?.as_array()?)))
        .ok_or_else(|| wrong("the scenario needs one UE, with accesses"))?;
    let text = |access: &Value, key: &str| access.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut all = Vec::new();
    for reference in &spec.references {
        if *reference == Reference::Mptcp {
            let bulk = table.get("flow").and_then(|flows| flows.get(&spec.bulk));
            let program = bulk.and_then(|bulk| bulk.get("program")).and_then(Value::as_str);
            if program.is_some_and(|program| program != file::Program::Own.name()) {
                // Other programs have no MPTCP sockets.
                continue;
            }
            let mut less = table.clone();
            if let Some(call) = &spec.call {
                set(&mut less, &["flow", call, "enabled"], false.into());
            }
            set(&mut less, &["flow", &spec.bulk, "via"], "mptcp".into());
            all.push((*reference, None, less));
            continue;
        }
        for access in accesses {
            let (Some(name), Some(link)) = (text(access, "name"), text(access, "link")) else {
                return Err(wrong("an access has a name and a link"));
            };
            let mut less = table.clone();
            let of = table.get("link").and_then(|links| links.get(&link)).cloned();
            let of = of.ok_or_else(|| wrong(&format!("there is no link `{link}`")))?;
            less.insert("link".into(), Value::Table([(ALONE.to_owned(), of)].into_iter().collect()));
            if let Some(Value::Array(events)) = less.get_mut("event") {
                events.retain(|e| e.get("link").and_then(Value::as_str) == Some(&link));
                for event in events.iter_mut().filter_map(Value::as_table_mut) {
                    event.insert("link".into(), ALONE.into());
                }
            }
            let mut only = access.clone();
            if let Some(only) = only.as_table_mut() {
                only.insert("name".into(), ALONE.into());
                only.insert("link".into(), ALONE.into());
            }
            set(&mut less, &["ue", ue, "accesses"], Value::Array(vec![only]));
            set(&mut less, &["ue", ue, "rules"], Value::Array(Vec::new()));
            if *reference == Reference::Direct {
                let flows = table.get("flow").and_then(Value::as_table);
                for flow in flows.into_iter().flat_map(Table::keys) {
                    set(&mut less, &["flow", flow, "via"], format!("direct:{ALONE}").into());
                }
            }
            all.push((*reference, Some(name), less));
        }
    }
    Ok(all)
}

/// Name of the access and the link of a UE with only one.
const ALONE: &str = "alone";

/// Sets the value at a path of nested tables.
fn set(table: &mut Table, path: &[&str], value: Value) {
    match path {
        [] => {}
        [key] => {
            table.insert((*key).to_owned(), value);
        }
        [key, rest @ ..] => {
            if let Some(inner) = table.get_mut(*key).and_then(Value::as_table_mut) {
                set(inner, rest, value);
            }
        }
    }
}

fn problems_of(spec: &file::Matrix, select: &Select) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |path: String, message: String| problems.push(Problem { line: None, path, message });
    for (i, axis) in spec.axis.iter().enumerate() {
        let path = format!("matrix.axis.{}", axis.name);
        if !valid_name(&axis.name) || spec.axis[..i].iter().any(|a| a.name == axis.name) {
            problem(path.clone(), "needs a name of its own: letters, digits, `_` and `-`".into());
        }
        if axis.value.is_empty() {
            problem(path.clone(), "has no value".into());
        }
        for (i, value) in axis.value.iter().enumerate() {
            let twice = axis.value[..i].iter().any(|v| v.name == value.name);
            if twice || !valid_name(&value.name) || value.name.contains('_') {
                let message = "needs a name of its own: letters, digits and `-`";
                problem(format!("{path}.value.{}", value.name), message.into());
            }
        }
    }
    let combinations = spec.axis.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.value.len()));
    if combinations.is_none_or(|n| n > MOST_COMBINATIONS) {
        let message = format!("has more than {MOST_COMBINATIONS} combinations of values; make it two files");
        problem("matrix.axis".into(), message);
    }
    let mut known = |path: &str, axis: &str, values: &[String]| {
        let Some(of) = spec.axis.iter().find(|a| a.name == axis) else {
            let all: Vec<&str> = spec.axis.iter().map(|a| a.name.as_str()).collect();
            return problem(path.into(), format!("there is no axis `{axis}`; there is {}", all.join(", ")));
        };
        for value in values {
            if !of.value.iter().any(|v| v.name == *value) {
                let all: Vec<&str> = of.value.iter().map(|v| v.name.as_str()).collect();
                let all = all.join(", ");
                problem(path.into(), format!("axis `{axis}` has no `{value}`; it has {all}"));
            }
        }
    };
    let groups = spec.group.iter().map(|(name, filters)| (format!("matrix.group.{name}"), filters));
    let fixed = [("matrix.cells".to_owned(), &spec.cells), ("matrix.netns".to_owned(), &spec.netns)];
    let nothing = Vec::new();
    let asked = ("--filter".to_owned(), if let Select::Fit(f) = select { f } else { &nothing });
    for (path, filters) in groups.chain(fixed).chain([asked]) {
        filters.iter().flatten().for_each(|(axis, values)| known(&path, axis, values));
    }
    spec.rows.iter().for_each(|axis| known("matrix.rows", axis, &[]));
    for (key, of) in [("matrix.beside", &spec.beside), ("matrix.plain", &spec.plain)] {
        for (axis, value) in of {
            known(key, axis, std::slice::from_ref(value));
        }
    }
    for (key, of) in [("matrix.beside", &spec.beside), ("matrix.plain", &spec.plain)] {
        if of.len() > 1 {
            problem(key.into(), "names one axis".into());
        }
    }
    for (backend, group) in &spec.chosen {
        if !BackendName::NAMES.contains(&backend.as_str()) {
            problem("matrix.chosen".into(), format!("there is no backend `{backend}`"));
        }
        if group != ALL && !spec.group.contains_key(group) {
            problem("matrix.chosen".into(), format!("there is no group `{group}`"));
        }
    }
    if spec.group.contains_key(ALL) {
        problem(format!("matrix.group.{ALL}"), "is there already: all cells".into());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Form, Scenario, parse_form};
    use std::path::Path;

    const SMALL: &str = r#"
title = "t"
backends = ["virtual", "netns"]
[link.a]
up = {}
down = {}
[link.b]
up = {}
down = {}
[ue.u]
accesses = [{ name = "wifi", link = "a" }, { name = "5g", link = "b" }]
[flow.bulk]
kind = "bulk_tcp"
[matrix]
bulk = "bulk"
rows = ["rate"]
references = ["alone", "direct", "mptcp"]
beside = { cc = "cubic" }
chosen.virtual = "few"
netns = [{ cc = ["cubic"] }]
group.few = [{ rate = ["slow"] }]
[[matrix.axis]]
name = "rate"
value = [{ name = "slow", set.link.a."*".rate_mbps = 5 }, { name = "fast" }]
[[matrix.axis]]
name = "cc"
value = [{ name = "cubic" }, { name = "bbr", set.flow.bulk.congestion_control = "bbr" }]
[[claim]]
id = "few"
what = "w"
metric = "matrix.few.of_best.min"
min = 0
[[claim]]
id = "all"
what = "w"
metric = "matrix.all.of_best.min"
min = 0
"#;

    fn parsed(text: &str, select: &Select) -> Result<Scenario, String> {
        let problems = |p: Vec<Problem>| p.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        parse_form(Path::new("t.toml"), text, &[], Form::Full, select).map_err(problems)
    }

    #[test]
    fn a_matrix_needs_its_flows_and_a_selection() {
        let wrong = parsed(&SMALL.replace("bulk = \"bulk\"", "bulk = \"g\"\ncall = \"h\""), &Select::Whole)
            .unwrap_err();
        assert!(wrong.contains("matrix.bulk: there is no flow `g`"), "{wrong}");
        assert!(wrong.contains("matrix.call: there is no flow `h`"), "{wrong}");
        let none = parsed(&SMALL.replace("chosen.virtual = \"few\"", ""), &Select::Chosen).unwrap();
        assert_eq!(none.backends, []);
    }

    #[test]
    fn cells_are_combinations_and_references_are_shared() {
        let whole = parsed(SMALL, &Select::Whole).unwrap();
        let matrix = whole.matrix.as_ref().unwrap();
        let names: Vec<&str> = matrix.cells.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["slow_cubic", "slow_bbr", "fast_cubic", "fast_bbr"]);
        let case = |name: &str| whole.cases.iter().find(|c| c.variant.as_deref() == Some(name)).unwrap();
        assert_eq!(case("slow_bbr").links["a"].up.rate_mbps, 5.0);
        assert_eq!(case("slow_bbr").backends, [BackendName::Virtual]);
        // 5g alone does not depend on Wi-Fi's rate, and equals Wi-Fi if both are fast.
        let alone = |cell: usize| {
            let all = matrix.cells[cell].references.iter().filter(|r| r.0 == Reference::Alone);
            all.map(|r| r.2.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(alone(0), ["slow_cubic_alone-wifi", "slow_cubic_alone-5g"]);
        assert_eq!(alone(2), ["slow_cubic_alone-5g", "slow_cubic_alone-5g"]);
        assert_eq!(case("slow_cubic_mptcp").backends, [BackendName::Netns]);
        assert_eq!(matrix.cells[1].beside.as_deref(), Some("slow_cubic"));
        assert_eq!(matrix.cells[0].beside, None);
        assert!(matrix.is_whole("few", BackendName::Netns) && matrix.is_whole(ALL, BackendName::Virtual));
    }

    #[test]
    fn cells_not_selected_are_omitted() {
        let few = parsed(SMALL, &Select::Chosen).unwrap();
        let matrix = few.matrix.as_ref().unwrap();
        assert_eq!((matrix.cells.len(), matrix.size(ALL, BackendName::Virtual)), (2, 4));
        assert!(matrix.is_whole("few", BackendName::Virtual) && !matrix.is_whole(ALL, BackendName::Virtual));
        assert!(!matrix.is_whole("few", BackendName::Netns));
        assert_eq!(few.backends, [BackendName::Virtual]);
        let select = Select::parse(&["cc=bbr rate=fast,slow".into()]).unwrap();
        let some = parsed(SMALL, &select).unwrap();
        assert_eq!(some.matrix.unwrap().cells.len(), 2);
        assert!(Select::parse(&["bbr".into()]).is_err());
    }

    #[test]
    fn unknown_names_are_reported() {
        let select = Select::parse(&["cc=vegas".into()]).unwrap();
        assert!(parsed(SMALL, &select).unwrap_err().contains("it has cubic, bbr"));
        let without = &SMALL[..SMALL.find("[matrix]").unwrap()];
        assert!(parsed(without, &select).unwrap_err().contains("--filter: there is no [matrix]"));
        let says = parsed(&SMALL.replace("rows = [\"rate\"]", "rows = [\"rat\"]"), &Select::Whole);
        assert!(says.unwrap_err().contains("there is no axis `rat`; there is rate, cc"));
        let says = parsed(&SMALL.replace("few.of_best", "fwe.of_best"), &Select::Whole);
        assert!(says.unwrap_err().contains("no `matrix.fwe.of_best.min`"));
        let axis = |i| {
            format!("[[matrix.axis]]\nname = \"x{i}\"\nvalue = [{{ name = \"a\" }}, {{ name = \"b\" }}]\n")
        };
        let many = SMALL.to_owned() + &(0..70).map(axis).collect::<String>();
        assert!(parsed(&many, &Select::Chosen).unwrap_err().contains("more than 100000 combinations"));
        let says = parsed(&SMALL.replace("rate_mbps = 5", "rate_mbit = 5"), &Select::Whole);
        assert!(says.unwrap_err().contains("did you mean \"rate_mbps\""));
    }
}
