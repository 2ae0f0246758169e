//! Configuration of listeners: addresses, tokens and certificates.

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Maximum number of fixed tokens of a listener: each is compared with every presented token.
const MOST_TOKENS: usize = 64;
/// Maximum length of the name of a tenant, issuer, audience or claim, bytes.
const MOST_NAME: usize = 256;

/// Permissions of a token's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// Everything.
    Operator,
    /// May see everything and change nothing.
    Reader,
    /// May see and change its own resources.
    Tenant,
}

/// `[api] tokens`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedToken {
    /// File with the token in its first line.
    pub file: PathBuf,
    /// Role of the holder.
    pub role: RoleName,
    /// With the role `tenant`: the tenant whose slices and sessions are accessible.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl FixedToken {
    fn check(&self) -> Result<(), String> {
        let file = self.file.display();
        match (self.role, self.tenant.as_deref()) {
            (RoleName::Tenant, None) => {
                Err(format!("[api] tokens, file \"{file}\": role \"tenant\" needs tenant = \"NAME\""))
            }
            (RoleName::Tenant, Some(name)) => check_name("[api] tokens tenant", name),
            (_, Some(_)) => {
                Err(format!("[api] tokens, file \"{file}\": tenant is for the role \"tenant\" only"))
            }
            (_, None) => Ok(()),
        }
    }
}

/// `[api] oauth`: JWT access tokens (RFC 9068) of one authorization server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuth {
    /// Required value of `iss`.
    pub issuer: String,
    /// Required member of `aud`.
    pub audience: String,
    /// Public keys (a JWK set, RFC 7517): `https://…`, or the path of a file.
    pub jwks: String,
    /// PEM file with certificate authorities for that URL; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Interval at which the keys are read again, seconds.
    #[serde(default = "three_hundred")]
    pub refresh_s: u32,
    /// Tolerated difference of clocks for `exp`, `nbf` and `iat`, seconds.
    #[serde(default = "thirty")]
    pub leeway_s: u32,
    /// Claim with the name of the tenant.
    #[serde(default = "client_id")]
    pub tenant_claim: String,
    /// Whether tokens of the type `JWT`, or without a type, are accepted besides `at+jwt`.
    #[serde(default)]
    pub any_type: bool,
}

fn three_hundred() -> u32 {
    300
}

fn thirty() -> u32 {
    30
}

fn client_id() -> String {
    "client_id".to_owned()
}

impl OAuth {
    fn check(&self) -> Result<(), String> {
        for (key, value) in
            [("issuer", &self.issuer), ("audience", &self.audience), ("tenant_claim", &self.tenant_claim)]
        {
            check_name(&format!("[api] oauth {key}"), value)?;
        }
        if !self.jwks.starts_with('/') && !is_https(&self.jwks) {
            return Err(format!(
                "[api] oauth jwks \"{}\": write \"https://HOST/PATH\", or \"/PATH\" of a file: keys that come in the \
                 clear can be forged",
                self.jwks
            ));
        }
        for (key, value, low, high) in
            [("refresh_s", self.refresh_s, 10, 86_400), ("leeway_s", self.leeway_s, 0, 300)]
        {
            if !(low..=high).contains(&value) {
                return Err(format!("[api] oauth {key} = {value}: give {low} to {high}"));
            }
        }
        Ok(())
    }
}

/// Whether a URL has the scheme https and a host, without user information.
fn is_https(url: &str) -> bool {
    url.strip_prefix("https://").is_some_and(|rest| {
        let host = rest.split('/').next().unwrap_or_default();
        !host.is_empty() && rest.chars().all(|c| c.is_ascii_graphic() && !"@#\\".contains(c))
    })
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if (1..=MOST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!("{what} \"{name}\": give 1 to {MOST_NAME} bytes without control characters"))
}

/// `tls`: certificate and key of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// Checks that a listener reachable from other machines uses TLS, unless that is disabled explicitly.
fn check_tls(section: &str, at: &Listen, tls: Option<&Tls>, without: bool) -> Result<(), String> {
    match (at, tls) {
        (_, Some(_)) if without => {
            Err(format!("{section} without_tls = true and tls exclude each other: remove one of them"))
        }
        (Listen::Tcp(address), None) if !address.ip().is_loopback() && !without => Err(format!(
            "{section} listen = \"{address}\" can be reached from elsewhere: add tls = {{ certificate = \"FILE\", \
             key = \"FILE\" }}, or set without_tls = true if the network is trusted"
        )),
        _ => Ok(()),
    }
}

/// The agent's REST interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// Listening address.
    pub listen: Listen,
    /// File with the operator's bearer token in its first line; some token is required unless unix or
    /// loopback.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Additional tokens, each with a role.
    #[serde(default)]
    pub tokens: Vec<FixedToken>,
    /// Tokens of an OAuth2 authorization server.
    #[serde(default)]
    pub oauth: Option<OAuth>,
    /// Certificate and key; required unless unix or loopback.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Whether other machines may connect without TLS.
    #[serde(default)]
    pub without_tls: bool,
    /// Whether requests that change something need no token on a loopback address.
    #[serde(default)]
    pub changes_without_token: bool,
    /// Maximum number of simultaneous connections.
    #[serde(default = "connections")]
    pub connections: u32,
    /// Maximum number of those per peer without a token; a peer is an address (IPv6: a /64), or a user at a
    /// Unix socket.
    #[serde(default = "connections_per_peer")]
    pub connections_per_peer: u32,
}

/// Limits of the connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Total.
    pub all: u32,
    /// Per peer, without a token.
    pub of_peer: u32,
}

impl Default for Connections {
    fn default() -> Self {
        Self { all: connections(), of_peer: connections_per_peer() }
    }
}

fn connections() -> u32 {
    256
}

fn connections_per_peer() -> u32 {
    64
}

impl Api {
    /// A Unix socket without a token.
    pub fn unix(path: &str) -> Self {
        let Connections { all, of_peer } = Connections::default();
        Self {
            listen: Listen::Unix(path.into()),
            token_file: None,
            tokens: Vec::new(),
            oauth: None,
            tls: None,
            without_tls: false,
            changes_without_token: false,
            connections: all,
            connections_per_peer: of_peer,
        }
    }

    /// The limits of the connections.
    pub fn connections(&self) -> Connections {
        Connections { all: self.connections, of_peer: self.connections_per_peer }
    }

    /// Checks the values; the error describes the first problem.
    pub fn check(&self) -> Result<(), String> {
        for (key, value) in
            [("connections", self.connections), ("connections_per_peer", self.connections_per_peer)]
        {
            if !(1..=100_000).contains(&value) {
                return Err(format!("[api] {key} = {value}: give 1 to 100000"));
            }
        }
        if self.tokens.len() > MOST_TOKENS {
            return Err(format!("[api] tokens: {} entries; at most {MOST_TOKENS}", self.tokens.len()));
        }
        self.tokens.iter().try_for_each(FixedToken::check)?;
        self.oauth.as_ref().map_or(Ok(()), OAuth::check)?;
        match &self.listen {
            Listen::Tcp(address) if !address.ip().is_loopback() && !self.requires_token() => Err(format!(
                "[api] listen = \"{address}\" can be reached from elsewhere: add token_file, tokens or oauth, or \
                 listen on \"unix:PATH\" or \"127.0.0.1:PORT\""
            )),
            listen => check_tls("[api]", listen, self.tls.as_ref(), self.without_tls),
        }
    }

    /// Whether every request needs a token.
    pub fn requires_token(&self) -> bool {
        self.token_file.is_some() || !self.tokens.is_empty() || self.oauth.is_some()
    }
}

/// `unix:PATH`, `ADDRESS:PORT` or `off`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// Nothing listens.
    Off,
    /// A Unix stream socket.
    Unix(PathBuf),
    /// A TCP socket.
    Tcp(SocketAddr),
}

impl TryFrom<String> for Listen {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        match text.strip_prefix("unix:") {
            Some("") => {
                Err("listen \"unix:\" lacks a path: write \"unix:/run/anabranch/ue.sock\"".to_owned())
            }
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "listen \"{text}\": write \"unix:PATH\", \"127.0.0.1:PORT\", \"[::1]:PORT\" or \"off\""
                )
            }),
        }
    }
}

/// The Prometheus exporter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Listening address; read-only, without a token.
    pub listen: Listen,
    /// Certificate and key; required unless unix or loopback.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// Whether other machines may connect without TLS.
    #[serde(default)]
    pub without_tls: bool,
}

impl Metrics {
    /// Checks the values; the error describes the first problem.
    pub fn check(metrics: Option<&Self>) -> Result<(), String> {
        metrics.map_or(Ok(()), |m| check_tls("[metrics]", &m.listen, m.tls.as_ref(), m.without_tls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        toml::from_str::<Api>(text).map_err(|e| e.to_string())?.check()
    }

    /// Listeners that are reachable from other machines require a token and TLS, with an error message;
    /// others require neither.
    #[test]
    fn reachable_listeners_require_token_and_tls() {
        const OAUTH: &str =
            "oauth = { issuer = \"i\", audience = \"a\", jwks = \"https://as.example/jwks\" }";
        const FIXED: &str = "tokens = [{ file = \"/t\", role = \"reader\" }]";
        let tls = "tls = { certificate = \"/c\", key = \"/k\" }";
        for far in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[2001:db8::1]:80", "[::ffff:127.0.0.1]:80"] {
            for token in ["token_file = \"/t\"", OAUTH, FIXED] {
                for (proof, fits) in
                    [("", false), ("without_tls = false", false), ("without_tls = true", true), (tls, true)]
                {
                    let checked = check(&format!("listen = \"{far}\"\n{token}\n{proof}"));
                    assert_eq!(checked.is_ok(), fits, "{far} {token} {proof}: {checked:?}");
                    assert!(fits || checked.unwrap_err().contains("without_tls"), "{far}");
                }
            }
            assert!(
                check(&format!("listen = \"{far}\"\n{tls}")).unwrap_err().contains("token_file"),
                "{far}"
            );
            let metrics = |more: &str| {
                let metrics = toml::from_str::<Metrics>(&format!("listen = \"{far}\"\n{more}")).unwrap();
                Metrics::check(Some(&metrics)).is_ok()
            };
            assert!(!metrics("") && metrics(tls) && metrics("without_tls = true"), "{far}");
        }
        for near in ["127.0.0.1:80", "[::1]:80", "unix:/x", "off"] {
            assert!(check(&format!("listen = \"{near}\"")).is_ok(), "{near}");
        }
        assert!(check(&format!("listen = \"127.0.0.1:1\"\nwithout_tls = true\n{tls}")).is_err());
    }

    #[test]
    fn tokens_and_servers_are_checked() {
        let with = |more: &str| check(&format!("listen = \"unix:/x\"\n{more}"));
        let oauth = |more: &str| with(&format!("oauth = {{ issuer = \"i\", audience = \"a\", {more} }}"));
        for (more, fits) in [
            ("jwks = \"/etc/jwks\"", true),
            ("jwks = \"https://as.example/jwks?x=1\"", true),
            ("jwks = \"http://as.example/jwks\"", false),
            ("jwks = \"http://127.0.0.1/jwks\"", false),
            ("jwks = \"jwks.json\"", false),
            ("jwks = \"https://\"", false),
            ("jwks = \"https://u@as.example/\"", false),
            ("jwks = \"/j\", leeway_s = 301", false),
            ("jwks = \"/j\", refresh_s = 9", false),
            ("jwks = \"/j\", tenant_claim = \"\"", false),
            ("jwks = \"/j\", secret = \"x\"", false),
        ] {
            assert_eq!(oauth(more).is_ok(), fits, "{more}");
        }
        for (token, fits) in [
            ("role = \"operator\"", true),
            ("role = \"tenant\", tenant = \"acme\"", true),
            ("role = \"tenant\"", false),
            ("role = \"tenant\", tenant = \"\"", false),
            ("role = \"reader\", tenant = \"acme\"", false),
            ("role = \"admin\"", false),
        ] {
            assert_eq!(with(&format!("tokens = [{{ file = \"/t\", {token} }}]")).is_ok(), fits, "{token}");
        }
    }
}
