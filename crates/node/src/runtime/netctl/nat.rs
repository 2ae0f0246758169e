//! nftables tables of N6, which are removed at the end: address translation, and a filter of destinations for
//! packets of UEs that the kernel's fast path forwards.

use anyhow::Context;
use ipnet::IpNet;
use nftables::batch::Batch;
use nftables::expr::{Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, Prefix};
use nftables::helper::{self, NftablesError};
use nftables::schema::{Chain, NfListObject, Rule, Table};
use nftables::stmt::{Counter, Match, Operator, Statement};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

/// Parameters of the address translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nat {
    /// Name of the table.
    pub table: String,
    /// Source prefixes that are translated.
    pub sources: Vec<IpNet>,
    /// The tunnel's device; packets that return to it are not translated.
    pub device: String,
    /// If given, only packets that leave through this interface are translated.
    pub only_by: Option<String>,
}

impl Nat {
    /// Name of the table of the program with this `device`.
    pub fn table_name(device: &str) -> String {
        format!("anabranch_{}", device.replace('-', "_"))
    }
}

/// Installs the table, in place of an earlier one of the same name, in one transaction.
pub fn install(nat: &Nat) -> anyhow::Result<()> {
    let mut batch = anew(&nat.table);
    batch.add(NfListObject::Chain(Chain {
        family: NfFamily::INet,
        table: nat.table.as_str().into(),
        name: "postrouting".into(),
        _type: Some(NfChainType::NAT),
        hook: Some(NfHook::Postrouting),
        prio: Some(100), // srcnat
        policy: Some(NfChainPolicy::Accept),
        ..Chain::default()
    }));
    for source in &nat.sources {
        let mut rule = vec![within("saddr", source)];
        rule.push(by_interface(Operator::NEQ, &nat.device));
        if let Some(name) = &nat.only_by {
            rule.push(by_interface(Operator::EQ, name));
        }
        rule.push(Statement::Masquerade(None));
        batch.add(NfListObject::Rule(Rule {
            family: NfFamily::INet,
            table: nat.table.as_str().into(),
            chain: "postrouting".into(),
            expr: rule.into(),
            comment: Some("anabranch N6".into()),
            ..Rule::default()
        }));
    }
    helper::apply_ruleset(&batch.to_nftables()).map_err(explain)
}

/// Filter for packets of UEs that bypass the program; `atsss::destinations` checks the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Name of the table.
    pub table: String,
    /// The tunnel's device, from which the packets come.
    pub device: String,
    /// Prefixes, and whether they are open; the first match applies.
    pub rules: Vec<(IpNet, bool)>,
}

impl Filter {
    /// Name of the table of the program with this `device`.
    pub fn table_name(device: &str) -> String {
        format!("{}_to", Nat::table_name(device))
    }
}

/// Installs the table, in place of an earlier one of the same name, in one transaction.
pub fn close(filter: &Filter) -> anyhow::Result<()> {
    let mut batch = anew(&filter.table);
    batch.add(NfListObject::Chain(Chain {
        family: NfFamily::INet,
        table: filter.table.as_str().into(),
        name: "prerouting".into(),
        _type: Some(NfChainType::Filter),
        hook: Some(NfHook::Prerouting),
        prio: Some(-150), // mangle: before destinations are translated
        policy: Some(NfChainPolicy::Accept),
        ..Chain::default()
    }));
    for (to, open) in &filter.rules {
        let verdict = if *open { Statement::Accept(None) } else { Statement::Drop(None) };
        let name = filter.device.as_str();
        let from = Expression::Named(NamedExpression::Meta(Meta { key: MetaKey::Iifname }));
        let rule = vec![
            compare(from, Operator::EQ, Expression::String(name.into())),
            within("daddr", to),
            Statement::Counter(Counter::Anonymous(None)),
            verdict,
        ];
        batch.add(NfListObject::Rule(Rule {
            family: NfFamily::INet,
            table: filter.table.as_str().into(),
            chain: "prerouting".into(),
            expr: rule.into(),
            comment: Some("anabranch [n6] open".into()),
            ..Rule::default()
        }));
    }
    helper::apply_ruleset(&batch.to_nftables()).map_err(explain)
}

/// Removes the table, if it exists. Without `nft` there is no table.
pub fn remove(name: &str) -> anyhow::Result<()> {
    match helper::apply_ruleset(&deletion(name).to_nftables()) {
        Ok(()) | Err(NftablesError::NftExecution { .. }) => Ok(()),
        Err(NftablesError::NftFailed { stderr, .. }) if stderr.contains("not permitted") => Ok(()),
        Err(error) => Err(explain(error)).with_context(|| format!("removing nftables table {name}")),
    }
}

/// A batch that removes the table, if it exists.
fn deletion(name: &str) -> Batch<'_> {
    let mut batch = Batch::new();
    // "add" ensures that "delete" succeeds.
    batch.add(table(name));
    batch.delete(table(name));
    batch
}

/// A batch that creates an empty table, in place of an existing one.
fn anew(name: &str) -> Batch<'_> {
    let mut batch = deletion(name);
    batch.add(table(name));
    batch
}

fn table(name: &str) -> NfListObject<'_> {
    NfListObject::Table(Table { family: NfFamily::INet, name: name.into(), handle: None })
}

/// Whether this field of the IP header is within the prefix.
fn within(field: &'static str, net: &IpNet) -> Statement<'static> {
    let value = Expression::Named(NamedExpression::Payload(Payload::PayloadField(PayloadField {
        protocol: if net.addr().is_ipv4() { "ip" } else { "ip6" }.into(),
        field: field.into(),
    })));
    let prefix = Expression::Named(NamedExpression::Prefix(Prefix {
        addr: Box::new(Expression::String(net.network().to_string().into())),
        len: u32::from(net.prefix_len()),
    }));
    compare(value, Operator::EQ, prefix)
}

fn by_interface<'a>(op: Operator, name: &'a str) -> Statement<'a> {
    let left = Expression::Named(NamedExpression::Meta(Meta { key: MetaKey::Oifname }));
    compare(left, op, Expression::String(name.into()))
}

fn compare<'a>(left: Expression<'a>, op: Operator, right: Expression<'a>) -> Statement<'a> {
    Statement::Match(Match { left, right, op })
}

fn explain(error: NftablesError) -> anyhow::Error {
    match error {
        NftablesError::NftExecution { inner, .. } => {
            anyhow::anyhow!("cannot run nft ({inner}): install nftables, or set [n6] mode = \"routed\"")
        }
        // nft reports "cache initialization failed", which suggests no remedy.
        NftablesError::NftFailed { stderr, .. } if stderr.contains("not permitted") => {
            anyhow::anyhow!("nft: not permitted: run as root, or give the program CAP_NET_ADMIN")
        }
        NftablesError::NftFailed { stderr, .. } => anyhow::anyhow!("nft: {}", stderr.trim()),
        other => other.into(),
    }
}
