//! Changes to a parsed file: `--set key=value` and the `set` of a variant.

use toml::{Table, Value};

/// Merges `changes` into `base`, as documented for `variant.set`.
///
/// # Errors
/// The dotted path of an element of a list that does not exist.
pub fn merge(base: &mut Table, changes: &Table) -> Result<(), String> {
    for (key, value) in changes {
        // A quoted key may itself be dotted: "ue.phone.security" = "plain".
        let path: Vec<&str> = key.split('.').collect();
        set(base, &path, value.clone()).map_err(|at| format!("{key}: {at}"))?;
    }
    Ok(())
}

/// Applies one `key=value` of the command line; the value is TOML, or text if it is not.
///
/// # Errors
/// What is wrong with the assignment.
pub fn assign(base: &mut Table, assignment: &str) -> Result<(), String> {
    let (key, text) = assignment
        .split_once('=')
        .ok_or_else(|| format!("`{assignment}`: write key=value, such as link.wifi.down.rate_mbps=30"))?;
    let key = key.trim();
    let value = toml::from_str::<Table>(&format!("v = {text}"))
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.trim().to_owned()));
    let path: Vec<&str> = key.split('.').collect();
    set(base, &path, value).map_err(|at| format!("--set {key}: {at}"))
}

/// Matches every element of a list or table.
const EVERY: &str = "*";

fn set(table: &mut Table, path: &[&str], value: Value) -> Result<(), String> {
    let [key, rest @ ..] = path else { return Ok(()) };
    if *key == EVERY {
        let keys: Vec<String> = table.keys().cloned().collect();
        return keys.iter().try_for_each(|key| set(table, &[&[key.as_str()], rest].concat(), value.clone()));
    }
    if let Some(Value::Array(list)) = table.get_mut(*key) {
        return set_in_list(list, key, rest, value);
    }
    if !rest.is_empty() {
        return match table.entry((*key).to_owned()).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => set(inner, rest, value),
            _ => Err(format!("`{key}` is a value, it has no `{}`", rest.join("."))),
        };
    }
    match (table.get_mut(*key), value) {
        (Some(Value::Table(old)), Value::Table(new)) if !is_tagged(&new) => merge(old, &new)?,
        (_, value) => {
            table.insert((*key).to_owned(), value);
        }
    }
    Ok(())
}

fn set_in_list(list: &mut Vec<Value>, key: &str, path: &[&str], value: Value) -> Result<(), String> {
    match (path, value) {
        ([], Value::Table(by_name)) => {
            for (name, value) in by_name {
                set_in_list(list, key, &[&name], value)?;
            }
            Ok(())
        }
        ([], value) => {
            let Value::Array(new) = value else { return Err(format!("`{key}` is a list")) };
            *list = new;
            Ok(())
        }
        ([EVERY, rest @ ..], value) => (0..list.len()).try_for_each(|i| {
            let one = i.to_string();
            set_in_list(list, key, &[&[one.as_str()], rest].concat(), value.clone())
        }),
        ([which, rest @ ..], value) => {
            let known: Vec<String> =
                list.iter().enumerate().map(|(i, v)| name_of(v).unwrap_or(i.to_string())).collect();
            let index = known
                .iter()
                .position(|n| n == which)
                .or_else(|| which.parse().ok().filter(|i| *i < list.len()))
                .ok_or_else(|| format!("`{key}` has no `{which}`; it has {}", known.join(", ")))?;
            match (rest, &mut list[index], value) {
                ([], Value::Table(old), Value::Table(new)) if !is_tagged(&new) => merge(old, &new),
                ([], old, value) => {
                    *old = value;
                    Ok(())
                }
                (rest, Value::Table(inner), value) => set(inner, rest, value),
                _ => Err(format!("`{key}.{which}` is a value")),
            }
        }
    }
}

/// Whether a table has a tag. It then replaces the old one, whose keys need not fit the new kind.
fn is_tagged(table: &Table) -> bool {
    ["kind", "mode", "model"].iter().any(|k| table.contains_key(*k))
}

fn name_of(value: &Value) -> Option<String> {
    let table = value.as_table()?;
    ["name", "id"].iter().find_map(|k| Some(table.get(*k)?.as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Table {
        toml::from_str(
            "[ue.a]\nrules = [{ name = \"all\", reorder = true, steering = { mode = \"redundant\", above = 1 } }]\n\
             [link.w.up]\nrate = 1\ndelay = 2\n[[event]]\nat = 1\n",
        )
        .unwrap()
    }

    #[test]
    fn lists_are_addressed_by_name_or_number() {
        let mut t = base();
        assign(&mut t, "ue.a.rules.all.reorder=false").unwrap();
        assign(&mut t, "event.0.at=7").unwrap();
        assign(&mut t, "link.w.up.trace=x.csv").unwrap();
        assert_eq!(t["ue"]["a"]["rules"][0]["reorder"].as_bool(), Some(false));
        assert_eq!(t["event"][0]["at"].as_integer(), Some(7));
        assert_eq!(t["link"]["w"]["up"]["trace"].as_str(), Some("x.csv"));
        let error = assign(&mut t, "ue.a.rules.none.reorder=false").unwrap_err();
        assert!(error.contains("it has all"), "{error}");
    }

    #[test]
    fn a_star_is_every_element() {
        let mut t = base();
        let changes = "link.\"*\".\"*\" = { rate = 3 }\n\"ue.a.rules.*.reorder\" = false\n\"event.*.at\" = 2";
        merge(&mut t, &toml::from_str(changes).unwrap()).unwrap();
        assert_eq!(t["link"]["w"]["up"]["rate"].as_integer(), Some(3));
        assert_eq!(t["link"]["w"]["up"]["delay"].as_integer(), Some(2));
        assert_eq!(t["ue"]["a"]["rules"][0]["reorder"].as_bool(), Some(false));
        assert_eq!(t["event"][0]["at"].as_integer(), Some(2));
        assert!(t["link"].get("*").is_none());
    }

    #[test]
    fn tables_merge_and_tagged_tables_replace() {
        let mut t = base();
        let changes: Table = toml::from_str(
            "link.w.up = { rate = 9 }\nue.a.rules.all.steering = { mode = \"smallest-delay\" }\n\"link.w.up.delay\" = 5",
        )
        .unwrap();
        merge(&mut t, &changes).unwrap();
        assert_eq!(t["link"]["w"]["up"]["rate"].as_integer(), Some(9));
        assert_eq!(t["link"]["w"]["up"]["delay"].as_integer(), Some(5));
        assert!(t["ue"]["a"]["rules"][0]["steering"].get("above").is_none());
    }
}
