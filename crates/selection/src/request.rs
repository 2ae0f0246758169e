//! What is asked of [`super::select`], and the bounds of it.

use super::{Endpoint, Properties};

/// Most paths that are looked at: interfaces, and slices on them.
pub const MAX_PATHS: usize = 256;
/// Most addresses of the peer.
pub const MAX_ENDPOINTS: usize = 64;
/// Most candidates in an answer; the best ones are kept.
pub const MAX_CANDIDATES: usize = 1024;

/// A connection somebody wants.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// What it should be like.
    pub properties: Properties,
    /// Where to.
    pub remote: Vec<Endpoint>,
    /// The slices that a route selection policy binds it to, whatever it would like better; empty: none does.
    pub bound_to: Vec<String>,
}
