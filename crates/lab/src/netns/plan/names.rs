//! Names of namespaces.

use super::Case;
use std::collections::BTreeMap;

/// Names of namespaces: that of the object, unless an object of another kind has the same.
#[derive(Debug)]
pub(super) struct Names(BTreeMap<(u8, String), String>);

impl Names {
    pub(super) fn of(case: &Case) -> Self {
        let kinds: [(&str, Vec<&String>); 6] = [
            ("ue", case.ues.keys().collect()),
            ("upf", case.upfs.keys().collect()),
            ("server", case.servers.keys().collect()),
            ("link", case.links.keys().collect()),
            ("gnb", case.gnbs.keys().collect()),
            ("lwip", case.lwips.keys().collect()),
        ];
        let mut map = BTreeMap::new();
        for (k, (kind, names)) in kinds.iter().enumerate() {
            for name in names {
                let taken = kinds.iter().filter(|(_, others)| others.contains(name)).count() > 1;
                // Links and cells always have a prefix, since their names are often those of interfaces.
                let space = if taken || ["link", "gnb", "lwip"].contains(kind) {
                    format!("{kind}-{name}")
                } else {
                    (*name).clone()
                };
                map.insert((k as u8, (*name).clone()), space);
            }
        }
        Self(map)
    }

    fn get(&self, kind: u8, name: &str) -> String {
        self.0.get(&(kind, name.to_owned())).cloned().unwrap_or_default()
    }
    pub(super) fn ue(&self, name: &str) -> String {
        self.get(0, name)
    }
    pub(super) fn upf(&self, name: &str) -> String {
        self.get(1, name)
    }
    pub(super) fn server(&self, name: &str) -> String {
        self.get(2, name)
    }
    pub(super) fn link(&self, name: &str) -> String {
        self.get(3, name)
    }
    pub(super) fn gnb(&self, name: &str) -> String {
        self.get(4, name)
    }
    pub(super) fn lwip(&self, name: &str) -> String {
        self.get(5, name)
    }
}
