//! Metrics of a proxy in the Prometheus text format, built from the current state at each request.

use crate::runtime::api::{ProxyCarried, ProxyNode, Status};
use crate::runtime::metrics::{Text, count, encoded, one, program, tally};
use prometheus_client::encoding::EncodeLabelSet;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    rule: Text,
    slice: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OriginLabels {
    origin: Text,
}

/// Name, help text, value.
type Column = (&'static str, &'static str, fn(&ProxyCarried) -> u64);

/// All metrics as OpenMetrics text. Names begin with `anabranch_proxy_`.
pub fn text(status: &Status, node: &ProxyNode) -> String {
    let mut registry =
        program(status, "UDP datagrams dropped: a queue was full, or the kernel rejected them");
    one(&mut registry, "flows_now", "Current flows", None, node.flows as f64);
    one(&mut registry, "flows_limit", "Maximum of concurrent flows", None, node.max_flows as f64);
    let answers = f64::from(u8::from(node.agent.answers.unwrap_or(false)));
    one(&mut registry, "agent_answers", "1 while the agent answers", None, answers);
    one(&mut registry, "answers_known", "Cached answers of the agent", None, node.agent.known as f64);
    let label =
        |c: &ProxyCarried| RuleLabels { rule: c.rule.as_str().into(), slice: c.slice.as_str().into() };
    let columns: [Column; 3] = [
        ("flows", "Flows with a path, by rule and slice", |c| c.flows),
        ("up_bytes", "Bytes from programs", |c| c.up_bytes),
        ("down_bytes", "Bytes to programs", |c| c.down_bytes),
    ];
    for (name, help, value) in columns {
        count(&mut registry, name, help, node.carried.iter().map(|c| (label(c), value(c))));
    }
    let rows =
        |of: &BTreeMap<String, u64>| of.iter().map(|(k, n)| (Text::from(k.as_str()), *n)).collect::<Vec<_>>();
    let refused = rows(&node.refused).into_iter().map(|(reason, n)| (ReasonLabels { reason }, n));
    count(&mut registry, "refused_flows", "Flows refused, by reason", refused);
    let plans = rows(&node.plans).into_iter().map(|(origin, n)| (OriginLabels { origin }, n));
    count(&mut registry, "plans", "Flows, by the origin of their plan", plans);
    for (name, help, value) in [
        ("agent_questions", "Requests answered by the agent", node.agent.asked),
        ("agent_failures", "Requests not answered in time", node.agent.failures),
        ("retries", "Additional candidates tried because an earlier one failed or was late", node.retries),
        ("resets", "TCP flows ended by a reset", node.resets),
        ("plan_failures", "Steps of plans rejected by the kernel", node.plan_failures),
    ] {
        tally(&mut registry, name, help, value);
    }
    encoded(&registry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::{Origin, Refused};
    use crate::runtime::api::ProxyAgent;
    use crate::runtime::relay::Named;
    use crate::testing::{documented_metrics, metric_rows};

    const PAGE: &str = include_str!("../../../../../docs/proxy.md");

    fn sample() -> String {
        let carried =
            ProxyCarried { rule: "video".into(), slice: "B".into(), flows: 3, up_bytes: 10, down_bytes: 20 };
        let node = ProxyNode {
            name: "n".into(),
            port: 1,
            local: true,
            interfaces: Vec::new(),
            rules: vec!["video".into()],
            agent: ProxyAgent {
                place: "off".into(),
                answers: Some(true),
                asked: 5,
                failures: 1,
                failure: None,
                known: 2,
            },
            flows: 1,
            max_flows: 4096,
            carried: vec![carried],
            plans: Origin::ALL.iter().map(|from| (from.name().to_owned(), 7)).collect(),
            refused: Refused::ALL.iter().map(|why| (why.name().to_owned(), 8)).collect(),
            retries: 0,
            resets: 0,
            datagrams_dropped: 9,
            plan_failures: 0,
        };
        let status = Status {
            part: "proxy".into(),
            name: "n".into(),
            version: "v".into(),
            uptime_s: 1,
            public_key: String::new(),
            device: String::new(),
            mtu_bytes: 0,
            sessions: 1,
            connected: 1,
            trouble: BTreeMap::new(),
            drops: [("datagrams".to_owned(), 9)].into(),
            ioam: [].into(),
            workers: Vec::new(),
        };
        text(&status, &node)
    }

    #[test]
    fn values_appear_at_their_metrics() {
        let text = sample();
        for line in [
            "anabranch_proxy_flows_now 1.0",
            "anabranch_proxy_flows_total{rule=\"video\",slice=\"B\"} 3",
            "anabranch_proxy_down_bytes_total{rule=\"video\",slice=\"B\"} 20",
            "anabranch_proxy_refused_flows_total{reason=\"limit\"} 8",
            "anabranch_proxy_plans_total{origin=\"last\"} 7",
            "anabranch_proxy_dropped_packets_total{reason=\"datagrams\"} 9",
            "anabranch_proxy_agent_questions_total 5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    /// Name, type and labels of every metric, and every reason, in the form of the tables on the page.
    #[test]
    fn every_metric_and_reason_is_documented() {
        let rows = metric_rows(&sample(), "anabranch_proxy_");
        for row in &rows {
            assert!(PAGE.lines().any(|line| line.starts_with(row)), "docs/proxy.md lacks {row}");
        }
        assert_eq!(documented_metrics(PAGE), rows.len());
        let (_, page) = PAGE.split_once("## Metrics").unwrap();
        let (page, _) = page.split_once("## Configuration").unwrap();
        for reason in Refused::ALL.iter().map(|why| why.name()) {
            let row = format!("| `{reason}` |");
            assert_eq!(page.lines().filter(|l| l.starts_with(&row)).count(), 1, "docs/proxy.md: {row}");
        }
        for origin in Origin::ALL.iter().map(|from| from.name()) {
            assert!(PAGE.contains(&format!("`{origin}`")), "docs/proxy.md: {origin}");
        }
    }
}
