//! The input of [`super::select`], and its limits.

use super::{Endpoint, Properties};

/// Maximum number of paths considered: interfaces, and slices on them.
pub const MAX_PATHS: usize = 256;
/// Maximum number of remote addresses.
pub const MAX_ENDPOINTS: usize = 64;
/// Maximum number of candidates in an answer; the best ones are kept.
pub const MAX_CANDIDATES: usize = 1024;

/// A requested connection.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Its properties.
    pub properties: Properties,
    /// Remote endpoints.
    pub remote: Vec<Endpoint>,
    /// The slices to which a route selection policy binds it, regardless of preferences; empty: none.
    pub bound_to: Vec<String>,
}
