//! The characteristics information base (CIB): nodes that describe the host and the network, and the rows formed from them.
//!
//! A row starts at a node with `root`. Nodes with `link` that match a node (by `uid`, or by properties) are appended to it along
//! every simple path; on conflicts, the earlier node's properties take precedence. Nodes without `link` but with `match` add copies
//! of whole rows, with their own properties taking precedence.

use super::array::{MultiArray, PropertyArray};
use super::pib::{text, uid};
use super::property::{Precedence, Property};
use super::value::{Scalar, Value};
use super::{MAX_ENTRIES, MAX_ROWS, NeatError, json};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// Lifetime of a node without an expiry time, in seconds.
const DEFAULT_EXPIRY_S: f64 = 600.0;
/// Maximum number of candidates returned by a lookup.
const KEPT: usize = 5;

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub uid: String,
    /// Whether rows start here.
    pub root: bool,
    /// Whether it is appended to the nodes that it matches.
    pub link: bool,
    /// Expiry time, in seconds since 1970; `None`: never.
    pub expires_unix_s: Option<f64>,
    /// Description.
    pub description: String,
    matches: Vec<PropertyArray>,
    rows: Vec<PropertyArray>,
    written: MultiArray,
}

impl Node {
    /// Reads a CIB file.
    ///
    /// # Errors
    /// The faulty place, and the valid form.
    pub fn from_json(text: &str, now_unix_s: u64) -> Result<Self, NeatError> {
        Self::from_value(&json::parse(text, "CIB node")?, now_unix_s)
    }

    /// Reads a CIB file whose node gets the name `uid`.
    ///
    /// # Errors
    /// Those of [`Node::from_json`].
    pub fn named(uid: &str, text: &str, now_unix_s: u64) -> Result<Self, NeatError> {
        Self::from_value(&json::parse_named(text, "CIB node", uid)?, now_unix_s)
    }

    /// Reads a node; without `expire` it expires in ten minutes.
    ///
    /// # Errors
    /// Those of [`Node::from_json`].
    pub fn from_value(value: &Json, now_unix_s: u64) -> Result<Self, NeatError> {
        let object = super::value::object(value, "CIB node")?;
        let uid = uid(value);
        let within = |e: NeatError| e.within(&format!("CIB node \"{uid}\""));
        let given = |j: &&Json| !j.is_null() && j.as_f64() != Some(0.0);
        let expire =
            object.get("expire").filter(given).or_else(|| object.get("expires")).filter(|j| !j.is_null());
        let expires_unix_s = match expire {
            None => Some(now_unix_s as f64 + DEFAULT_EXPIRY_S),
            Some(j) => {
                let at = j.as_f64().or_else(|| j.as_str()?.trim().parse().ok()).filter(|at| at.is_finite());
                let wrong = || within(NeatError::new("expire", "write seconds since 1970, or -1 for never"));
                Some(at.ok_or_else(wrong)?).filter(|at| *at != -1.0)
            }
        };
        let matches: &[Json] = match object.get("match") {
            None => &[],
            Some(Json::Array(all)) => all,
            Some(_) => return Err(within(NeatError::new("match", "write a list of objects"))),
        };
        let written = MultiArray::from_json(object.get("properties")).map_err(within)?;
        Ok(Self {
            root: object.get("root") == Some(&Json::Bool(true)),
            link: object.get("link").and_then(Json::as_bool).unwrap_or(false),
            expires_unix_s,
            description: text(object.get("description")),
            matches: matches
                .iter()
                .map(PropertyArray::from_json)
                .collect::<Result<_, _>>()
                .map_err(within)?,
            rows: written.expand().map_err(within)?,
            written,
            uid,
        })
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Json {
        json!({
            "uid": self.uid,
            "root": self.root,
            "link": self.link,
            "expire": self.expires_unix_s.map_or(json!(-1), super::value::number_json),
            "description": self.description,
            "match": self.matches.iter().map(PropertyArray::json).collect::<Json>(),
            "properties": self.written.json(),
        })
    }

    fn is_valid_at(&self, now_unix_s: u64) -> bool {
        self.expires_unix_s.is_none_or(|at| now_unix_s as f64 <= at)
    }

    /// Whether this node is appended to `other`: one of its matches is within a row of `other`, including its uid.
    fn is_appended_to(&self, other: &Self) -> bool {
        let name = Property::new(Value::Single(Scalar::Text(other.uid.clone())), Precedence::Optional);
        self.matches.iter().any(|m| {
            other.rows.iter().any(|row| {
                m.iter().all(|(key, p)| {
                    row.get(key).is_some_and(|o| p.overlaps(o)) || (key == "uid" && p.overlaps(&name))
                })
            })
        })
    }
}

/// The repository.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cib(BTreeMap<String, Node>);

impl Cib {
    /// Adds a node, replacing one with the same uid.
    ///
    /// # Errors
    /// The repository is full.
    pub fn insert(&mut self, node: Node) -> Result<(), NeatError> {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&node.uid) {
            return Err(NeatError::new(node.uid, format!("{MAX_ENTRIES} nodes are there; remove one")));
        }
        self.0.insert(node.uid.clone(), node);
        Ok(())
    }

    /// Removes a node.
    pub fn remove(&mut self, uid: &str) -> Option<Node> {
        self.0.remove(uid)
    }

    /// The node with this uid.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.0.get(uid)
    }

    /// All uids.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// All rows of nodes that have not expired.
    ///
    /// # Errors
    /// Too many rows.
    pub fn rows(&self, now_unix_s: u64) -> Result<Vec<PropertyArray>, NeatError> {
        let nodes: Vec<&Node> = self.0.values().filter(|n| n.is_valid_at(now_unix_s)).collect();
        let hanging: Vec<Vec<usize>> = nodes
            .iter()
            .enumerate()
            .map(|(to, node)| {
                (0..nodes.len())
                    .filter(|from| *from != to && nodes[*from].link && nodes[*from].is_appended_to(node))
                    .collect()
            })
            .collect();
        let mut all = Vec::new();
        for root in (0..nodes.len()).filter(|i| nodes[*i].root) {
            let mut rows = Vec::new();
            for path in simple_paths(root, &hanging)? {
                let mut product = vec![PropertyArray::default()];
                for node in path {
                    let product_size = product.len().saturating_mul(nodes[node].rows.len());
                    if product_size + rows.len() > MAX_ROWS {
                        return Err(NeatError::too_many("the CIB's rows"));
                    }
                    product = product
                        .iter()
                        .flat_map(|row| nodes[node].rows.iter().map(move |more| row.before(more)))
                        .collect();
                }
                rows.extend(product);
            }
            for node in nodes.iter().filter(|n| !n.link && !n.matches.is_empty()) {
                for more in &node.rows {
                    let extended: Vec<PropertyArray> = rows
                        .iter()
                        .filter(|row| node.matches.iter().any(|m| m.is_within(row)))
                        .map(|row| {
                            let mut row = more.before(row);
                            row.remove("uid");
                            row
                        })
                        .collect();
                    all.extend(extended);
                    if all.len() > MAX_ROWS {
                        return Err(NeatError::too_many("the CIB's rows"));
                    }
                }
            }
            all.extend(rows);
            if all.len() > MAX_ROWS {
                return Err(NeatError::too_many("the CIB's rows"));
            }
        }
        Ok(all)
    }

    /// The request itself, and every row that contains all of its immutable properties, updated by it; the best five.
    pub(super) fn lookup(rows: &[PropertyArray], input: &PropertyArray) -> Vec<PropertyArray> {
        let mut found: Vec<PropertyArray> = rows
            .iter()
            .filter(|row| {
                input.immutable().all(|(key, p)| row.get(key).is_some_and(|r| p.merged(r, key).is_ok()))
            })
            .filter_map(|row| row.plus(input).ok())
            .collect();
        found.sort_by_cached_key(PropertyArray::text);
        found.insert(0, input.clone());
        found.sort_by(|a, b| a.score().best_first(&b.score()));
        found.truncate(KEPT);
        found
    }
}

/// Every simple path that cannot be extended without repeating a node.
fn simple_paths(root: usize, hanging: &[Vec<usize>]) -> Result<Vec<Vec<usize>>, NeatError> {
    let (mut done, mut open) = (Vec::new(), vec![vec![root]]);
    while let Some(path) = open.pop() {
        let last = path.last().copied().unwrap_or(root);
        let next: Vec<usize> = hanging[last].iter().copied().filter(|n| !path.contains(n)).collect();
        if next.is_empty() {
            done.push(path);
        } else {
            open.extend(next.into_iter().map(|n| [path.clone(), vec![n]].concat()));
        }
        if done.len() + open.len() > MAX_ROWS {
            return Err(NeatError::too_many("the CIB's links"));
        }
    }
    Ok(done)
}
