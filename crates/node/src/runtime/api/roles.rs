//! The paths of each agent: all agents answer on all paths, but describe only those that they support.

use super::routes;
use axum::http::Method;
use std::collections::BTreeSet;
use utoipa::openapi::OpenApi;

/// The kind of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// `anabranch ue`
    Ue,
    /// `anabranch upf`
    Upf,
    /// `anabranch gnb`
    Gnb,
    /// `anabranch lwip`
    Lwip,
    /// `anabranch proxy`
    Proxy,
}

impl Agent {
    /// All kinds.
    #[cfg(test)]
    pub const ALL: [Self; 5] = [Self::Ue, Self::Upf, Self::Gnb, Self::Lwip, Self::Proxy];

    /// The command that runs it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ue => "ue",
            Self::Upf => "upf",
            Self::Gnb => "gnb",
            Self::Lwip => "lwip",
            Self::Proxy => "proxy",
        }
    }

    /// Whether the agent supports the operation; otherwise it answers 405.
    pub fn serves(self, method: &Method, path: &str) -> bool {
        let mut parts = path.trim_start_matches('/').split('/');
        let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match (first, second) {
            ("metrics", _) | ("v1", "status" | "events" | "reload") => true,
            ("v1", "sessions" | "paths") if *method != Method::GET => self == Self::Upf,
            ("v1", "sessions" | "paths" | "rules" | "tcp-lane") => matches!(self, Self::Ue | Self::Upf),
            ("v1", "cell" | "slices" | "ues" | "telemetry") => self == Self::Gnb,
            ("v1", "lwip") => self == Self::Lwip,
            ("v1", "proxy") => self == Self::Proxy,
            ("connections" | "pib" | "cib", _) => self == Self::Ue,
            _ => false,
        }
    }

    /// The agent's own OpenAPI description, served at `/openapi.json`.
    pub fn description(self) -> OpenApi {
        let mut description = routes::routes().into_openapi();
        description.info.title = format!("anabranch {}", self.name());
        description.info.description =
            Some(format!("The interface of a running `anabranch {}`.", self.name()));
        description.paths.paths.retain(|path, item| {
            for (method, operation) in [
                (Method::GET, &mut item.get),
                (Method::PUT, &mut item.put),
                (Method::POST, &mut item.post),
                (Method::DELETE, &mut item.delete),
            ] {
                if !self.serves(&method, path) {
                    *operation = None;
                }
            }
            item.get.is_some() || item.put.is_some() || item.post.is_some() || item.delete.is_some()
        });
        prune(&mut description);
        description
    }
}

/// Removes schemas that nothing refers to.
fn prune(description: &mut OpenApi) {
    let named = |text: &str| -> Vec<String> {
        let names = text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next());
        names.map(str::to_owned).collect()
    };
    let Some(components) = description.components.as_mut() else { return };
    let mut left = named(&serde_json::to_string(&description.paths).unwrap_or_default());
    let mut kept = BTreeSet::new();
    while let Some(name) = left.pop() {
        if let Some(schema) = components.schemas.get(&name)
            && kept.insert(name)
        {
            left.extend(named(&serde_json::to_string(schema).unwrap_or_default()));
        }
    }
    components.schemas.retain(|name, _| kept.contains(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn operations(description: &OpenApi) -> BTreeSet<String> {
        let value: Value = serde_json::to_value(description).unwrap();
        let paths = value["paths"].as_object().unwrap().iter();
        paths
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(move |m| format!("{} {path}", m.to_uppercase()))
            })
            .collect()
    }

    #[test]
    fn the_agents_descriptions_together_cover_all_paths() {
        let mut together = BTreeSet::new();
        for agent in Agent::ALL {
            let own = operations(&agent.description());
            for (operation, whose) in [
                ("GET /v1/status", &Agent::ALL[..]),
                ("GET /v1/sessions", &[Agent::Ue, Agent::Upf]),
                ("POST /v1/sessions", &[Agent::Upf]),
                ("DELETE /v1/sessions/{ue}", &[Agent::Upf]),
                ("POST /v1/sessions/{ue}/reset-clock", &[Agent::Upf]),
                ("PUT /v1/rules", &[Agent::Ue, Agent::Upf]),
                ("PUT /v1/cell", &[Agent::Gnb]),
                ("GET /v1/slices", &[Agent::Gnb]),
                ("PUT /v1/lwip", &[Agent::Lwip]),
                ("GET /v1/proxy/flows", &[Agent::Proxy]),
                ("POST /connections/select", &[Agent::Ue]),
                ("GET /cib/{uid}", &[Agent::Ue]),
            ] {
                assert_eq!(own.contains(operation), whose.contains(&agent), "{} {operation}", agent.name());
            }
            together.extend(own);
        }
        assert_eq!(together, operations(&routes::routes().into_openapi()));
    }

    #[test]
    fn exactly_the_referenced_schemas_are_described() {
        for agent in Agent::ALL {
            let text = serde_json::to_string(&agent.description()).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            let described = value["components"]["schemas"].as_object().unwrap();
            for name in described.keys() {
                assert!(
                    text.contains(&format!("\"#/components/schemas/{name}\"")),
                    "{} {name}",
                    agent.name()
                );
            }
            for rest in text.split("\"#/components/schemas/").skip(1) {
                let name = rest.split('"').next().unwrap();
                assert!(described.contains_key(name), "{} {name}", agent.name());
            }
        }
        let ue = serde_json::to_string(&Agent::Ue.description()).unwrap();
        assert!(!ue.contains("LwipNode") && !ue.contains("CellChange"));
    }
}
