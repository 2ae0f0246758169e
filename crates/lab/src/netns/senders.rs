//! Loss detection of the senders of a namespace: kernel parameters, hence one method per host.
//!
//! | `recovery` | `tcp_recovery` | `tcp_reordering` | `tcp_max_reordering` |
//! |---|---|---|---|
//! | `rack` | 1 | 3 | 300 |
//! | `adaptive` | 0 | 3 | 300 |
//! | `classic` | 0 | 3 | 3 |
//!
//! Newer kernels have no loss detection by counting for connections with SACK ("currently, setting this bit to 0 has no
//! effect", Documentation/networking/ip-sysctl.rst since June 2025). There, `tcp_recovery = 0` still means RACK, and only
//! `sack = false` counts duplicates; see scenarios/lwip/recovery-kernel.toml.

use super::plan::Plan;
use super::topology::Network;
use crate::backend::Unable;
use crate::scenario::file::Recovery;
use crate::scenario::model::Case;
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// Sets the parameters of every namespace with TCP senders of `case`.
///
/// # Errors
/// Two flows require different parameters in one namespace.
pub fn set(case: &Case, plan: &Plan, network: &Network) -> Result<()> {
    for (space, (_, recovery, sack)) in wanted(case, plan)? {
        let (detection, most) = match recovery {
            Recovery::Rack => ("1", "300"),
            Recovery::Adaptive => ("0", "300"),
            Recovery::Classic => ("0", "3"),
        };
        network.space(&space)?.sysctl(&[
            ("net/ipv4/tcp_recovery", detection),
            ("net/ipv4/tcp_reordering", "3"),
            ("net/ipv4/tcp_max_reordering", most),
            ("net/ipv4/tcp_sack", if sack { "1" } else { "0" }),
        ])?;
    }
    Ok(())
}

/// The first flow with requirements on a namespace, and these requirements.
type Wanted = BTreeMap<String, (String, Recovery, bool)>;

fn wanted(case: &Case, plan: &Plan) -> Result<Wanted> {
    let mut wanted = Wanted::new();
    for (name, flow) in case.flows.iter().filter(|(_, flow)| flow.traffic.is_tcp()) {
        let space = if flow.traffic.is_upload() {
            plan.ues.get(&flow.ue).map(|ue| &ue.space)
        } else {
            plan.servers.get(&flow.server).map(|server| &server.space)
        };
        let Some(space) = space else { continue };
        let own = (name.clone(), flow.recovery, flow.sack);
        let (other, recovery, sack) = wanted.entry(space.clone()).or_insert_with(|| own.clone());
        if (*recovery, *sack) != (own.1, own.2) {
            bail!(Unable(format!(
                "flow.{name} and flow.{other}: in namespaces the senders of one host have the same recovery and sack"
            )));
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::plan;
    use std::path::Path;

    const TWO: &str = r#"
title = "t"
[link.wifi]
[ue.one]
accesses = [{ name = "wifi", link = "wifi" }]
[flow.down]
kind = "bulk_tcp"
recovery = "classic"
sack = false
[flow.up]
kind = "bulk_tcp"
direction = "up"
"#;

    #[test]
    fn a_host_has_one_recovery_method() {
        let of = |text: &str| {
            let scenario = crate::scenario::parse(Path::new("t.toml"), text, &[]).unwrap();
            let plan = plan::lay_out(&scenario.cases[0]).unwrap();
            wanted(&scenario.cases[0], &plan)
        };
        let all = of(TWO).unwrap();
        assert_eq!(all["server"], ("down".to_owned(), Recovery::Classic, false));
        assert_eq!(all["one"], ("up".to_owned(), Recovery::Rack, true));
        let error = of(&TWO.replace("direction = \"up\"\n", "")).unwrap_err();
        assert!(error.downcast_ref::<Unable>().is_some() && error.to_string().contains("flow.up"), "{error}");
    }
}
