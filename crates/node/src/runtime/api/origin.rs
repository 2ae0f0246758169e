//! Protection of listeners without a token: only programs of this machine are admitted, not pages in a
//! browser.
//!
//! A page of any site can send requests to 127.0.0.1, and can read the answers if its own name resolves to
//! that address (DNS rebinding). It cannot choose the headers `Host`, `Origin` and `Sec-Fetch-Site`, which
//! are checked here.

use super::problem::Problem;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};

/// A TCP listener without a token.
#[derive(Debug, Clone, Copy)]
pub struct Tokenless {
    /// Listening address.
    pub at: SocketAddr,
    /// Whether requests that change something are accepted.
    pub changes: bool,
}

/// Middleware of every request at such a listener.
pub async fn guard(State(listener): State<Tokenless>, request: Request, next: Next) -> Response {
    match listener.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl Tokenless {
    fn check(self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        let host = host(request)?;
        // A listener that is reachable from other machines has names that are not known here.
        if self.at.ip().is_loopback()
            && let Some(host) = host.as_ref().filter(|host| !self.is_own(host))
        {
            let detail = format!("host \"{host}\" is not this machine");
            let remedy = "use localhost, 127.0.0.1 or [::1]; for other names set [api] token_file";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail, remedy));
        }
        if let Some(why) = foreign(headers, host.as_ref()) {
            let remedy = "requests from pages of other sites are refused; programs send neither Origin nor Sec-Fetch-Site";
            return Err(Problem::new(StatusCode::FORBIDDEN, why, remedy));
        }
        if !self.changes && ![Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method()) {
            let detail = "changes need a token: every user and program of this machine can reach this port";
            let remedy =
                "set [api] token_file, or listen on \"unix:PATH\", or set [api] changes_without_token = true";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail, remedy));
        }
        Ok(())
    }

    /// Whether a name denotes this machine.
    fn is_own(self, host: &Authority) -> bool {
        let name = host.host();
        let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return address.to_canonical().is_loopback() || address == self.at.ip();
        }
        // RFC 6761 §6.3: these names denote this machine, whatever a resolver returns.
        let name = bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase();
        name == "localhost" || name.ends_with(".localhost")
    }
}

/// The host that the request names; `None` only with HTTP/1.0 without Host.
fn host(request: &Request) -> Result<Option<Authority>, Problem> {
    let wrong =
        |detail: &str| Problem::new(StatusCode::BAD_REQUEST, detail, "send one header Host: NAME:PORT");
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (first, more) = (hosts.next(), hosts.next());
    if more.is_some() {
        return Err(wrong("there are several headers Host"));
    }
    let named = match first {
        Some(host) => {
            let host = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
            Some(
                host.filter(|host| !host.as_str().contains('@'))
                    .ok_or_else(|| wrong("the header Host is not a name"))?,
            )
        }
        None if request.version() < Version::HTTP_11 => None,
        None => return Err(wrong("there is no header Host")),
    };
    // A request with an absolute URL names the host a second time (RFC 9112 §3.2.2).
    match (request.uri().authority(), &named) {
        (Some(whole), Some(named)) if whole != named => Err(wrong("Host and the URL name different servers")),
        (Some(whole), _) => Ok(Some(whole.clone())),
        (None, _) => Ok(named),
    }
}

/// The evidence that a page of another site sent the request; `None` if there is none.
fn foreign(headers: &HeaderMap, host: Option<&Authority>) -> Option<String> {
    for site in headers.get_all("sec-fetch-site") {
        if site != "same-origin" && site != "none" {
            return Some(format!(
                "request from a page of another site (Sec-Fetch-Site: {})",
                site.to_str().unwrap_or("?")
            ));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or("?");
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if own.and_then(|own| own.parse::<Authority>().ok()).as_ref() != host || host.is_none() {
            return Some(format!("request from a page of another site (Origin: {origin})"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn asked(changes: bool, method: &str, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let listener = Tokenless { at: "127.0.0.1:8080".parse().unwrap(), changes };
        listener.check(&request.body(Body::empty()).unwrap()).map_or_else(|problem| problem.status, |()| 200)
    }

    #[test]
    fn only_names_of_this_machine_are_accepted() {
        for own in [
            "localhost",
            "LocalHost:8080",
            "localhost.:1",
            "a.localhost",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert_eq!(asked(true, "GET", "/", &[("host", own)]), 200, "{own}");
            assert_eq!(asked(true, "GET", &format!("http://{own}/x"), &[("host", own)]), 200, "{own}");
        }
        for evil in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "[2001:db8::1]:8080",
            "0.0.0.0",
            "[::]",
            "127.1",
            "2130706433",
        ] {
            assert_eq!(asked(true, "GET", "/", &[("host", evil)]), 403, "{evil}");
            assert_eq!(asked(true, "GET", &format!("http://{evil}/"), &[("host", evil)]), 403, "{evil}");
            // The URL takes precedence over Host.
            assert_eq!(
                asked(true, "GET", &format!("http://{evil}/"), &[("host", "localhost")]),
                400,
                "{evil}"
            );
        }
        for bad in ["", "a b", "x@localhost"] {
            assert_eq!(asked(true, "GET", "/", &[("host", bad)]), 400, "{bad:?}");
        }
        assert_eq!(asked(true, "GET", "/", &[]), 400);
        assert_eq!(asked(true, "GET", "/", &[("host", "localhost"), ("host", "evil.example")]), 400);
    }

    #[test]
    fn pages_of_other_sites_are_recognised() {
        let own = ("host", "127.0.0.1:8080");
        for (headers, status) in [
            (&[][..], 200),
            (&[("origin", "http://127.0.0.1:8080")], 200),
            (&[("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "same-origin")], 200),
            (&[("sec-fetch-site", "none")], 200),
            (&[("origin", "null")], 403),
            (&[("origin", "https://evil.example")], 403),
            // Another port of this machine is another site, and so is another name.
            (&[("origin", "http://127.0.0.1:3000")], 403),
            (&[("origin", "http://localhost:8080")], 403),
            (&[("sec-fetch-site", "same-site")], 403),
            (&[("sec-fetch-site", "cross-site")], 403),
            (&[("origin", "http://127.0.0.1:8080"), ("origin", "http://evil.example")], 403),
        ] {
            let all = [&[own], headers].concat();
            for method in ["GET", "POST", "PUT", "DELETE"] {
                assert_eq!(asked(true, method, "/", &all), status, "{method} {headers:?}");
            }
        }
    }

    #[test]
    fn changes_require_more_than_local_access() {
        let own = [("host", "localhost")];
        for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "ANYTHING"] {
            assert_eq!(asked(false, method, "/", &own), 403, "{method}");
        }
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert_eq!(asked(false, method, "/", &own), 200, "{method}");
        }
    }
}
