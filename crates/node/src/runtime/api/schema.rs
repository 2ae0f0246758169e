//! OpenAPI schemas of rules. They mirror the types of crate `rules`, which do not depend on utoipa; a test
//! keeps the two consistent. The modes provide their own schemas.

use anabranch_steer::{ModeName, Param, ParamKind};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

/// An ATSSS rule: a traffic selector and a steering mode.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Rule)]
#[serde(deny_unknown_fields)]
pub struct RuleSchema {
    /// Unique name.
    name: String,
    /// Traffic selector; an empty filter matches everything.
    #[serde(default)]
    filter: FilterSchema,
    /// Steering mode and its parameters.
    #[schema(value_type = SteeringSchema)]
    steering: serde_json::Value,
    /// Whether the receiver restores packet order; default true.
    #[serde(default)]
    #[schema(default = true)]
    reorder: bool,
    /// Lane of its TCP flows; all other packets use the packet lane.
    #[serde(default, skip_serializing_if = "FunctionalitySchema::is_ll")]
    functionality: FunctionalitySchema,
}

/// Steering functionality.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Functionality)]
#[serde(rename_all = "lowercase")]
pub enum FunctionalitySchema {
    /// The packet lane: packets are steered individually.
    #[default]
    Ll,
    /// The TCP lane: TCP is terminated at UE and UPF, with Multipath TCP between them.
    Mptcp,
}

impl FunctionalitySchema {
    fn is_ll(&self) -> bool {
        *self == Self::Ll
    }
}

/// Traffic selector from the UE's side; all given members must match.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Filter)]
#[serde(deny_unknown_fields, default)]
pub struct FilterSchema {
    /// Transport protocol.
    protocol: Option<ProtocolSchema>,
    /// Address or prefix of the UE side.
    #[schema(example = "10.45.0.0/24")]
    local: Option<String>,
    /// Address or prefix of the remote side.
    #[schema(example = "203.0.113.0/24")]
    remote: Option<String>,
    /// Port of the UE side, or "first-last".
    local_port: Option<PortSchema>,
    /// Port of the remote side, or "first-last".
    remote_port: Option<PortSchema>,
    /// Domain name, learned from DNS answers; includes its subdomains.
    domain: Option<String>,
    /// User id of the sending process on the UE.
    uid: Option<u32>,
    /// cgroup v2 path of the sending process on the UE.
    cgroup: Option<String>,
}

/// Transport protocol.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Protocol)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolSchema {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6.
    Icmp,
}

/// A port, or a range written "5000-5100".
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PortRange)]
#[serde(untagged)]
pub enum PortSchema {
    /// One port.
    One(u16),
    /// "first-last".
    Range(String),
}

/// Steering mode and its parameters, as described by the modes.
#[derive(Debug)]
pub struct SteeringSchema;

impl ToSchema for SteeringSchema {
    fn name() -> Cow<'static, str> {
        "SteeringMode".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((WeightSchema::name().into(), WeightSchema::schema()));
    }
}

impl PartialSchema for SteeringSchema {
    fn schema() -> RefOr<Schema> {
        let mode = |mode: ModeName| {
            let name = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([mode.name()]));
            let object =
                ObjectBuilder::new().description(Some(mode.about())).property("mode", name).required("mode");
            mode.params().iter().fold(object, |object, param| {
                let object = object.property(param.name, param_schema(param));
                if param.required { object.required(param.name) } else { object }
            })
        };
        let modes = ModeName::ALL.into_iter().fold(OneOfBuilder::new(), |modes, name| modes.item(mode(name)));
        modes.description(Some("Steering mode and its parameters.")).into()
    }
}

fn param_schema(param: &Param) -> RefOr<Schema> {
    let about = Some(format!("{}.", param.about));
    let types = |ty: Type| match (param.required, &param.default) {
        (false, None) => SchemaType::from_iter([ty, Type::Null]),
        _ => SchemaType::Type(ty),
    };
    let (least, most) = param.range.unzip();
    let plain = |ty: Type| ObjectBuilder::new().schema_type(types(ty)).description(about.clone());
    let plain = |ty: Type| plain(ty).default(param.default.clone());
    match param.kind {
        ParamKind::Bool => plain(Type::Boolean).into(),
        ParamKind::Access => plain(Type::String).into(),
        ParamKind::Words(words) => plain(Type::String).enum_values(Some(words.iter().copied())).into(),
        ParamKind::Number => plain(Type::Number).minimum(least).maximum(most).into(),
        ParamKind::Integer(max) => {
            let whole = |value: f64| value as u64;
            let object = plain(Type::Integer).minimum(Some(whole(least.unwrap_or(0.0))));
            object.maximum(Some(most.map_or_else(|| max.into(), whole))).into()
        }
        ParamKind::Weights => {
            let array = ArrayBuilder::new().items(Ref::from_schema_name(WeightSchema::name()));
            array.description(about).default(param.default.clone()).into()
        }
    }
}

/// Share of one access.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Weight)]
#[serde(deny_unknown_fields)]
pub struct WeightSchema {
    /// Name of the access.
    access: String,
    /// 0 to 100, in steps of 10.
    percent: u8,
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_steer::Rule;

    /// Every mode and every filter key, serialised by the types and by the schema: the same JSON.
    #[test]
    fn the_schemas_mirror_the_types() {
        let all = [
            r#"{"name":"a","filter":{"protocol":"tcp","local":"10.0.0.0/8","remote":"2001:db8::/32","local_port":"1-2","remote_port":443,"domain":"a.example","uid":7,"cgroup":"x"},"steering":{"mode":"active-standby","primary":"5g","rotate_packets":7},"reorder":false}"#,
            r#"{"name":"b","filter":{"protocol":"udp"},"steering":{"mode":"load-balance","weights":[{"access":"5g","percent":100}],"per":"flow","autonomous":true},"reorder":true}"#,
            r#"{"name":"c","filter":{"protocol":"icmp"},"steering":{"mode":"smallest-delay","hysteresis_percent":20,"dwell_ms":500,"leave_above_loss_percent":7},"reorder":true}"#,
            r#"{"name":"d","filter":{},"steering":{"mode":"priority-based","primary":"5g","rtt_ms":5.5,"loss_percent":1.0},"reorder":true}"#,
            r#"{"name":"e","filter":{},"steering":{"mode":"redundant","above_loss_percent":2.0},"reorder":true,"functionality":"mptcp"}"#,
            r#"{"name":"f","filter":{},"steering":{"mode":"coded","overhead_percent":50,"window_packets":32,"longest_wait_ms":60},"reorder":false}"#,
        ];
        for text in all {
            let core: Rule = serde_json::from_str(text).unwrap();
            let emitted = serde_json::to_string(&core).unwrap();
            assert_eq!(emitted, text);
            let mirror: RuleSchema = serde_json::from_str(&emitted).unwrap();
            let mut shown = serde_json::to_value(&mirror).unwrap();
            let filter = shown["filter"].as_object_mut().unwrap();
            filter.retain(|_, value| !value.is_null());
            assert_eq!(shown, serde_json::from_str::<serde_json::Value>(text).unwrap());
        }
    }
}
